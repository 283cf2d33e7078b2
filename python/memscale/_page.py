"""A plan as one page of HTML that needs nothing but itself: figures, why, the layers, and the trade as a drawing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from . import _core
from ._chart import duration, size
from ._svg import pareto_svg
from .errors import MemScaleError
from .plans import Entry, Plan

_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; color: #1f2933; background: #ffffff }
h1 { font-size: 1.5rem; margin-bottom: 0 } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: 0.25rem 1rem 0.25rem 0; border-bottom: 1px solid #d9dee4; vertical-align: top }
td.n, th.n { text-align: right } td.muted { color: #6b7785 }
pre { overflow-x: auto; font: 13px/1.45 ui-monospace, Menlo, Consolas, monospace; padding: 1rem; background: #f4f6f8 }
svg { max-width: 100%; height: auto } .print { color: #6b7785 } .scroll { overflow-x: auto }
@media (prefers-color-scheme: dark) {
body { color: #e4e7eb; background: #101214 } th, td { border-color: #323f4b } pre { background: #1b1e22 }
td.muted, .print { color: #9aa5b1 }
}
"""


def page(plan: Plan) -> str:
    """The page."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>MemScale plan {plan.fingerprint}</title><style>{_STYLE}</style></head><body>",
        f'<h1>MemScale plan</h1><p class="print">{plan.fingerprint}</p>',
        f"<p>{escape(_sentence(plan))}</p>",
        _table(("", ""), [(name, value) for name, value in facts(plan)]),
        "<h2>What is done</h2>",
        _table(("technique", "layers", "held", "host", "time"), _group_rows(plan)),
        *_trade(plan),
        "<h2>Why</h2>",
        f"<pre>{escape(plan.explain())}</pre>",
        "<h2>Layers</h2>",
        _table(("layer", "technique", "reason", "held", "host", "time"), [_row(plan, entry) for entry in plan.entries]),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def facts(plan: Plan) -> list[tuple[str, str]]:
    """The figures of a plan, with their names."""
    rows = [
        ("peak", f"{size(plan.predicted_peak_bytes)}, without MemScale {size(plan.baseline_peak_bytes)}"),
        ("budget", f"{size(plan.budget_bytes)}, of which {size(plan.margin_bytes)} are left free"),
    ]
    if plan.host_limit_bytes:
        rows.append(("host memory", f"{size(plan.host_bytes)} of {size(plan.host_limit_bytes)}"))
    if plan.step_seconds:
        times = f"{duration(plan.step_seconds)}, without MemScale {duration(plan.baseline_step_seconds)}"
        rows.append(("step", f"{times} ({plan.predicted_slowdown:+.1%}), modelled"))
    if plan.shape[0]:
        length = f", length {plan.shape[1]}" if plan.shape[1] else ""
        rows.append(("input", f"batch {plan.shape[0]}{length}"))
    if plan.place is not None:
        rows.append(("place of the peak", where(plan)))
    if plan.parts:
        parts = sorted(plan.parts.items(), key=lambda item: -item[1])
        rows.append(
            ("made of", ", ".join(f"{name} {size(n)}" for name, n in parts if n > plan.predicted_peak_bytes // 200))
        )
    return rows


def where(plan: Plan) -> str:
    """Where the peak is."""
    unit, phase = plan.place or (None, "")
    if phase == "optimizer":
        return "in the optimizer's step"
    if phase in ("state", "end", ""):
        return "between steps"
    return f"in {phase} of {unit}" if unit is not None else f"in {phase}, outside of layers"


def technique(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "keep"


def group_facts(entries: Iterable[Entry]) -> tuple[str, str, str, str]:
    """Of layers with the same techniques: their names, what they hold, host memory, time."""
    found = list(entries)
    kept, held, host, ns = (
        sum(getattr(e, field) for e in found) for field in ("kept_bytes", "held_bytes", "host_bytes", "extra_ns")
    )
    changed = any(e.action != _core.ACTION_KEEP for e in found)
    names = ranges(e.name for e in found)
    return (
        names,
        f"{_held(kept)} -> {_held(held)}" if changed else _held(held),
        size(host) if host else "",
        f"+{duration(ns / 1e9)}" if ns else "",
    )


_NUMBERED = re.compile(r"(.*?)(0|[1-9]\d*)")


def ranges(names: Iterable[str]) -> str:
    """Names of layers, numbers that follow each other as a range: h.0 to h.11."""
    found: list[tuple[str, int, int]] = []  # prefix, first, last
    for name in names:
        match = _NUMBERED.fullmatch(name)
        prefix, number = (match[1], int(match[2])) if match else (name, -1)
        if match and found and found[-1][0] == prefix and found[-1][2] == number - 1:
            found[-1] = (prefix, found[-1][1], number)
        else:
            found.append((prefix, number, number))
    texts = []
    for prefix, first, last in found:
        texts.append(prefix if first < 0 else f"{prefix}{first}" + (f" to {last}" if last > first else ""))
    return ", ".join(texts)


def _held(n_bytes: int) -> str:
    return size(n_bytes) if n_bytes >= 0 else f"-{size(-n_bytes)}"


def _sentence(plan: Plan) -> str:
    text = plan.describe()
    return f"{text[0].upper()}{text[1:]}."


def _group_rows(plan: Plan) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for techniques, entries in plan.groups().items():
        names, held, host, time = group_facts(entries)
        rows.append((technique(techniques), f"{len(entries)}: {names}", held, host, time))
    return rows + [(f"whole model: {name}", "", "", "", "") for name in plan.state]


def _row(plan: Plan, entry: Entry) -> tuple[str, ...]:
    _, held, host, time = group_facts([entry])
    return entry.name, technique(plan.layers[entry.name]), entry.reason, held, host, time


def _trade(plan: Plan) -> list[str]:
    try:
        points = plan.pareto()
    except MemScaleError:  # read from a file
        return []
    if not points:
        return []
    chosen = (plan.predicted_peak_bytes, plan.step_seconds)
    return ["<h2>Memory against time</h2>", pareto_svg(points, budget_bytes=plan.budget_bytes, chosen=chosen)]


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    def cells(tag: str, row: tuple[str, ...]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) + "</tr>"

    lines = ['<div class="scroll"><table>', *([cells("th", head)] if any(head) else [])]
    return "\n".join([*lines, *(cells("td", row) for row in rows), "</table></div>"])
