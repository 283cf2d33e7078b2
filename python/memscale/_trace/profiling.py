"""From a model and a batch to its step as C has it: traced, at one shape or at several."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from .. import _core
from .._base.step_kinds import PRECISIONS
from .._core import Device
from ..config import Config
from ..errors import MemScaleError
from .meta_values import UnknownValueError
from .recorder import Trace
from .sample import at_shapes, loss_of, shape_of
from .target import Target
from .tracer import Tracer
from .twin_optimizer import maker_of

_Pair = tuple[_core.Profile, _core.Profile]  # with units plain or recomputed; as it is without MemScale


class TracedStep(NamedTuple):
    """A step in C: with units plain or recomputed, and as it is without MemScale; and why it had to run, if it did."""

    core: _core.Profile
    plain: _core.Profile
    why_empirical: str


def trace_step(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    optimizer: torch.optim.Optimizer | None,
    settings: Config,
    device: Device,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    precision: str | None = None,
    evaluation: bool = False,
    shapes: bool = False,
    quietly: bool = False,
) -> TracedStep:
    """Trace a step statically, or else on real data, as far as the settings allow. No hook of the user sees it.

    Raises:
        MemScaleError: neither works.
    """
    autocast, dtype = _types_of(precision, device)
    tracer = Tracer(model, Target(device.kind, device.capability, autocast, dtype), quietly=quietly)
    arguments = (loss or loss_of, maker_of(optimizer, device.kind == "cuda"))
    samples = at_shapes(args, kwargs) if shapes else [(args, kwargs)]
    why = "" if settings.use_static_profiling else "config.use_static_profiling is off"
    pairs: list[_Pair] = []
    if not why:
        try:
            pairs = _profile_all(tracer, tracer.static, arguments, evaluation, samples)
        except MemScaleError:  # it would not run on real data either
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}" if not isinstance(error, UnknownValueError) else str(error)
            _check_fallback(model, settings, device, dtype, why, error)
    if not pairs:
        try:
            pairs = _profile_all(tracer, tracer.empirical, arguments, evaluation, samples)
        except MemScaleError:
            raise
        except Exception as error:
            raise MemScaleError(
                f"the model does not run on sample_input ({type(error).__name__}: {error}). Give a tensor, a tuple of "
                "positional inputs or a dict of keyword inputs, on the model's device"
            ) from error
    return TracedStep(*_fit(pairs, *shape_of(args, kwargs)), why)


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


def _profile_all(
    tracer: Tracer, trace: Callable[..., Trace], arguments: tuple[Any, ...], evaluation: bool, samples: list[Any]
) -> list[_Pair]:
    return [_profile_with(tracer, trace, (*sample, *arguments), evaluation) for sample in samples]


def _fit(pairs: list[_Pair], batch: int, length: int) -> _Pair:
    """One profile for all shapes, returned at the shape that was asked for. The last trace checks the fit."""
    if len(pairs) == 1:
        return pairs[0]
    core = _core.profile_fit([pair[0] for pair in pairs]).at(batch, length)
    same = all(pair[0] is pair[1] for pair in pairs)
    return core, core if same else _core.profile_fit([pair[1] for pair in pairs]).at(batch, length)


def _profile_with(tracer: Tracer, trace: Callable[..., Trace], arguments: tuple[Any, ...], evaluation: bool) -> _Pair:
    """The step with units plain or recomputed, and the step as it is without MemScale."""
    names, sizes = list(tracer.units), tracer.param_bytes()
    shape = shape_of(*arguments[:2])

    def make(plain: Trace, recomputed: Trace | None) -> _core.Profile:
        packed = None if recomputed is None else recomputed.packed()
        return _core.profile_from_traces(names, sizes, tracer.unit_flags, plain.packed(), packed, shape)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is not the user's step, which will give the same warnings when it runs
        if evaluation:
            core = make(trace(*arguments, use_cache=True, evaluation=True), None)
            return core, core
        plain = trace(*arguments)
        try:
            core = make(plain, trace(*arguments, recompute=True))
        except MemScaleError:  # the traces do not match: the step is known as it is, but not with units recomputed
            core = make(plain, None)
        unwrapped = make(trace(*arguments, use_cache=True), None) if tracer.caches else core
    return core, unwrapped


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
