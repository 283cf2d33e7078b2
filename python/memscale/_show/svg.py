"""Memory against time as a self-contained SVG drawing.

The drawing brings its own background, dark where the reader's colours are dark, so that it can be read on any page.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from .text import duration, size

if TYPE_CHECKING:
    from ..plans import ParetoPoint

_WIDTH, _HEIGHT = 720, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 28, 52, 62
_STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2933 }
.title { font-size: 15px; font-weight: 600 } .small { font-size: 12px; fill: #52606d }
.panel { fill: #ffffff } .grid { stroke: #e4e7eb } .axis { stroke: #7b8794 }
.trade { fill: none; stroke: #2563eb; stroke-width: 2 } .point { fill: #2563eb }
.budget { stroke: #c2410c; stroke-width: 1.5; stroke-dasharray: 6 4 } .over { fill: #c2410c; fill-opacity: 0.07 }
.limit { fill: #c2410c } .chosen { fill: none; stroke: #047857; stroke-width: 3 } .mine { fill: #047857 }
@media (prefers-color-scheme: dark) {
text { fill: #e4e7eb } .small { fill: #9aa5b1 } .panel { fill: #17191d }
.grid { stroke: #323f4b } .axis { stroke: #9aa5b1 }
.trade { stroke: #60a5fa } .point { fill: #60a5fa } .budget { stroke: #fb923c } .over { fill: #fb923c }
.limit { fill: #fb923c } .chosen { stroke: #34d399 } .mine { fill: #34d399 }
}
"""

Scale = tuple[float, float, list[float]]  # lowest, highest, ticks


def pareto_svg(
    points: Sequence[ParetoPoint],
    *,
    budget_bytes: int | None = None,
    chosen: tuple[int, float] | None = None,
    title: str = "Memory against time",
) -> str:
    """Memory against time as an SVG document.

    Args:
        points: of ``plan.pareto()``; at least one.
        budget_bytes: where a line is drawn.
        chosen: peak bytes and seconds of the plan that is marked.
        title: text above the drawing.
    """
    if not points:
        raise ValueError("pareto_svg needs at least one point")
    return "\n".join(_Drawing(points, budget_bytes, chosen).lines(title)) + "\n"


class _Drawing:
    def __init__(
        self, points: Sequence[ParetoPoint], budget_bytes: int | None, chosen: tuple[int, float] | None
    ) -> None:
        self.points, self.budget, self.chosen = points, budget_bytes, chosen
        marked = [] if chosen is None else [chosen]
        sizes = [p.peak_bytes / 1e9 for p in points] + [peak / 1e9 for peak, _ in marked]
        times = [p.step_seconds for p in points] + [seconds for _, seconds in marked]
        self.in_ms = max(times) < 1
        self.times_by = 1e3 if self.in_ms else 1.0
        if budget_bytes is not None and self._is_near(budget_bytes / 1e9, sizes):
            sizes.append(budget_bytes / 1e9)
        self.x_scale, self.y_scale = _scale(sizes), _scale([t * self.times_by for t in times])

    @staticmethod
    def _is_near(budget: float, sizes: list[float]) -> bool:
        """Is the budget near the points? A line far away would leave them no room."""
        span = max(max(sizes) - min(sizes), max(sizes) / 4)
        return min(sizes) - span <= budget <= max(sizes) + span

    def x(self, n_bytes: float) -> float:
        low, high, _ = self.x_scale
        return _LEFT + (n_bytes / 1e9 - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, seconds: float) -> float:
        low, high, _ = self.y_scale
        return _HEIGHT - _BOTTOM - (seconds * self.times_by - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    def lines(self, title: str) -> Iterator[str]:
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
            f'height="{_HEIGHT}" role="img">'
        )
        yield f"<title>{_text(title)}</title>"
        yield f"<style>{_STYLE}</style>"
        yield f'<rect class="panel" fill="#ffffff" width="{_WIDTH}" height="{_HEIGHT}" rx="8"/>'
        yield f'<text class="title" x="{_LEFT}" y="28">{_text(title)}</text>'
        yield from self._axes()
        if self.budget is not None:
            yield from self._budget_line(self.budget)
        path = " ".join(f"{self.x(p.peak_bytes):.1f},{self.y(p.step_seconds):.1f}" for p in self.points)
        yield f'<polyline class="trade" fill="none" points="{path}"/>'
        for p in self.points:
            at = f'cx="{self.x(p.peak_bytes):.1f}" cy="{self.y(p.step_seconds):.1f}"'
            yield f'<circle class="point" {at} r="4"><title>{_text(_point_text(p))}</title></circle>'
        if self.chosen is not None:
            yield from self._mark(*self.chosen)
        yield "</svg>"

    def _axes(self) -> Iterator[str]:
        bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        for tick in self.x_scale[2]:
            x = self.x(tick * 1e9)
            yield f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}"/>'
            yield f'<text class="small" text-anchor="middle" x="{x:.1f}" y="{bottom + 18}">{tick:g}</text>'
        for tick in self.y_scale[2]:
            y = self.y(tick / self.times_by)
            yield f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>'
            yield f'<text class="small" text-anchor="end" x="{_LEFT - 8}" y="{y + 4:.1f}">{tick:g}</text>'
        yield f'<path class="axis" fill="none" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>'
        middle = (_TOP + bottom) / 2
        yield f'<text text-anchor="middle" x="{(_LEFT + right) / 2:.1f}" y="{_HEIGHT - 16}">peak memory, GB</text>'
        turned = f'transform="translate(22 {middle:.1f}) rotate(-90)"'
        yield f'<text text-anchor="middle" {turned}>time of a step, {"ms" if self.in_ms else "s"}</text>'

    def _budget_line(self, budget: int) -> Iterator[str]:
        low, high, _ = self.x_scale
        text = f"budget {size(budget)}"
        right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
        if not low <= budget / 1e9 <= high:
            side = "to the right" if budget / 1e9 > high else "to the left"
            yield f'<text class="limit" text-anchor="end" x="{right}" y="{_TOP - 8}">{text}, off {side}</text>'
            return
        x = self.x(budget)
        yield f'<rect class="over" x="{x:.1f}" y="{_TOP}" width="{right - x:.1f}" height="{bottom - _TOP}"/>'
        yield f'<line class="budget" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}"/>'
        anchor = "end" if x > (_LEFT + right) / 2 else "start"
        yield f'<text class="limit" text-anchor="{anchor}" x="{x:.1f}" y="{_TOP - 8}">{text}</text>'

    def _mark(self, peak_bytes: int, seconds: float) -> Iterator[str]:
        x, y = self.x(peak_bytes), self.y(seconds)
        yield f'<circle class="chosen" fill="none" cx="{x:.1f}" cy="{y:.1f}" r="9"/>'
        is_right = x > _WIDTH * 0.6
        anchor, label = ("end", x - 14) if is_right else ("start", x + 14)
        text, top = f"this plan: {size(peak_bytes)}, {duration(seconds)}", max(y - 10, _TOP + 14)
        yield f'<text class="mine" text-anchor="{anchor}" x="{label:.1f}" y="{top:.1f}">{text}</text>'


def _point_text(p: ParetoPoint) -> str:
    texts = [size(p.peak_bytes), duration(p.step_seconds), f"{p.n_changed} layers changed", *p.model_options]
    return ", ".join(texts + ([f"{size(p.host_bytes)} of host memory"] if p.host_bytes else []))


def _scale(values: list[float]) -> Scale:
    """A range around the values with about six ticks at round numbers. It begins at 0 where that is not far."""
    low, high = min(values), max(values)
    if low <= (high - low) or high == 0:
        low = 0.0
    if high <= low:
        low, high = low * 0.9, high * 1.1 or 1.0
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [round(i * step, 12) for i in range(first, last + 1)]
    return ticks[0], ticks[-1], ticks


def _text(text: str) -> str:
    """As XML: escaped, without the control characters that it does not allow."""
    return escape("".join(c for c in text if c >= " " or c in "\t\n"))
