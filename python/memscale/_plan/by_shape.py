"""The plans of a wrapped model: from a static profile of its step, for batches of any size.

Which plan an input gets is decided and remembered in C (``_core.ShapePlans``), which asks for profiles at other sizes
where it needs them, and is told how much time was trained and how much of it analyses took.
"""

from __future__ import annotations

import dataclasses
import math
import time
from array import array
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .. import _core
from .._hw import devices
from .._trace.sample import Sizes, resized, shape_of, sizes_of
from .._trace.twin_optimizer import Optimizers, signature_of
from ..config import Config, engine_settings
from ..errors import BudgetError, MemScaleError
from ..plans import Plan
from ..profiles import Profile
from .advice import CALL, Adviser, with_advice
from .agreement import agree, ranks_of
from .judges import PlanJudge
from .request import Request
from .step_profiler import StepProfiler
from .steps import StepChange, Steps, autocast_now

_MAX_KINDS = 8  # of steps, of which something is known
_LESS_PARTS = 16  # of what a plan needed: after a step that ran out of memory plans should need so much less


def _n_elements(sizes: Sizes) -> int:
    return sum(math.prod(size) for size in sizes)


@dataclasses.dataclass(frozen=True)
class _Known:
    """What a planner knows of one kind of step."""

    request: Request
    occupied_bytes: int
    kept_free_bytes: int
    excluded: set[str]
    profile: Profile | None = None
    first_sizes: Sizes = ()
    first_shape: tuple[int, int] = (0, 0)
    plans: dict[bool, _core.ShapePlans] | None = None
    learned: _core.ShapePlans | None = None


class Planner:
    """Makes plans for one model.

    Attributes:
        request: what the engine is asked for.
        profile: that plans are made from; None before a step was analysed or watched.
        n_analyses: that were made for other sizes than those of the first step.
        analysed_ns: how long these took.
    """

    def __init__(
        self, model: nn.Module, config: Config, optimizers: Optimizers, warn: Callable[[str], object] = lambda _: None
    ) -> None:
        self.config = config
        self._warn = warn
        self.request = Request(config, devices.find(None, model))
        self.profile: Profile | None = None
        self._profiler = StepProfiler(model, config, optimizers)
        self._signature = signature_of(optimizers)
        self._excluded: set[str] = set()
        self._first_sizes: Sizes = ()
        self._first_shape = (0, 0)
        self._plans: dict[bool, _core.ShapePlans] = {}  # by whether gradients are held
        self._learned: _core.ShapePlans | None = None  # what these share
        self._start_ns = 0  # of the first step; 0: it has not begun
        self._occupied_bytes = 0
        self._kept_free_bytes = 0  # besides, since a step ran out of memory
        self._kind: object = None  # of the steps that are planned for
        self._others: dict[object, _Known] = {}  # what is known of other kinds
        self._model = model
        self._agreed: set[bool] = set()  # by whether gradients are held: is it a plan of all ranks?

    @property
    def n_analyses(self) -> int:
        return self._profiler.n_analyses

    @property
    def analysed_ns(self) -> int:
        return self._profiler.analysed_ns

    @property
    def optimizers(self) -> Optimizers:
        return self._profiler.optimizers

    @optimizers.setter
    def optimizers(self, optimizers: Optimizers) -> None:
        signature = signature_of(optimizers)
        self._profiler.optimizers = optimizers
        if signature != self._signature:
            self._signature, self.profile = signature, None
            self._others.clear()

    def knows(self, optimizer: torch.optim.Optimizer) -> bool:
        """Is it one of these, or one like them for the same parameters? Asked at every step of any optimizer."""
        if optimizer in self._profiler.known_optimizers:
            return True
        is_alike = signature_of((optimizer,)) == self._signature
        if is_alike:
            self.optimizers = (optimizer,)
        return is_alike

    @property
    def kind(self) -> object:
        """Of the steps that are planned for: see turn_to()."""
        return self._kind

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
        self._start_ns = self._start_ns or time.monotonic_ns()
        self.adopt(self._profiler.profile(args, kwargs, is_sample=is_sample), args, kwargs)

    def forget(self) -> None:
        """The step is another than the one that was profiled."""
        self.profile = None

    def adopt(self, profile: Profile, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Plan from this profile of the step with these inputs."""
        self.profile = profile
        self._start_ns = self._start_ns or time.monotonic_ns()
        self._profiler.is_static = profile.source == "static"
        self._first_sizes, self._first_shape = sizes_of(args, kwargs), shape_of(args, kwargs)
        self._plans.clear()
        self._learned = None

    def turn_to(self, kind: object) -> None:
        """Plan from now on for steps of this kind. What is known of other kinds is kept, for programs that take turns:
        a network of two that is frozen while the other one is trained."""
        here = _Known(self.request, self._occupied_bytes, self._kept_free_bytes, self._excluded)
        if self.profile is not None:
            self._others[self._kind] = dataclasses.replace(
                here,
                profile=self.profile,
                first_sizes=self._first_sizes,
                first_shape=self._first_shape,
                plans=self._plans,
                learned=self._learned,
            )
        if len(self._others) > _MAX_KINDS:
            del self._others[next(iter(self._others))]
        other = self._others.pop(kind, here)
        self.profile, self._learned, self._plans = other.profile, other.learned, other.plans or {}
        self._first_sizes, self._first_shape = other.first_sizes, other.first_shape
        self.request, self._occupied_bytes = other.request, other.occupied_bytes
        if (other.kept_free_bytes, other.excluded) != (self._kept_free_bytes, self._excluded):
            self._renew_request()
        self._kind = kind
        self._profiler.is_static = self.profile is None or self.profile.source == "static"

    @property
    def occupied_bytes(self) -> int:
        """What is taken to be occupied by other things than the step."""
        return self._occupied_bytes

    @property
    def first_sizes(self) -> Sizes:
        """Of the inputs that were profiled."""
        return self._first_sizes

    def start_bytes(self) -> int:
        """What the step's allocator reserves before the first step: parameters, buffers and inputs."""
        assert self.profile is not None
        record = self.profile.core.simulate(self.request.device, flags=_core.SIMULATE_ALLOCATOR)
        return int(record["start_reserved_bytes"])

    def occupy(self, n_bytes: int) -> None:
        """Plan from now on with so much of the budget occupied by other things than the step."""
        if n_bytes != self._occupied_bytes:
            self._occupied_bytes = n_bytes
            self._renew_request()

    def _renew_request(self) -> None:
        occupied = self._occupied_bytes + self._kept_free_bytes
        self.request = Request(self.config, self.request.device, occupied_bytes=occupied)
        self._plans.clear()

    @property
    def _room_bytes(self) -> int:
        """What a plan may need within the budget, if nothing is kept free besides."""
        core = self.request.core
        return core.budget_bytes - core.margin_bytes - self._occupied_bytes

    def tighten(self, plan: Plan) -> None:
        """Plan from now on so that steps need less than they did with this plan, or the least that they can."""
        most = plan.needed_bytes - plan.needed_bytes // _LESS_PARTS
        self._kept_free_bytes = max(self._kept_free_bytes, self._room_bytes - most, 0)
        self._renew_request()

    def _relaxed(self, find: Callable[[], Plan]) -> Plan:
        """What this finds. If nothing fits only because memory is kept free, less of it is."""
        before = self._kept_free_bytes
        while True:
            try:
                return find()
            except BudgetError as error:
                if self._kept_free_bytes == 0:
                    if before > 0:  # it is not the reason
                        self._kept_free_bytes = before
                        self._renew_request()
                    raise
                least = error.smallest_peak_bytes or self._room_bytes
                less = max(self._room_bytes - least, 0)
                self._kept_free_bytes = less if less < self._kept_free_bytes else 0
                self._renew_request()

    def exclude(self, names: set[str]) -> None:
        """Keep these layers in all plans that are made from now on."""
        if names != self._excluded:
            self._excluded = set(names)
            self._plans.clear()

    def at(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, held: bool = False) -> Plan:
        """The plan for a step with these inputs, by their sizes: the same object for the same plan.

        Args:
            args, kwargs: the inputs.
            held: gradients exist when the step begins, and stay: they are accumulated, or set to zero.

        Raises:
            BudgetError: no plan fits such a step.
        """
        sizes, shape = sizes_of(args, kwargs), shape_of(args, kwargs)

        def find() -> Plan:
            if held in self._plans and held not in self._agreed and self._ranks():  # it was made before there were any
                del self._plans[held]
            if held not in self._plans:
                self._plans[held] = self._plans_for(args, kwargs, held)
            plan: Plan = self._plans[held].find(sizes, shape, self._times())
            return plan

        self._profiler.input = args, kwargs
        try:
            return self._relaxed(find)
        except BudgetError as error:
            raise self._advised(error, args, kwargs) from None
        finally:
            self._profiler.input = (), {}

    def _plans_for(self, args: tuple[Any, ...], kwargs: dict[str, Any], held: bool) -> _core.ShapePlans:
        """The plans by shape. If there is none for the inputs that were profiled, these inputs may be smaller: then
        plans are made from their step."""
        try:
            return self._first_plan(held)
        except BudgetError as error:
            if self.was_made_from(args, kwargs) or self._kept_free_bytes > 0 or not self._profiler.is_static:
                raise
            try:
                profile = self._profiler.profile(args, kwargs)
            except (MemScaleError, ValueError):
                raise error from None
        self.adopt(profile, args, kwargs)
        return self._first_plan(held)

    def was_made_from(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Were inputs of these sizes profiled?"""
        return sizes_of(args, kwargs) == self._first_sizes

    def is_smaller(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Have these inputs fewer elements than those that were profiled?"""
        return _n_elements(sizes_of(args, kwargs)) < _n_elements(self._first_sizes)

    def first(self, *, held: bool = False) -> Plan:
        """The plan for the inputs that were profiled. Raises BudgetError if none fits."""
        if held not in self._plans:
            self._plans[held] = self._first_plan(held)
        plan: Plan = self._plans[held].find(self._first_sizes, self._first_shape)
        return plan

    def fits_first(self, *, held: bool) -> bool:
        """Is there a plan for the inputs that were profiled, or might there be if nothing was kept free?"""
        try:
            self.first(held=held)
        except BudgetError:
            return self._kept_free_bytes > 0
        return True

    def _times(self) -> tuple[int, int, int]:
        """How long was trained, how much of it analyses took, and what another one takes: in nanoseconds."""
        trained = max(time.monotonic_ns() - self._start_ns, 1)
        return trained, self._profiler.analysed_ns, int(self._profiler.seconds * 1e9)

    def _first_plan(self, held: bool) -> _core.ShapePlans:
        """The plans by shape, with that for the inputs of the profile."""
        assert self.profile is not None
        core, fused = self.profile.core, self.profile.fused
        may_change = bytes(unit.name not in self._excluded for unit in self.profile.units)
        plain = self.profile.plain_core

        def make() -> Plan:
            return self.request.create(core, may_change=may_change, plain=plain, fused=fused, held=held)

        plan = self._agree(make, held)
        plans = _core.ShapePlans(
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
            like=self._learned,
        )
        self._learned = self._learned or plans
        return plans

    def _ranks(self) -> tuple[int, ...]:
        """Those that run this step together with this one."""
        return ranks_of(self._model)

    def _agree(self, make: Callable[[], Plan], held: bool) -> Plan:
        """The plan that this makes; the first time, where other ranks run the same step, one for all of them."""
        ranks = () if held in self._agreed else self._ranks()
        if not ranks:
            return make()
        self._agreed.add(held)
        assert self.profile is not None
        units = [(name, n_bytes) for name, n_bytes, *_ in self.profile.core.units()]
        return agree(ranks, units, make, self._fits, self._warn)

    def _fits(self, plan: Plan) -> bool:
        """Does the step that was profiled fit the budget with this plan?"""
        assert self.profile is not None
        record = self.profile.core.simulate(self.request.device, **self._simulated(plan))
        return int(record["needed_bytes"]) <= self.request.usable_bytes

    def _simulated(self, plan: Plan) -> dict[str, Any]:
        """What the extension takes to simulate the step with this plan."""
        flags = self.request.core.simulation & ~(0 if plan.grows else _core.SIMULATE_GROWING)
        return {"actions": array("i", [entry.action for entry in plan.entries]).tobytes(), "flags": flags}

    def compare(self, plan: Plan, names: list[str], rows: list[tuple[int, int, int]]) -> dict[str, Any]:
        """Compare a step that ran with this plan, and with inputs as they were profiled, with its simulation.

        Args:
            plan: that it ran with.
            names: of its layers.
            rows: which of them, BOUNDARY_* of the extension, and what was allocated there.

        Raises:
            MemScaleError: the profile is not that of this step.
        """
        numbers = {name: i for i, (name, *_) in enumerate(self.profile.core.units())} if self.profile else {}
        if self.profile is None or set(names) != set(numbers):
            raise MemScaleError("these are not the layers of the profile")
        flat = [n for unit, *rest in rows for n in (numbers[names[unit]] if unit >= 0 else -1, *rest)]
        named = self._simulated(plan)
        named["flags"] |= _core.SIMULATE_FUSED if self.profile.fused else 0
        return self.profile.core.compare(
            self.request.device,
            array("q", flat).tobytes(),
            margin_bytes=plan.margin_bytes,
            prefetch_depth=engine_settings(self.config)["prefetch_depth"],
            **named,
        )

    def _advised(self, error: BudgetError, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BudgetError:
        """The same error, and what would fit."""
        assert self.profile is not None
        if self.profile.source != "static":
            return error
        shape = shape_of(args, kwargs)

        def trace(change: StepChange) -> Profile:
            new = shape if change.batch is None else (change.batch, shape[1])
            return self._profiler.profile(*resized((args, kwargs), shape, new), change=change)

        known = self.profile if self.was_made_from(args, kwargs) else None
        try:
            steps = Steps(trace, shape[0], can_be_half=self._profiler.is_whole, profile=known)
        except (MemScaleError, ValueError):
            return error
        steps.seconds = self._profiler.seconds
        judge = PlanJudge(steps, self.config, self.request)
        precision = autocast_now(self.request.device.kind)
        adviser = Adviser(steps, judge, CALL, precision=precision, optimizer=self._profiler.optimizer_name)
        return with_advice(error, adviser)
