"""Bars of bytes for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .terminal import DIM, PLAIN, RED, can_write, has_colour
from .text import part_name, size

_BLOCKS = " ▏▎▍▌▋▊▉█"
_FANCY = ("█", "▒", "│")  # a bar, what is uncertain, the limit
_ASCII = ("#", "=", "|")
_MIN_CELLS = 12
# What is drawn, from left to right: categories of a peak that share a line, and a short name for narrow terminals.
_LINES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("parameters",), "parameters"),
    (("gradients",), "gradients"),
    (("optimizer_state",), "optimizer"),
    (("activations",), "activations"),
    (("temporaries",), "temporaries"),
    (("buffers", "inputs"), "inputs"),
    (("library_workspaces",), "workspaces"),
    (("unused",), "unused"),
    (("rest",), "rest"),
)


class Bars:
    """Bars over a scale from 0 to `top` bytes, with a line at `limit`. Empty if there is no room for bars."""

    def __init__(self, top: int, limit: int, n_cells: int) -> None:
        self.n_cells = n_cells if n_cells >= _MIN_CELLS else 0
        self.top = max(top, 1)
        self.limit_cell = min(limit * self.n_cells // self.top, self.n_cells)
        self.has_blocks = can_write(_BLOCKS + "".join(_FANCY))
        self.full, self.shade, self.line = _FANCY if self.has_blocks else _ASCII
        self.has_colour = has_colour()

    def bar(self, start: int, end: int, shaded: int = 0) -> str:
        """A bar from start to end, shaded up to `shaded`. Even the smallest bar is visible."""
        if not self.n_cells:
            return ""
        cells = [" "] * (self.n_cells + 1)
        first = self._round(start, 1)
        if shaded:
            last, beyond = self._round(end, 1), max(self._round(shaded, 1), self._round(end, 1) + 1)
            cells[first:beyond] = self.full * (last - first) + self.shade * (beyond - last)
        elif end > start:
            whole, rest = divmod(max(self._round(end - start, 8), 1), 8)
            cells[first : first + whole + 1] = self.full * whole + self._part(rest, is_all=whole == 0)
        return self._with_limit(cells[: self.n_cells + 1])

    def axis(self, text: str, indent: int, width: int) -> str:
        """What the line is, below it."""
        at = indent + self.limit_cell
        return " " * (at if at + len(text) <= width else at + 1 - len(text)) + text if self.n_cells else ""

    def _round(self, n_bytes: int, parts: int) -> int:
        """Bytes as cells, or parts of cells."""
        return (2 * n_bytes * self.n_cells * parts + self.top) // (2 * self.top)

    def _part(self, eighths: int, is_all: bool) -> str:
        """The last cell, which is filled in part."""
        if self.has_blocks:
            return _BLOCKS[eighths]
        return self.full if eighths >= 4 else "." if is_all else " "

    def _with_limit(self, cells: list[str]) -> str:
        if not self.has_colour:
            cells[self.limit_cell] = self.line
            return "".join(cells)
        below, beyond = "".join(cells[: self.limit_cell]), "".join(cells[self.limit_cell + 1 :]).rstrip()
        line = f"{below}{DIM}{self.line}{PLAIN}"
        return f"{line}{RED}{beyond}{PLAIN}" if beyond else line


def part_lines(
    parts: Mapping[str, int], peak: tuple[int, int, int], limit: tuple[int, str], width: int
) -> Iterator[str]:
    """The parts of a peak, each starting where the one before ends, and the limit as a line through all of them.

    Args:
        parts: in bytes, by category.
        peak: its bytes, and the lower and upper end of its error band.
        limit: its bytes, and what it is.
        width: of the terminal.
    """
    peak_bytes, low_bytes, high_bytes = peak
    sizes = [
        (short if width < 72 else ", ".join(part_name(key) for key in keys), sum(parts[key] for key in keys))
        for keys, short in _LINES
        if keys[0] in parts
    ]
    label = max(len(name) for name, _ in sizes)
    gap = 2 if width >= 24 else 1
    indent = label + 7 + 2 * gap
    bars = Bars(max(limit[0], high_bytes), limit[0], width - indent - 1)
    start = 0
    for name, n_bytes in sizes:
        bar = bars.bar(start, start + n_bytes)
        yield f"{name:<{label}}{'':<{gap}}{size(n_bytes):>7}{'':<{gap}}{bar}".rstrip()
        start += n_bytes
    bar = bars.bar(0, low_bytes, shaded=high_bytes if high_bytes > low_bytes else 0)
    yield f"{'peak':<{label}}{'':<{gap}}{size(peak_bytes):>7}{'':<{gap}}{bar}".rstrip()
    axis = bars.axis(f"{size(limit[0])} {limit[1]}", indent, width)
    if axis:
        yield axis
