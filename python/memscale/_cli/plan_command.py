"""``memscale plan``: what MemScale would do to a model on a GPU, before you have the model or the GPU.

`run` gathers, `show` writes what a terminal gets. If no plan fits, the report names what would.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from .._base.step_kinds import default_precision
from .._base.vocabulary import ACTIONS
from .._core import Device
from .._plan.advice import COMMAND
from .._plan.dry_run import make_plan
from .._plan.request import Request
from .._plan.steps import StepChange, Steps, change_text, is_whole
from .._show.bars import part_lines
from .._show.svg import pareto_svg
from .._show.terminal import MAX_COLUMNS, RED, Progress, align, columns, wrap_text, write
from .._show.text import describe, duration, group_facts, peak_place, size, technique_text
from ..config import Config
from ..errors import BudgetError
from ..plans import ParetoPoint, Plan
from ..profiles import Profile
from .listings import show_list
from .options import PlanOptions, read_options
from .subjects import Report, Subject, find_device, find_subject, heading, optimizer_name, quiet, trace

_NOT_YET = "with techniques that this version cannot run yet: this is what the engine would decide"


def run_plan(arguments: argparse.Namespace) -> int:
    if show_list(arguments):
        return 0
    progress = Progress(sys.stderr, delay=1.0)
    try:
        report = run(read_options(PlanOptions, arguments, pareto=arguments.pareto is not None), progress)
    finally:
        progress.close()
    if arguments.pareto:
        write_svg(report, arguments.pareto)
    if arguments.json:
        write(report.to_json())
    else:
        show(report, explain=arguments.explain)
    return 3 if report.plan is None else 0


@dataclasses.dataclass(frozen=True)
class PlanReport:
    """The answer: a plan, or why there is none."""

    options: PlanOptions
    heading: tuple[str, ...]
    plan: Plan | None
    error: BudgetError | None
    points: tuple[ParetoPoint, ...]
    runs: bool  # can this version run the plan?
    steps: Steps

    def to_json(self) -> str:
        """The plan's own JSON; with `--pareto`, the plan and its points as one object; without a plan, the reason."""
        if self.plan is None:
            text, smallest = str(self.error), getattr(self.error, "smallest_peak_bytes", None)
            return json.dumps({"fits": False, "error": text, "smallest_peak_bytes": smallest}, indent=2)
        if not self.options.pareto:
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


def run(options: PlanOptions, progress: Report = lambda text: None) -> PlanReport:
    """Trace the step and plan it. Raises MemScaleError, with a message of one line, if that is not possible."""
    with quiet():
        device = find_device(options)
        config = Config(options.mode, memory_budget_gb=options.budget)
        return _plan(options, config, device, find_subject(options, progress), progress)


def _plan(options: PlanOptions, config: Config, device: Device, subject: Subject, progress: Report) -> PlanReport:
    precision = options.precision or default_precision(device.capability)
    first = subject.step(subject.batch)

    def traced(change: StepChange) -> Profile:
        batch = change.batch
        progress(f"tracing {options.model}{change_text(change)}")
        step = first if batch is None else subject.step(batch)
        return trace(options, step, change.precision or precision, change.optimizer, plans=True)

    batch = (subject.batch or 0) if subject.resizable else 0
    steps = Steps(traced, batch, can_be_half=is_whole(first.model, precision))
    plan: Plan | None = None
    error: BudgetError | None = None
    points: tuple[ParetoPoint, ...] = ()
    progress("planning")
    try:
        names = {"precision": precision, "optimizer": optimizer_name(options, first)}
        plan = make_plan(steps, config, device, COMMAND, unrunnable=options.all, **names)
        points = plan.pareto() if options.pareto else ()
    except BudgetError as refusal:
        error = refusal
    if error is not None and options.pareto:
        request = Request(config, device, unrunnable=options.all)
        points = request.pareto(steps.profile, steps.half(request))
    return PlanReport(
        options=options,
        heading=heading(options, device, first, precision, f"mode {options.mode}"),
        plan=plan,
        error=error,
        points=points,
        runs=plan is None or _runs(plan),
        steps=steps,
    )


def _runs(plan: Plan) -> bool:
    """Can this version run all that the plan asks for?"""
    return not plan.model_options and all(ACTIONS[entry.action].is_runnable for entry in plan.entries)


# What a terminal gets


def show(report: PlanReport, *, explain: bool = False) -> None:
    """Write it, as wide as the terminal is."""
    width = min(columns(), MAX_COLUMNS)
    for line in report.heading:
        wrap_text(line, width)
    write("")
    if report.plan is None:
        wrap_text(str(report.error), width, "does not fit", 14, RED)
    else:
        _show_plan(report, report.plan, width)
        if explain:
            write(f"\n{report.plan.explain().rstrip()}")
    if report.points:
        _show_points(report)


def _show_plan(report: PlanReport, plan: Plan, width: int) -> None:
    wrap_text(describe(plan, COMMAND.budget), width)
    if not report.runs:
        wrap_text(_NOT_YET, width)
    write("")
    groups = plan.groups()
    rows = [("technique", "layers", "held for backward", "host", "time")]
    rows += [(technique_text(names), str(len(entries)), *group_facts(entries)[1:]) for names, entries in groups.items()]
    head, *lines = align(rows)
    write(head)
    for line, entries in zip(lines, groups.values()):
        write(line)
        wrap_text(group_facts(entries)[0], width, "", 2)
    for name in plan.model_options:
        write(f"whole model: {name}")
    if plan.parts:
        write("")
        peak = plan.predicted_peak_bytes
        for line in part_lines(plan.parts, (peak, peak, peak), (plan.budget_bytes, "budget"), width):
            write(line)
        write("")
        wrap_text(f"{size(peak)} {peak_place(plan.place)}", width, "peak", 6)
        times = f"{duration(plan.step_seconds)}, {duration(plan.baseline_step_seconds)} without MemScale"
        wrap_text(f"{times}, modelled from the device's rates", width, "step", 6)


def _show_points(report: PlanReport) -> None:
    write("\nmemory against time, the fastest first")
    rows = [("peak", "step", "layers changed", "host", "whole model")]
    for p in report.points:
        host = size(p.host_bytes) if p.host_bytes else ""
        rows.append((size(p.peak_bytes), duration(p.step_seconds), str(p.n_changed), host, ", ".join(p.model_options)))
    for line in align(rows):
        write(line)


def write_svg(report: PlanReport, path: str) -> None:
    """The drawing, into a file."""
    text = report.svg()
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
