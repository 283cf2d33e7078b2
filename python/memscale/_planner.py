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

Shape = tuple[int, int]  # batch and length
Sizes = tuple[torch.Size, ...]  # of all tensors of an input

_MAX_PLANS = 1024  # that are remembered


def sizes_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sizes:
    """The sizes of all tensors of an input."""
    return tuple(tensor.shape for tensor in _core.tensors_in((args, kwargs)))


def _follows(old: Sizes, old_shape: Shape, new: Sizes, shape: Shape) -> bool:
    """Do these inputs differ in nothing but batch and length?"""

    def same(i: int, a: int, b: int) -> bool:
        return a == b or (a, b) == ((old_shape[0], shape[0]) if i == 0 else (old_shape[1], shape[1]))

    return len(old) == len(new) and all(
        len(a) == len(b) and all(same(i, x, y) for i, (x, y) in enumerate(zip(a, b))) for a, b in zip(old, new)
    )


def _is_no_larger(new: Sizes, known: Sizes) -> bool:
    return len(new) == len(known) and all(
        len(a) == len(b) and all(x <= y for x, y in zip(a, b)) for a, b in zip(new, known)
    )


def can_profile(model: nn.Module, config: Config) -> bool:
    """May a step of this model be analysed without running it? Not if it is spread over devices."""
    places = {p.device for p in model.parameters()}
    return config.use_static_profiling and len(places) == 1 and next(iter(places)).type in ("cpu", "cuda")


class Planner:
    """Makes plans for one model.

    Attributes:
        request: what the engine is asked for.
        known: the profile that plans are made from, once there is one.
        sizes: of the inputs that came last.
    """

    def __init__(self, model: nn.Module, config: Config, optimizer: torch.optim.Optimizer | None) -> None:
        self.model = model
        self.config = config
        self.known: Profile | None = None
        self.sizes: Sizes = ()
        self._base_sizes: Sizes = ()
        self._optimizer = optimizer
        budget = _memory.budget_bytes(config, _memory.main_device(model))
        self.request = Request.of(config, _devices.find(None, model), budget_bytes=budget)
        self._may_change: list[bool] = []
        self._guard: _core.Guard | None = None
        self._knows_shapes = False
        self._seconds = 0.0  # that the last profile took
        self._base: Plan | None = None
        self._plans: dict[Any, Plan] = {}  # by number of the guard, or by shape
        self._others: dict[Sizes, Plan] = {}  # of inputs that differ in more than batch and length

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
        self.sizes = self._base_sizes = sizes_of(args, kwargs)
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

    def at(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        """The plan for a step with these inputs, by their sizes.

        Raises:
            BudgetError: no plan fits such a step.
        """
        assert self._base is not None
        sizes, shape = sizes_of(args, kwargs), shape_of(args, kwargs)
        if _follows(self._base_sizes, self._base.shape, sizes, shape):
            return self._at_shape(shape, args, kwargs)
        if sizes not in self._others:
            self._others[sizes] = self._at_sizes(sizes, args, kwargs)
        return self._others[sizes]

    def _at_sizes(self, sizes: Sizes, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        """What is no larger than something that is known fits with its plan; else the step is profiled."""
        assert self._base is not None
        for known, plan in ((self._base_sizes, self._base), *self._others.items()):
            if _is_no_larger(sizes, known):
                return plan
        return self._alone(args, kwargs)

    def _at_shape(self, shape: Shape, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
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
                self.known = self._profile(args, kwargs, shapes=True).at(*self._base.shape)
                self._watch(self._base)
                return self._at_shape(shape, args, kwargs)
            except BudgetError:
                raise
            except (MemScaleError, ValueError):
                pass
        self._plans[shape] = self._alone(args, kwargs)
        return self._plans[shape]

    def _alone(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        """The plan from a profile of this very step. If that cannot be had, the plan at hand will have to do."""
        assert self._base is not None
        for plans in (self._plans, self._others):
            if len(plans) >= _MAX_PLANS:
                plans.clear()
        try:
            return self.request.create(self._profile(args, kwargs), may_change=self._may_change)
        except BudgetError:
            raise
        except (MemScaleError, ValueError):
            return self._base

    def _watch(self, plan: Plan) -> None:
        self._base = plan
        self._plans.clear()
        self._others.clear()
        if self.known is not None:
            self._guard = self.request.guard(self.known, plan, may_change=self._may_change)

    def _profile(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, shapes: bool = False) -> Profile:
        only_static = self.config.replace(use_static_profiling=True, use_empirical_fallback=False)
        start = time.monotonic()
        found = profile_step(self.model, args, kwargs, self._optimizer, only_static, shapes=shapes, quietly=True)
        self._seconds = time.monotonic() - start
        return found
