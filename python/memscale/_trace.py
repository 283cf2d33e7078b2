"""One training step as a trace: every operation, and every storage from its birth to its death.

Static: the model's real Python runs, forward, loss, backward and optimizer step, on the meta device, with tensors that
have a shape and no bytes; what the target device would do otherwise (autocast, attention, dropout) is put in its place
by ``_target.py``. Empirical: the same on the real device, with the real batch. Either way a dispatch mode sees the
operations and weak references see storages die. The trace is flat arrays of integers, which C takes over
(``ms_trace``): nothing is computed here.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import weakref
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from . import _core, _use_cache
from ._attach import Attachment, touched_modules
from ._memory import tensor_bytes
from ._shapes import ShapeCache
from ._target import Rules, Target
from ._units import find_units
from ._values import UnknownValueError, Values
from .errors import MemScaleError

# memscale.h: enum ms_trace_event_kind, ms_phase, ms_category.
OP, ALLOC, FREE, UNIT, PHASE, REPEAT = range(6)
STATE, FORWARD, LOSS, BACKWARD, OPTIMIZER_FIRST, OPTIMIZER, END = range(7)
ACTIVATION, PARAMETER, BUFFER, INPUT = range(4)

_MAX_DIMS = 6
_DETACH = torch.ops.aten.detach.default
_RAND = torch.ops.aten.rand.default
_ADD = torch.ops.aten.add.Tensor
_ADD_IN_PLACE = torch.ops.aten.add_.Tensor
_LEAF = 1 << 62  # sequence numbers of the nodes that accumulate gradients are above this

Maker = Callable[[dict[int, nn.Parameter]], torch.optim.Optimizer | None]


class Trace:
    """What was seen, as arrays in the layout of ``ms_trace``."""

    def __init__(self) -> None:
        self.events = array("q")  # kind, a, b
        self.ops = array("q")  # name, first operand, number of inputs, number of outputs
        self.operands = array("q")  # storage, bytes of an element, number of dimensions, six dimensions
        self.kinds = array("q")  # what each storage is
        self.names: dict[Any, int] = {}  # of operations

    def packed(self) -> tuple[bytes, bytes, bytes, bytes, list[str]]:
        """For C."""
        events, ops, operands, kinds = (a.tobytes() for a in (self.events, self.ops, self.operands, self.kinds))
        return events, ops, operands, kinds, [str(name) for name in self.names]


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Writes operations and storages into a trace."""

    def __init__(
        self, trace: Trace, device_type: str, recompute: bool, unrepeatable: set[int], shapes: ShapeCache | None = None
    ) -> None:
        super().__init__()
        self.trace = trace
        self.unrepeatable = unrepeatable  # units that cannot be computed again
        self.device_types = {device_type}
        self.recompute = recompute
        self.values = Values()
        self._shapes = shapes
        self.unit = -1
        self.in_backward = False
        self._repeating = False
        self._numbers: dict[int, int] = {}  # address of a storage -> its number; -1: not to be counted
        self._watched: dict[int, weakref.ref[Any]] = {}
        self._alone = _counts_if_alone()
        self._begins: list[int] = []  # autograd's sequence numbers at which the nodes of a unit begin,
        self._owners: list[int] = []  # and that unit

    # Storages

    def number(self, tensor: torch.Tensor, kind: int = ACTIVATION) -> int:
        """The number of a tensor's storage; a new one is an allocation. -1 if it is not on the device."""
        if tensor.device.type not in self.device_types or tensor.layout is not torch.strided:
            return -1
        storage = tensor.untyped_storage()
        address = storage._cdata
        known = self._numbers.get(address)
        if known is not None:
            return known
        index = len(self.trace.kinds)
        self.trace.kinds.append(kind)
        self.trace.events.extend((ALLOC, index, storage.nbytes()))
        self._numbers[address] = index
        self._watch(storage, address, index)
        return index

    def ignore(self, tensor: torch.Tensor) -> None:
        """This one stands for something that is counted already."""
        storage = tensor.untyped_storage()
        self._numbers[storage._cdata] = -1

    def _watch(self, storage: Any, address: int, index: int) -> None:
        events, numbers, watched = self.trace.events, self._numbers, self._watched

        def died(_: Any) -> None:
            events.extend((FREE, index, 0))
            if numbers.get(address) == index:
                del numbers[address]
            del watched[index]

        watched[index] = weakref.ref(storage, died)

    def stop(self) -> None:
        """Nothing that dies from now on is recorded."""
        self._watched.clear()

    # Operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.values.asks(func):
            return self.values.answer(func, args)
        if func is _ADD and self.in_backward and not self._repeating and self._accumulates(args, kwargs):
            func = _ADD_IN_PLACE
        output = self._shapes.run(func, args, kwargs or {}) if self._shapes else func(*args, **(kwargs or {}))
        if func is _RAND and self._shapes and output.dim() == 0:
            output.fill_(0.5)  # a coin that decides whether a layer runs falls on its likelier side
        self.values.note(func, args, kwargs, output)
        if func is not _DETACH:  # autograd's own, which hooks on saved tensors change
            self._record(func, args, kwargs, output)
        return output

    def _accumulates(self, args: Any, kwargs: Any) -> bool:
        """Does the engine add up two gradients? Without a mode around it does so in place, if nobody else holds the
        first."""
        if kwargs or len(args) != 2 or not all(isinstance(t, torch.Tensor) for t in args):
            return False
        old, new = args
        same = old.shape == new.shape and old.dtype == new.dtype and _is_dense(old)
        return same and not _in_own_function() and _counts(old) <= self._alone

    def _record(self, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        trace = self.trace
        if self.in_backward and not self._repeating:
            self._find_unit()
        name = trace.names.setdefault(func, len(trace.names))
        first = len(trace.operands)
        self._operands(args)
        if kwargs:
            self._operands(kwargs.values())
        middle = len(trace.operands)
        trace.events.extend((OP, len(trace.ops) // 4, 0))
        self._operands((output,))
        width = _MAX_DIMS + 3
        n_inputs, n_outputs = (middle - first) // width, (len(trace.operands) - middle) // width
        trace.ops.extend((name, first // width, n_inputs, n_outputs))

    def _operands(self, values: Any) -> None:
        operands = self.trace.operands
        for value in values:
            if isinstance(value, torch.Tensor):
                shape = value.shape
                n = len(shape)
                operands.extend((self.number(value), value.element_size(), n))
                operands.extend(shape[:_MAX_DIMS])
                if n < _MAX_DIMS:
                    operands.extend((1,) * (_MAX_DIMS - n))
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
        if sequence < _LEAF:  # else it belongs to whoever came before
            at = bisect.bisect_right(self._begins, sequence) - 1
            self.move_to(self._owners[at] if at >= 0 else -1)

    def move_to(self, unit: int) -> None:
        if unit != self.unit:
            self.unit = unit
            self.trace.events.extend((UNIT, unit, 0))

    def repeat(self, unit: int) -> None:
        """From now on it is the recomputation of this unit that works; -1: no longer."""
        self._repeating = unit >= 0
        self.trace.events.extend((REPEAT, unit, 0))

    def phase(self, phase: int) -> None:
        self.move_to(-1)
        self.trace.events.extend((PHASE, phase, 0))


def _counts(tensor: torch.Tensor) -> tuple[int, int]:
    """How many hold a storage, and a tensor of it."""
    count: Any = getattr(tensor, "_use_count", int)
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata), count()


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
    """What `_counts` says inside of a mode about a gradient that only torch's engine holds."""
    seen = []

    class Watch(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is _ADD:
                old, _ = args
                seen.append(_counts(old))
            return func(*args, **(kwargs or {}))

    with torch.utils._python_dispatch._disable_current_modes(), torch.enable_grad():
        x = torch.empty(2, device="meta", requires_grad=True) * 1
        loss = torch.cat((x * 2, x * 3)).sum()
        with torch.autograd.set_multithreading_enabled(False), Watch():
            loss.backward()
    return seen[0]


def _sequence_now() -> int:
    """The number that autograd gives to its next node."""
    with torch.enable_grad(), torch.utils._python_dispatch._disable_current_modes():
        leaf = torch.empty(0, requires_grad=True)
        node: Any = leaf.view(0).grad_fn
        return int(node._sequence_nr()) + 1


class _RunUnit:
    """The forward of a unit while it is traced."""

    def __init__(
        self, recorder: _Recorder, around: Callable[[], Any], index: int, name: str, module: nn.Module
    ) -> None:
        self.recorder, self.around, self.index = recorder, around, index
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
        recorder.begin_nodes(self.index)
        try:
            if recorder.recompute and self.index not in recorder.unrepeatable:
                return self._run(args, kwargs)
            return self._run_once(args, kwargs)
        finally:
            recorder.move_to(outer)
            recorder.begin_nodes(outer)

    def _run_once(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Plainly. A unit that changes its inputs in place cannot be computed again."""
        inputs = [(t, t._version) for t in _core.tensors_in((args, kwargs)) if not t.is_inference()]
        output = self.plain(*args, **kwargs)
        if any(tensor._version != version for tensor, version in inputs):
            self.recorder.unrepeatable.add(self.index)
        return output

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As the executor does, but that nothing needs to be checked."""
        self.recorder.repeat(self.index)  # what a call notes is not the step's own
        call = _core.Call(self.unit, args, kwargs)
        if call.opaque is not None:
            self.recorder.repeat(-1)
            return self.plain(*args, **kwargs)
        return call.run(self.buffers, True, True, False, args, kwargs)

    def _begin_repeat(self) -> None:
        self.recorder.move_to(self.index)
        self.recorder.repeat(self.index)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        recorder = self.recorder
        if not recorder.in_backward:
            recorder.repeat(-1)
            return self.plain(*args, **kwargs)
        try:
            with self.around():
                return self.plain(*args, **kwargs)
        finally:
            recorder.repeat(-1)


def _without_hooks(parameters: list[nn.Parameter]) -> contextlib.AbstractContextManager[None]:
    """No hooks on gradients: they may be somebody's optimizer."""
    return _emptied([t for p in parameters for t in (p._backward_hooks, p._post_accumulate_grad_hooks) if t])


_OBSERVERS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_backward_hooks",
    "_backward_pre_hooks",
)
# Whose forward pre-hooks make weights or move inputs; anybody else's only look.
_MAKERS = ("torch", "memscale", "transformers", "accelerate", "peft")


def _without_observers(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """No hooks that look at what modules are given and return: it is not the user's step."""
    tables = [vars(m)[name] for m in model.modules() for name in _OBSERVERS if vars(m).get(name)]
    return _emptied(tables, [vars(m)["_forward_pre_hooks"] for m in model.modules()])


def _is_observer(hook: Any) -> bool:
    where = getattr(hook, "__module__", None) or type(hook).__module__
    return str(where).partition(".")[0] not in _MAKERS


@contextlib.contextmanager
def _emptied(tables: list[Any], mixed: list[Any] | None = None) -> Iterator[None]:
    """Tables of hooks without what is in them; mixed ones without observers."""
    every = [*tables, *(mixed or [])]
    before = [dict(table) for table in every]
    for table in tables:
        table.clear()
    for table in mixed or []:
        for key in [key for key, hook in table.items() if _is_observer(hook)]:
            del table[key]
    try:
        yield
    finally:
        for table, hooks in zip(every, before):
            table.clear()
            table.update(hooks)


def _configs(model: nn.Module) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """What the configs of modules hold: some models note things there in their first forward."""
    configs = {id(c): c for c in (vars(m).get("config") for m in model.modules()) if hasattr(c, "__dict__")}
    return [(vars(config), dict(vars(config))) for config in configs.values()]


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor):
        raise MemScaleError(f"loss must return a tensor, not {type(loss).__name__}")
    if loss.numel() != 1 or not loss.requires_grad:
        what = "has no gradient" if loss.numel() == 1 else f"has the shape {tuple(loss.shape)}"
        raise MemScaleError(f"loss must return one number that depends on parameters; what it returned {what}")


def _step(optimizer: torch.optim.Optimizer) -> None:
    try:
        optimizer.step()
    except (MemScaleError, UnknownValueError):
        raise
    except Exception as error:
        kind = type(optimizer).__name__
        raise MemScaleError(f"a step of {kind} cannot be traced ({type(error).__name__}: {error})") from error


class _CacheOff:
    """A pre-hook: no key-value cache, as while layers are recomputed."""

    def __init__(self, module: nn.Module) -> None:
        self.position = _use_cache.position(module) or 0

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        if _use_cache.would_cache(module, self.position, args, kwargs):
            return args, {**kwargs, "use_cache": False}
        return None


class Tracer:
    """Traces steps of one model, which is put back as it was, whatever happens."""

    def __init__(self, model: nn.Module, target: Target, *, quietly: bool = False) -> None:
        if not quietly and any(module in touched_modules for module in model.modules()):
            raise MemScaleError("the model is wrapped: profile it before wrap(), or detach it first")
        self.model = model
        self.target = target
        self.quietly = quietly  # hooks that look at outputs do not run
        self.units = find_units(model)
        self.unrepeatable: set[int] = set()  # indices of units that turned out not to be repeatable
        self._shapes = ShapeCache()

    @property
    def caches(self) -> bool:
        """Would a training forward of this model fill a key-value cache?"""
        modules = [m for m in self.model.modules() if _use_cache.takes_use_cache(m)]
        return any(_use_cache.would_cache(m, _use_cache.position(m) or 0, (), {}) for m in modules)

    def param_bytes(self) -> bytes:
        """Of each unit, as C takes them."""
        sizes = array("q")
        for module in self.units.values():
            pure = [self._pure(p) for p in module.parameters()]
            sizes.append(tensor_bytes(pure))
        return sizes.tobytes()

    def static(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        loss_of: Callable[[Any], torch.Tensor],
        maker: Maker | None,
        *,
        recompute: bool = False,
        use_cache: bool = False,
        evaluation: bool = False,
    ) -> Trace:
        """A step on the meta device. With recompute units are computed again in backward, by training's own code."""
        trace = Trace()
        recorder = _Recorder(trace, "meta", recompute, self.unrepeatable, self._shapes)
        with self._prepared(recorder, lambda: Rules(self.target), use_cache):
            twins = self._to_meta(recorder)
            args, kwargs = self._copy_inputs(recorder, args, kwargs, self._pure)
            run = self._evaluate if evaluation else self._run
            run(recorder, Rules(self.target), args, kwargs, loss_of)
            with recorder:
                self._optimize(
                    recorder, None if evaluation else maker, {id(p): t for p, t in twins if isinstance(t, nn.Parameter)}
                )
                recorder.stop()  # before anything that stays between steps dies
        return trace

    def empirical(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        loss_of: Callable[[Any], torch.Tensor],
        maker: Maker | None,
        *,
        recompute: bool = False,
        use_cache: bool = False,
        evaluation: bool = False,
    ) -> Trace:
        """A step in earnest. Parameters, buffers, gradients, optimizer and random numbers are as before afterwards."""
        parameters = list(self.model.parameters())
        kind = parameters[0].device.type if parameters else "cpu"
        trace = Trace()
        recorder = _Recorder(trace, kind, recompute, self.unrepeatable)
        gradients = [p.grad for p in parameters]
        wanted = self.target.autocast
        try:
            with self._prepared(recorder, contextlib.nullcontext, use_cache), _without_hooks(parameters):
                self._count_real(recorder)
                args, kwargs = self._copy_inputs(recorder, args, kwargs, lambda t: t.detach().clone())
                around = contextlib.nullcontext() if wanted is None else torch.autocast(kind, wanted)
                run = self._evaluate if evaluation else self._run
                run(recorder, around, args, kwargs, loss_of)
                recorder.device_types = {"meta"}  # an optimizer's step depends on shapes alone
                twins = self._twins_with_gradients(recorder, parameters)
                with recorder:
                    self._optimize(recorder, None if evaluation else maker, twins)
                    recorder.stop()
        finally:
            for p, gradient in zip(parameters, gradients):
                p.grad = gradient
        return trace

    # Before and after

    @contextlib.contextmanager
    def _prepared(self, recorder: _Recorder, around: Callable[[], Any], use_cache: bool) -> Iterator[None]:
        attachment = Attachment()
        state = _core.ModuleState(self.model)
        configs = _configs(self.model)
        randomness = _core.Randomness({p.device for p in self.model.parameters() if p.device.type != "meta"})
        state.enter()
        try:
            for index, (name, module) in enumerate(self.units.items()):
                attachment.set_forward(module, _RunUnit(recorder, around, index, name, module))
            for module in self.model.modules():
                if not use_cache and _use_cache.takes_use_cache(module):
                    attachment.add_pre_hook(module, _CacheOff(module))
            observers = _without_observers(self.model) if self.quietly else contextlib.nullcontext()
            with observers, torch.autograd.set_multithreading_enabled(False), torch.enable_grad():
                yield
        finally:
            attachment.undo()
            state.leave()
            randomness.restore()
            for config, values in configs:
                config.clear()
                config.update(values)

    def _run(self, recorder: _Recorder, around: Any, args: Any, kwargs: Any, loss_of: Any) -> None:
        with recorder:
            recorder.phase(FORWARD)
            with around:
                output = self.model(*args, **kwargs)
                recorder.phase(LOSS)
                loss = loss_of(output)
                del output
            _check_loss(loss)
            recorder.phase(BACKWARD)
            recorder.in_backward = True
            try:
                loss.backward()
            finally:
                recorder.in_backward = False
            del loss

    def _evaluate(self, recorder: _Recorder, around: Any, args: Any, kwargs: Any, loss_of: Any) -> None:
        with recorder, torch.no_grad():
            recorder.phase(FORWARD)
            with around:
                output = self.model(*args, **kwargs)
            del output

    def _optimize(self, recorder: _Recorder, maker: Maker | None, twins: dict[int, nn.Parameter]) -> None:
        recorder.phase(OPTIMIZER_FIRST)
        made = None if maker is None else maker(twins)
        recorder.values.guess = 1.0  # Adafactor scales by norms; what it allocates does not depend on them
        for phase in (OPTIMIZER_FIRST, OPTIMIZER):
            recorder.phase(phase)
            if made is not None:
                _step(made)
        recorder.phase(END)
        self._kept = made  # its state must not die before the recorder stops

    # Static

    def _pure(self, tensor: torch.Tensor) -> torch.Tensor:
        """On the meta device, in the dtype that the target computes in."""
        dtype = self.target.dtype if self.target.dtype is not None and tensor.is_floating_point() else tensor.dtype
        return torch.empty_like(tensor.detach(), device="meta", dtype=dtype)

    def _to_meta(self, recorder: _Recorder) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Meta tensors in place of parameters, buffers and tensors that modules keep; tied ones stay tied."""
        made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

        def meta(tensor: torch.Tensor, kind: int) -> Any:
            if id(tensor) not in made:
                twin = self._pure(tensor)
                if isinstance(tensor, nn.Parameter):
                    twin = nn.Parameter(twin, requires_grad=tensor.requires_grad)
                made[id(tensor)] = (tensor, twin)
                recorder.number(twin, kind)
            return made[id(tensor)][1]

        for module in self.model.modules():
            for table, kind in ((module._parameters, PARAMETER), (module._buffers, BUFFER)):
                for name, tensor in table.items():
                    if tensor is not None:
                        table[name] = meta(tensor, kind)
            for name, value in list(vars(module).items()):
                if isinstance(value, torch.Tensor):
                    vars(module)[name] = meta(value, BUFFER)
                elif name == "_flat_weights" and isinstance(value, list):  # of recurrent layers
                    vars(module)[name] = [meta(w, PARAMETER) if isinstance(w, torch.Tensor) else w for w in value]
        return list(made.values())

    def _copy_inputs(
        self, recorder: _Recorder, args: Any, kwargs: Any, copy: Callable[[torch.Tensor], torch.Tensor]
    ) -> tuple[Any, Any]:
        """Inputs that a step may change, and give gradients to."""
        made: dict[int, torch.Tensor] = {}  # what is given twice, labels that are the input, say, is there once

        def twin_of(tensor: torch.Tensor) -> torch.Tensor:
            twin = copy(tensor).requires_grad_(tensor.requires_grad)
            recorder.number(twin, INPUT)
            recorder.values.know(twin, tensor)
            return twin

        def copied(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                if id(value) not in made:
                    made[id(value)] = twin_of(value)
                return made[id(value)]
            if isinstance(value, dict):
                return {key: copied(v) for key, v in value.items()}
            if isinstance(value, tuple) and hasattr(value, "_fields"):
                return type(value)(*(copied(v) for v in value))
            if isinstance(value, (list, tuple)):
                return type(value)(copied(v) for v in value)
            return value

        return copied(tuple(args)), copied(dict(kwargs))

    # Empirical

    def _count_real(self, recorder: _Recorder) -> None:
        for module in self.model.modules():
            module._buffers.update({name: b.clone() for name, b in module._buffers.items() if b is not None})
            for name, value in list(vars(module).items()):
                if isinstance(value, torch.Tensor):
                    vars(module)[name] = value.detach().clone().requires_grad_(value.requires_grad)
        for parameter in self.model.parameters():
            parameter.grad = None
            recorder.number(parameter, PARAMETER)
        for buffer in self.model.buffers():
            recorder.number(buffer, BUFFER)

    def _twins_with_gradients(self, recorder: _Recorder, parameters: list[nn.Parameter]) -> dict[int, nn.Parameter]:
        twins = {}
        for p in parameters:
            twin = nn.Parameter(torch.empty_like(p.detach(), device="meta"), requires_grad=p.requires_grad)
            recorder.ignore(twin)
            if p.grad is not None:
                twin.grad = torch.empty_like(twin)
                recorder.ignore(twin.grad)
            twins[id(p)] = twin
        return twins
