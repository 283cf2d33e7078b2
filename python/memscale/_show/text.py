"""What people read: figures, where a peak is, names of techniques, ranges of layers, sentences about a plan.

Plans and simulations are read here, never made: their classes are above this package, and only their types are named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .. import _core
from .._base.vocabulary import ACTIONS, CATEGORY_NAMES, KEEP, MODEL_OPTIONS, PHASES

if TYPE_CHECKING:
    from ..plans import Entry, Plan
    from ..profiles import Segment


def size(n_bytes: int) -> str:
    """Bytes: three significant digits and a unit; GB are 1e9 bytes."""
    return _core.format_bytes(n_bytes)


def quantity(n: int) -> str:
    """A number of parameters."""
    for unit, one in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if n >= one:
            return f"{n / one:.{2 if n < 10 * one else 1}f} {unit}"
    return str(n)


def duration(seconds: float) -> str:
    """Seconds: three significant digits and a unit."""
    return _core.format_ns(round(seconds * 1e9))


def flops(gflops: int) -> str:
    """A rate of computation."""
    return f"{gflops / 1000:.1f} TFLOP/s" if gflops >= 10_000 else f"{gflops} GFLOP/s"


def bandwidth(mb_per_s: float) -> str:
    """A rate of copies."""
    return f"{mb_per_s / 1000:.1f} GB/s"


def cuda_version(number: int) -> str | None:
    """CUDA's way to write 12.4 is 12040; None for 0, which is unknown."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


_OTHER_PARTS = {"unused": "allocator waste", "rest": "rest, rounded up"}

Place = tuple["str | None", str]  # a layer, or None, and a phase


def peak_place(place: Place | None, timeline: Sequence[Segment] = ()) -> str:
    """Where a peak is. With the segments of its step, the loss is told apart from other work between layers."""
    layer, phase = place or (None, "setup")
    if layer is None and phase == "backward" and _is_of_loss(timeline):
        layer = "the loss"
    return _core.format_place(PHASES.index(phase), layer)


def _is_of_loss(timeline: Sequence[Segment]) -> bool:
    """Backward begins with the loss, which belongs to no layer: is its peak there?"""
    segments = [segment for segment in timeline if segment.phase == "backward"]
    if not segments or segments[0].unit is not None:
        return False
    return segments[0].peak_bytes == max(segment.peak_bytes for segment in segments)


def part_name(key: str) -> str:
    """The name of a part of a peak: a category, or what is left of the peak."""
    return CATEGORY_NAMES.get(key) or _OTHER_PARTS[key]


def technique_text(techniques: tuple[str, ...]) -> str:
    """The techniques of a layer."""
    return ", ".join(techniques) or "keep"


def group_facts(entries: Iterable[Entry]) -> tuple[str, str, str, str]:
    """Of layers with the same techniques: their names, what they hold, host memory, time."""
    group = list(entries)
    plain, held, host, ns = (
        sum(getattr(e, field) for e in group) for field in ("plain_bytes", "held_bytes", "host_bytes", "extra_ns")
    )
    changed = any(e.action != KEEP for e in group)
    names = ranges(e.name for e in group)
    return (
        names,
        f"{size(plain)} -> {size(held)}" if changed else size(held),
        size(host) if host else "",
        f"+{duration(ns / 1e9)}" if ns else "",
    )


_NUMBERED = re.compile(r"(.*?)(0|[1-9]\d*)")


def ranges(names: Iterable[str]) -> str:
    """Names of layers, numbers that follow each other as a range: h.0 to h.11."""
    runs: list[tuple[str, int, int]] = []  # prefix, first, last
    for name in names:
        match = _NUMBERED.fullmatch(name)
        prefix, number = (match[1], int(match[2])) if match else (name, -1)
        if match and runs and runs[-1][0] == prefix and runs[-1][2] == number - 1:
            runs[-1] = (prefix, runs[-1][1], number)
        else:
            runs.append((prefix, number, number))
    texts = []
    for prefix, first, last in runs:
        texts.append(prefix if first < 0 else f"{prefix}{first}" + (f" to {last}" if last > first else ""))
    return ", ".join(texts)


def facts(plan: Plan) -> list[tuple[str, str]]:
    """The figures of a plan, with their names."""
    rows = [
        ("peak", f"{size(plan.predicted_peak_bytes)}, without MemScale {size(plan.baseline_peak_bytes)}"),
        ("budget", f"{size(plan.budget_bytes)}, of which {size(plan.margin_bytes)} is kept as a margin"),
    ]
    if plan.needed_bytes != plan.predicted_peak_bytes:
        rows.append(("needed", f"{size(plan.needed_bytes)}, with what torch's allocator cannot use"))
    if plan.spacer_layer is not None:
        saved = size(plan.spacer_saved_bytes)
        rows.append(
            ("spacer", f"{size(plan.spacer_bytes)} while {plan.spacer_layer} runs forward, which saves {saved}")
        )
    if plan.occupied_bytes:
        rows.append(("occupied", f"{size(plan.occupied_bytes)} of the budget, by other tensors or kept free"))
    if plan.aim_bytes:
        rows.append(("aim", f"{size(plan.aim_bytes)}, which no plan fits"))
    if plan.full_speed_bytes:
        rows.append(("full speed", f"with a budget of {size(plan.full_speed_bytes)}: the step fits as it is"))
    if plan.host_limit_bytes:
        rows.append(("host memory", f"{size(plan.host_bytes)} of {size(plan.host_limit_bytes)}"))
    times = f"{duration(plan.step_seconds)}, without MemScale {duration(plan.baseline_step_seconds)}"
    rows.append(("step", f"{times} ({plan.predicted_slowdown:+.1%}), modelled"))
    if plan.shape[0]:
        length = f", length {plan.shape[1]}" if plan.shape[1] else ""
        rows.append(("input", f"batch {plan.shape[0]}{length}"))
    if plan.place is not None:
        rows.append(("place of the peak", peak_place(plan.place)))
    if plan.parts:
        parts = sorted(plan.parts.items(), key=lambda item: -item[1])
        rows.append(
            (
                "made of",
                ", ".join(f"{part_name(key)} {size(n)}" for key, n in parts if n > plan.predicted_peak_bytes // 200),
            )
        )
    return rows


def span(before: int, after: int) -> str:
    """Two sizes, the unit once where it is the same: 10.6 -> 7.17 GB."""
    first, last = size(before), size(after)
    return f"{first.removesuffix(last[last.index(' ') :])} -> {last}"


def describe(plan: Plan, budget: str = "memory_budget_gb={:g}") -> str:
    """What a plan does, in one sentence; ``budget`` is how a budget is set."""
    n = len(plan.entries)
    if plan.skipped:
        part = f"under a quarter of the budget of {size(plan.budget_bytes)}"
        return f"nothing to do: the peak is {size(plan.baseline_peak_bytes)}, {part}"
    changes = _changes(plan)
    figures = [f"peak {size(plan.predicted_peak_bytes)}"]
    if changes:
        figures = [f"peak {span(plan.baseline_peak_bytes, plan.predicted_peak_bytes)}"]
        figures += [f"{size(plan.host_bytes)} of host memory"] if plan.host_bytes else []
        figures += [f"step {plan.predicted_slowdown * 100:+.0f} %"]
    return f"{changes or f'keep all {n} layers'}: {', '.join(figures)} ({_room(plan, budget)})"


def _room(plan: Plan, budget: str) -> str:
    """What a plan was given, and how to have more speed."""
    facts = []
    if plan.aim_bytes:
        facts.append(f"no plan fits the aim of {size(plan.aim_bytes)}, this one the usable {size(plan.budget_bytes)}")
    if plan.full_speed_bytes:
        facts.append(f"fits as it is; {budget.format(plan.full_speed_bytes / 1e9)} keeps full speed")
    if plan.is_cramped:
        facts.append("torch's allocator has to return memory in every step")
    return "; ".join(facts) or f"budget {size(plan.budget_bytes)}"


def _changes(plan: Plan) -> str:
    """What a plan changes, without figures; empty if that is nothing."""
    n = len(plan.entries)
    groups = [entries for techniques, entries in plan.groups().items() if techniques]
    texts = [(ACTIONS[entries[0].action].sentence, len(entries)) for entries in groups]
    counts = [f"{count} of {n} layers" if i == 0 else count for i, (_, count) in enumerate(texts)]
    changes = [sentence % count for (sentence, _), count in zip(texts, counts)]
    options = [option.sentence.rstrip(".") for option in MODEL_OPTIONS if plan.option_flags & option.flag]
    return ", ".join(changes + [text[0].lower() + text[1:] for text in options])
