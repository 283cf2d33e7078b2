"""What tensors on the CPU really take: torch's own reports of every block that it allocates and frees.

The reference for predictions, so it shares nothing with the package. A meter is opened before the model is built and
follows each block by its address: nothing needs to be guessed of what was there before. Marks divide the time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # figures are wanted, no messages

import torch
from torch._C._profiler import _EventType


class Report(NamedTuple):
    """A block was allocated, or freed (its size is negative then)."""

    time_ns: int
    address: int
    n_bytes: int
    path: str  # the operations that it happened in


class Span(NamedTuple):
    """What was measured between the begin and the end of a mark."""

    before: int
    peak: int
    after: int
    peak_ns: int


class Meter:
    """Records between enter and exit; the figures are available afterwards."""

    def __init__(self) -> None:
        self.marks: dict[str, Span] = {}
        self._reports: list[Report] = []

    def __enter__(self) -> Meter:
        cpu = torch.profiler.ProfilerActivity.CPU
        self._profiler = torch.profiler.profile(activities=[cpu], profile_memory=True)
        self._profiler.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._profiler.__exit__(*exception)
        if exception[0] is None:
            self._read(self._profiler.profiler.kineto_results.experimental_event_tree())
        del self._profiler

    @contextlib.contextmanager
    def mark(self, name: str) -> Iterator[None]:
        with torch.profiler.record_function(f"meter:{name}"):
            yield

    def __getitem__(self, name: str) -> Span:
        return self.marks[name]

    def at_peak(self, name: str, smallest: int = 0) -> list[tuple[int, str]]:
        """The blocks at the peak of a mark, the largest first: bytes, and what allocated it."""
        live: dict[int, tuple[int, str]] = {}
        for report in self._reports:
            if report.time_ns > self.marks[name].peak_ns:
                break
            if report.n_bytes > 0:
                live[report.address] = (report.n_bytes, report.path)
            else:
                live.pop(report.address, None)
        return sorted((block for block in live.values() if block[0] >= smallest), reverse=True)

    def _read(self, roots: Any) -> None:
        marks: list[tuple[str, int, int]] = []
        stack = [(event, "") for event in roots]
        while stack:
            event, path = stack.pop()
            if event.tag == _EventType.Allocation:
                fields = event.extra_fields
                if fields.device.type == "cpu":
                    self._reports.append(Report(event.start_time_ns, fields.ptr, fields.alloc_size, path))
                continue
            if event.name.startswith("meter:"):
                marks.append((event.name[6:], event.start_time_ns, event.end_time_ns))
            elif event.name.startswith(("aten::", "autograd::")):
                path = f"{path}/{event.name}"
            stack.extend((child, path) for child in event.children)
        self._reports.sort(key=lambda report: report.time_ns)
        self.marks = {name: self._measure(start, end) for name, start, end in marks}

    def _measure(self, start: int, end: int) -> Span:
        live: dict[int, int] = {}
        current = before = peak = peak_ns = 0
        begun = False
        for report in self._reports:
            if not begun and report.time_ns >= start:
                begun, before, peak, peak_ns = True, current, current, start
            if report.time_ns > end:
                break
            if report.n_bytes > 0:
                current += report.n_bytes
                live[report.address] = report.n_bytes
            else:
                current -= live.pop(report.address, 0)  # 0: it was there before the meter
            if begun and current > peak:
                peak, peak_ns = current, report.time_ns
        return Span(before, peak, current, peak_ns) if begun else Span(current, current, current, start)
