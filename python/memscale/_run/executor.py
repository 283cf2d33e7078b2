"""The executor: attaches a plan to a model, runs it, and takes it off again.

Life of an attachment: the plan is made from a static profile of the step, in ``wrap`` if there is a sample input, else
when the first training forward begins. A step that cannot be analysed so is watched: it runs with every unit recomputed
and is traced meanwhile (``_trace/watch.py``), and the plan follows it. All state of a step is in the autograd graph and
dies with it.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .._base.attachment import HANDLE, Attachment, Handle
from .._hw.memory import main_device
from .._plan.by_shape import Planner
from .._plan.step_profiler import why_not_static
from .._trace.model_modules import (
    StepModule,
    find_flagged_units,
    inside_compiled,
    param_bytes,
    step_module,
    takes_use_cache,
)
from .._trace.profiling import NotAnalysedError
from .._trace.sample import Sizes, sizes_of
from .._trace.twin_optimizer import find_optimizers, is_fused, updates
from ..config import Config
from ..errors import BudgetError, MemScaleError, MemScaleWarning
from ..plans import Plan
from ..profiles import Profile
from .checking import Checking, Measured
from .compilation import Compilation
from .device_memory import DeviceMemory
from .given import check_given
from .handlers import HANDLERS, Parts, assign, assign_one
from .hooks import ForwardBegins, ForwardEnds, StepHook, UseCacheOff, may_hook, refuse_data_parallel
from .messages import USE_CACHE_IS_OFF, WHAT_TO_DO, Messages, when_planned
from .offloading import Offloading
from .recomputation import Unit, is_any_set
from .spacer import Spacer
from .torch_state import BackwardOnCallingThread, is_on_one_gpu
from .trained import Trained
from .watching import Watching


def _warn(text: str) -> None:
    warnings.warn(text, MemScaleWarning, stacklevel=2)


class Executor(Handle):
    """The handle on a wrapped model: ``memscale.executor_of(model)``.

    Attributes:
        model: the model it is attached to.
        config: the settings.
        plan: what is done to each layer; None until the step is known: from the first training forward on or, where
            the step has to be watched, from the one after it.
        attached: is it still attached?
        measured: the step that was measured last, layer by layer, next to its prediction; None: none was yet.
    """

    def __init__(self, model: nn.Module, config: Config, optimizer: torch.optim.Optimizer | None = None) -> None:
        self.model = model
        self.config = config
        self.plan: Plan | None = None
        self.attached = False
        self.in_context = False  # inside an optimize() block
        self._attachment = Attachment()
        found = find_flagged_units(model)
        self._units = [Unit(name, module, param_bytes(module), i) for i, (name, module, _) in enumerate(found)]
        self._trained = Trained(model)
        self._device = main_device(model)
        self._backward = BackwardOnCallingThread() if is_on_one_gpu(model) else None
        self._messages = Messages(config)
        self._planner = Planner(model, config, () if optimizer is None else (optimizer,), _warn)
        self._planner.turn_to(self._trained.kind)
        trained, warn = self._trained.parameters, self._messages.warn
        self._device_memory = DeviceMemory(self._device, config, self._planner, trained, warn)
        self._offloading = Offloading(self._device, config, self._messages)
        self._checking = Checking(model, self._units, self._planner, self._messages)
        self._step = StepModule(model)
        self._analysing = False  # while a step is analysed, units run as without MemScale
        self._is_idle = False  # nothing is done in this step
        self._is_watched = False  # handlers are those of a watched step
        self._is_given = False  # the plan is the user's
        self._why_watched = why_not_static(model, config)  # "": the step can be analysed without running it
        self._watching = Watching(model, self._units, [flags for *_, flags in found], self._device, config.warmup_steps)
        self._spacer = Spacer(self._device, self._device_memory)
        self._parts = Parts(self._messages, self._watching, self._offloading, self._spacer, self._exclude)
        self._planned_for: tuple[Sizes, bool] | None = None  # sizes of inputs, and whether gradients were held
        self._failed_for: tuple[Sizes, bool] | None = None  # the same of a step that ran out of memory
        self._step_hook: StepHook | None = None
        self._compilation = Compilation(model, self._units, self._attachment)
        self._foreign: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()  # of other models

    @property
    def measured(self) -> Measured | None:
        return self._checking.measured

    # Attaching and detaching

    def attach(self, sample: tuple[tuple[Any, ...], dict[str, Any]] | None = None, plan: Plan | None = None) -> None:
        """Attach to the model. With a sample (positional and keyword inputs) the plan is made at once."""
        if plan is not None:
            check_given(plan, self._units, HANDLERS)
        self._check_profiling()
        self._messages.open()
        try:
            self._attach_modules()
            when = "" if sample or plan else when_planned(self._why_watched)
            self._messages.start(self.model, len(self._units), self._planner.request, when)
            self._device_memory.attach()
            self._is_given = plan is not None
            if plan is not None:
                self._apply(plan)
                self._wait_for_optimizer()
                self._messages.info(f"plan: {plan.describe()}")
            elif sample is not None and self._analyse(step_module(self.model), *sample, is_sample=True):
                self._replan(*sample, held=False)
            elif sample is not None:
                self._messages.once(when_planned(self._why_watched))
        except BaseException:
            self._undo()
            raise

    def reattach(self) -> None:
        """Attach again after a detach, with everything as it was."""
        self._messages.open()
        self._backward = BackwardOnCallingThread() if is_on_one_gpu(self.model) else None
        try:
            self._attach_modules()
            self._device_memory.attach()
            if self.plan is not None:
                self._apply(self.plan)
            if self._is_given or self._planner.profile is not None:
                self._wait_for_optimizer()
        except BaseException:
            self._undo()
            raise

    def _check_profiling(self) -> None:
        """Where a step can be neither analysed nor watched, nothing can be planned."""
        if self._why_watched and not self.config.use_empirical_fallback:
            raise MemScaleError(
                f"the step cannot be analysed ({self._why_watched}), and config.use_empirical_fallback is off"
            )

    def _attach_modules(self) -> None:
        self.attached = True
        for unit in self._units:
            unit.plain = unit.module.forward
            self._attachment.set_forward(unit.module, self._shim_of(unit))
        self._compilation.follow(self._shim_of)
        inside = inside_compiled(self.model)
        for module in self.model.modules():
            if takes_use_cache(module) and module not in inside:
                self._attachment.add_pre_hook(module, UseCacheOff(self, module))
        self._attachment.set_attribute(self.model, "_replicate_for_data_parallel", refuse_data_parallel)
        for module in self._step.candidates:
            if module not in inside:
                self._attachment.add_pre_hook(module, ForwardBegins(self))
                self._attachment.add_post_hook(module, ForwardEnds(self))
        self._attachment.set_attribute(self.model, HANDLE, self)

    def _shim_of(self, unit: Unit) -> Callable[..., Any]:
        return functools.partial(self.run_unit, unit)

    def detach(self) -> None:
        """Put the model back as it was. Does nothing a second time."""
        if self.attached:
            self._messages.info(f"detached from {type(self.model).__name__}")
            self._undo()

    def leave_modules(self) -> None:
        """Take everything off the modules and nothing else: for a copy of this process that analyses the model."""
        self.attached = False
        self._attachment.undo()

    def _undo(self) -> None:
        self.attached = False
        self._watching.stop()
        self._checking.drop()
        if self._step_hook is not None:
            self._step_hook.remove()
            self._step_hook = None
        self._device_memory.release()
        for unit in self._units:
            unit.handler = unit.put_inputs = None
        self._offloading.release()
        if self._backward is not None:
            self._backward.release()
        self._attachment.undo()
        self._compilation.forget()
        self._messages.close()

    # The plan

    def _apply(self, plan: Plan) -> None:
        self.plan = plan
        self._device_memory.use(plan)
        self._offloading.use(plan)
        self._spacer.use(plan)
        assign(self._units, plan, self._device)

    def _analyse(
        self, called: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_sample: bool = False
    ) -> bool:
        """Profile the step without running it here. False if it cannot be analysed so, and has to be watched."""
        if self._why_watched:
            return False
        if not self._planner.optimizers:
            self._planner.optimizers = find_optimizers(self.model)
        self._analysing = True
        try:
            self._planner.analyse(called, args, kwargs, is_sample=is_sample)
        except (MemScaleError, ValueError) as error:
            if is_sample and not isinstance(error, NotAnalysedError):
                raise
            self._why_watched = str(error)
            self._check_profiling()
            return False
        finally:
            self._analysing = False
        self._planned_for = None
        self._device_memory.see_occupied()
        self._wait_for_optimizer()
        return True

    def _replan(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, held: bool) -> None:
        """Take the plan for a step with these inputs, or raise if none fits."""
        self._planner.exclude(self._excluded())
        self._analysing = True
        try:
            plan = self._planner.at(args, kwargs, held=held)
        finally:
            self._analysing = False
        first, self._planned_for = self._planned_for is None, (sizes_of(args, kwargs), held)
        if self._failed_for == self._planned_for:
            self._device_memory.see_next(plan)
        self._failed_for = None
        if plan is self.plan:
            return
        optimizers = self._planner.optimizers if self.plan is not None else ()
        self._apply(plan)
        self._messages.planned(plan, None if first else self._planned_for, optimizers)

    def _excluded(self) -> set[str]:
        return {unit.name for unit in self._units if unit.excluded is not None}

    # The optimizer

    def _wait_for_optimizer(self) -> None:
        """The plan is made for the optimizers that exist now; if another one steps, it is made anew."""
        if self._step_hook is None and self.attached:
            self._step_hook = StepHook(self)

    def see_step(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer steps; is it one that the plan was made for?"""
        if optimizer not in self._foreign:
            self._checking.end_step(self.plan, has_stepped=True)
        if optimizer in self._foreign or not self.attached or self._planner.knows(optimizer):
            return
        self._trained.find(self.model)  # it may be there for parameters that are new
        found = find_optimizers(self.model) if updates(optimizer, self._trained.parameters) else ()
        if found:
            self._planner.optimizers = found
        if optimizer not in found:  # another model's, or one around these
            self._foreign.add(optimizer)

    def end_step(self, optimizer: torch.optim.Optimizer) -> None:
        """It has stepped."""
        self._device_memory.end_step(is_ours=optimizer not in self._foreign and self._planner.knows(optimizer))

    # Watching

    def _watch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run this step with every unit recomputed, and trace it meanwhile."""
        self._messages.once(when_planned(self._why_watched))
        self._is_watched = True
        assign_one(self._units, "recompute" if self.config.enable_checkpointing else "keep")
        self._watching.begin(args, kwargs)
        self._device_memory.grow()

    def _leave_watch(self) -> None:
        """If a watched step has failed, the plan is in force again, if there is one."""
        if self._is_watched and not self._watching.is_active and not self._watching.has_seen:
            self._is_watched = False
            self._device_memory.forget_failure()
            if self.plan is not None:
                self._apply(self.plan)

    def _take_watched(self) -> None:
        """Plan from what was seen, if it was all of a step."""
        self._is_watched = False
        seen = self._watching.take(is_known=self._planner.profile is not None)
        if seen is None and self.plan is not None:
            self._apply(self.plan)
        elif seen is not None:
            device, fused = self._planner.request.device, is_fused(seen.optimizers)
            self._planner.optimizers = find_optimizers(self.model) or seen.optimizers
            profile = Profile(seen.core, seen.core, device, fused=fused, why_empirical=self._why_watched)
            self._planner.adopt(profile, *seen.input)
            self._device_memory.see_occupied()
            self._planned_for = None
            self._wait_for_optimizer()

    # The forward of the model

    def begin_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The forward of the model begins, or of one of the modules that a training step may call in its place."""
        if self._analysing or not torch.is_grad_enabled():
            return
        if not self._step.begins(module):
            if not self._step.is_whole_step and not self._why_watched:
                self._why_watched = "a training step calls several modules of the model"
                self._planner.forget()
            return
        self._begin_step(module, args, kwargs)

    def _begin_step(self, module: nn.Module | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._compilation.follow(self._shim_of):  # they were not compiled when they were analysed
            self._why_watched = self._why_watched or why_not_static(self.model, self.config)
            self._planner.forget()
        self._choose_plan(module, args, kwargs)
        self._device_memory.count_step()
        self._offloading.look()
        self._spacer.begin_step()
        self._is_idle = self.plan is not None and self._watching.is_idle and not self.recomputes()
        if self._backward is not None and (self._watching.is_active or self.recomputes()):
            self._backward.take()
        if not self._is_idle:
            self._checking.begin_step(self.plan, None if self._is_given or self._is_watched else self._planned_for)

    def _choose_plan(self, module: nn.Module | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not may_hook() or not self._trained.look(self.model):
            return
        held = is_any_set("grad", self._trained.parameters)
        must_replan = self._device_memory.begin_step(None if self._is_watched else self.plan, held=held)
        if self._is_given:
            return
        if must_replan:
            self._failed_for, self._planned_for = self._planned_for, None
        if self._watching.is_active:
            self._watching.continue_with_forward(held=held)
            if self._watching.is_active:  # the optimizer's step is still to come
                return
            self._leave_watch()
        if self._watching.has_seen:
            self._take_watched()
        if self._planner.kind != self._trained.kind:
            self._planner.turn_to(self._trained.kind)
            self._planned_for = None
        is_unknown = self._planner.profile is None and (module is None or not self._analyse(module, args, kwargs))
        if is_unknown or self._watching.wants_more:
            self._watch(args, kwargs)
        elif self._planned_for == (sizes_of(args, kwargs), held):
            return
        elif not self._found_plan(args, kwargs, held=held):
            self._watch(args, kwargs)

    def _found_plan(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, held: bool) -> bool:
        """Take the plan for these inputs. False: they have to be watched first."""
        if self._watching.must_see(args, kwargs) and self._planner.fits_first(held=held):
            return False
        try:
            self._replan(args, kwargs, held=held)
        except BudgetError:
            if not self._why_watched or not self._planner.is_smaller(args, kwargs):
                raise
            self._planner.forget()
            return False
        return True

    def end_forward(self, module: nn.Module, *, has_output: bool) -> None:
        """It ends, with an output or an exception."""
        if self._analysing:
            return
        is_step = self._step.ends(module)
        if not has_output:
            self._checking.drop()
            self._device_memory.see_error(is_step=is_step or torch.is_grad_enabled())
        if is_step:
            self._watching.end_forward(has_output=has_output, is_whole=self._step.is_whole_step)
            self._leave_watch()

    # The forward of a unit

    def recomputes(self) -> bool:
        """Is any layer recomputed in the forward that runs?"""
        return not self._analysing and is_any_set("handler", self._units)

    def run_unit(self, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a unit's forward as planned."""
        if self._is_idle:
            return unit.plain(*args, **kwargs)
        if self.plan is None and not self._analysing and torch.is_grad_enabled():
            self._see_unit(args, kwargs)
        handler, watching = unit.handler, self._watching
        if watching.unseen and unit in watching.unseen and torch.is_grad_enabled():
            watching.wants_more = True
        is_plain = handler is None and not watching.is_recording
        if is_plain or self._analysing or not (self.attached and torch.is_grad_enabled() and may_hook()):
            return unit.plain(*args, **kwargs)
        if handler is not None and not watching.is_recording:
            return handler(self._parts, unit, args, kwargs)
        with watching.inside(unit):
            return unit.plain(*args, **kwargs) if handler is None else handler(self._parts, unit, args, kwargs)

    def _see_unit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A unit runs before there is a plan: if no forward of the model has begun, the step is watched from now on."""
        if self._step.is_running or self._watching.is_active:
            return
        self._why_watched = self._why_watched or "a training step does not call the forward of the model"
        self._begin_step(None, args, kwargs)

    def _exclude(self, unit: Unit, reason: str, is_surprise: bool) -> None:
        unit.excluded, unit.handler = reason, None
        self._plan_around()
        text = f"layer '{unit.name}' ({type(unit.module).__name__}) is not recomputed: {reason}"
        if is_surprise:
            warnings.warn(f"{text}. {WHAT_TO_DO}", MemScaleWarning, stacklevel=2)
        else:
            self._messages.info(text)

    def _plan_around(self) -> None:
        """A layer turned out not to be recomputable: make a new plan, in which other layers make up for it."""
        if self._planned_for is None or self._is_given or self._watching.is_active:
            return
        try:
            self._planner.exclude(self._excluded())
            self._apply(self._planner.first(held=self._planned_for[1]))
            self._planned_for = None  # the next forward may need another one
        except BudgetError as error:
            self._messages.once(f"no plan fits without recomputing that layer: {error}")

    def log_use_cache(self) -> None:
        """A module was asked not to fill its key-value cache."""
        self._messages.once(USE_CACHE_IS_OFF)

    def __repr__(self) -> str:
        what = f"{'attached to' if self.attached else 'detached from'} {type(self.model).__name__}"
        return f"<memscale executor {what}: {'no plan yet' if self.plan is None else self.plan.describe()}>"
