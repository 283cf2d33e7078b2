"""A plan as one self-contained HTML page: figures, reasons, the layers, and memory against time as a drawing."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from .._base.vocabulary import REASONS
from ..errors import MemScaleError
from .svg import pareto_svg
from .text import describe, facts, group_facts, technique_text

if TYPE_CHECKING:
    from ..plans import Entry, Plan

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


def plan_page(plan: Plan) -> str:
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


def _sentence(plan: Plan) -> str:
    text = describe(plan)
    return f"{text[0].upper()}{text[1:]}."


def _group_rows(plan: Plan) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for techniques, entries in plan.groups().items():
        names, held, host, time = group_facts(entries)
        rows.append((technique_text(techniques), f"{len(entries)}: {names}", held, host, time))
    return rows + [(f"whole model: {name}", "", "", "", "") for name in plan.model_options]


def _row(plan: Plan, entry: Entry) -> tuple[str, ...]:
    _, held, host, time = group_facts([entry])
    return entry.name, technique_text(plan.layers[entry.name]), REASONS[entry.reason], held, host, time


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
