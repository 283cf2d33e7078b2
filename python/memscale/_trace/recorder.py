"""Records a step while it runs: every operation, and every storage from its birth to its death.

A dispatch mode sees the operations and weak references see storages die. The trace is flat arrays of integers, which C
takes over (``ms_trace``): nothing is computed here.
"""

from __future__ import annotations

import bisect
import functools
import weakref
from array import array
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from .. import _core
from .._base.vocabulary import ACTIVATION
from .cpu_kernels import BY_LAYOUT, copying_name, kernel_name
from .gpu_kernels import Convolution, convolution_of
from .meta_results import MetaCache
from .meta_values import Values

_MAX_DIMS = 6
_DETACH = torch.ops.aten.detach.default
_aten = torch.ops.aten
_ADD = _aten.add.Tensor
# What autograd's engine and some of its nodes do in place, unless a dispatch mode is there to see it; "": the engine.
_IN_PLACE = {
    "": {_ADD: _aten.add_.Tensor},
    "GatherBackward0": {_aten.scatter_add.default: _aten.scatter_add_.default},
    "IndexBackward0": {_aten.index_put.default: _aten.index_put_.default},
    "BinaryCrossEntropyWithLogitsBackward0": {
        _aten.sub.Tensor: _aten.sub_.Tensor,
        _aten.mul.Tensor: _aten.mul_.Tensor,
    },
}
_MAKES_ITS_OWN = ("GatherBackward0", "IndexBackward0")  # of zeros
_EVER_IN_PLACE = set().union(*_IN_PLACE.values())
_FUSED = "memscale.pointwise"
_DROPOUT = torch.ops.aten.native_dropout.default
_LEAF = 1 << 62  # sequence numbers of the nodes that accumulate gradients are above this


class Trace:
    """What was seen, as arrays in the layout of ``ms_trace``."""

    def __init__(self) -> None:
        self.events = array("q")  # kind, a, b
        self.ops = array("q")  # name, first operand, number of inputs, number of outputs
        self.operands = array("q")  # storage, bytes of an element, number of dimensions, six dimensions, last stride
        self.kinds = array("q")  # what each storage is
        self.names: dict[Any, int] = {}  # of operations
        self.repeats = False  # is anything in it recomputed?
        self.convolutions: dict[int, Convolution] = {}  # on a GPU, by the number of their name

    def packed(self) -> _core.PackedTrace:
        """For C."""
        events, ops, operands, kinds = (a.tobytes() for a in (self.events, self.ops, self.operands, self.kinds))
        return events, ops, operands, kinds, [str(name) for name in self.names], b""


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Writes operations and storages into a trace."""

    def __init__(
        self,
        trace: Trace,
        device_type: str,
        recompute: bool,
        not_recomputable: set[int],
        shapes: MetaCache | None = None,
    ) -> None:
        super().__init__()
        self.trace = trace
        self.not_recomputable = not_recomputable  # units that cannot be recomputed
        self.device_types = {device_type}
        self.recompute = recompute
        self.pointwise = False  # are results of pointwise functions made again in backward?
        self.fuses = False  # are chains of them made again as one kernel?
        self.values = Values()
        self._shapes = shapes
        self.unit = -1
        self.in_backward = False
        self._recomputing = False
        self._numbers: dict[int, int] = {}  # address of a storage -> its number; -1: not to be counted
        self._watched: dict[int, weakref.ref[Any]] = {}
        self._alone = _counts_if_alone()
        self._one_holder = _holders_of_alias()
        self._saves: dict[int, list[int]] = {}  # address of a call -> the numbers of its saves. Not the call itself,
        # which keeps its inputs alive.
        self._n_saves = 0
        self._inputs: list[list[torch.Tensor]] = []  # of the last two units that ran
        self._begins: list[int] = []  # autograd's sequence numbers at which the nodes of a unit begin,
        self._owners: list[int] = []  # and that unit

    # Storages

    def number(self, tensor: torch.Tensor, kind: int = ACTIVATION) -> int:
        """The number of a tensor's storage; a new one is an allocation. -1 if it is not on the device."""
        if tensor.device.type not in self.device_types or tensor.layout is not torch.strided:
            return -1
        try:
            storage = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError):  # a subclass that has its memory elsewhere
            return -1
        address = storage._cdata
        number = self._numbers.get(address)
        if number is not None:
            return number
        index = len(self.trace.kinds)
        self.trace.kinds.append(kind)
        self.trace.events.extend((_core.TRACE_ALLOC, index, storage.nbytes()))
        self._numbers[address] = index
        self._watch(storage, address, index)
        return index

    def ignore(self, tensor: torch.Tensor) -> None:
        """Do not count this tensor: it represents one that is counted already."""
        storage = tensor.untyped_storage()
        self._numbers[storage._cdata] = -1

    def _watch(self, storage: Any, address: int, index: int) -> None:
        numbers, watched = self._numbers, self._watched

        def died(_: Any) -> None:
            self._note_death(index)
            if numbers.get(address) == index:
                del numbers[address]
            del watched[index]

        watched[index] = weakref.ref(storage, died)

    def _note_death(self, index: int) -> None:
        self.trace.events.extend((_core.TRACE_FREE, index, 0))

    def _replace(self, old: torch.Tensor, new: torch.Tensor) -> None:
        """From now on the storage of `new` is what that of `old` was."""
        index = self.number(old)
        if index >= 0:
            storage = new.untyped_storage()
            del self._numbers[old.untyped_storage()._cdata]
            self._numbers[storage._cdata] = index
            self._watch(storage, storage._cdata, index)

    def stop(self) -> None:
        """Record no more deaths of storages."""
        self._watched.clear()
        self._inputs.clear()

    def note_save(self, call: _core.Call, index: int, tensor: torch.Tensor) -> None:
        """Autograd saves this tensor as the index-th of the call, in forward or in a recomputation."""
        if not self._recomputing:
            if index == 0:  # its address may be that of a call that has died
                self._saves[id(call)] = []
            self._saves[id(call)].append(self._n_saves)
            self._n_saves += 1
        self.trace.events.extend((_core.TRACE_SAVE, self.number(tensor), self._saves[id(call)][index]))

    def note_inputs(self, tensors: list[torch.Tensor]) -> None:
        """The unit that has just run holds these, for its recomputation. What others still hold when two more units
        have run (a list of the model, say) does not become free, and is said to be held by another unit, too."""
        with torch._C.DisableTorchFunction():
            last_but_one = self._inputs.pop(0) if len(self._inputs) == 2 else []
            shared = [tensor for tensor in last_but_one if _counts(tensor)[0] > self._one_holder]
            numbers = [self.number(tensor) for tensor in (*shared, *tensors)]
        self._inputs.append(list(tensors))
        for index in numbers:
            if index >= 0:
                self.trace.events.extend((_core.TRACE_INPUT, index, 0))

    def note_detach(self, tensor: torch.Tensor) -> None:
        """Autograd detaches what becomes the gradient of a parameter that has none. It may have been there for long:
        that of a tied weight is complete only when backward has come to its first use."""
        node = torch._C._current_autograd_node()
        if node is not None and node._sequence_nr() > _LEAF and (index := self.number(tensor)) >= 0:
            self.trace.events.extend((_core.TRACE_GRADIENT, index, 0))

    def begin_function(self, keep: int) -> None:
        """A function begins whose result may be kept."""
        self.trace.events.extend((_core.TRACE_FUNCTION, keep, 0))

    def end_function(self, result: Any) -> None:
        """It has returned this; None: it raised."""
        number = self.number(result) if isinstance(result, torch.Tensor) else -1
        self.trace.events.extend((_core.TRACE_FUNCTION, 0, number))

    # Operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # here a meta tensor is one, whatever the model is told
            return self._dispatch(func, args, kwargs)

    def _dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self.values.asks(func):
            return self.values.answer(func, args)
        if self.in_backward and func in _EVER_IN_PLACE:
            func = self._in_place(func, args, kwargs) or func
        if self._shapes:
            output = self._shapes.run(func, args, kwargs or {}, self.values)
            self.values.note(func, args, kwargs, output)
        else:
            output = func(*args, **(kwargs or {}))
        if func is _DETACH:  # autograd's own, which hooks on saved tensors change
            self.note_detach(args[0])
        else:
            self._record(func, args, kwargs, output)
        return output

    def _in_place(self, func: Any, args: Any, kwargs: Any) -> Any:
        """In backward: the operation on the first operand itself that runs instead where no dispatch mode is active, if
        nothing else holds that operand; else None."""
        if self._recomputing or func not in _EVER_IN_PLACE or not isinstance(args[0], torch.Tensor):
            return None
        node = torch._C._current_autograd_node()
        name = "" if node is None or func is _ADD else node.name()
        changed = _IN_PLACE.get(name, {}).get(func)
        if changed is None or (name not in _MAKES_ITS_OWN and _counts(args[0]) > self._alone):
            return None
        return changed if func is not _ADD or _accumulates(args, kwargs) else None

    def _record(self, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        trace = self.trace
        if self.in_backward and not self._recomputing:
            self._find_unit()
        name = self._name(func, args)
        first = len(trace.operands)
        self._operands(args)
        if kwargs:
            self._operands(kwargs.values())
        middle = len(trace.operands)
        trace.events.extend((_core.TRACE_OP, len(trace.ops) // 4, 0))
        if func is _DROPOUT:  # it allocates the second result first
            self.number(output[1])
        self._operands((output,))
        width = _MAX_DIMS + 4
        n_inputs, n_outputs = (middle - first) // width, (len(trace.operands) - middle) // width
        trace.ops.extend((name, first // width, n_inputs, n_outputs))

    def run_fused(
        self, operands: tuple[torch.Tensor, ...], dtype: torch.dtype, shape: Any, stride: tuple[int, ...]
    ) -> torch.Tensor:
        """What one kernel computes from these operands, as an operation of its own."""
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            result = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            self._record(_FUSED, operands, None, result)
        return result

    def _name(self, func: Any, args: Any) -> int:
        """The number of an operation's name, with what its kernel's memory depends on."""
        names = self.trace.names
        if func not in BY_LAYOUT:
            return names.setdefault(func, len(names))
        if self._on_cpu():
            return names.setdefault(kernel_name(func, args, self.values.n_threads) or func, len(names))
        convolution = convolution_of(func, args)
        if convolution is None:
            return names.setdefault(copying_name(func, args) or func, len(names))
        name = names.setdefault(f"{func}{convolution}", len(names))
        self.trace.convolutions[name] = convolution
        return name

    def _on_cpu(self) -> bool:
        return self.values.kind == "cpu" or "cpu" in self.device_types

    def _operands(self, values: Any) -> None:
        operands = self.trace.operands
        for value in values:
            if isinstance(value, torch.Tensor):
                if value.layout is torch.sparse_coo:
                    self._operands((value._indices(), value._values()))
                    continue
                shape = value.shape
                n = len(shape)
                operands.extend((self.number(value), value.element_size(), n))
                operands.extend(shape[:_MAX_DIMS])
                if n < _MAX_DIMS:
                    operands.extend((1,) * (_MAX_DIMS - n))
                operands.append(value.stride(-1) if n and value.layout is torch.strided else 1)
            elif isinstance(value, (list, tuple)):
                self._operands(value)

    # Units and phases

    def begin_nodes(self, unit: int) -> None:
        """Autograd nodes that are made from now on belong to this unit."""
        self._begins.append(_sequence_now())
        self._owners.append(unit)

    def _find_unit(self) -> None:
        """The unit whose backward runs: the one that made the node."""
        node = torch._C._current_autograd_node()
        sequence = _LEAF if node is None else node._sequence_nr()
        if sequence < _LEAF:  # else it belongs to the unit before it
            at = bisect.bisect_right(self._begins, sequence) - 1
            self.move_to(self._owners[at] if at >= 0 else -1)

    def move_to(self, unit: int) -> None:
        if unit != self.unit:
            self.unit = unit
            self.trace.events.extend((_core.TRACE_UNIT, unit, 0))

    def recompute_unit(self, unit: int) -> None:
        """What follows belongs to the recomputation of this unit; -1: to none."""
        self._recomputing = unit >= 0
        self.trace.repeats |= self._recomputing
        self.trace.events.extend((_core.TRACE_RECOMPUTE, unit, 0))

    def phase(self, phase: int) -> None:
        self._inputs.clear()
        self.move_to(-1)
        self.trace.events.extend((_core.TRACE_PHASE, phase, 0))


def _accumulates(args: Any, kwargs: Any) -> bool:
    """Can it be the engine adding two gradients?"""
    if kwargs or len(args) != 2 or not isinstance(args[1], torch.Tensor):
        return False
    old, new = args
    same = old.shape == new.shape and old.dtype == new.dtype and _is_dense(old)
    return same and not _in_own_function()


def _counts(tensor: torch.Tensor) -> tuple[int, int]:
    """The reference counts of a storage and of a tensor on it."""
    count: Any = getattr(tensor, "_use_count", int)
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata), count()


@functools.cache
def _holders_of_alias() -> int:
    """What torch counts for a storage that one alias holds."""
    with _disable_current_modes():
        alias = torch.empty(2, device="meta").detach()
        alias.untyped_storage()
        return _counts(alias)[0]


def _is_dense(tensor: torch.Tensor) -> bool:
    """Every byte of it once, and no gaps?"""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _in_own_function() -> bool:
    """Is it somebody's autograd.Function whose backward runs?"""
    return isinstance(torch._C._current_autograd_node(), torch.autograd.function.BackwardCFunction)


@functools.cache
def _counts_if_alone() -> tuple[int, int]:
    """What `_counts` returns inside a dispatch mode for a gradient that only torch's engine holds."""
    seen = []

    class Watch(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is _ADD:
                old, _ = args
                seen.append(_counts(old))
            return func(*args, **(kwargs or {}))

    with _disable_current_modes(), torch.enable_grad():
        x = torch.empty(2, device="meta", requires_grad=True) * 1
        loss = torch.cat((x * 2, x * 3)).sum()
        with torch.autograd.set_multithreading_enabled(False), Watch():
            loss.backward()
    return seen[0]


def _sequence_now() -> int:
    """The number that autograd gives to its next node."""
    with torch.enable_grad(), _disable_current_modes():
        leaf = torch.empty(0, requires_grad=True)
        node: Any = leaf.view(0).grad_fn
        return int(node._sequence_nr()) + 1
