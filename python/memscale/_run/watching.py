"""When the steps of a model are watched, and what becomes of it (``_trace/watch.py`` has how)."""

from __future__ import annotations

import contextlib
from array import array
from typing import Any, NamedTuple

import torch
from torch import nn

from .. import _core
from .._trace.gpu_kernels import with_seen_memory
from .._trace.sample import Input, shape_of, sizes_of
from .._trace.watch import Watch
from ..errors import MemScaleError
from .recomputation import Unit

_MAX_FAILURES = 3
_MAX_MORE = 8  # steps that are watched because they may call more layers than those before


class Seen(NamedTuple):
    """A step that was watched from its beginning to its end."""

    core: _core.Profile
    input: Input  # on the meta device: its sizes
    optimizers: tuple[torch.optim.Optimizer, ...]


class Watching:
    """The watched steps of one model.

    Attributes:
        is_active: a step is being watched, or waits for its optimizer.
        unseen: layers that did not run in the step that plans are made from, as where layers are dropped at random.
        wants_more: one of them ran since.
    """

    def __init__(
        self, model: nn.Module, units: list[Unit], unit_flags: list[int], device: torch.device, n_steps: int
    ) -> None:
        self._model = model
        self._units = units
        self._unit_flags = array("I", unit_flags).tobytes()
        self._device = device
        self._n_steps = n_steps  # so many are watched; the last one counts
        self._n_watched = 0
        self._n_failures = 0
        self._watch: Watch | None = None
        self._input: Input = (), {}
        self._largest = 0  # elements of the largest input that was watched
        self._seen: set[Unit] = set()  # layers that ran in the step that is watched
        self._n_more = 0
        self.unseen: set[Unit] = set()
        self.wants_more = False

    @property
    def is_idle(self) -> bool:
        """Is no step watched, and does it not matter which layers run?"""
        return self._watch is None and not self.unseen

    @property
    def is_active(self) -> bool:
        return self._watch is not None and not self._watch.is_over

    @property
    def is_recording(self) -> bool:
        return self._watch is not None and self._watch.is_recording

    @property
    def has_seen(self) -> bool:
        return self._watch is not None and self._watch.is_over

    def must_see(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Is this input larger than those that were watched?"""
        return 0 < self._largest < _elements(args, kwargs)

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Watch the forward that begins, and what follows it."""
        self._input = _sizes_only(args, kwargs)
        self._seen, self.wants_more = set(), False
        self._watch = Watch(self._model, self._units, self._device)
        self._watch.begin_forward(args, kwargs)

    def inside(self, unit: Unit) -> contextlib.AbstractContextManager[None]:
        """Around the forward of a unit."""
        assert self._watch is not None
        self._seen.add(unit)
        return self._watch.inside(self._units.index(unit))

    def run_checked(self, unit: Unit, call: _core.Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``call.run_checked``, watched if a step is."""
        if not self.is_recording:
            return call.run_checked(args, kwargs)
        assert self._watch is not None
        return self._watch.run_checked(self._units.index(unit), call, args, kwargs)

    def end_forward(self, *, has_output: bool, is_whole: bool) -> None:
        """A forward ends: that of the whole step, or of one of the modules that a step calls one after the other."""
        if self._watch is None or not self._watch.is_recording:
            return
        if not has_output:  # it raised
            self.stop()
        elif is_whole:
            self._watch.end_forward()

    def continue_with_forward(self, *, held: bool) -> None:
        """Another forward begins: gradients are accumulated, or the step is over without an optimizer of torch."""
        assert self._watch is not None
        if not self._watch.end_backward():  # there was no backward, or it raised
            self.stop()
        elif not held:
            self._watch.finish()

    def take(self, *, is_known: bool) -> Seen | None:
        """What was seen; None if it was not all of a step, is not to be used yet, or no more than is known."""
        watch, self._watch = self._watch, None
        assert watch is not None
        watch.close()
        self._n_watched += 1
        if self._n_watched < self._n_steps:
            return None
        names = [unit.name for unit in self._units]
        sizes = array("q", [unit.param_bytes for unit in self._units]).tobytes()
        try:
            if watch.recorder.error is not None:
                raise MemScaleError(str(watch.recorder.error))
            trace, shape = watch.recorder.trace, shape_of(*self._input)
            packed = trace.packed()
            if self._device.type == "cuda":
                packed = with_seen_memory(packed, trace.convolutions, self._device)
            core = _core.profile_from_watched(names, sizes, self._unit_flags, packed, shape)
        except (MemScaleError, ValueError):
            self._n_failures += 1
            if self._n_failures >= _MAX_FAILURES:
                raise
            return None
        is_more = self._is_more()
        if is_known and not is_more:
            return None
        self._largest = max(self._largest, _elements(*self._input))
        return Seen(core, self._input, tuple(watch.optimizers))

    def _is_more(self) -> bool:
        """Is what was seen more than what plans are made from: a larger input, or as large a one and more layers?"""
        unseen, n_elements = set(self._units) - self._seen, _elements(*self._input)
        is_more = (n_elements, -len(unseen)) > (self._largest, -len(self.unseen))
        self._n_more += 1
        self.wants_more = False
        self.unseen = unseen if is_more else self.unseen
        if self._n_more > _MAX_MORE:
            self.unseen = set()
        return is_more

    def stop(self) -> None:
        """Nothing is watched any more."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None


def _sizes_only(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Input:
    """Tensors of the same sizes, without memory."""
    return tuple(torch.empty_like(t, device="meta") for t in _core.tensors_in((args, kwargs))), {}


def _elements(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    return sum(size.numel() for size in sizes_of(args, kwargs))
