"""If a step or a plan does not fit, what would: other batches, modes, budgets, optimizers and GPUs, each tried.

The same search for a batch and the same kind of answer serve ``memscale.plan``, ``wrap`` and both commands.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from .. import _core
from .._base.step_kinds import fused_kind, has_precision
from .._core import Device
from .._hw import devices
from .._show.text import size
from ..config import Config, OptimizationMode
from ..errors import BudgetError, MemScaleError
from ..plans import Plan
from ..profiles import Prediction, Profile, usable_by
from .request import Request
from .steps import Steps

_SECONDS = 8.0  # that the search for a batch of a plan may take
_PASSES = ("forward", "loss", "backward")

Result = TypeVar("Result")


class Phrasing(NamedTuple):
    """How a change is named: as an argument of a call, or as an option of a command."""

    mode: str
    batch: str
    budget: str
    recompute: str = ""
    optimizer: str = ""
    gpu: str = ""

    def name(self, **changes: object) -> str:
        return " ".join(getattr(self, change).format(value) for change, value in changes.items())


CALL = Phrasing("mode='{}'", "a batch of {}", "memory_budget_gb={:g}")
COMMAND = Phrasing("--mode {}", "--batch {}", "--budget {:g}", "--recompute {}", "--optimizer {}", "--gpu {}")


@dataclasses.dataclass(frozen=True)
class Alternative:
    """Another way to run the step. Without a peak: none of this kind fits, and the text explains why."""

    options: str
    text: str
    fits: bool
    peak_bytes: int | None = None
    step_seconds: float | None = None


# The search for a batch


@dataclasses.dataclass(frozen=True)
class Attempt(Generic[Result]):
    """One batch, tried: what it needs, and what was made of it if it fits."""

    n_bytes: int
    result: Result | None


@dataclasses.dataclass(frozen=True)
class BatchSearch(Generic[Result]):
    """How a search ended: the largest batch that is known to fit, and whether everything larger is known not to."""

    batch: int
    result: Result | None
    is_complete: bool


def search_batch(
    attempt: Callable[[int], Attempt[Result] | None],
    known: tuple[int, int],
    fixed_bytes: int,
    limit_bytes: int,
    has_time: Callable[[int], bool],
) -> BatchSearch[Result]:
    """The largest batch that fits, below one that does not.

    Which batch is tried next is decided in C: an interpolation between two known ones.

    Args:
        attempt: tries a batch; None: the model does not take it.
        known: the batch that does not fit, and what it needs.
        fixed_bytes: what is needed at any batch size.
        limit_bytes: what is available.
        has_time: whether there is time for another try, after this number of them.
    """
    fits, too_large, best = (0, fixed_bytes), known, None
    for n_tried in itertools.count():
        batch = _core.next_batch(fits=fits, too_large=too_large, limit_bytes=limit_bytes, n_tried=n_tried)
        if not batch or not has_time(n_tried):
            break
        tried = attempt(batch)
        if tried is None:
            break
        if tried.result is not None:
            fits, best = (batch, tried.n_bytes), tried.result
        else:
            too_large = batch, tried.n_bytes
    return BatchSearch(fits[0], best, too_large[0] - fits[0] <= 1)


# Where no plan fits


def with_advice(
    error: BudgetError,
    steps: Steps,
    config: Config,
    request: Request,
    phrasing: Phrasing = CALL,
    *,
    unrunnable: bool = False,
) -> BudgetError:
    """The same error, and what would fit."""
    peak_bytes = error.smallest_peak_bytes or 0
    alternatives = [
        *_wider_mode(steps, config, request, phrasing, unrunnable),
        *_smaller_batch(steps, request, peak_bytes, phrasing),
        *_larger_budget(steps, config, request, phrasing),
    ]
    text = str(error).rstrip(".")
    if fitting := [_in_brackets(alternative) for alternative in alternatives if alternative.fits]:
        text += f". What would fit: {', or '.join(fitting)}"
    for alternative in alternatives:
        text += "" if alternative.fits else f". {alternative.text}"
    advised = BudgetError(text)
    advised.smallest_peak_bytes = error.smallest_peak_bytes
    return advised


def _in_brackets(alternative: Alternative) -> str:
    peak = [] if alternative.peak_bytes is None else [size(alternative.peak_bytes)]
    facts = ", ".join([*peak, *([alternative.text] if alternative.text else [])])
    return f"{alternative.options} ({facts})" if facts else alternative.options


def _wider_mode(
    steps: Steps, config: Config, request: Request, phrasing: Phrasing, unrunnable: bool
) -> Iterator[Alternative]:
    """The first mode beyond this one that fits, if it may do more at all."""
    modes = list(OptimizationMode)
    for mode in modes[modes.index(config.mode) + 1 :]:
        with contextlib.suppress(BudgetError):
            wider = Request(config.replace(mode=mode), request.device, unrunnable=unrunnable)
            if wider.allows_more_than(request):
                plan = wider.create(steps.profile, steps.half(wider))
                yield Alternative(phrasing.name(mode=mode.value), "", True, plan.predicted_peak_bytes)
                return


def _larger_budget(steps: Steps, config: Config, request: Request, phrasing: Phrasing) -> Iterator[Alternative]:
    """A budget that suffices, in round figures, unless that is more than the device has."""
    n_bytes = 0 if config.memory_budget_gb is None else request.find_budget(steps.profile, steps.half(request))
    if n_bytes:
        yield Alternative(phrasing.name(budget=n_bytes / 1e9), "", True)


def _smaller_batch(steps: Steps, request: Request, peak_bytes: int, phrasing: Phrasing) -> Iterator[Alternative]:
    """The largest smaller batch for which there is a plan, as far as there is time."""
    if steps.batch <= 1:
        return
    deadline = time.monotonic() + _SECONDS
    n_traces = 1 if request.half is None else 2

    def attempt(batch: int) -> Attempt[Plan] | None:
        profiles = steps.at(request, batch)
        if profiles is None:
            return None
        try:
            plan = request.create(*profiles)
            return Attempt(request.pareto(*profiles, n_points=2)[-1].peak_bytes, plan)
        except BudgetError as error:
            return Attempt(error.smallest_peak_bytes or peak_bytes, None)

    search = search_batch(
        attempt,
        (steps.batch, peak_bytes),
        steps.profile.unoptimized.idle_bytes if steps.profile.units else 0,
        request.usable_bytes,
        lambda n_tried: time.monotonic() + n_traces * steps.seconds <= deadline,
    )
    if search.result is not None:
        text = "" if search.is_complete else "larger ones were not tried"
        yield Alternative(phrasing.name(batch=search.batch), text, True, search.result.predicted_peak_bytes)
    elif search.is_complete:
        yield Alternative(phrasing.name(batch=1), "Not even a batch of 1 fits", False)


# Where a step does not fit as it is


@dataclasses.dataclass(frozen=True)
class StepAdviser:
    """Finds what would fit where a step without MemScale does not.

    Attributes:
        steps: the step; its batch is 0 where that cannot be changed.
        device: that it runs on.
        config: has the budget; None: all that is usable.
        recompute: what is recomputed: "none", "blocks" or "all".
        precision, optimizer: of the step, by name.
        deadline: on the monotonic clock, after which no other trace is begun.
    """

    steps: Steps
    device: Device
    config: Config | None
    recompute: str
    precision: str
    optimizer: str
    deadline: float

    def predict(self, profile: Profile, recompute: str) -> Prediction:
        return profile.predict(units_of(recompute), usable_bytes=usable_by(self.config))

    def alternatives(self) -> list[Alternative]:
        """What would fit, and what would not although a user might expect it."""
        prediction = self.predict(self.steps.profile, self.recompute)
        found, stronger = [], self._stronger()
        if stronger is not None:
            found.append(self._as_alternative(self.predict(self.steps.profile, stronger), recompute=stronger))
        if self.steps.batch > 1:
            found.append(self._largest_batch(prediction, stronger))
        if self.device.kind != "cuda":
            return found
        idle_bytes = self.steps.profile.simulate(units_of(self.recompute)).idle_bytes
        if not any(one.fits for one in found) and idle_bytes <= prediction.usable_bytes:
            found += self._without_lists(stronger)
        if not any(one.fits for one in found) and self.config is None:
            found.append(self._larger_gpu())
        return found

    def _as_alternative(self, prediction: Prediction, text: str = "", **changes: str | int) -> Alternative:
        options = COMMAND.name(**changes)
        return Alternative(options, text, prediction.fits, prediction.peak_bytes, prediction.step_seconds)

    def _stronger(self) -> str | None:
        """What may be recomputed beyond what was asked for."""
        profile = self.steps.profile
        following = {"none": "blocks" if profile.blocks else "all", "blocks": "all"}.get(self.recompute)
        if following is not None:
            try:
                profile.simulate(following)
            except MemScaleError:  # layers of this model cannot be recomputed
                return None
        return following

    def _largest_batch(self, prediction: Prediction, stronger: str | None) -> Alternative:
        """The largest batch that fits, as asked for, else with more recomputed."""
        text = ""
        for recompute in (self.recompute, stronger) if stronger else (self.recompute,):
            simulation = self.steps.profile.simulate(units_of(recompute))
            whole = self.predict(self.steps.profile, recompute)
            outside = [segment.peak_bytes for segment in simulation.timeline if not is_pass(segment.phase)]
            fixed_bytes = max([simulation.idle_bytes, *outside])
            if fixed_bytes > prediction.usable_bytes:
                text = f"no batch fits: {size(fixed_bytes)} is needed at any batch size"
                continue
            if whole.fits:
                continue
            search = self._search_batch(whole, simulation.idle_bytes, recompute)
            if search.result is not None:
                text = "the largest batch" if search.is_complete else "larger ones were not tried"
                more = {} if recompute == self.recompute else {"recompute": recompute}
                return self._as_alternative(search.result, text, batch=search.batch, **more)
            text = "no batch fits" if search.is_complete else "none that fits was found in time"
        return Alternative(COMMAND.name(batch=1), text, False)

    def _search_batch(self, whole: Prediction, fixed_bytes: int, recompute: str) -> BatchSearch[Prediction]:
        def attempt(batch: int) -> Attempt[Prediction] | None:
            profile = self.steps.variant(batch=batch)
            if profile is None:
                return None
            prediction = self.predict(profile, recompute)
            return Attempt(prediction.reserved_bytes, prediction if prediction.fits else None)

        return search_batch(
            attempt,
            (self.steps.batch, whole.reserved_bytes),
            fixed_bytes,
            whole.usable_bytes,
            lambda n_tried: self._has_time(for_sure=n_tried > 0),
        )

    def _without_lists(self, stronger: str | None) -> list[Alternative]:
        """Most optimizers make lists of temporaries as large as the parameters on a GPU, unless they are fused. The
        first alternative with that which fits, else the one that needs least."""
        fused, last = fused_kind(self.optimizer), None
        if fused is None:
            return []
        tries: list[tuple[int, str]] = [(self.steps.batch, self.recompute)]
        tries += [(self.steps.batch, stronger)] if stronger else []
        tries += [(1, stronger or self.recompute)] if self.steps.batch > 1 else []
        for batch, recompute in tries:
            if not self.steps.is_traced(batch=batch, optimizer=fused) and not self._has_time():
                break
            changes: dict[str, Any] = {"batch": batch} if batch != self.steps.batch else {}
            changes |= {"optimizer": fused} | ({"recompute": recompute} if recompute != self.recompute else {})
            profile = self.steps.variant(batch=batch, optimizer=fused)
            if profile is not None:
                last = self._as_alternative(self.predict(profile, recompute), **changes)
            if last is not None and last.fits:
                break
        return [last] if last else []

    def _larger_gpu(self) -> Alternative:
        """The smallest GPU of the table on which it fits as it is."""
        for row in sorted(_core.gpu_models(), key=lambda row: row["memory_bytes"]):
            device = devices.find(str(row["key"]))
            if device.usable_bytes <= self.device.usable_bytes or not has_precision(device.capability, self.precision):
                continue
            with contextlib.suppress(BudgetError):
                simulation = self.steps.profile.simulate(
                    units_of(self.recompute), device=device, limit_bytes=device.usable_bytes
                )
                text = f"the smallest known GPU with enough memory, {size(device.usable_bytes)}"
                options = COMMAND.name(gpu=row["key"])
                return Alternative(options, text, True, simulation.peak_bytes, simulation.step_seconds)
        return Alternative("--gpu", "no known GPU has enough memory", False)

    def _has_time(self, for_sure: bool = True) -> bool:
        """Is there time for one more trace, or at least to begin one?"""
        return time.monotonic() + (self.steps.seconds if for_sure else 0) < self.deadline


def units_of(recompute: str) -> str | tuple[str, ...]:
    """What ``Profile.simulate`` takes for "none", "blocks" or "all"."""
    return () if recompute == "none" else recompute


def is_pass(phase: str) -> bool:
    """Is this phase part of forward or backward, whose memory depends on the batch?"""
    return phase in _PASSES
