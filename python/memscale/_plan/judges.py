"""Whether a step fits: as it is, or with a plan; also with a larger budget, or with more done to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from .. import _core
from .._core import Device
from ..config import Config, OptimizationMode
from ..errors import BudgetError, MemScaleError
from ..profiles import Profile, usable_by
from .request import Request
from .steps import Steps

_PASSES = ("forward", "loss", "backward")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A step with some changes, judged; ``changes`` are those that the judge made, by their names in a phrasing."""

    fits: bool
    peak_bytes: int
    step_seconds: float | None = None
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    needed_bytes: int = 0


class Judge(Protocol):
    """Decides whether a step fits.

    Attributes:
        device: that it runs on.
        allowed: the changes that it can make itself: CHANGE_BUDGET, CHANGE_TECHNIQUE.
        budget_bytes: what may be used.
        holds_state: are parameters, gradients and optimizer state on the device, whatever is done?
    """

    device: Device
    allowed: int
    budget_bytes: int
    holds_state: bool

    def judge(self, profile: Profile, changes: int, batch: int | None = None) -> Verdict: ...

    def fixed_bytes(self, profile: Profile, changes: int) -> int:
        """What the step needs at any batch size."""
        ...


def _stronger(profile: Profile, recompute: str) -> str | None:
    """What may be recomputed beyond this."""
    following = {"none": "blocks" if profile.blocks else "all", "blocks": "all"}.get(recompute)
    if following is not None:
        try:
            profile.simulate(following)
        except MemScaleError:  # layers of this model cannot be recomputed
            return None
    return following


class StepJudge:
    """Judges a step without MemScale: does it fit as it is, with some layers recomputed?"""

    def __init__(self, profile: Profile, config: Config | None, recompute: str) -> None:
        self.device = profile.device
        self._recompute = recompute
        self._stronger = _stronger(profile, recompute)
        budget = usable_by(config)
        self.budget_bytes = budget or self.device.usable_bytes
        self._has_budget = budget > 0
        self.holds_state = True
        self.allowed = _core.CHANGE_BUDGET if 0 < budget < self.device.usable_bytes else 0
        self.allowed |= _core.CHANGE_TECHNIQUE if self._stronger else 0

    def judge(self, profile: Profile, changes: int, batch: int | None = None) -> Verdict:
        del batch  # the profile has it
        budget = self.budget_bytes if self._has_budget else 0
        named: dict[str, Any] = {}
        units = units_of(self._recompute)
        if changes & _core.CHANGE_TECHNIQUE and self._stronger:
            named["recompute"], units = self._stronger, units_of(self._stronger)
        found = profile.predict(units, usable_bytes=budget)
        if changes & _core.CHANGE_BUDGET:
            wider = _core.budget_for_peak(found.needed_bytes)
            named["budget"] = wider / 1e9
            found = profile.predict(units, usable_bytes=wider)
            if wider > self.device.usable_bytes:  # a figure that the device does not have
                return Verdict(False, found.peak_bytes, needed_bytes=found.needed_bytes)
        return Verdict(found.fits, found.peak_bytes, found.step_seconds, named, found.needed_bytes)

    def fixed_bytes(self, profile: Profile, changes: int) -> int:
        recompute = self._stronger if changes & _core.CHANGE_TECHNIQUE else None
        simulation = profile.simulate(units_of(recompute or self._recompute))
        outside = [segment.peak_bytes for segment in simulation.timeline if not is_pass(segment.phase)]
        return max([simulation.idle_bytes, *outside])


class PlanJudge:
    """Judges a step by whether there is a plan for it."""

    def __init__(self, steps: Steps, config: Config, request: Request, *, unrunnable: bool = False) -> None:
        self.device = request.device
        self._steps = steps
        self._config = config
        self._request = request
        self._rest: dict[str, Any] = {"unrunnable": unrunnable, "occupied_bytes": request.core.occupied_bytes}
        self._wider = self._wider_requests()
        self.budget_bytes = request.core.limit_bytes or request.budget_bytes
        has_more = config.memory_budget_gb is not None and request.budget_bytes < self.device.usable_bytes
        self.allowed = _core.CHANGE_BUDGET if has_more else 0
        self.allowed |= _core.CHANGE_TECHNIQUE if self._wider else 0
        self.holds_state = not any(other.core.model_options for _, other in [("", request), *self._wider])

    def _wider_requests(self) -> list[tuple[str, Request]]:
        """The modes beyond this one that may do more."""
        modes = list(OptimizationMode)
        found = []
        for mode in modes[modes.index(self._config.mode) + 1 :]:
            wider = Request(self._config.replace(mode=mode), self.device, **self._rest)
            if wider.allows_more_than(self._request):
                found.append((mode.value, wider))
        return found

    def judge(self, profile: Profile, changes: int, batch: int | None = None) -> Verdict:
        requests: list[tuple[str, Request]] = [("", self._request)]
        if changes & _core.CHANGE_TECHNIQUE:
            requests = self._wider
        verdict = Verdict(False, 0)
        for mode, request in requests:
            named = {"mode": mode} if mode else {}
            verdict = self._plan(profile, self._half(profile, request, batch), request, changes, named)
            if verdict.fits:
                break
        return verdict

    def _half(self, profile: Profile, request: Request, batch: int | None) -> Profile | None:
        """The same step in 16 bits; not for variants that differ in more than their batch."""
        is_same = profile is self._steps.variant(batch=batch)
        return self._steps.half(request, batch) if is_same else None

    def _plan(
        self, profile: Profile, half: Profile | None, request: Request, changes: int, named: dict[str, Any]
    ) -> Verdict:
        try:
            if changes & _core.CHANGE_BUDGET and (n_bytes := request.find_budget(profile, half)):
                mode = named.get("mode", self._config.mode)
                named = {**named, "budget": n_bytes / 1e9}
                config = self._config.replace(mode=mode, memory_budget_gb=n_bytes / 1e9)
                request = Request(config, self.device, **self._rest)
            plan = request.create(profile, half)
        except BudgetError as error:
            return Verdict(False, error.smallest_peak_bytes or 0, needed_bytes=error.smallest_peak_bytes or 0)
        return Verdict(True, plan.predicted_peak_bytes, plan.step_seconds, named, plan.needed_bytes)

    def fixed_bytes(self, profile: Profile, changes: int) -> int:
        del changes
        return profile.unoptimized.idle_bytes if profile.units else 0


def units_of(recompute: str) -> str | tuple[str, ...]:
    """What ``Profile.simulate`` takes for "none", "blocks" or "all"."""
    return () if recompute == "none" else recompute


def is_pass(phase: str) -> bool:
    """Is this phase part of forward or backward, whose memory depends on the batch?"""
    return phase in _PASSES


def less_margin(device: Device, budget_bytes: int) -> int:
    """What a step may need under this budget."""
    request = _core.Request(device=device, budget_bytes=max(budget_bytes, 1))
    return request.budget_bytes - request.margin_bytes
