"""If a step or a plan does not fit, what would: sets of changes, the cheapest first, each tried.

Which set and which batch are tried next is decided in C. The same search serves ``memscale.plan``, ``wrap`` and both
commands; they differ in how a step is judged (as it is, or by a plan for it) and in how changes are named.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from .. import _core
from .._base.step_kinds import (
    DEFAULT_OPTIMIZER,
    default_precision,
    fused_kind,
    has_precision,
    makes_state,
    optimizer_call,
    precision_call,
    pure_half,
)
from .._base.vocabulary import CATEGORIES, GRADIENT, OPTIMIZER_STATE, PARAMETER
from .._hw import devices
from .._show.text import size
from ..errors import BudgetError
from ..profiles import Profile
from .judges import Judge, Verdict, less_margin, units_of
from .steps import Steps

_SECONDS = 8.0  # that the search for advice on a plan may take
_MAX_FITTING = 3  # sets of changes that are named
_LITTLE_STATE = "adafactor"

Result = TypeVar("Result")


# How changes are named


class Phrasing(NamedTuple):
    """How a change is named: as an argument of a call, or as an option of a command. In the order of these fields."""

    batch: str
    precision: str
    optimizer: str
    recompute: str
    mode: str
    budget: str
    gpu: str
    is_call: bool

    def name(self, changes: Mapping[str, Any]) -> str:
        texts = [getattr(self, key).format(self._value(key, changes[key])) for key in self._fields if key in changes]
        return (" and " if self.is_call else " ").join(texts)

    def _value(self, change: str, value: Any) -> Any:
        if not self.is_call:
            return value
        return {"optimizer": optimizer_call, "precision": precision_call}.get(change, lambda same: same)(value)


CALL = Phrasing("a batch of {}", "{}", "{}", "", "mode='{}'", "memory_budget_gb={:g}", "", True)
COMMAND = Phrasing(
    "--batch {}",
    "--precision {}",
    "--optimizer {}",
    "--recompute {}",
    "--mode {}",
    "--budget {:g}",
    "--gpu {}",
    False,
)


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
    has_time: Callable[[], bool],
) -> BatchSearch[Result]:
    """The largest batch that fits, below one that does not.

    Args:
        attempt: tries a batch; None: the model does not take it.
        known: the batch that does not fit, and what it needs.
        fixed_bytes: what is needed at any batch size.
        limit_bytes: what is available.
        has_time: whether there is time for another try.
    """
    fits, too_large, best = (0, fixed_bytes), known, None
    for n_tried in itertools.count():
        batch = _core.next_batch(fits=fits, too_large=too_large, limit_bytes=limit_bytes, n_tried=n_tried)
        if not batch or not has_time():
            break
        tried = attempt(batch)
        if tried is None:
            break
        if tried.result is not None:
            fits, best = (batch, tried.n_bytes), tried.result
        else:
            too_large = batch, tried.n_bytes
    return BatchSearch(fits[0], best, too_large[0] - fits[0] <= 1)


# What would fit


class Adviser:
    """Finds what would fit where a step does not.

    Attributes:
        steps: the step; its batch is 0 where that cannot be changed.
        was_cut: were there sets of changes that time did not suffice for?
        no_batch_fits: is it known that not even a batch of 1 fits?
    """

    def __init__(
        self,
        steps: Steps,
        judge: Judge,
        phrasing: Phrasing,
        *,
        precision: str | None = None,
        optimizer: str | None = DEFAULT_OPTIMIZER,
        deadline: float | None = None,
    ) -> None:
        """An adviser; ``precision`` and ``optimizer`` are those of the step, by name, and None if they have none."""
        self.steps = steps
        self.was_cut = False
        self.no_batch_fits = False
        self._judge = judge
        self._phrasing = phrasing
        self._deadline = time.monotonic() + _SECONDS if deadline is None else deadline
        self._variants = self._find_variants(precision, optimizer)

    def _find_variants(self, precision: str | None, optimizer: str | None) -> dict[int, dict[str, str]]:
        """What each change of the step itself is, as :meth:`Steps.variant` takes it."""
        device, found = self._judge.device, {}
        is_gpu = device.kind == "cuda"
        fused = fused_kind(optimizer or "") if is_gpu else None
        if fused is not None:
            found[_core.CHANGE_FUSED] = {"optimizer": fused}
        autocast = default_precision(device.capability) if is_gpu else "bf16"
        if precision in (None, "fp32") and autocast != "fp32" and self.steps.can_be_half:
            found[_core.CHANGE_AUTOCAST] = {"precision": autocast}
        half = pure_half(device.capability) if is_gpu else "pure-bf16"
        if half is not None and self.steps.can_be_half:
            found[_core.CHANGE_HALF] = {"precision": half}
        if optimizer is not None and makes_state(optimizer) and optimizer != _LITTLE_STATE:
            found[_core.CHANGE_ADAFACTOR] = {"optimizer": _LITTLE_STATE}
        return found

    def alternatives(self) -> list[Alternative]:
        """The cheapest sets of changes with which it fits. If none does, the one that came closest."""
        fitting: list[int] = []
        found: list[Alternative] = []
        if self._judge.holds_state and self.steps.batch > 1:
            limit_bytes = less_margin(self._judge.device, self._judge.budget_bytes)
            self.no_batch_fits = self._judge.fixed_bytes(self.steps.profile, 0) > limit_bytes
        closest: Alternative | None = None
        tried = 0
        while len(fitting) < _MAX_FITTING and (tried := self._next(tried, fitting)):
            alternative = self._try(tried)
            if alternative is None:
                continue
            if alternative.fits:
                fitting.append(tried)
                found.append(alternative)
            elif closest is None or (alternative.peak_bytes or 0) < (closest.peak_bytes or 0):
                closest = alternative
        return found or ([closest] if closest else [])

    def _next(self, tried: int, fitting: list[int]) -> int:
        allowed = self._judge.allowed | (_core.CHANGE_BATCH if self.steps.batch > 1 else 0)
        for change in self._variants:
            allowed |= change
        device = self._judge.device
        limits = less_margin(device, self._judge.budget_bytes), less_margin(device, device.usable_bytes)
        timeline = self.steps.profile.unoptimized.timeline if self._judge.holds_state else ()
        keys = [CATEGORIES[number] for number in (PARAMETER, GRADIENT, OPTIMIZER_STATE)]
        params, gradients, state = (max((segment.parts[key] for segment in timeline), default=0) for key in keys)
        return _core.next_changes(
            allowed=allowed, tried=tried, fitting=fitting, limits=limits, fixed=(params, gradients, state)
        )

    def _has_time(self) -> bool:
        is_left = time.monotonic() < self._deadline
        self.was_cut |= not is_left
        return is_left

    def _variant(self, **changes: Any) -> Profile | None:
        """A variant of the step; None if there is no time for it, or the model does not take it."""
        if not self.steps.is_traced(**changes) and not self._has_time():
            return None
        return self.steps.variant(**changes)

    def _try(self, changes: int) -> Alternative | None:
        """These changes; None if they cannot be tried, or no batch fits."""
        variant: dict[str, str] = {}
        for change, what in self._variants.items():
            variant |= what if changes & change else {}
        profile = self._variant(**variant)
        if profile is None:
            return None
        if changes & _core.CHANGE_BATCH:
            return self._try_batches(profile, changes, variant)
        return self._name(self._judge.judge(profile, changes), variant)

    def _try_batches(self, whole: Profile, changes: int, variant: dict[str, str]) -> Alternative | None:
        """The largest batch that fits with these changes."""
        device = self._judge.device
        budget = device.usable_bytes if changes & _core.CHANGE_BUDGET else self._judge.budget_bytes
        limit_bytes, fixed_bytes = less_margin(device, budget), self._judge.fixed_bytes(whole, changes)

        def attempt(batch: int) -> Attempt[Verdict] | None:
            profile = self._variant(batch=batch, **variant)
            if profile is None:
                return None
            verdict = self._judge.judge(profile, changes, batch)
            return Attempt(verdict.needed_bytes, verdict if verdict.fits else None)

        if fixed_bytes > limit_bytes:
            return None
        peak_bytes = self._judge.judge(whole, changes).needed_bytes
        known = self.steps.batch, max(peak_bytes, fixed_bytes)
        search = search_batch(attempt, known, fixed_bytes, limit_bytes, self._has_time)
        if search.result is None:
            self.no_batch_fits |= search.is_complete and changes == _core.CHANGE_BATCH
            return None
        text = "the largest batch" if search.is_complete else "larger ones were not tried"
        return self._name(search.result, {"batch": search.batch, **variant}, text)

    def _name(self, verdict: Verdict, changes: Mapping[str, Any], text: str = "") -> Alternative:
        options = self._phrasing.name({**changes, **verdict.changes})
        return Alternative(options, text, verdict.fits, verdict.peak_bytes, verdict.step_seconds)


def larger_gpu(profile: Profile, recompute: str, precision: str) -> Alternative:
    """The smallest GPU of the table on which the step fits as it is."""
    for row in sorted(_core.gpu_models(), key=lambda row: row["memory_bytes"]):
        device = devices.find(str(row["key"]))
        if device.usable_bytes <= profile.device.usable_bytes or not has_precision(device.capability, precision):
            continue
        found = profile.predict(units_of(recompute), device=device)
        if found.fits:
            text = f"the smallest known GPU with enough memory, {size(device.usable_bytes)}"
            return Alternative(COMMAND.name({"gpu": row["key"]}), text, True, found.peak_bytes, found.step_seconds)
    return Alternative("--gpu", "no known GPU has enough memory", False)


def with_advice(error: BudgetError, adviser: Adviser) -> BudgetError:
    """The same error, and what would fit."""
    fitting = [_in_brackets(alternative) for alternative in adviser.alternatives() if alternative.fits]
    text = f"{str(error).rstrip('.')}."
    if fitting:
        text += f" What would fit: {', or '.join(fitting)}."
    elif adviser.no_batch_fits:
        text += " Not even a batch of 1 fits."
    advised = BudgetError(text)
    advised.smallest_peak_bytes = error.smallest_peak_bytes
    return advised


def _in_brackets(alternative: Alternative) -> str:
    peak = [] if alternative.peak_bytes is None else [size(alternative.peak_bytes)]
    text = [] if alternative.text in ("", "the largest batch") else [alternative.text]
    facts = ", ".join([*peak, *text])
    return f"{alternative.options} ({facts})" if facts else alternative.options
