"""The plans of a wrapped model: from a static profile of its step, at whatever shapes its batches have."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from . import _core, _devices, _memory
from ._dry_run import Steps, advised
from ._planning import Request
from .config import Config
from .errors import BudgetError, MemScaleError
from .plans import Plan
from .profiles import Profile, profile_step, resized, shape_of

Shape = tuple[int, int]

_MAX_PLANS = 1024  # that are remembered


def can_profile(model: nn.Module, config: Config) -> bool:
    """May a step of this model be analysed without running it? Not if it is spread over devices."""
    places = {p.device for p in model.parameters()}
    return config.use_static_profiling and len(places) == 1 and next(iter(places)).type in ("cpu", "cuda")


class Planner:
    """Makes plans for one model.

    Attributes:
        request: what the engine is asked for.
        known: the profile that plans are made from, once there is one.
        shape: batch and length that the plan at hand is for.
    """

    def __init__(self, model: nn.Module, config: Config, optimizer: torch.optim.Optimizer | None) -> None:
        self.model = model
        self.config = config
        self.known: Profile | None = None
        self.shape: Shape = (0, 0)
        self._optimizer = optimizer
        budget = _memory.budget_bytes(config, _memory.main_device(model))
        self.request = Request.of(config, _devices.find(None, model), budget_bytes=budget)
        self._may_change: list[bool] = []
        self._guard: _core.Guard | None = None
        self._knows_shapes = False
        self._seconds = 0.0  # that the last profile took
        self._base: Plan | None = None
        self._plans: dict[Any, Plan] = {}  # by number of the guard, or by shape

    def from_units(self, rows: list[_core.UnitRow], rest_bytes: int, *, provisional: bool = False) -> Plan:
        """A plan from what was measured while units ran, or from nothing yet."""
        state = _memory.model_state_bytes(self.model, self._optimizer)
        return self.request.create(_core.profile_from_units(rows, state, rest_bytes), provisional=provisional)

    def settle(self, args: tuple[Any, ...], kwargs: dict[str, Any], excluded: set[str]) -> Plan:
        """The plan for a step with these inputs, from a profile that runs nothing.

        Raises:
            MemScaleError: the step cannot be analysed; BudgetError: no plan fits.
        """
        self.known = self._profile(args, kwargs)
        self.shape = shape_of(args, kwargs)
        try:
            return self.again(excluded)
        except BudgetError as error:
            raise self._advised(error, args, kwargs) from None

    def _advised(self, error: BudgetError, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BudgetError:
        """The same error, and what would fit."""
        shape = shape_of(args, kwargs)

        def trace(precision: str | None, batch: int | None) -> Profile:
            new = shape if batch is None else (batch, shape[1])
            return self._profile(*resized((args, kwargs), shape, new))

        steps = Steps(trace, shape[0], can_be_half=False, known=self.known)
        steps.seconds = self._seconds
        return advised(error, steps, self.config, self.request)

    def again(self, excluded: set[str]) -> Plan:
        """The plan anew, where these layers have to be kept."""
        assert self.known is not None
        self._may_change = [unit.name not in excluded for unit in self.known.units]
        self._watch(self.request.create(self.known, may_change=self._may_change))
        assert self._base is not None
        return self._base

    def at(self, shape: Shape, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        """The plan for a step with inputs of this shape.

        Raises:
            BudgetError: no plan fits such a step.
        """
        assert self._base is not None
        if self._guard is None:
            return self._base
        try:
            number = self._guard.check(*shape)
        except BudgetError:
            raise
        except (MemScaleError, ValueError):  # the profile knows no other shape, or the step is another one there
            return self._learn(shape, args, kwargs)
        if number is None:
            return self._base
        if number not in self._plans:
            self._plans[number] = Plan(self._guard.plan(*shape))
        return self._plans[number]

    def _learn(self, shape: Shape, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        """Profile the step at a few shapes around this one, or else at this one alone."""
        if shape in self._plans:
            return self._plans[shape]
        assert self.known is not None
        assert self._base is not None
        if not self._knows_shapes:
            self._knows_shapes = True
            try:
                self.known = self._profile(args, kwargs, shapes=True).at(*self.known_shape)
                self._watch(self._base)
                return self.at(shape, args, kwargs)
            except BudgetError:
                raise
            except (MemScaleError, ValueError):
                pass
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()
        try:
            self._plans[shape] = self.request.create(self._profile(args, kwargs), may_change=self._may_change)
        except BudgetError:
            raise
        except (MemScaleError, ValueError):  # it cannot be analysed at this shape: the plan at hand will have to do
            self._plans[shape] = self._base
        return self._plans[shape]

    @property
    def known_shape(self) -> Shape:
        return self._base.shape if self._base is not None else self.shape

    def _watch(self, plan: Plan) -> None:
        self._base = plan
        self._plans.clear()
        if self.known is not None:
            self._guard = self.request.guard(self.known, plan, may_change=self._may_change)

    def _profile(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, shapes: bool = False) -> Profile:
        only_static = self.config.replace(use_static_profiling=True, use_empirical_fallback=False)
        start = time.monotonic()
        found = profile_step(self.model, args, kwargs, self._optimizer, only_static, shapes=shapes, quietly=True)
        self._seconds = time.monotonic() - start
        return found
