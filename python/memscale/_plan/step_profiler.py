"""Profiles the steps of one model without running them."""

from __future__ import annotations

import time
import weakref
from typing import Any

from torch import nn

from .. import _core
from .._base.step_kinds import DEFAULT_OPTIMIZER, name_of
from .._base.vocabulary import ACTIONS
from .._hw import devices
from .._trace.model_modules import is_compiled
from .._trace.profiling import Runs, trace_samples
from .._trace.sample import Input, at_sizes
from .._trace.twin_optimizer import Optimizers, make_optimizer
from ..config import Config
from ..errors import BudgetError, MemScaleError
from ..profiles import Profile, profile_step
from .request import Request
from .steps import AS_IT_IS, StepChange, is_whole


def why_not_static(model: nn.Module, config: Config) -> str:
    """Why a step of this model cannot be analysed without running it; "": it can."""
    places = {p.device for p in model.parameters()}
    if not config.use_static_profiling:
        return "config.use_static_profiling is off"
    if len(places) != 1:
        return f"the model is on {len(places)} devices"
    kind = next(iter(places)).type
    if kind not in ("cpu", "cuda"):
        return f"the model is on the device '{kind}'"
    if config.use_empirical_fallback and is_compiled(model):
        return "layers of the model go through torch.compile, which decides what they keep"
    return ""


class StepProfiler:
    """Profiles the steps of one model without running them.

    Attributes:
        optimizers: that update the model, as far as they are known.
        input: the input that is being planned for.
        is_static: can its steps be analysed without running them?
        called: the module whose forward a step calls.
        seconds: that the last profile took.
        n_analyses: for other sizes than those of the first one.
        analysed_ns: that these took.
    """

    def __init__(self, model: nn.Module, config: Config, optimizers: Optimizers) -> None:
        self._model = model
        self._config = config.replace(use_static_profiling=True)
        self.optimizers = optimizers
        self.called: nn.Module = model
        self.input: Input = (), {}
        self.is_static = True
        self.seconds = 0.0
        self.n_analyses = 0
        self.analysed_ns = 0
        self._uses_pointwise = False

    def profile(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        is_sample: bool = False,
        change: StepChange = AS_IT_IS,
    ) -> Profile:
        """The step with these inputs. Raises MemScaleError or ValueError if it cannot be analysed."""
        start = time.monotonic()
        other = change.optimizer
        runs = Runs.IN_CHILD if is_sample else Runs.NEVER
        profile = profile_step(
            self._model,
            args,
            kwargs,
            self.optimizers if other is None else (make_optimizer(other, self._model),),
            self._config,
            precision=change.precision,
            called=self.called,
            runs=runs,
            pointwise=self._needs_pointwise,
        )
        self.seconds = time.monotonic() - start
        self._uses_pointwise = profile.has_pointwise
        return profile

    def _needs_pointwise(self, core: _core.Profile) -> bool:
        """Would a plan without it change anything? Else the analysis ends earlier."""
        try:
            plan = Request(self._config, devices.find(None, self._model)).create(core)
        except BudgetError:
            return True
        return any(ACTIONS[entry.action].identifier != "keep" for entry in plan.entries)

    @property
    def optimizers(self) -> Optimizers:
        alive = (reference() for reference in self._optimizers)
        return tuple(optimizer for optimizer in alive if optimizer is not None)

    @optimizers.setter
    def optimizers(self, optimizers: Optimizers) -> None:
        self._optimizers = tuple(map(weakref.ref, optimizers))  # the user's: one that is dropped frees its state
        self.known_optimizers = weakref.WeakSet(optimizers)

    @property
    def is_whole(self) -> bool:
        """Does the model have weights in 32 bits?"""
        return is_whole(self._model, None)

    @property
    def optimizer_name(self) -> str | None:
        """The name of the optimizer; None: it has none, or there are several."""
        if len(self.optimizers) > 1:
            return None
        return name_of(self.optimizers[0]) if self.optimizers else DEFAULT_OPTIMIZER

    def answer(self, lists: list[tuple[tuple[int, ...], ...]]) -> list[_core.Profile] | None:
        """Called by the engine while it plans: the step with the current input resized to each of these lists of sizes,
        or None if it cannot be analysed."""
        if not self.is_static:
            return None
        start = time.monotonic_ns()
        try:
            samples = [at_sizes(*self.input, sizes) for sizes in lists]
            place = devices.find(None, self._model)
            profiles = trace_samples(
                self._model, samples, self.optimizers, place, called=self.called, pointwise=self._uses_pointwise
            )
        except (MemScaleError, ValueError):
            return None
        finally:
            taken = time.monotonic_ns() - start
            self.n_analyses += 1
            self.analysed_ns += taken
        self.seconds = taken / 1e9 / len(lists)
        return profiles
