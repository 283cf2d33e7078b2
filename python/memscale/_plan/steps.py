"""The step that is planned for, and variants of it that may be tried: in 16 bits, with another batch or optimizer."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from ..errors import MemScaleError
from ..profiles import Profile
from .request import Request


class StepChange(NamedTuple):
    """How a step differs from the one that was asked for; None: it does not."""

    precision: str | None = None
    batch: int | None = None
    optimizer: str | None = None


AS_IT_IS = StepChange()
Trace = Callable[[StepChange], Profile]


def change_text(change: StepChange) -> str:
    """What is traced, for a line that shows progress: ", batch 4, pure-bf16"."""
    facts = [change.precision, None if change.batch is None else f"batch {change.batch}", change.optimizer]
    return "".join(f", {fact}" for fact in facts if fact)


def is_whole(model: nn.Module, precision: str | None) -> bool:
    """Does the model have weights in 32 bits, which could be computed with in 16?"""
    return not (precision or "").startswith("pure") and any(p.dtype == torch.float32 for p in model.parameters())


def autocast_now(kind: str) -> str | None:
    """The precision of a step that begins now on a device of this kind: of the autocast that is on, or None."""
    if not torch.is_autocast_enabled(kind):
        return None
    return "bf16" if torch.get_autocast_dtype(kind) == torch.bfloat16 else "fp16"


class Steps:
    """A step and its variants, each traced when it is first asked for, and once.

    Attributes:
        profile: of the step that was asked for.
        batch: its batch; 0: it has none, or cannot have another.
        can_be_half: could it run in 16 bits, and does it not yet?
        seconds: how long a trace takes; the first one includes imports.
    """

    def __init__(self, trace: Trace, batch: int, *, can_be_half: bool = False, profile: Profile | None = None) -> None:
        self._trace = trace
        self.can_be_half = can_be_half
        self._profiles: dict[StepChange, Profile | None] = {}
        self.batch = batch
        self.seconds = math.inf
        self.profile = profile or self._timed(AS_IT_IS)
        self._profiles[AS_IT_IS] = self.profile

    def half(self, request: Request, batch: int | None = None) -> Profile | None:
        """The step in 16 bits, if the request can use it; None if the model cannot be traced in 16 bits."""
        if not self.can_be_half or request.half is None:
            return None
        return self.variant(precision=request.half, batch=batch)

    def at(self, request: Request, batch: int) -> tuple[Profile, Profile | None] | None:
        """The step with another batch, and that in 16 bits; None if the model does not take it."""
        profile = self.variant(batch=batch)
        return None if profile is None else (profile, self.half(request, batch))

    def is_traced(self, **changes: str | int | None) -> bool:
        """Was this variant tried before?"""
        return self._key(changes) in self._profiles

    def variant(self, **changes: str | int | None) -> Profile | None:
        """A variant; None if the model does not take it."""
        key = self._key(changes)
        if key not in self._profiles:
            self._profiles[key] = None
            with contextlib.suppress(MemScaleError, ValueError, TypeError):
                self._profiles[key] = self._timed(key)
        return self._profiles[key]

    def _key(self, changes: dict[str, str | int | None]) -> StepChange:
        if changes.get("batch") == self.batch:
            changes = {**changes, "batch": None}
        return StepChange(**changes)  # type: ignore[arg-type]

    def _timed(self, change: StepChange) -> Profile:
        start = time.monotonic()
        profile = self._trace(change)
        self.seconds = min(self.seconds, time.monotonic() - start)
        return profile
