"""The plans of a wrapped model: from a static profile of its step, for batches of any size.

Which plan an input gets is decided and remembered in C (``_core.ShapePlans``), which asks for a profile where it needs
one more.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from .. import _core
from .._hw import devices
from .._trace.sample import Sizes, resized, shape_of, sizes_of
from ..config import Config
from ..errors import BudgetError, MemScaleError
from ..plans import Plan
from ..profiles import Profile, profile_step
from .advice import with_advice
from .request import Request
from .steps import StepChange, Steps

Input = tuple[tuple[Any, ...], dict[str, Any]]  # positional and keyword


def can_profile(model: nn.Module, config: Config) -> bool:
    """May a step of this model be analysed without running it? Not if it is spread over devices."""
    places = {p.device for p in model.parameters()}
    return config.use_static_profiling and len(places) == 1 and next(iter(places)).type in ("cpu", "cuda")


class StepProfiler:
    """Profiles the steps of one model without running them.

    Attributes:
        input: the input that is being planned for.
        seconds: that the last profile took.
    """

    def __init__(self, model: nn.Module, config: Config, optimizer: torch.optim.Optimizer | None) -> None:
        self._model = model
        self._config = config.replace(use_static_profiling=True, use_empirical_fallback=False)
        self._optimizer = optimizer
        self.input: Input = (), {}
        self.seconds = 0.0

    def profile(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, shapes: bool = False) -> Profile:
        """The step with these inputs. Raises MemScaleError or ValueError if it cannot be analysed."""
        start = time.monotonic()
        profile = profile_step(self._model, args, kwargs, self._optimizer, self._config, shapes=shapes, quietly=True)
        self.seconds = time.monotonic() - start
        return profile

    def answer(self, all_shapes: bool) -> _core.Profile | None:
        """Called by the engine while it plans: the step with the current input, or None if it cannot be analysed."""
        try:
            return self.profile(*self.input, shapes=all_shapes).core
        except (MemScaleError, ValueError):
            return None


class Planner:
    """Makes plans for one model.

    Attributes:
        request: what the engine is asked for.
        profile: that plans are made from; None before the first step was analysed.
        sizes: of the last inputs.
    """

    def __init__(self, model: nn.Module, config: Config, optimizer: torch.optim.Optimizer | None) -> None:
        self.config = config
        self.request = Request(config, devices.find(None, model))
        self.profile: Profile | None = None
        self.sizes: Sizes = ()
        self._profiler = StepProfiler(model, config, optimizer)
        self._first_sizes: Sizes = ()
        self._first_shape = (0, 0)
        self._plans: _core.ShapePlans | None = None

    def settle(self, args: tuple[Any, ...], kwargs: dict[str, Any], excluded: set[str]) -> Plan:
        """The plan for a step with these inputs, from a profile that runs nothing.

        Raises:
            MemScaleError: the step cannot be analysed; BudgetError: no plan fits.
        """
        self.profile = self._profiler.profile(args, kwargs)
        self.sizes = sizes_of(args, kwargs)
        self._first_sizes, self._first_shape = self.sizes, shape_of(args, kwargs)
        self._plans = None
        try:
            return self.plan_again(excluded)
        except BudgetError as error:
            raise self._advised(error, args, kwargs) from None

    def plan_again(self, excluded: set[str]) -> Plan:
        """A new plan in which these layers are kept."""
        assert self.profile is not None
        core = self.profile.core if self._plans is None else self._plans.profile()
        may_change = bytes(unit.name not in excluded for unit in self.profile.units)
        fused = self.profile.fused
        plan = self.request.create(core, may_change=may_change, fused=fused)
        self._plans = _core.ShapePlans(
            request=self.request.core,
            plan=plan.core,
            profile=core,
            sizes=self._first_sizes,
            shape=self._first_shape,
            source=self._profiler.answer,
            wrap=lambda other: plan if other is plan.core else Plan(other),
            may_change=may_change,
            fused=fused,
        )
        return plan

    def at(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        """The plan for a step with these inputs, by their sizes: the same object for the same plan.

        Raises:
            BudgetError: no plan fits such a step.
        """
        assert self._plans is not None
        self._profiler.input = args, kwargs
        try:
            plan: Plan = self._plans.find(sizes_of(args, kwargs), shape_of(args, kwargs))
            return plan
        finally:
            self._profiler.input = (), {}

    def _advised(self, error: BudgetError, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BudgetError:
        """The same error, and what would fit."""
        shape = shape_of(args, kwargs)

        def trace(change: StepChange) -> Profile:
            new = shape if change.batch is None else (change.batch, shape[1])
            return self._profiler.profile(*resized((args, kwargs), shape, new))

        steps = Steps(trace, shape[0], profile=self.profile)
        steps.seconds = self._profiler.seconds
        return with_advice(error, steps, self.config, self.request)
