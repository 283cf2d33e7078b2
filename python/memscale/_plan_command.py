"""``memscale plan``: what MemScale would do to a model on a GPU, before model and GPU are there.

`run` gathers, `show` is what a terminal gets. Where nothing fits, what was found says so, and what would.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sequence

from . import _core, _devices, _dry_run, _estimate, _subjects
from ._chart import duration, part_lines, quantity, size
from ._page import group_facts, technique, where
from ._planning import EVERYTHING, EXECUTOR, Request
from ._svg import pareto_svg
from ._terminal import columns, write
from .config import Config
from .errors import BudgetError, MemScaleError
from .plans import ParetoPoint, Plan
from .profiles import Profile

_MAX_COLUMNS = 200
_WORDS = _dry_run.Words("--mode {}", "--batch {}", "--budget {:g}")
_NOT_YET = "with techniques that this version cannot run yet: this is what the engine would decide"


@dataclasses.dataclass(frozen=True)
class Asked:
    """What was asked for; None: left out."""

    model: str
    batch: int | None = None
    seq: int | None = None
    gpu: str | None = None
    optimizer: str | None = None
    precision: str | None = None
    budget: float | None = None
    mode: str = "balanced"
    all: bool = False
    pareto: bool = False


@dataclasses.dataclass(frozen=True)
class Found:
    """What was found: a plan, or why there is none."""

    asked: Asked
    heading: tuple[str, ...]
    plan: Plan | None
    error: BudgetError | None
    points: tuple[ParetoPoint, ...]
    runs: bool  # can this version run the plan?
    steps: _dry_run.Steps

    def to_json(self) -> str:
        """The plan's own JSON; with its trade, both as one object; where there is no plan, why."""
        if self.plan is None:
            text, smallest = str(self.error), getattr(self.error, "smallest_peak_bytes", None)
            return json.dumps({"fits": False, "error": text, "smallest_peak_bytes": smallest}, indent=2)
        if not self.asked.pareto:
            return self.plan.to_json().rstrip("\n")
        points = [dataclasses.asdict(point) for point in self.points]
        return json.dumps({"plan": json.loads(self.plan.to_json()), "pareto": points}, indent=2)

    def svg(self) -> str:
        plan = self.plan
        chosen = None if plan is None else (plan.predicted_peak_bytes, plan.step_seconds)
        return pareto_svg(
            self.points,
            budget_bytes=None if plan is None else plan.budget_bytes,
            chosen=chosen,
            title=f"{self.heading[0]}: memory against time",
        )


def run(asked: Asked, progress: Callable[[str], None] = lambda text: None) -> Found:
    """Trace the step and plan it. Raises MemScaleError, in one line, for whatever cannot be."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
    device = _estimate.find_device(asked.gpu)
    if asked.budget is not None and asked.budget * 1e9 > device.usable_bytes:
        raise MemScaleError(
            f"a budget of {asked.budget:g} GB is more than {device.name} has: {size(device.usable_bytes)}"
        )
    config = Config(asked.mode, memory_budget_gb=asked.budget)
    with _estimate.quiet():
        progress(f"making {asked.model}")
        subject = _subjects.find(asked.model, asked.batch, asked.seq)
        return _plan(asked, config, device, subject, progress)


def _plan(
    asked: Asked,
    config: Config,
    device: _devices.Device,
    subject: _subjects.Subject,
    progress: Callable[[str], None],
) -> Found:
    precision = asked.precision or _estimate.default_precision(device.capability)
    first = subject.step(subject.batch)

    def trace(other: str | None, batch: int | None) -> Profile:
        progress(f"tracing {asked.model}" + (f", batch {batch}" if batch else ", in 16 bits" if other else ""))
        step = first if batch is None else subject.step(batch)
        made = step.optimizer if asked.optimizer is None else None
        made = made or _subjects.make_optimizer(asked.optimizer or "adamw", step.model)
        return _estimate.traced(asked.model, step, made, other or precision, asked.gpu)

    capabilities = EVERYTHING if asked.all else EXECUTOR
    batch = subject.batch if subject.resizable else 0
    steps = _dry_run.Steps(trace, batch or 0, can_be_half=_dry_run.is_whole(first.model, precision))
    made: Plan | None = None
    error: BudgetError | None = None
    points: tuple[ParetoPoint, ...] = ()
    progress("planning")
    try:
        made = _dry_run.make(steps, config, device, capabilities, _WORDS)
        points = made.pareto() if asked.pareto else ()
    except BudgetError as refused:
        error = refused
    limits = Request.of(config, device, capabilities)
    if error is not None and asked.pareto:
        points = limits.pareto(steps.profile, steps.half(limits))
    return Found(
        asked=asked,
        heading=tuple(_heading(asked, device, first, precision)),
        plan=made,
        error=error,
        points=points,
        runs=made is None or _runs(made),
        steps=steps,
    )


def _heading(asked: Asked, device: _devices.Device, step: _subjects.Step, precision: str) -> list[str]:
    n = sum(p.numel() for p in step.model.parameters())
    autocast = " autocast" if precision in ("bf16", "fp16") else ""
    default = " (default for this GPU)" if asked.precision is None and device.kind == "cuda" else ""
    given = type(step.optimizer).__name__ if step.optimizer is not None else "adamw"
    facts = [f"{quantity(n)} parameters", step.text, f"{precision}{autocast}{default}", asked.optimizer or given]
    return [f"{asked.model} on {device.name}", f"{', '.join(facts)}, mode {asked.mode}"]


def _runs(plan: Plan) -> bool:
    """Has this version all that the plan asks for?"""
    actions = {entry.action for entry in plan.entries} - {_core.ACTION_KEEP}
    return not plan.state and all(EXECUTOR.actions & 1 << action for action in actions)


# What a terminal gets


def show(found: Found, *, explain: bool = False) -> None:
    """Write it, as wide as the terminal is."""
    width = min(columns(), _MAX_COLUMNS)
    for line in found.heading:
        _estimate.wrap_text(line, width)
    write("")
    if found.plan is None:
        _estimate.wrap_text(str(found.error), width, "does not fit", 14)
    else:
        _show_plan(found, found.plan, width)
        if explain:
            write(f"\n{found.plan.explain().rstrip()}")
    if found.points:
        _show_points(found)


def _show_plan(found: Found, plan: Plan, width: int) -> None:
    _estimate.wrap_text(plan.describe(), width)
    if not found.runs:
        _estimate.wrap_text(_NOT_YET, width)
    write("")
    groups = plan.groups()
    rows = [("technique", "layers", "held for backward", "host", "time")]
    rows += [(technique(names), str(len(entries)), *group_facts(entries)[1:]) for names, entries in groups.items()]
    head, *lines = _columns(rows)
    write(head)
    for line, entries in zip(lines, groups.values()):
        write(line)
        _estimate.wrap_text(group_facts(entries)[0], width, "", 2)
    for name in plan.state:
        write(f"whole model: {name}")
    if plan.parts:
        write("")
        peak = plan.predicted_peak_bytes
        for line in part_lines(plan.parts, (peak, peak, peak), (plan.budget_bytes, "budget"), width):
            write(line)
        write("")
        _estimate.wrap_text(f"{size(peak)} {where(plan)}", width, "peak", 6)


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows, the first of them a head, as lines of columns; columns without anything are left out."""
    used = [i for i in range(len(rows[0])) if any(row[i] for row in rows[1:])]
    widths = {i: max(len(row[i]) for row in rows) for i in used}
    return ["  ".join(f"{row[i]:<{widths[i]}}" for i in used).rstrip() for row in rows]


def _show_points(found: Found) -> None:
    write("\nmemory against time, the fastest first")
    rows = [("peak", "step", "layers changed", "host", "whole model")]
    for p in found.points:
        host = size(p.host_bytes) if p.host_bytes else ""
        rows.append((size(p.peak_bytes), duration(p.step_seconds), str(p.n_changed), host, ", ".join(p.state)))
    for line in _columns(rows):
        write(line)


def write_svg(found: Found, path: str) -> None:
    """The drawing, into a file."""
    text = found.svg()
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
