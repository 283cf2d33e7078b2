"""``memscale.plan``: the plan for a model without attaching anything, and, where none fits, what would."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from . import _chart, _devices
from ._planning import EXECUTOR, MARGIN_PARTS, Capabilities, Request, half_of
from .config import Config, OptimizationMode
from .errors import BudgetError, MemScaleError
from .plans import Plan
from .profiles import Profile, _check_options, profile_step, resized, shape_of

__all__ = ["Steps", "Words", "make", "plan"]

_SECONDS = 8.0  # what looking for a batch that fits may take
_MAX_TRIES = 6


class Words(NamedTuple):
    """How a change is named that would fit: a mode, a batch, a budget in GB."""

    mode: str
    batch: str
    budget: str


_WORDS = Words("mode='{}'", "a batch of {}", "memory_budget_gb={:g}")

Trace = Callable[["str | None", "int | None"], Profile]  # a precision and a batch; None: as asked for


def plan(
    model: nn.Module,
    sample_input: Any = None,
    optimizer: torch.optim.Optimizer | None = None,
    config: Config | None = None,
    *,
    device: str | torch.device | None = None,
    precision: str | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
) -> Plan:
    """The plan that ``wrap`` would make, as a dry run: nothing is attached.

    Nothing runs, either, wherever the step can be analysed without that; else one real step is traced, as by
    :func:`memscale.profile`.

    Args:
        model: on the CPU, a GPU or the meta device; it is left as it was.
        sample_input: one batch: a tensor, a tuple of positional inputs or a dict of keyword inputs. It may be on the
            meta device: what counts is its shape.
        optimizer: the one that will be used; without it, AdamW.
        config: settings; ``Config()`` if left out.
        device: ``"cuda"``, ``"cpu"``, or the name of a GPU (``"rtx3090"``) which need not be here; None: where the
            model is.
        precision: as for :func:`memscale.profile`.
        loss: the loss from the model's output. Without it: the output's ``loss``, or the sum of its tensors.

    Raises:
        BudgetError: no plan fits; the text says what is in the way and what would fit.
        MemScaleError: there is no ``sample_input``, the step cannot be traced, or something was asked for that is not
            in this version.
        TypeError, ValueError: an argument is of the wrong type or out of range.
    """
    from .api import _check_model, check_arguments  # api makes the executor, which plans, too

    if sample_input is None:
        raise MemScaleError(
            "memscale.plan needs sample_input, one batch: a tensor, a tuple of positional inputs or a dict of keyword "
            "inputs. Only its shapes count; it may be on the meta device"
        )
    settings, args, kwargs = check_arguments(model, sample_input, optimizer, config)
    _check_model(model)
    _check_options(loss)
    where = _devices.find(device, model)

    shape = shape_of(args, kwargs)
    only_static = settings.replace(use_static_profiling=True, use_empirical_fallback=False)

    def trace(other: str | None, batch: int | None) -> Profile:
        xs, named = (args, kwargs) if batch is None else resized((args, kwargs), shape, (batch, shape[1]))
        how = settings if other is None and batch is None else only_static
        return profile_step(model, xs, named, optimizer, how, loss=loss, precision=other or precision, device=device)

    return make(Steps(trace, shape[0], can_be_half=is_whole(model, precision)), settings, where)


def is_whole(model: nn.Module, precision: str | None) -> bool:
    """Are there weights in 32 bits, which could be computed with in 16?"""
    return not (precision or "").startswith("pure") and any(p.dtype == torch.float32 for p in model.parameters())


class Steps:
    """The step that is planned for, traced in the precisions and at the batches that it is asked for, when it is."""

    def __init__(self, trace: Trace, batch: int, *, can_be_half: bool, known: Profile | None = None) -> None:
        self._trace = trace
        self._can_be_half = can_be_half
        self._known: dict[tuple[str | None, int | None], Profile | None] = {}
        self.batch = batch  # 0: there is none, or it cannot be another
        self.seconds = math.inf  # that a trace takes; the first one also imports
        self.profile = known or self._traced(None, None)

    def half(self, request: Request, batch: int | None = None) -> Profile | None:
        """The step in 16 bits, if the request has a use for it. A model that cannot be traced so stays as it is."""
        precision = half_of(request.device)
        if not (self._can_be_half and request.wants_half and precision is not None):
            return None
        return self._try(precision, batch)

    def at(self, request: Request, batch: int) -> tuple[Profile, Profile | None] | None:
        """The step with another batch, and that in 16 bits, if it can be had."""
        known = self._try(None, batch)
        return None if known is None else (known, self.half(request, batch))

    def _try(self, *key: Any) -> Profile | None:
        if key not in self._known:
            self._known[key] = None
            with contextlib.suppress(MemScaleError, ValueError, TypeError):  # the model does not take this one
                self._known[key] = self._traced(*key)
        return self._known[key]

    def _traced(self, precision: str | None, batch: int | None) -> Profile:
        start = time.monotonic()
        found = self._trace(precision, batch)
        self.seconds = min(self.seconds, time.monotonic() - start)
        return found


def make(
    steps: Steps,
    config: Config,
    device: _devices.Device,
    capabilities: Capabilities = EXECUTOR,
    words: Words = _WORDS,
) -> Plan:
    """The plan for these steps. Raises BudgetError, with advice, where there is none."""
    request = Request.of(config, device, capabilities)
    try:
        return request.create(steps.profile, steps.half(request))
    except BudgetError as error:
        raise advised(error, steps, config, request, capabilities, words) from None


def advised(
    error: BudgetError,
    steps: Steps,
    config: Config,
    request: Request,
    capabilities: Capabilities = EXECUTOR,
    words: Words = _WORDS,
) -> BudgetError:
    """The same error, and what would fit."""
    text = "".join(_advice(error, steps, config, request, capabilities, words))
    better = BudgetError(f"{str(error).rstrip('.')}{text}")
    better.smallest_peak_bytes = error.smallest_peak_bytes
    return better


# What would fit


def _advice(
    error: BudgetError, steps: Steps, config: Config, request: Request, capabilities: Capabilities, words: Words
) -> Iterator[str]:
    """The nearest changes that would fit, each tried with the engine, as sentences that follow the error's."""
    found = []
    peak = error.smallest_peak_bytes or 0
    wider = _next_mode(steps, config, request, capabilities)
    if wider is not None:
        found.append(f"{words.mode.format(wider[0].value)} ({_chart.size(wider[1].predicted_peak_bytes)})")
    batch, plan, why = _smaller_batch(steps, request, peak) if steps.batch > 1 else (0, None, "")
    if plan is not None:
        found.append(f"{words.batch.format(batch)} ({_chart.size(plan.predicted_peak_bytes)}{why})")
    enough = None if config.memory_budget_gb is None else _larger_budget(steps, request, peak)
    if enough is not None:
        found.append(words.budget.format(enough))
    if found:
        yield f". What would fit: {', or '.join(found)}"
    if plan is None and why:
        yield f". {why}"


def _next_mode(
    steps: Steps, config: Config, request: Request, capabilities: Capabilities
) -> tuple[OptimizationMode, Plan] | None:
    """The first mode beyond this one that fits, if it may do more at all."""
    modes = list(OptimizationMode)
    for mode in modes[modes.index(config.mode) + 1 :]:
        with contextlib.suppress(BudgetError):
            wider = Request.of(config.replace(mode=mode), request.device, capabilities)
            if (wider.actions, wider.states) != (request.actions, request.states):
                return mode, wider.create(steps.profile, steps.half(wider))
    return None


def _larger_budget(steps: Steps, request: Request, peak_bytes: int) -> float | None:
    """A budget in GB that suffices, in round figures; None: the device has not so much."""
    needed = peak_bytes + peak_bytes // (MARGIN_PARTS - 1) + 1
    for share in (0, 100, 20):  # a little more where plans are rounded up
        n_bytes = needed + (needed // share if share else 0)
        unit = 10 ** max(len(str(n_bytes)) - 4, 0)
        n_bytes = -(-n_bytes // unit) * unit
        if n_bytes > request.device.usable_bytes:
            return None
        with contextlib.suppress(BudgetError):
            larger = dataclasses.replace(request, budget_bytes=n_bytes, margin_bytes=n_bytes // MARGIN_PARTS)
            larger.create(steps.profile, steps.half(larger))
            return n_bytes / 1e9
    return None


def _smaller_batch(steps: Steps, request: Request, peak_bytes: int) -> tuple[int, Plan | None, str]:
    """The largest smaller batch that fits, with its plan, and what else there is to say; as far as there is time.

    Peaks grow about evenly with the batch, so where the limit lies between two that are known is a good guess.
    """
    deadline, best = time.monotonic() + _SECONDS, None
    usable = request.budget_bytes - request.margin_bytes
    low, low_bytes = 0, steps.profile.unoptimized.between_bytes if steps.profile.units else 0
    high, high_bytes = steps.batch, peak_bytes
    for _ in range(_MAX_TRIES):
        needed = steps.seconds * (2 if request.wants_half else 1)
        if high - low <= 1 or time.monotonic() + needed > deadline:
            break
        share = (usable - low_bytes) * (high - low) // max(high_bytes - low_bytes, 1)
        batch = min(max(low + share, low + 1), high - 1)
        profiles = steps.at(request, batch)
        if profiles is None:
            break
        try:
            best = request.create(*profiles)
            low, low_bytes = batch, request.pareto(*profiles, n_points=2)[-1].peak_bytes
        except BudgetError as error:
            high, high_bytes = batch, error.smallest_peak_bytes or high_bytes
    if best is not None:
        return low, best, "" if high - low <= 1 else ", larger ones were not tried"
    return 0, None, "Not even a batch of 1 fits" if high <= 1 else ""
