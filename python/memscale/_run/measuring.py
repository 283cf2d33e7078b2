"""One step, measured where its layers begin and end, without waiting for the device and without changing the step.

A measurement puts a handler of its own around that of each unit, and a hook on the node that begins a unit's backward.
Both are there for one step: before and after it nothing is asked of anybody. What goes wrong in here spoils the
measurement and never the step.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import torch

from .. import _core
from .handlers import Handler, Parts
from .hooks import active_hooks
from .recomputation import Unit


class Moment(Protocol):
    """A moment of the device, as ``torch.cuda.Event`` has it."""

    def query(self) -> bool: ...

    def elapsed_time(self, end_event: Any, /) -> float: ...


class Source(Protocol):
    """Where readings come from."""

    def is_ready(self) -> bool:
        """May it be read now?"""

    def allocated_bytes(self) -> int: ...

    def peak_bytes(self) -> int:
        """The most that was allocated since the user last reset that figure, if ever."""

    def moment(self) -> Moment:
        """Now, on the device: it may come later."""


class GpuSource:
    """torch's allocator, and events on the current stream. No statistic is reset: they are the user's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def is_ready(self) -> bool:
        return torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing()

    def _read(self, figure: str) -> int:
        return int(torch.cuda.memory_stats_as_nested_dict(self._device)["allocated_bytes"]["all"][figure])

    def allocated_bytes(self) -> int:
        return self._read("current")

    def peak_bytes(self) -> int:
        return self._read("peak")

    def moment(self) -> Moment:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        moment: Moment = event
        return moment


class Row(NamedTuple):
    """What was read at a boundary of a unit."""

    unit: int
    boundary: int  # BOUNDARY_* of the extension
    value: Any


class Measurement:
    """A step that is measured, from the begin of its forward until it is closed.

    Attributes:
        start: what was read when it began.
        rows: what was read since, in order.
        is_good: did nothing come in between? Another thread, layers that run as without MemScale, an error.
    """

    def __init__(self, units: Iterable[Unit], read: Callable[[], Any]) -> None:
        self.rows: list[Row] = []
        self.is_good = True
        self._read = read
        self._thread = threading.get_ident()
        self._is_open = True
        self._put: list[tuple[Unit, Handler, Handler | None]] = []
        self.start = read()
        for number, unit in enumerate(units):
            before = unit.handler
            handler = functools.partial(self._run, number, before)
            unit.handler = handler
            self._put.append((unit, handler, before))

    @property
    def is_whole(self) -> bool:
        """Was there a backward, too?"""
        return self.is_good and any(row.boundary == _core.BOUNDARY_BACKWARD_BEGINS for row in self.rows)

    def close(self) -> None:
        """The step is over: from now on units run as they did before. Does nothing a second time."""
        self._is_open = False
        for unit, handler, before in self._put:
            if unit.handler is handler:  # else there is another plan since
                unit.handler = before
        self._put = []

    def _run(
        self, number: int, inner: Handler | None, parts: Parts, unit: Unit, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        self.is_good = self.is_good and active_hooks(True) is None
        self._note(number, _core.BOUNDARY_FORWARD_BEGINS)
        output = unit.plain(*args, **kwargs) if inner is None else inner(parts, unit, args, kwargs)
        self._note(number, _core.BOUNDARY_FORWARD_ENDS)
        self._hook(number, output)
        return output

    def _note(self, number: int, boundary: int) -> None:
        if not self._is_open:
            return
        try:
            self.is_good = self.is_good and threading.get_ident() == self._thread
            if self.is_good:
                self.rows.append(Row(number, boundary, self._read()))
        except Exception:
            self.is_good = False

    def _hook(self, number: int, output: Any) -> None:
        """Backward of a unit begins with the node of its first output that has one."""
        if not (self._is_open and self.is_good):
            return
        try:
            nodes = (tensor.grad_fn for tensor in _core.tensors_in(output))
            node: Any = next(filter(None, nodes), None)
            if node is not None:
                node.register_prehook(functools.partial(self._begin_backward, number))
        except Exception:
            self.is_good = False

    def _begin_backward(self, number: int, gradients: Any) -> None:
        self._note(number, _core.BOUNDARY_BACKWARD_BEGINS)
