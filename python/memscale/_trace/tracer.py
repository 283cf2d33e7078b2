"""Traces training steps of a model: the model's real Python runs, forward, loss, backward and optimizer step.

Static: on the meta device, with tensors that have a shape and no bytes; what the target device would do differently
(autocast, attention, dropout) is put in its place by ``target.py``. Empirical: on the real device, with the real batch.
Either way a recorder sees what happens (``recorder.py``).
"""

from __future__ import annotations

import contextlib
import functools
from array import array
from collections.abc import Callable, Iterator
from copy import copy as copy_object
from typing import Any

import torch
from torch import nn

from .. import _core
from .._base.attachment import Attachment
from .._base.vocabulary import (
    ACTIVATION,
    BACKWARD,
    BUFFER,
    END,
    FORWARD,
    INPUT,
    LOSS,
    OPTIMIZER,
    OPTIMIZER_FIRST,
    PARAMETER,
)
from .._hw.memory import tensor_bytes
from ..errors import MemScaleError
from .autocast_lists import autocast_lists
from .meta_results import MetaCache
from .meta_values import UnknownValueError, copy_values
from .model_modules import (
    calls_compiled,
    find_flagged_units,
    takes_use_cache,
    use_cache_position,
    without_hooks,
    would_cache,
)
from .recorder import Recorder, Trace
from .stand_ins import enter_target
from .target import Rules, Target

_active_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda ignore: None)
# Of PointwiseLayer, as training runs (_run/recomputation.py), but for the comparison.
POINTWISE: dict[str, Any] = {"least_bytes": _core.OFFLOAD_LEAST_BYTES, "compares": False}
OptimizerMaker = Callable[[dict[int, nn.Parameter]], list[torch.optim.Optimizer]]


class _TracedUnit:
    """The forward of a unit while it is traced."""

    def __init__(self, recorder: Recorder, around: Callable[[], Any], index: int, name: str, module: nn.Module) -> None:
        self.recorder, self.around, self.index = recorder, around, index
        self.plain = module.forward
        self.unit = _core.Unit(name, module, self._forward)
        self.unit.on_backward = self._begin_recompute
        self.unit.on_save = recorder.note_save
        self.unit.put_inputs = recorder.note_inputs
        self.pointwise = _core.PointwiseLayer(name, self.plain, **POINTWISE)
        self.pointwise.fuser = recorder.run_fused if recorder.fuses else None
        self.pointwise.on_make = self._begin_recompute
        self.pointwise.on_made = functools.partial(recorder.recompute_unit, -1)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recorder = self.recorder
        outer = recorder.unit
        if outer == self.index or recorder.in_backward:  # called by itself, or inside of another's recomputation
            return self.plain(*args, **kwargs)
        recorder.move_to(self.index)
        recorder.begin_nodes(self.index)
        try:
            hooked = _active_hooks(True) is not None  # a checkpoint's or an offload's: the executor leaves these alone
            if recorder.recompute and not hooked and self.index not in recorder.not_recomputable:
                return self._run(args, kwargs)
            if recorder.pointwise and not hooked and not calls_compiled(self.unit.module):
                return self.pointwise(*args, **kwargs)
            return self._run_once(args, kwargs)
        finally:
            recorder.move_to(outer)
            recorder.begin_nodes(outer)

    def _run_once(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Plainly. A unit that changes its inputs in place cannot be recomputed."""
        inputs = [(t, t._version) for t in _core.tensors_in((args, kwargs)) if not t.is_inference()]
        output = self.plain(*args, **kwargs)
        if any(tensor._version != version for tensor, version in inputs):
            self.recorder.not_recomputable.add(self.index)
        return output

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run it recomputed, as the executor does, but without the check of the first run."""
        self.recorder.recompute_unit(self.index)  # what a call notes is not the step's own
        call = _core.Call(self.unit, args, kwargs)
        if call.opaque is not None:
            self.recorder.recompute_unit(-1)
            return self.plain(*args, **kwargs)
        return call.run(args, kwargs)

    def _begin_recompute(self) -> None:
        self.recorder.move_to(self.index)
        self.recorder.recompute_unit(self.index)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        recorder = self.recorder
        if not recorder.in_backward:
            recorder.recompute_unit(-1)
            return self.plain(*args, **kwargs)
        try:
            with self.around():
                return self.plain(*args, **kwargs)
        finally:
            recorder.recompute_unit(-1)


def _configs(model: nn.Module) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The contents of the modules' configs: some models store values there in their first forward."""
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


def makes_large(packed: _core.PackedTrace) -> bool:
    """Does the forward of this step make any result that is large enough for a PointwiseLayer to drop?"""
    events, kinds = array("q", packed[0]), array("q", packed[3])
    for event, number, value in zip(events[::3], events[1::3], events[2::3]):
        if event == _core.TRACE_PHASE and number == BACKWARD:
            return False
        if event == _core.TRACE_ALLOC and kinds[number] == ACTIVATION and value >= POINTWISE["least_bytes"]:
            return True
    return False


class _CacheOff:
    """A pre-hook: no key-value cache, as while layers are recomputed."""

    def __init__(self, module: nn.Module) -> None:
        self.position = use_cache_position(module) or 0

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        if would_cache(module, self.position, args, kwargs):
            return args, {**kwargs, "use_cache": False}
        return None


class Tracer:
    """Traces steps of one model, which is put back as it was even after an error."""

    def __init__(self, model: nn.Module, target: Target, called: nn.Module | None = None) -> None:
        self.model = model
        self.called = model if called is None else called  # the module whose forward a step calls
        self.target = target
        autocast_lists(target.kind)  # here, where every child finds them
        units = find_flagged_units(model)
        self.units = {name: module for name, module, _ in units}
        self.unit_flags = array("I", [flags for _, _, flags in units]).tobytes()
        self.not_recomputable: set[int] = set()  # indices of units that turned out not to be recomputable
        self._shapes = MetaCache()
        self._copies: dict[int, torch.Tensor] = {}  # of inputs and buffers that a child cannot read

    @property
    def caches(self) -> bool:
        """Would a training forward of this model fill a key-value cache?"""
        modules = [m for m in self.model.modules() if takes_use_cache(m)]
        return any(would_cache(m, use_cache_position(m) or 0, (), {}) for m in modules)

    @property
    def is_on_cpu(self) -> bool:
        return all(p.device.type == "cpu" for p in self.model.parameters())

    def know_values(self, samples: list[Any]) -> None:
        """Note the values of integer inputs and buffers that a child could not read."""
        self._copies = copy_values([*_core.tensors_in(samples), *self.model.buffers()])

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
        maker: OptimizerMaker | None,
        *,
        recompute: bool = False,
        pointwise: bool = False,
        use_cache: bool = False,
        evaluation: bool = False,
    ) -> Trace:
        """A step on the meta device. With recompute, units are recomputed in backward as in training; with pointwise,
        results of their pointwise functions."""
        trace = Trace()
        recorder = Recorder(trace, "meta", recompute, self.not_recomputable, self._shapes)
        recorder.pointwise = pointwise
        recorder.fuses = self.target.fuses
        recorder.values.copies = self._copies
        rules = Rules(self.target, recorder.values, recorder.ignore, recorder.begin_function, recorder.end_function)
        target = enter_target(self.target, rules.forget_casts)
        with target, self._prepared(recorder, rules.recomputation, use_cache):
            twins = self._to_meta(recorder)
            args, kwargs = self._copy_inputs(recorder, args, kwargs, self._pure)
            run = self._evaluate if evaluation else self._run
            with rules:
                run(recorder, self._autocast(self.target.kind), args, kwargs, loss_of)
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
        maker: OptimizerMaker | None,
        *,
        recompute: bool = False,
        use_cache: bool = False,
        evaluation: bool = False,
    ) -> Trace:
        """A step on real data. Parameters, buffers, gradients, optimizer and random numbers are put back."""
        parameters = list(self.model.parameters())
        kind = parameters[0].device.type if parameters else "cpu"
        trace = Trace()
        recorder = Recorder(trace, kind, recompute, self.not_recomputable)
        gradients = [p.grad for p in parameters]
        try:
            with self._prepared(recorder, contextlib.nullcontext, use_cache), without_hooks(parameters):
                self._count_real(recorder)
                args, kwargs = self._copy_inputs(recorder, args, kwargs, lambda t: t.detach().clone())
                run = self._evaluate if evaluation else self._run
                run(recorder, self._autocast(kind), args, kwargs, loss_of)
                recorder.device_types = {"meta"}  # what an optimizer's step allocates depends on shapes alone
                twins = self._twins_with_gradients(recorder, parameters)
                with recorder:
                    self._optimize(recorder, None if evaluation else maker, twins)
                    recorder.stop()
        finally:
            for p, gradient in zip(parameters, gradients):
                p.grad = gradient
        return trace

    def _autocast(self, kind: str) -> Any:
        dtype = self.target.autocast
        return contextlib.nullcontext() if dtype is None else torch.autocast(kind, dtype)

    # Before and after

    @contextlib.contextmanager
    def _prepared(self, recorder: Recorder, around: Callable[[], Any], use_cache: bool) -> Iterator[None]:
        attachment = Attachment()
        state = _core.ModuleState(self.model)
        configs = _configs(self.model)
        randomness = _core.Randomness({p.device for p in self.model.parameters() if p.device.type != "meta"})
        state.enter()
        try:
            for index, (name, module) in enumerate(self.units.items()):
                attachment.set_forward(module, _TracedUnit(recorder, around, index, name, module))
            for module in self.model.modules():
                if not use_cache and takes_use_cache(module):
                    attachment.add_pre_hook(module, _CacheOff(module))
            with torch.autograd.set_multithreading_enabled(False), torch.enable_grad():
                yield
        finally:
            attachment.undo()
            state.leave()
            randomness.restore()
            for config, values in configs:
                config.clear()
                config.update(values)

    def _run(self, recorder: Recorder, around: Any, args: Any, kwargs: Any, loss_of: Any) -> None:
        with recorder:
            recorder.phase(FORWARD)
            with around:
                output = self.called(*args, **kwargs)
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

    def _evaluate(self, recorder: Recorder, around: Any, args: Any, kwargs: Any, loss_of: Any) -> None:
        with recorder, torch.no_grad():
            recorder.phase(FORWARD)
            with around:
                output = self.called(*args, **kwargs)
            del output

    def _optimize(self, recorder: Recorder, maker: OptimizerMaker | None, twins: dict[int, nn.Parameter]) -> None:
        recorder.phase(OPTIMIZER_FIRST)
        optimizers = [] if maker is None else maker(twins)
        recorder.values.guess = 1.0  # some scale by norms (Adafactor); what they allocate does not depend on them
        for phase in (OPTIMIZER_FIRST, OPTIMIZER):
            recorder.phase(phase)
            for optimizer in optimizers:
                _step(optimizer)
        recorder.phase(END)
        self._optimizers = optimizers  # their state must not die before the recorder stops

    # Static

    def _pure(self, tensor: torch.Tensor) -> torch.Tensor:
        """On the meta device, in the dtype that the target computes in."""
        dtype = self.target.dtype if self.target.dtype is not None and tensor.is_floating_point() else tensor.dtype
        return torch.empty_like(tensor.detach(), device="meta", dtype=dtype)

    def _to_meta(self, recorder: Recorder) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Meta tensors in place of parameters, buffers and tensors that modules keep; tied ones stay tied."""
        twins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

        def meta(tensor: torch.Tensor, kind: int) -> Any:
            if id(tensor) not in twins:
                twin = self._pure(tensor)
                if isinstance(tensor, nn.Parameter):
                    twin = nn.Parameter(twin, requires_grad=tensor.requires_grad)
                twins[id(tensor)] = (tensor, twin)
                recorder.number(twin, kind)
            return twins[id(tensor)][1]

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
        return list(twins.values())

    def _copy_inputs(
        self, recorder: Recorder, args: Any, kwargs: Any, copy: Callable[[torch.Tensor], torch.Tensor]
    ) -> tuple[Any, Any]:
        """Copies of the inputs, which a step may change and compute gradients for."""
        twins: dict[int, torch.Tensor] = {}  # a tensor that is given twice (input and labels) is copied once

        def twin_of(tensor: torch.Tensor) -> torch.Tensor:
            twin = copy(tensor).requires_grad_(tensor.requires_grad)
            recorder.number(twin, INPUT)
            recorder.values.know(twin, tensor)
            return twin

        def copied(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                if id(value) not in twins:
                    twins[id(value)] = twin_of(value)
                return twins[id(value)]
            if isinstance(value, dict):
                return copied_dict(value)
            if isinstance(value, tuple) and hasattr(value, "_fields"):
                return type(value)(*(copied(v) for v in value))
            if isinstance(value, (list, tuple)):
                return type(value)(copied(v) for v in value)
            return value

        def copied_dict(value: dict[Any, Any]) -> dict[Any, Any]:
            twin = copy_object(value)  # of its class, with its attributes
            for key, v in value.items():
                dict.__setitem__(twin, key, copied(v))
            for name, v in getattr(twin, "__dict__", {}).items():
                vars(twin)[name] = copied(v)
            return twin

        return copied(tuple(args)), copied(dict(kwargs))

    # Empirical

    def _count_real(self, recorder: Recorder) -> None:
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

    def _twins_with_gradients(self, recorder: Recorder, parameters: list[nn.Parameter]) -> dict[int, nn.Parameter]:
        twins = {}
        for p in parameters:
            twin = nn.Parameter(torch.empty_like(p.detach(), device="meta"), requires_grad=p.requires_grad)
            recorder.ignore(twin)
            if p.grad is not None:
                twin.grad = torch.empty_like(twin)
                recorder.ignore(twin.grad)
            twins[id(p)] = twin
        return twins
