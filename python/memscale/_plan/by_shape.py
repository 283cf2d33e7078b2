"""The plans of a wrapped model: from a static profile of its step, for batches of any size.

Which plan an input gets is decided and remembered in C (``_core.ShapePlans``), which asks for a profile where it needs
one more.
"""

from __future__ import annotations

import time
from typing import Any

from torch import nn

from .. import _core
from .._hw import devices
from .._trace.profiling import Runs
from .._trace.sample import Input, Sizes, resized, shape_of, sizes_of
from .._trace.twin_optimizer import Optimizers
from ..config import Config
from ..errors import BudgetError, MemScaleError
from ..plans import Plan
from ..profiles import Profile, profile_step
from .advice import with_advice
from .request import Request
from .steps import StepChange, Steps


def why_not_static(model: nn.Module, config: Config) -> str:
    """Why a step of this model cannot be analysed without running it; "": it can."""
    places = {p.device for p in model.parameters()}
    if not config.use_static_profiling:
        return "config.use_static_profiling is off"
    if len(places) != 1:
        return f"the model is on {len(places)} devices"
    kind = next(iter(places)).type
    return "" if kind in ("cpu", "cuda") else f"the model is on the device '{kind}'"


class StepProfiler:
    """Profiles the steps of one model without running them.

    Attributes:
        optimizers: that update the model, as far as they are known.
        input: the input that is being planned for.
        is_static: can its steps be analysed without running them?
        called: the module whose forward a step calls.
        seconds: that the last profile took.
    """

    def __init__(self, model: nn.Module, config: Config, optimizers: Optimizers) -> None:
        self._model = model
        self._config = config.replace(use_static_profiling=True)
        self.optimizers = optimizers
        self.called: nn.Module = model
        self.input: Input = (), {}
        self.is_static = True
        self.seconds = 0.0

    def profile(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, shapes: bool = False, is_sample: bool = False
    ) -> Profile:
        """The step with these inputs. Raises MemScaleError or ValueError if it cannot be analysed."""
        start = time.monotonic()
        runs = Runs.IN_CHILD if is_sample else Runs.NEVER
        profile = profile_step(
            self._model,
            args,
            kwargs,
            self.optimizers,
            self._config,
            called=self.called,
            shapes=shapes,
            runs=runs,
        )
        self.seconds = time.monotonic() - start
        return profile

    def answer(self, all_shapes: bool) -> _core.Profile | None:
        """Called by the engine while it plans: the step with the current input, or None if it cannot be analysed."""
        if not self.is_static:
            return None
        try:
            return self.profile(*self.input, shapes=all_shapes).core
        except (MemScaleError, ValueError):
            return None


class Planner:
    """Makes plans for one model.

    Attributes:
        request: what the engine is asked for.
        profile: that plans are made from; None before a step was analysed or watched.
    """

    def __init__(self, model: nn.Module, config: Config, optimizers: Optimizers) -> None:
        self.config = config
        self.request = Request(config, devices.find(None, model))
        self.profile: Profile | None = None
        self._profiler = StepProfiler(model, config, optimizers)
        self._core: _core.Profile | None = None  # the same, or one for all shapes
        self._excluded: set[str] = set()
        self._first_sizes: Sizes = ()
        self._first_shape = (0, 0)
        self._plans: dict[bool, _core.ShapePlans] = {}  # by whether gradients are held

    @property
    def optimizers(self) -> Optimizers:
        return self._profiler.optimizers

    @optimizers.setter
    def optimizers(self, optimizers: Optimizers) -> None:
        self._profiler.optimizers = optimizers
        self.profile = None

    def analyse(
        self, called: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_sample: bool = False
    ) -> None:
        """Profile the step that calls this module with these inputs, running nothing here.

        Args:
            called: the model, or one of its modules.
            args, kwargs: the inputs.
            is_sample: no step with them follows: where it cannot be analysed statically, it runs in a child, if the
                model is on a CPU.

        Raises:
            NotAnalysedError: it cannot be analysed so; MemScaleError: the model does not run on the sample.
        """
        self._profiler.called = called
        self.adopt(self._profiler.profile(args, kwargs, is_sample=is_sample), args, kwargs)

    def forget(self) -> None:
        """The step is another than the one that was profiled."""
        self.profile = None

    def adopt(self, profile: Profile, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Plan from this profile of the step with these inputs."""
        self.profile, self._core = profile, profile.core
        self._profiler.is_static = profile.source == "static"
        self._first_sizes, self._first_shape = sizes_of(args, kwargs), shape_of(args, kwargs)
        self._plans.clear()

    def exclude(self, names: set[str]) -> None:
        """Keep these layers in all plans that are made from now on."""
        if names != self._excluded:
            self._excluded = set(names)
            for plans in self._plans.values():
                self._core = plans.profile()
            self._plans.clear()

    def at(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, held: bool = False) -> Plan:
        """The plan for a step with these inputs, by their sizes: the same object for the same plan.

        Args:
            args, kwargs: the inputs.
            held: gradients exist when the step begins, and stay: they are accumulated, or set to zero.

        Raises:
            BudgetError: no plan fits such a step.
        """
        if held not in self._plans:
            try:
                self._plans[held] = self._first_plan(held)
            except BudgetError as error:
                raise self._advised(error, args, kwargs) from None
        self._profiler.input = args, kwargs
        try:
            plan: Plan = self._plans[held].find(sizes_of(args, kwargs), shape_of(args, kwargs))
            return plan
        finally:
            self._profiler.input = (), {}

    def first(self, *, held: bool = False) -> Plan:
        """The plan for the inputs that were profiled. Raises BudgetError if none fits."""
        if held not in self._plans:
            self._plans[held] = self._first_plan(held)
        plan: Plan = self._plans[held].find(self._first_sizes, self._first_shape)
        return plan

    def _first_plan(self, held: bool) -> _core.ShapePlans:
        """The plans by shape, with that for the inputs of the profile."""
        assert self.profile is not None
        assert self._core is not None
        core, fused = self._core, self.profile.fused
        may_change = bytes(unit.name not in self._excluded for unit in self.profile.units)
        plan = self.request.create(core, may_change=may_change, fused=fused, held=held)
        return _core.ShapePlans(
            request=self.request.core,
            plan=plan.core,
            profile=core,
            sizes=self._first_sizes,
            shape=self._first_shape,
            source=self._profiler.answer,
            wrap=lambda other: plan if other is plan.core else Plan(other),
            may_change=may_change,
            fused=fused,
            held=held,
        )

    def _advised(self, error: BudgetError, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BudgetError:
        """The same error, and what would fit."""
        assert self.profile is not None
        if self.profile.source != "static":
            return error
        shape = shape_of(args, kwargs)

        def trace(change: StepChange) -> Profile:
            new = shape if change.batch is None else (change.batch, shape[1])
            return self._profiler.profile(*resized((args, kwargs), shape, new))

        steps = Steps(trace, shape[0], profile=self.profile)
        steps.seconds = self._profiler.seconds
        return with_advice(error, steps, self.config, self.request)
