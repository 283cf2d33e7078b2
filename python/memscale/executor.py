"""The executor: attaches a plan to a model, runs it, and takes it off again.

Life of an attachment: the plan is made from a static profile of the step, in ``wrap`` if there is a sample input, else
when the first training forward begins. Where a step cannot be analysed without running it, the plan starts lean (every
unit is recomputed), the first forward is measured while it runs, and the engine settles the plan then. All state of a
step lives in the autograd graph and dies with it.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._device import DeviceContext

from . import _core, _memory, _use_cache
from ._attach import Attachment
from ._backward import OnCallingThread, is_on_one_gpu
from ._log import Log
from ._planner import Planner, Sizes, can_profile, sizes_of
from ._recompute import Measured, Problem, Unit, identity
from ._units import find_units, param_bytes
from .config import Config
from .errors import BudgetError, MemScaleError, MemScaleWarning
from .plans import Plan

HANDLE = "_memscale_executor"

_is_tracing = getattr(torch._C, "_is_tracing", torch.jit.is_tracing)
# False inside torch.func transforms, which do not support hooks on saved tensors.
_hooks_allowed = getattr(torch._C._autograd, "_saved_tensors_hooks_is_enabled", lambda: True)
# The hooks on saved tensors that are in force, if any (the argument: also while tracing).
_top_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda ignore: None)


class Executor:
    """The handle on a wrapped model: ``model._memscale_executor``.

    Attributes:
        model: the model it is attached to.
        config: the settings.
        plan: what is done to each layer.
        attached: is it still attached?
    """

    def __init__(self, model: nn.Module, config: Config, optimizer: torch.optim.Optimizer | None = None) -> None:
        self.model = model
        self.config = config
        self.attached = False
        self.in_context = False  # inside an optimize() block
        self._attachment = Attachment()
        self._units = [Unit(name, module, param_bytes(module)) for name, module in find_units(model).items()]
        self._device = _memory.main_device(model)
        self._cap: _memory.AllocatorCap | None = None
        self._backward = OnCallingThread() if is_on_one_gpu(model) else None
        self._log: Log | None = None
        self._measuring: _Measurement | None = None  # until the plan is settled
        self._sampling = False  # inside the forward on a sample input
        self._said: set[str] = set()
        self._planner = Planner(model, config, optimizer)
        self._can_profile = can_profile(model, config)
        self._aside = False  # while a step is analysed units run plainly
        self.plan = self._planner.from_units(self._rows(), 0, provisional=True)

    # Attaching and detaching

    def attach(self, sample: tuple[tuple[Any, ...], dict[str, Any]] | None = None, plan: Plan | None = None) -> None:
        """Attach to the model. With a sample (positional and keyword inputs) the plan is settled at once."""
        if plan is not None:
            plan.check_units(self._rows())
            _check_techniques(plan)
        self._log = Log(self.config)
        try:
            self._attach_modules()
            self._log_hardware()
            if self.config.memory_budget_gb is not None and self._device.type == "cuda":
                self._cap = _memory.AllocatorCap(self._device, _memory.budget_bytes(self.config, self._device))
            self._apply(self.plan if plan is None else plan.settled())
            if plan is None and sample is not None:
                if not self._settle_statically(*sample):
                    self._settle_on(*sample)
            else:
                self._info("plan: %s", self.plan.describe())
        except BaseException:
            self._undo()
            raise

    def _attach_modules(self) -> None:
        self.attached = True
        for unit in self._units:
            self._attachment.set_forward(unit.module, functools.partial(self.run_unit, unit))
        for module in self.model.modules():
            if _use_cache.takes_use_cache(module):
                self._attachment.add_pre_hook(module, _UseCacheOff(self, module))
        self._attachment.set_attribute(self.model, "_replicate_for_data_parallel", _refuse_data_parallel)
        self._attachment.add_pre_hook(self.model, _ForwardBegins(self))
        self._attachment.add_post_hook(self.model, _ForwardEnds(self))
        self._attachment.set_attribute(self.model, HANDLE, self)

    def detach(self) -> None:
        """Put the model back as it was. Does nothing a second time."""
        if self.attached:
            self._info("detached from %s", type(self.model).__name__)
            self._undo()

    def _undo(self) -> None:
        self.attached = False
        if self._cap is not None:
            self._cap.release()
        if self._backward is not None:
            self._backward.release()
        self._attachment.undo()
        if self._log is not None:
            self._log.close()

    # The plan

    def _rows(self) -> list[_core.UnitRow]:
        """What the engine is told about the units, in order of first execution."""
        rows = []
        for unit in sorted(self._units, key=lambda u: (u.measured.calls == 0, u.measured.order)):
            seen = unit.measured
            eligible = self.config.enable_checkpointing and unit.excluded is None
            flags = (_core.UNIT_ELIGIBLE if eligible else 0) | (_core.UNIT_RUN if seen.calls else 0)
            rows.append((unit.name, unit.param_bytes, seen.saved_bytes, seen.boundary_bytes, seen.rows, flags))
        return rows

    def _apply(self, plan: Plan) -> None:
        self.plan = plan
        self._measuring = None
        for unit in self._units:
            unit.on_backward = self._settle if plan.provisional else None
            unit.recompute = "recompute" in plan.layers[unit.name] and unit.excluded is None

    def _settle_statically(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Make the plan without running anything. False if the step cannot be analysed so."""
        if not self._can_profile:
            return False
        self._aside = True
        try:
            plan = self._planner.settle(args, kwargs, self._excluded())
        except BudgetError:
            raise
        except (MemScaleError, ValueError) as error:
            self._can_profile = False
            self._say_once(f"the first forward is measured as it runs, since the step cannot be analysed: {error}")
            return False
        finally:
            self._aside = False
        self._apply(plan)
        self._info("plan: %s", plan.describe())
        return True

    def _settle(self, rest_bytes: int = 0) -> None:
        """What there is to know has been measured: make the plan."""
        self._apply(self._planner.from_units(self._rows(), rest_bytes))
        self._info("plan: %s", self.plan.describe())

    def _change_sizes(self, sizes: Sizes, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A batch of other sizes: does it fit, and with which plan?"""
        self._aside = True
        try:
            plan = self._planner.at(args, kwargs)
        finally:
            self._aside = False
        self._planner.sizes = sizes
        if plan is not self.plan:
            self._apply(plan)
            first = " x ".join(str(n) for n in sizes[0])
            self._say_once(f"batches of {first} and alike: {plan.describe()}")

    def _excluded(self) -> set[str]:
        return {unit.name for unit in self._units if unit.excluded is not None}

    def _settle_on(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run one forward on the sample, which settles the plan and leaves no trace in the model."""
        state = _core.ModuleState(self.model)
        randomness = _core.Randomness({p.device for p in self.model.parameters()})
        outside: list[torch.Tensor] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            outside.append(tensor.detach())
            return outside[-1]

        self._sampling = True
        state.enter()
        try:
            for module in state.modules():
                module._buffers.update({name: b.clone() for name, b in module._buffers.items() if b is not None})
            self._measuring = _Measurement(self, outside)
            with torch.enable_grad(), saved_tensors_hooks(pack, identity):
                self.model(*args, **kwargs)
            if self.plan.provisional:  # the root has no output, or hides its forward from hooks
                self._settle()
        except MemScaleError:
            raise
        except Exception as error:
            raise MemScaleError(
                f"the model does not run on sample_input ({type(error).__name__}: {error}). Give a tensor, a tuple of "
                "positional inputs or a dict of keyword inputs, on the model's device."
            ) from error
        finally:
            state.leave()
            randomness.restore()
            self._sampling = False

    # The forward of the model

    def begin_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The model's forward begins."""
        if self._aside or not torch.is_grad_enabled():
            return
        if self._backward is not None:
            self._backward.take()
        if self._sampling:
            return
        if self.plan.provisional:
            if not (_may_hook() and self._settle_statically(args, kwargs)):
                self._measuring = _Measurement(self)
        elif self._planner.known is not None:
            sizes = sizes_of(args, kwargs)
            if sizes != self._planner.sizes:
                self._change_sizes(sizes, args, kwargs)

    def end_forward(self, output: Any) -> None:
        """It ends; with None if it raised."""
        if self._aside:
            return
        if self._measuring is not None and self._measuring.n_units and output is not None:
            self._settle(self._measuring.rest_bytes(output))

    # The forward of a unit

    def run_unit(self, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a unit's forward as the plan says."""
        if not unit.recompute or self._aside or not (self.attached and torch.is_grad_enabled() and _may_hook()):
            return unit.plain(*args, **kwargs)
        if not self._sampling and _top_hooks(True) is not None:
            self._say_once("hooks on saved tensors (a checkpoint, an offload) are around the model: they come first")
            return unit.plain(*args, **kwargs)
        call = _core.Call(unit, args, kwargs)
        if call.opaque is not None:
            kind = call.opaque.__name__
            self._say_once(f"unit '{unit.name}' got a {kind}, which may change: such calls are not recomputed")
            return unit.plain(*args, **kwargs)
        known = unit.learned.get(call.flags)
        if known is not None and not self.plan.provisional:
            return call.run(known.buffers, known.draws, known.full, known.in_place, args, kwargs)
        output, problem, saved = unit.run_checked(call, args, kwargs)
        if problem is not None:
            self._exclude(unit, problem)
        if self.plan.provisional:
            if self._measuring is None:  # not inside the model's own forward
                self._measuring = _Measurement(self)
            self._measuring.add(unit, _core.tensors_in((args, kwargs)), saved)
        return output

    def _exclude(self, unit: Unit, problem: Problem) -> None:
        unit.excluded = problem.text
        unit.recompute = False
        self._plan_around()
        text = f"unit '{unit.name}' ({type(unit.module).__name__}) is not recomputed: {problem.text}"
        if not problem.warn:
            self._info("%s", text)
            return
        warnings.warn(
            f"{text}. Its activations stay in memory and training goes on. To have it recomputed, let its forward "
            "depend on nothing but its inputs, parameters, buffers and torch's random state.",
            MemScaleWarning,
            stacklevel=2,
        )

    def _plan_around(self) -> None:
        """A layer turned out to be one that has to be kept: others may make up for it."""
        if self._planner.known is None or self.plan.provisional:
            return
        try:
            self._apply(self._planner.again(self._excluded()))
        except BudgetError as error:
            self._say_once(f"with that, no plan fits any more: {error}")

    # What is said

    def say_use_cache(self) -> None:
        self._say_once(
            "use_cache is off in training forwards while layers are recomputed; evaluation and generation keep it"
        )

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._info("%s", text)

    def _info(self, message: str, *args: object) -> None:
        if self._log is not None:
            self._log.info(message, *args)

    def _log_hardware(self) -> None:
        host = _memory.host()
        usable, total = host["memory_limit_bytes"] / 1e9, host["memory_total_bytes"] / 1e9
        self._info("host: %.1f GB usable of %.1f GB, %d cores", usable, total, host["n_cores"])
        if self._device.type == "cuda":
            properties = torch.cuda.get_device_properties(self._device)
            self._info("device: %s, %.1f GB", properties.name, properties.total_memory / 1e9)
        self._info("model: %s, %d units, on %s", type(self.model).__name__, len(self._units), self._device)

    def __deepcopy__(self, memo: Any) -> None:
        """A copy of a wrapped model is a plain one."""

    def __reduce__(self) -> Any:
        return type(None), ()

    def __repr__(self) -> str:
        state = "attached to" if self.attached else "detached from"
        return f"<memscale executor {state} {type(self.model).__name__}: {self.plan.describe()}>"


class _Measurement:
    """One forward that is measured, unit by unit."""

    def __init__(self, executor: Executor, outside: list[torch.Tensor] | None = None) -> None:
        self._seen = set(_memory.state_storages(executor.model))  # storages that are counted already
        self._outside = outside  # what was saved outside units, where that is known
        self.n_units = 0
        for unit in executor._units:
            unit.measured = Measured()

    def add(self, unit: Unit, inputs: list[torch.Tensor], saved: list[torch.Tensor]) -> None:
        if unit.measured.calls == 0:
            unit.measured.order = self.n_units
            self.n_units += 1
        unit.measured.add(inputs, saved, self._seen)

    def rest_bytes(self, output: Any) -> int:
        """Bytes kept outside units. Where they were not measured: the outputs, and as much again for the loss."""
        if self._outside is None:
            return 2 * sum(_memory.storages(_core.tensors_in(output)).values())
        kept = _memory.storages([*self._outside, *_core.tensors_in(output)])
        return sum(size for address, size in kept.items() if address not in self._seen)


def _check_techniques(plan: Plan) -> None:
    """A plan may know more than this version runs."""
    more = {"; ".join(t) for t in plan.layers.values() if t not in ((), ("recompute",))} | set(plan.state)
    if more:
        raise MemScaleError(
            f"the plan uses techniques that are not in this version ({', '.join(sorted(more))}); make it without --all"
        )


# What is put on modules.


def nothing(*args: Any, **kwargs: Any) -> None:
    """What a hook of ours becomes in a copy that was made without asking ``__reduce_ex__``."""


class _Hook:
    """A hook of ours on a module. A copy of it does nothing: copies of a wrapped model are plain."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor

    def __deepcopy__(self, memo: Any) -> Any:
        return nothing

    def __reduce__(self) -> str:
        return "nothing"


class _ForwardBegins(_Hook):
    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.executor.begin_forward(args, kwargs)


class _ForwardEnds(_Hook):
    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        self.executor.end_forward(output)


class _UseCacheOff(_Hook):
    """Training needs no key-value cache, and a cache would be filled a second time by a recomputation."""

    def __init__(self, executor: Executor, module: nn.Module) -> None:
        super().__init__(executor)
        self.position = _use_cache.position(module) or 0

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        executor = self.executor
        if executor._aside or not torch.is_grad_enabled() or not any(unit.recompute for unit in executor._units):
            return None
        if not _use_cache.would_cache(module, self.position, args, kwargs):
            return None
        executor.say_use_cache()
        return args, {**kwargs, "use_cache": False}


def _refuse_data_parallel() -> None:
    raise MemScaleError(
        "nn.DataParallel copies modules in a way that MemScale cannot follow; use DistributedDataParallel, or "
        "detach first"
    )


def _may_hook() -> bool:
    """Not inside a compiler, a transform, or a mode that sees every operation: backward would run without it."""
    if torch.compiler.is_compiling() or _is_tracing() or not _hooks_allowed():
        return False
    if torch._C._len_torch_dispatch_stack() > 0:
        return False
    n_modes = torch._C._len_torch_function_stack()
    if n_modes == 0:
        return True
    return all(isinstance(torch._C._get_function_stack_at(i), DeviceContext) for i in range(n_modes))
