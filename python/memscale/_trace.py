"""One training step without memory: every operation and every storage, on the meta device.

The model's real Python runs, forward, loss, backward and optimizer step, with tensors that have a shape and no bytes. A
dispatch mode sees each operation with the storages it makes, weak references see them die, and what a target device would do
otherwise (autocast, attention, dropout) is put in place by ``_target.py``. The trace is flat arrays of integers, which C
takes over (``ms_trace``): nothing is computed here.
"""

from __future__ import annotations

import contextlib
import weakref
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from . import _core
from ._attach import Attachment
from ._target import Rules, Target
from ._units import find_units
from ._values import Values

# Events: three integers each (ms_event in memscale.h).
OP, ALLOC, FREE, UNIT, PHASE, REPEAT = range(6)
# Phases of a step.
STATE, FORWARD, LOSS, BACKWARD, OPTIMIZER_FIRST, OPTIMIZER, END = range(7)
# What a storage is.
ACTIVATION, PARAMETER, BUFFER, INPUT, GRADIENT, OPTIMIZER_STATE = range(6)

_MAX_DIMS = 6
_DETACH = torch.ops.aten.detach.default


class Trace:
    """What was seen, as arrays.

    Attributes:
        events: (kind, a, b) after one another.
        ops: for each operation: its name, unit, flags, and its slice of ``tensors``: (name, first, n_inputs, n_outputs).
        tensors: for each operand: storage, element bytes, number of dimensions, dimensions (six, padded with 1).
        names: of operations.
        units: names of the units, in order of registration.
        kinds: what each storage is, by its number.
    """

    def __init__(self, units: list[str]) -> None:
        self.events = array("q")
        self.ops = array("q")
        self.tensors = array("q")
        self.names: dict[Any, int] = {}
        self.units = units
        self.kinds = array("q")

    def packed(self) -> tuple[bytes, bytes, bytes, bytes, list[str]]:
        """For C."""
        arrays = (self.events, self.ops, self.tensors, self.kinds)
        return (*(values.tobytes() for values in arrays), [str(name) for name in self.names])  # type: ignore[return-value]


class _Recorder(TorchDispatchMode):
    """Writes operations and storages into a trace."""

    def __init__(self, trace: Trace, recompute: bool) -> None:
        super().__init__()
        self.trace = trace
        self.recompute = recompute
        self.known: dict[int, int] = {}  # address of a storage -> its number
        self.watch: dict[int, weakref.ref[Any]] = {}
        self.values = Values()
        self.kind = ACTIVATION
        self.unit = -1
        self.in_backward = False
        self.repeating = False
        self.limits: list[tuple[int, int]] = []  # autograd sequence number at which a unit's nodes begin, and the unit

    # Storages

    def number(self, tensor: torch.Tensor, kind: int | None = None) -> int:
        """The number of a tensor's storage; a new one is an allocation. -1 if it is not on the target device."""
        if tensor.device.type != "meta":
            return -1
        storage = tensor.untyped_storage()
        address = storage._cdata
        known = self.known.get(address)
        if known is not None:
            return known
        trace = self.trace
        index = len(trace.kinds)
        trace.kinds.append(self.kind if kind is None else kind)
        trace.events.extend((ALLOC, index, storage.nbytes()))
        self.known[address] = index
        self.watch[index] = weakref.ref(storage, self._died(address, index))
        return index

    def _died(self, address: int, index: int) -> Callable[[Any], None]:
        events, known, watch = self.trace.events, self.known, self.watch

        def died(_: Any) -> None:
            events.extend((FREE, index, 0))
            if known.get(address) == index:
                del known[address]
            del watch[index]

        return died

    def stop(self) -> None:
        """Nothing that dies from now on is recorded."""
        self.watch.clear()

    # Operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.values.asks(func):
            return self.values.answer(func, args)
        output = func(*args, **(kwargs or {}))
        self.values.note(func, args, kwargs, output)
        if func is _DETACH:  # autograd's own, which hooks on saved tensors change
            return output
        self.record(func, args, kwargs, output)
        return output

    def record(self, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        trace = self.trace
        if self.in_backward and not self.repeating:
            self._find_unit()
        name = trace.names.setdefault(func, len(trace.names))
        first = len(trace.tensors)
        self._operands(args)
        if kwargs:
            self._operands(kwargs.values())
        middle = len(trace.tensors)
        trace.events.extend((OP, len(trace.ops) // 4, 0))
        self._operands((output,))
        width = _MAX_DIMS + 3
        end = len(trace.tensors)
        trace.ops.extend((name, first // width, (middle - first) // width, (end - middle) // width))

    def _operands(self, values: Any) -> None:
        tensors = self.trace.tensors
        for value in values:
            if isinstance(value, torch.Tensor):
                shape = value.shape
                n = len(shape)
                tensors.extend((self.number(value), value.element_size(), n))
                tensors.extend(shape[:_MAX_DIMS])
                if n < _MAX_DIMS:
                    tensors.extend((1,) * (_MAX_DIMS - n))
            elif isinstance(value, (list, tuple)):
                self._operands(value)

    # Units

    def _find_unit(self) -> None:
        node = torch._C._current_autograd_node()
        if node is None:
            return
        sequence = node._sequence_nr()
        if sequence >= 1 << 62:  # a leaf's: it belongs to whoever came before
            return
        unit = -1
        for begin, owner in reversed(self.limits):
            if sequence >= begin:
                unit = owner
                break
        self.move_to(unit)

    def move_to(self, unit: int) -> None:
        if unit != self.unit:
            self.unit = unit
            self.trace.events.extend((UNIT, unit, 0))

    def repeat(self, unit: int) -> None:
        """From now on the unit is computed again; -1: no longer."""
        self.repeating = unit >= 0
        self.trace.events.extend((REPEAT, unit, 0))

    def phase(self, phase: int) -> None:
        self.move_to(-1)
        self.trace.events.extend((PHASE, phase, 0))


def _sequence_now() -> int:
    """The number that autograd gives to its next node."""
    with torch.enable_grad():
        leaf = torch.empty(0, requires_grad=True)
        return int(leaf.view(0).grad_fn._sequence_nr()) + 1  # type: ignore[union-attr]


class Tracer:
    """Traces steps of one model. The model is put back as it was, whatever happens."""

    def __init__(self, model: nn.Module, target: Target) -> None:
        self.model = model
        self.target = target
        self.units = find_units(model)

    def step(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        loss_of: Callable[[Any], torch.Tensor],
        optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None,
        recompute: bool,
    ) -> Trace:
        """One step. With recompute every unit is computed again in backward, by the code that does so in training."""
        trace = Trace(list(self.units))
        recorder = _Recorder(trace, recompute)
        attachment = Attachment()
        state = _core.ModuleState(self.model)
        state.enter()
        try:
            parameters = self._to_meta(recorder)
            args, kwargs = self._inputs(recorder, args, kwargs)
            for index, (name, module) in enumerate(self.units.items()):
                attachment.set_forward(module, _RunUnit(recorder, self.target, index, name, module))
            with torch.autograd.set_multithreading_enabled(False), torch.enable_grad():
                self._run(recorder, args, kwargs, loss_of, optimizer, parameters)
        finally:
            attachment.undo()
            state.leave()
        return trace

    def _run(self, recorder: _Recorder, args: Any, kwargs: Any, loss_of: Any, optimizer: Any, parameters: Any) -> None:
        with recorder:
            recorder.phase(FORWARD)
            with Rules(self.target):
                output = self.model(*args, **kwargs)
                recorder.phase(LOSS)
                loss = loss_of(output)
            del output
            recorder.phase(BACKWARD)
            recorder.in_backward = True
            recorder.kind = GRADIENT
            loss.backward()
            del loss
            recorder.in_backward = False
            if optimizer is not None:
                made = optimizer(parameters)
                for phase in (OPTIMIZER_FIRST, OPTIMIZER):
                    recorder.phase(phase)
                    recorder.kind = OPTIMIZER_STATE
                    made.step()
            recorder.phase(END)
            recorder.stop()  # before anything that stays between steps dies

    def _to_meta(self, recorder: _Recorder) -> list[nn.Parameter]:
        """Meta tensors in place of parameters, buffers and tensors that modules keep; tied ones stay tied."""
        made: dict[int, torch.Tensor] = {}

        def meta(tensor: torch.Tensor, kind: int) -> torch.Tensor:
            if id(tensor) not in made:
                twin: torch.Tensor = torch.empty_like(tensor.detach(), device="meta")
                if isinstance(tensor, nn.Parameter):
                    twin = nn.Parameter(twin, requires_grad=tensor.requires_grad)
                made[id(tensor)] = twin
                recorder.number(twin, kind)
            return made[id(tensor)]

        for module in self.model.modules():
            for table, kind in ((module._parameters, PARAMETER), (module._buffers, BUFFER)):
                for name, tensor in table.items():
                    if tensor is not None:
                        table[name] = meta(tensor, kind)  # type: ignore[assignment]
            for name, value in list(vars(module).items()):
                if isinstance(value, torch.Tensor):
                    vars(module)[name] = meta(value, BUFFER)
                elif name == "_flat_weights" and isinstance(value, list):
                    vars(module)[name] = [meta(w, PARAMETER) if isinstance(w, torch.Tensor) else w for w in value]
        return [p for p in made.values() if isinstance(p, nn.Parameter)]

    def _inputs(self, recorder: _Recorder, args: Any, kwargs: Any) -> tuple[Any, Any]:
        def meta(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                twin = torch.empty_like(value, device="meta", requires_grad=value.requires_grad)
                recorder.number(twin, INPUT)
                recorder.values.know(twin, value)
                return twin
            if isinstance(value, dict):
                return {key: meta(v) for key, v in value.items()}
            if isinstance(value, (list, tuple)):
                return type(value)(meta(v) for v in value)
            return value

        return meta(tuple(args)), meta(dict(kwargs))


class _RunUnit:
    """The forward of a unit while it is traced."""

    def __init__(self, recorder: _Recorder, target: Target, index: int, name: str, module: nn.Module) -> None:
        self.recorder, self.target, self.index = recorder, target, index
        self.plain = module.forward
        self.unit = _core.Unit(name, module, self._forward)
        self.unit.on_backward = self._begin_repeat
        modules = enumerate(_core.ModuleState(module).modules())
        self.buffers = {(i, name) for i, m in modules for name, buffer in m._buffers.items() if buffer is not None}

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recorder = self.recorder
        outer = recorder.unit
        if outer == self.index or recorder.in_backward:  # called by itself, or inside of another's repetition
            return self.plain(*args, **kwargs)
        recorder.move_to(self.index)
        recorder.limits.append((_sequence_now(), self.index))
        try:
            return self._run(args, kwargs)
        finally:
            recorder.move_to(outer)
            recorder.limits.append((_sequence_now(), outer))

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.recorder.recompute:
            return self.plain(*args, **kwargs)
        self.recorder.repeat(self.index)  # what a call notes is not the step's own
        call = _core.Call(self.unit, args, kwargs)
        if call.opaque is not None:
            self.recorder.repeat(-1)
            return self.plain(*args, **kwargs)
        return call.run(self.buffers, False, False, False, args, kwargs)

    def _begin_repeat(self) -> None:
        self.recorder.move_to(self.index)
        self.recorder.repeat(self.index)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        recorder = self.recorder
        if not recorder.in_backward:
            recorder.repeat(-1)
            return self.plain(*args, **kwargs)
        try:
            with Rules(self.target):
                return self.plain(*args, **kwargs)
        finally:
            recorder.repeat(-1)
