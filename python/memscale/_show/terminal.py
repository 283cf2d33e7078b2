"""What commands write: text on standard output that fits a terminal, colour where it is wanted, a line of progress.

Streams may be closed, pipes, or of any encoding; none of that is an error here.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import textwrap
import threading
from collections.abc import Iterable, Sequence
from typing import TextIO

GREEN, RED, DIM, PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[2m", "\x1b[0m"

Row = tuple[str, str]

MAX_COLUMNS = 200  # wider lines are hard to read
_FIGURE = re.compile(r"(\d) (?=[kMGT]?B\b|[mu]?s\b|[BMk] param)")  # and its unit, which stay on one line


class Progress:
    """One line on a terminal that shows what is being done, and is removed afterwards.

    With a delay nothing is shown for that many seconds, so that quick work shows nothing at all.
    """

    def __init__(self, stream: TextIO | None, delay: float = 0.0) -> None:
        self._stream = stream if is_terminal(stream) else None
        self._width = 0
        self._text = ""
        self._lock = threading.Lock()  # over all of it: the timer writes, too
        self._timer: threading.Timer | None = None
        if delay > 0 and self._stream is not None:
            self._timer = threading.Timer(delay, self._end_delay)
            self._timer.daemon = True
            self._timer.start()

    def __call__(self, text: str) -> None:
        with self._lock:
            self._text = text
            if self._timer is None:
                self._show()

    def clear(self) -> None:
        with self._lock:
            self._text = ""
            self._erase()

    def close(self) -> None:
        """Remove the line; nothing is shown from now on."""
        if self._timer is not None:
            self._timer.cancel()
        self.clear()

    def _end_delay(self) -> None:
        with self._lock:
            self._timer = None
            if self._text:
                self._show()

    def _show(self) -> None:
        self._erase()
        if self._stream is not None:
            self._width = len(self._text) + 3
            self._stream.write(f"{self._text}...")
            self._stream.flush()

    def _erase(self) -> None:
        if self._stream is not None and self._width:
            self._stream.write(f"\r{'':<{self._width}}\r")
            self._stream.flush()
        self._width = 0


def table(title: str, rows: Iterable[Row]) -> None:
    """Rows of a name and a text under a title; nothing at all without rows."""
    content = list(rows)
    if not content:
        return
    if title:
        write(f"\n{title}")
    margin = "  " if title else ""
    width = max(len(name) for name, _ in content)
    for name, text in content:
        wrapped = lines(text, indent=len(margin) + width + 2)
        write(f"{margin}{name:<{width}}  {wrapped[0]}")
        for line in wrapped[1:]:
            write(f"{margin}{'':<{width}}  {line}")


def lines(text: str, indent: int) -> list[str]:
    """A text as it fits a terminal after an indent; one line where the output goes elsewhere, to be searched."""
    flat = " ".join(text.split())
    if not is_terminal(sys.stdout):
        return [flat]
    width = max(columns() - indent, 30)
    return textwrap.wrap(flat, width, break_long_words=False, break_on_hyphens=False) or [""]


def wrap_text(text: str, width: int, name: str = "", indent: int = 0, colour: str = "") -> None:
    """A text next to a name. In one line where the output is no terminal, to be searched."""
    label, text = f"{name:<{indent}}", _FIGURE.sub("\\1\xa0", text)
    if colour and has_colour():
        label = f"{colour}{label}{PLAIN}"
    if not is_terminal(sys.stdout):
        output = [f"{label}{text}"]
    elif width - indent >= 24:
        first, *rest = textwrap.wrap(text, width - indent, break_on_hyphens=False) or [""]
        output = [f"{label}{first}", *(f"{'':<{indent}}{line}" for line in rest)]
    else:
        margin = "  " if name else ""
        output = textwrap.wrap(name.strip(), width)
        output += textwrap.wrap(text, width, initial_indent=margin, subsequent_indent="  ")
    for line in output:
        write(line.replace("\xa0", " ").rstrip())


def align(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows, the first of them a head, as lines of columns; columns without anything are left out."""
    used = [i for i in range(len(rows[0])) if any(row[i] for row in rows[1:])]
    widths = {i: max(len(row[i]) for row in rows) for i in used}
    return ["  ".join(f"{row[i]:<{widths[i]}}" for i in used).rstrip() for row in rows]


def columns() -> int:
    """The width of the terminal; 80 where there is none."""
    return shutil.get_terminal_size().columns


def is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()  # None: the process was started with that stream closed


def has_colour() -> bool:
    return is_terminal(sys.stdout) and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def can_write(characters: str) -> bool:
    """Can standard output's encoding hold these?"""
    try:
        characters.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True


def write(text: str) -> None:
    """A line on standard output; what its encoding cannot hold is written as an escape."""
    if sys.stdout is not None:
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def drop_output() -> None:
    """Drop what is left in the buffer: Python would try to write it again at exit, and report an error."""
    with contextlib.suppress(AttributeError, OSError):  # not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
