"""From a model and a batch to its step as C has it: traced, at one shape or at several."""

from __future__ import annotations

import enum
import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from .. import _core
from .._base.attachment import HANDLE, touched_modules
from .._base.log import logger
from .._base.step_kinds import PRECISIONS
from .._core import Device
from .._hw.gpu import fuser
from .._hw.memory import host
from ..config import Config
from ..errors import MemScaleError
from .child import ChildError, ConfinedError, ForeignError, run_in_children
from .gpu_kernels import Convolution, gpu_of, with_seen_memory
from .meta_values import UnknownValueError
from .recorder import Trace
from .sample import Input, at_shapes, loss_of, shape_of
from .target import Target
from .tracer import Tracer, makes_large
from .twin_optimizer import maker_of

_Recorded = tuple["_core.PackedTrace", dict[int, Convolution]]
_Found = tuple[_Recorded | None, list[int]]
_Pair = tuple[_core.Profile, _core.Profile]  # with units plain or recomputed; as it is without MemScale


class _Traces(NamedTuple):
    """The traces of one step."""

    plain: _Recorded
    recomputed: _Recorded | None = None  # with all units recomputed
    pointwise: _Recorded | None = None  # with the results of pointwise functions recomputed
    cached: _Recorded | None = None  # with a key-value cache, as without MemScale


class Runs(enum.Enum):
    """Where a step may really run, if it cannot be analysed otherwise."""

    ANYWHERE = 0
    IN_CHILD = 1
    NEVER = 2


class NotAnalysedError(MemScaleError):
    """The step cannot be analysed without running it."""


class TracedStep(NamedTuple):
    """A step in C: with units plain or recomputed, and as it is without MemScale; and why it had to run, if it did."""

    core: _core.Profile
    plain: _core.Profile
    why_empirical: str
    has_pointwise: bool = False  # were there pointwise results that a unit can drop?


def trace_step(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    optimizers: tuple[torch.optim.Optimizer, ...],
    settings: Config,
    device: Device,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    precision: str | None = None,
    evaluation: bool = False,
    shapes: bool = False,
    called: nn.Module | None = None,
    runs: Runs = Runs.ANYWHERE,
    pointwise: Callable[[_core.Profile], bool] | bool = True,
) -> TracedStep:
    """Trace a step without running it, in a throw-away process; else run it for real, as far as the settings allow: on
    a CPU in such a process too, on a GPU in this one, where everything is put back afterwards.

    Args:
        pointwise: also with results of pointwise functions recomputed? Or a function that tells when all else is known.

    Raises:
        NotAnalysedError: it cannot be analysed statically, and may not run.
        MemScaleError: neither works.
    """
    autocast, dtype = _types_of(precision, device)
    target = _target_of(device, model, autocast, dtype)
    tracer = Tracer(model, target, called)
    samples = at_shapes(args, kwargs) if shapes else [(args, kwargs)]
    tracer.know_values(samples)
    work = _Work(tracer, (loss or loss_of, maker_of(optimizers, device.kind == "cuda")), evaluation)
    why = "" if settings.use_static_profiling else "config.use_static_profiling is off"
    steps: list[_Traces] = []
    if not why:
        try:
            steps = [work.run_in_children("static", sample) for sample in samples]
        except (ChildError, UnknownValueError, ForeignError) as error:
            why = str(error)
            if runs is Runs.NEVER or (runs is Runs.IN_CHILD and not tracer.is_on_cpu):
                raise NotAnalysedError(why) from error
            _check_fallback(model, settings, device, dtype, why, error)
    if not steps:
        steps = [_run_for_real(work, sample, here=runs is Runs.ANYWHERE) for sample in samples]
    place = gpu_of(device, model)

    def made() -> TracedStep:
        pairs = [_profiles_of(tracer, traces, shape_of(*sample), place) for sample, traces in zip(samples, steps)]
        return TracedStep(*_fit(pairs, *shape_of(args, kwargs)), why, any(traces.pointwise for traces in steps))

    step = made()
    if not why and not evaluation and (pointwise(step.core) if callable(pointwise) else pointwise):
        made_again = work.run_pointwise(samples, [traces.plain for traces in steps])
        steps = [_Traces(t.plain, t.recomputed, again, t.cached) for t, again in zip(steps, made_again)]
        step = made() if any(made_again) else step
    return step


def _target_of(device: Device, model: nn.Module, autocast: torch.dtype | None, dtype: torch.dtype | None) -> Target:
    """A GPU that is not here has NVRTC, as every one with a torch of pip."""
    place = gpu_of(device, model)
    fuses = device.kind == "cuda" and (place is None or fuser(place) is not None)
    figures = (device.name, device.usable_bytes, device.n_multiprocessors)
    return Target(device.kind, device.capability, autocast, dtype, fuses, *figures)


def trace_samples(
    model: nn.Module,
    samples: list[Input],
    optimizers: tuple[torch.optim.Optimizer, ...],
    device: Device,
    *,
    called: nn.Module | None = None,
    pointwise: bool = False,
) -> list[_core.Profile]:
    """Trace the step with each of these inputs without running it, as many at the same time as there are cores.

    Raises:
        NotAnalysedError: it cannot be analysed statically.
    """
    autocast, _ = _types_of(None, device)
    tracer = Tracer(model, _target_of(device, model, autocast, None), called)
    tracer.know_values(samples)
    work = _Work(tracer, (loss_of, maker_of(optimizers, device.kind == "cuda")), evaluation=False)
    try:
        steps = work.run_together(samples, pointwise=pointwise)
    except (ChildError, UnknownValueError, ForeignError) as error:
        raise NotAnalysedError(str(error)) from error
    place = gpu_of(device, model)
    return [_profiles_of(tracer, traces, shape_of(*sample), place)[0] for sample, traces in zip(samples, steps)]


def _run_for_real(work: _Work, sample: Input, *, here: bool) -> _Traces:
    """A real step: in children, unless the model is on a GPU, which no child can use, or there are none."""
    try:
        if work.tracer.is_on_cpu:
            try:
                return work.run_in_children("empirical", sample)
            except (ChildError, ConfinedError) as error:
                if not here:
                    raise NotAnalysedError(str(error)) from error
                logger.info("the step runs in this process, and everything is put back (%s)", error)
        return work.run_here(sample)
    except MemScaleError:
        raise
    except Exception as error:
        text = str(error) if isinstance(error, ForeignError) else f"{type(error).__name__}: {error}"
        raise MemScaleError(
            f"the model does not run on sample_input ({text}). Give a tensor, a tuple of positional inputs or a dict "
            "of keyword inputs, on the model's device"
        ) from error


def _types_of(precision: str | None, device: Device) -> tuple[torch.dtype | None, torch.dtype | None]:
    """The dtype of autocast, and the one that the model is converted to."""
    if precision is None:
        active = torch.is_autocast_enabled(device.kind)
        return (torch.get_autocast_dtype(device.kind) if active else None), None
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} is not allowed; it must be one of {', '.join(PRECISIONS)}")
    names = PRECISIONS[precision]
    return _dtype(names.autocast), _dtype(names.dtype)


def _dtype(name: str | None) -> torch.dtype | None:
    return None if name is None else getattr(torch, name)


def _fit(pairs: list[_Pair], batch: int, length: int) -> _Pair:
    """One profile for all shapes, returned at the shape that was asked for. The last trace checks the fit."""
    if len(pairs) == 1:
        return pairs[0]
    core = _core.profile_fit([pair[0] for pair in pairs]).at(batch, length)
    same = all(pair[0] is pair[1] for pair in pairs)
    return core, core if same else _core.profile_fit([pair[1] for pair in pairs]).at(batch, length)


class _Work(NamedTuple):
    """The traces that a profile is made from."""

    tracer: Tracer
    arguments: tuple[Any, ...]  # loss, optimizer
    evaluation: bool

    def run_in_children(self, how: str, sample: Input) -> _Traces:
        """Each trace in a child of its own, so that each begins with what the model holds now."""
        trace = functools.partial(self._trace, how, sample)
        is_real = how == "empirical"
        if self.evaluation:
            [(plain, _)] = run_in_children(functools.partial(trace, use_cache=True, evaluation=True), is_real=is_real)
            assert plain is not None
            return _Traces(plain)
        works = [trace, functools.partial(trace, recompute=True)]
        works += [functools.partial(trace, use_cache=True)] if self.tracer.caches else []
        (plain, found), (recomputed, _), *cached = run_in_children(*works, is_real=is_real)
        if found:  # units that change their inputs: the plain trace can tell
            self.tracer.not_recomputable.update(found)
            [(recomputed, _)] = run_in_children(works[1], is_real=is_real)
        assert plain is not None
        return _Traces(plain, recomputed, None, cached[0][0] if cached else None)

    def run_pointwise(self, samples: list[Input], plain: list[_Recorded]) -> list[_Recorded | None]:
        """Static traces with results of pointwise functions recomputed, of steps that make results large enough for it;
        None: nothing is recomputed, or it does not work, which is no reason to know less of the step."""
        made: list[_Recorded | None] = [None] * len(samples)
        large = [i for i, recorded in enumerate(plain) if makes_large(recorded[0])]
        if not large:
            return made
        traces = [functools.partial(self._trace, "static", samples[i], pointwise=True) for i in large]
        try:
            answers = run_in_children(*traces)
        except (ChildError, UnknownValueError, ForeignError):
            return made
        for i, (recorded, _) in zip(large, answers):
            made[i] = recorded
        return made

    def run_together(self, samples: list[Input], *, pointwise: bool) -> list[_Traces]:
        """Static traces of several samples, each in a child of its own."""
        n_at_once = max(int(host()["n_cores"]) // 2, 1)
        steps: list[_Traces] = []
        for first in range(0, len(samples), n_at_once):
            traces = [functools.partial(self._trace, "static", sample) for sample in samples[first : first + n_at_once]]
            recomputing = [functools.partial(trace, recompute=True) for trace in traces]
            answers: list[_Found] = run_in_children(*traces, *recomputing)
            plain, recomputed = answers[: len(traces)], answers[len(traces) :]
            found = {unit for _, units in plain for unit in units} - self.tracer.not_recomputable
            if found:  # units that change their inputs: the plain trace can tell
                self.tracer.not_recomputable.update(found)
                recomputed = run_in_children(*recomputing)
            ones = [recorded for recorded, _ in plain if recorded is not None]
            assert len(ones) == len(traces)
            made = self.run_pointwise(samples[first : first + n_at_once], ones) if pointwise else [None] * len(traces)
            steps += [_Traces(one, other, third) for one, (other, _), third in zip(ones, recomputed, made)]
        return steps

    def run_here(self, sample: Input) -> _Traces:
        """The same in this process, one after the other, on real data."""
        if any(module in touched_modules for module in self.tracer.model.modules()):
            raise MemScaleError("the model is wrapped: profile it before wrap(), or detach it first")
        trace = functools.partial(self._trace, "empirical", sample)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is not the user's step, which will give the same warnings when it runs
            plain, _ = trace(use_cache=True, evaluation=True) if self.evaluation else trace()
            assert plain is not None
            if self.evaluation:
                return _Traces(plain)
            recomputed, _ = trace(recompute=True)
            return _Traces(plain, recomputed, None, trace(use_cache=True)[0] if self.tracer.caches else None)

    def _trace(
        self, how: str, sample: Input, *, recompute: bool = False, pointwise: bool = False, **options: bool
    ) -> _Found:
        """A trace, and the units that it found not to be recomputable."""
        trace: Callable[..., Trace] = getattr(self.tracer, how)
        for executor in [vars(module).get(HANDLE) for module in self.tracer.model.modules()]:
            if executor is not None:  # in a child: the step is the model's own
                executor.leave_modules()
        try:
            if pointwise:
                options = {**options, "pointwise": True}
            recorded = trace(*sample, *self.arguments, recompute=recompute, **options)
        except MemScaleError:
            if not recompute:
                raise
            return None, sorted(self.tracer.not_recomputable)  # with these units recomputed, the step is not known
        if pointwise and not recorded.repeats:
            return None, []
        return (recorded.packed(), recorded.convolutions), sorted(self.tracer.not_recomputable)


def _profiles_of(tracer: Tracer, traces: _Traces, shape: tuple[int, int], place: torch.device | None) -> _Pair:
    """The step with units plain or recomputed, and the step as it is without MemScale; on a GPU of this process, if
    there is one."""
    names, sizes = list(tracer.units), tracer.param_bytes()
    plain, recomputed, pointwise, cached = (_packed(recorded, place) for recorded in traces)
    assert plain is not None

    def make(*given: _core.PackedTrace | None) -> _core.Profile:
        first, second, third = (*given, None, None)[:3]
        assert first is not None
        return _core.profile_from_traces(names, sizes, tracer.unit_flags, (first, second, third), shape)

    for known in ((plain, recomputed, pointwise), (plain, recomputed), (plain,)):
        try:
            core = make(*known)
            break
        except MemScaleError:  # the traces do not match: the step is known with less that can be done to it
            if len(known) == 1:
                raise
    return core, core if cached is None else make(cached)


def _packed(recorded: _Recorded | None, place: torch.device | None) -> _core.PackedTrace | None:
    if recorded is None or place is None:
        return None if recorded is None else recorded[0]
    return with_seen_memory(*recorded, place)


def _check_fallback(
    model: nn.Module, settings: Config, place: Device, dtype: torch.dtype | None, why: str, error: Exception
) -> None:
    """Static analysis failed: may a real step be traced? Raises if not."""
    where = {p.device.type for p in model.parameters()}
    reason = ""
    if not settings.use_empirical_fallback:
        reason = "config.use_empirical_fallback is off"
    elif where and where != {place.kind}:
        reason = f"the model is not on the device that it is profiled for, {place.kind}"
    elif dtype is not None:
        reason = "the model is not in the precision that was asked for"
    if reason:
        raise MemScaleError(f"the step can be neither analysed statically ({why}) nor run ({reason})") from error
