"""From settings to what the engine is asked for: which techniques, how much memory, how much time.

A config says what is wanted, a device what is there, and capabilities what can be run; a :class:`Request` is what is
left of all three, in numbers. The rules are in docs/PLANNING.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from . import _core, _memory
from ._devices import Device
from .config import Config
from .plans import ParetoPoint, Plan
from .profiles import Profile

__all__ = ["EVERYTHING", "EXECUTOR", "Capabilities", "Request", "half_of"]

MARGIN_PARTS = 64  # the part of a budget that plans leave free: what a prediction may be wrong by
_UNBOUNDED = -1
_MAX_PARETO = 64

Known = Profile | _core.Profile


def _bits(*actions: int) -> int:
    return sum(1 << action for action in actions)


# What a field of the config allows: actions, states.
_RECOMPUTE = _bits(
    _core.ACTION_RECOMPUTE, _core.ACTION_KEEP_BOTH, _core.ACTION_KEEP_PRODUCTS, _core.ACTION_KEEP_ATTENTION
)
_OFFLOAD = _bits(_core.ACTION_OFFLOAD, _core.ACTION_OFFLOAD_NOW)
_BOTH = _bits(_core.ACTION_RECOMPUTE_OFFLOAD, _core.ACTION_RECOMPUTE_OFFLOAD_NOW)
_TILE = _bits(_core.ACTION_TILE)
_OFFLOAD_STATES = _core.STATE_OFFLOAD | _core.STATE_OFFLOAD_GRADIENTS
_USES_HOST = _OFFLOAD | _BOTH


@dataclasses.dataclass(frozen=True)
class Capabilities:
    """What can be run: bits ``1 << ACTION_*`` of layers, and ``STATE_*`` of the model."""

    actions: int
    states: int


EXECUTOR = Capabilities(_bits(_core.ACTION_RECOMPUTE), 0)  # the executor of this version
EVERYTHING = Capabilities(
    _RECOMPUTE | _OFFLOAD | _BOTH | _TILE,
    _core.STATE_HALF | _core.STATE_8BIT | _OFFLOAD_STATES | _core.STATE_TILE_LOSS,
)


@dataclasses.dataclass(frozen=True)
class Request:
    """What the engine is asked for.

    Attributes:
        device: what the step runs on.
        budget_bytes: what may be reserved there.
        margin_bytes: of that, left free.
        host_limit_bytes: host memory that may be filled; 0 where nothing may go there.
        slowdown_ppm: extra step time that may be spent, in millionths; negative: any.
        actions, states: what may be done.
        flags: ``PLAN_*``.
    """

    device: Device
    budget_bytes: int
    margin_bytes: int
    host_limit_bytes: int
    slowdown_ppm: int
    actions: int
    states: int
    flags: int

    @classmethod
    def of(
        cls,
        config: Config,
        device: Device,
        capabilities: Capabilities = EXECUTOR,
        *,
        budget_bytes: int | None = None,
    ) -> Request:
        """What these settings ask for on this device. A budget that is given is taken as it is."""
        budget = budget_bytes or _memory.budget_of(config, device.usable_bytes, device.kind)
        allowed = allowed_by(config, device)
        actions, states = allowed.actions & capabilities.actions, allowed.states & capabilities.states
        uses_host = actions & _USES_HOST or states & _OFFLOAD_STATES
        limit = config.slowdown_limit
        flags = _core.PLAN_FORCE if config.force_optimize else 0
        flags |= _core.PLAN_FASTEST if config.memory_budget_gb is not None else 0
        return cls(
            device=device,
            budget_bytes=budget,
            margin_bytes=budget // MARGIN_PARTS,
            host_limit_bytes=_memory.host_limit_bytes(config) if uses_host else 0,
            slowdown_ppm=_UNBOUNDED if limit is None else round(limit * 1e6),
            actions=actions,
            states=states,
            flags=flags,
        )

    @property
    def wants_half(self) -> bool:
        """Would a profile of the step in 16 bits be of use?"""
        return bool(self.states & _core.STATE_HALF)

    def create(
        self,
        profile: Known,
        half: Known | None = None,
        may_change: Iterable[object] | None = None,
        *,
        provisional: bool = False,
    ) -> Plan:
        """The plan for a step.

        Args:
            profile: of the step.
            half: of the same step in 16 bits.
            may_change: for each unit of the profile, whether anything may be done to it; None: as the profile says.
            provisional: no decision, but the lean start: every layer that may be is recomputed.

        Raises:
            BudgetError: no plan fits the budget.
        """
        arguments = self._arguments(profile, half, may_change, _core.PLAN_RECOMPUTE_ALL if provisional else 0)
        made = _core.plan_create(*arguments)
        return Plan(made, provisional=provisional, trade=lambda n_points: self._points(arguments, n_points))

    def guard(self, profile: Known, plan: Plan, may_change: Iterable[object] | None = None) -> _core.Guard:
        """Watches over a plan that :meth:`create` made: batches of other shapes get other plans."""
        return _core.guard_create(*self._arguments(profile, None, may_change, 0), plan._core)

    def pareto(
        self, profile: Known, half: Known | None = None, may_change: Iterable[object] | None = None, n_points: int = 16
    ) -> tuple[ParetoPoint, ...]:
        """The trade between memory and time that there is, whatever the budget: from the fastest to the leanest."""
        return self._points(self._arguments(profile, half, may_change, 0), n_points)

    def _points(self, arguments: _core.PlanArguments, n_points: int) -> tuple[ParetoPoint, ...]:
        if isinstance(n_points, bool) or not isinstance(n_points, int) or not 2 <= n_points <= _MAX_PARETO:
            raise ValueError(f"n_points={n_points!r} is not allowed; it must be a whole number from 2 to {_MAX_PARETO}")
        return tuple(ParetoPoint.of_row(row) for row in _core.plan_pareto(*arguments, n_points))

    def _arguments(
        self, profile: Known, half: Known | None, may_change: Iterable[object] | None, flags: int
    ) -> _core.PlanArguments:
        # Under a budget that the user set, segments grow (_memory.py): then sizes simply add up.
        scatters = self.device.kind == "cuda" and not self.flags & _core.PLAN_FASTEST
        simulation = _core.SIMULATE_ALLOCATOR if scatters else 0
        simulation |= _core.SIMULATE_FUSED if isinstance(profile, Profile) and profile.fused else 0
        return (
            _core_of(profile),
            None if half is None or not self.wants_half else _core_of(half),
            self.device.rates.to_json(),
            self.device.n_multiprocessors,
            self.budget_bytes,
            self.margin_bytes,
            self.host_limit_bytes,
            self.slowdown_ppm,
            None if may_change is None else bytes(bool(may) for may in may_change),
            self.actions,
            self.states,
            simulation,
            self.flags | flags,
        )


def allowed_by(config: Config, device: Device) -> Capabilities:
    """What the settings allow on this device. The mode is in the fields already: it sets those that were left out."""
    actions = states = 0
    if config.enable_checkpointing:
        actions |= _RECOMPUTE
    if config.enable_offloading and device.kind == "cuda":  # a CPU has no other memory to offload to
        actions |= _OFFLOAD | (_BOTH if config.enable_checkpointing else 0)
        states |= _OFFLOAD_STATES
    if config.enable_tiling:
        actions |= _TILE
        states |= _core.STATE_TILE_LOSS
    if config.use_mixed_precision and half_of(device) is not None:
        states |= _core.STATE_HALF
    if config.use_8bit_optimizer:
        states |= _core.STATE_8BIT
    return Capabilities(actions, states)


def half_of(device: Device) -> str | None:
    """The 16 bits that a device computes in, as ``profile`` names the precision; None: it has none."""
    if device.kind != "cuda" or device.capability >= 80:
        return "pure-bf16"
    return "pure-fp16" if device.capability >= 70 else None


def _core_of(profile: Known) -> _core.Profile:
    return profile._core if isinstance(profile, Profile) else profile
