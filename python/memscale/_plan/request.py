"""From settings to what the engine is asked for. The rules (budget, margin, host memory, techniques) are in C."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import _core
from .._base.step_kinds import pure_half
from .._hw import devices
from ..config import Config, engine_settings
from ..plans import ParetoPoint, Plan
from ..profiles import Profile

_MAX_PARETO = 64

AnyProfile = Profile | _core.Profile


class Request:
    """What the engine is asked for on a device.

    Attributes:
        core: the request as the extension has it.
        device: what the step runs on.
    """

    def __init__(
        self, config: Config, device: _core.Device, *, unrunnable: bool = False, occupied_bytes: int = 0
    ) -> None:
        """What these settings ask for.

        Args:
            config: the settings.
            device: what the step runs on.
            unrunnable: plan also with what no executor of this version runs.
            occupied_bytes: what torch's allocator holds on the device besides the step.
        """
        self.device = device
        self.core = _core.Request(
            device=device,
            unrunnable=unrunnable,
            occupied_bytes=occupied_bytes,
            **engine_settings(config),
            **devices.segments_of(device),
        )

    @property
    def budget_bytes(self) -> int:
        """What may be reserved on the device, or should be, where no budget is set."""
        return self.core.budget_bytes

    @property
    def usable_bytes(self) -> int:
        """What a plan may need: the budget, or the limit where that is an aim, less the margin and what is occupied."""
        core = self.core
        if core.limit_bytes > core.budget_bytes:
            core = _core.Request(device=self.device, budget_bytes=core.limit_bytes)
        return core.budget_bytes - core.margin_bytes - self.core.occupied_bytes

    @property
    def half(self) -> str | None:
        """The 16-bit precision that a profile of the step is useful in; None: there is none."""
        if not self.core.model_options & _core.MODEL_HALF:
            return None
        return pure_half(self.device.capability) if self.device.kind != "cpu" else "pure-bf16"

    def allows_more_than(self, other: Request) -> bool:
        """Does this request allow other techniques than the other one?"""
        mine, theirs = self.core, other.core
        return (mine.actions, mine.model_options) != (theirs.actions, theirs.model_options)

    def create(
        self,
        profile: AnyProfile,
        half: AnyProfile | None = None,
        may_change: Iterable[object] | None = None,
        *,
        plain: _core.Profile | None = None,
        fused: bool = False,
        held: bool = False,
    ) -> Plan:
        """The plan for a step.

        Args:
            profile: of the step.
            half: of the same step in 16 bits.
            may_change: for each unit of the profile, whether anything may be done to it; None: as in the profile.
            plain: of the step when nothing is done to it, if it differs; a :class:`Profile` knows that itself.
            fused: the optimizer needs no temporaries; a :class:`Profile` knows that itself.
            held: gradients exist when the step begins, and stay.

        Raises:
            BudgetError: no plan fits the budget.
        """
        step = StepArguments(profile, half if self.half else None, may_change, plain=plain, fused=fused)
        core = self.core.plan(step.profile, held=held, **step.named)
        return Plan(core, trade=lambda n_points: self._points(step, n_points))

    def pareto(
        self,
        profile: AnyProfile,
        half: AnyProfile | None = None,
        may_change: Iterable[object] | None = None,
        n_points: int = 16,
    ) -> tuple[ParetoPoint, ...]:
        """The trade-off between memory and time at any budget: from the fastest plan to the one that needs least."""
        return self._points(StepArguments(profile, half if self.half else None, may_change), n_points)

    def find_budget(self, profile: AnyProfile, half: AnyProfile | None = None) -> int:
        """The least budget in bytes, in round figures, for which there is a plan; 0: the device has less."""
        step = StepArguments(profile, half if self.half else None, None)
        return self.core.find_budget(step.profile, **step.named)

    def _points(self, step: StepArguments, n_points: int) -> tuple[ParetoPoint, ...]:
        if isinstance(n_points, bool) or not isinstance(n_points, int) or not 2 <= n_points <= _MAX_PARETO:
            raise ValueError(f"n_points={n_points!r} is not allowed; it must be a whole number from 2 to {_MAX_PARETO}")
        rows = self.core.pareto(step.profile, n_points, **step.named)
        return tuple(ParetoPoint.of_row(row) for row in rows)


class StepArguments:
    """A step as the extension takes it."""

    def __init__(
        self,
        profile: AnyProfile,
        half: AnyProfile | None,
        may_change: Iterable[object] | None,
        *,
        plain: _core.Profile | None = None,
        fused: bool = False,
    ) -> None:
        self.profile = _core_of(profile)
        if isinstance(profile, Profile):
            plain, fused = profile.plain_core, profile.fused
        self.named: dict[str, Any] = {
            "half": None if half is None else _core_of(half),
            "plain": None if plain is self.profile else plain,
            "may_change": None if may_change is None else bytes(bool(may) for may in may_change),
            "fused": fused,
        }


def _core_of(profile: AnyProfile) -> _core.Profile:
    return profile.core if isinstance(profile, Profile) else profile
