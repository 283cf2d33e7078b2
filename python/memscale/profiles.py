"""Know before running: what a training step needs, unit by unit, and whether it fits.

:func:`profile` traces a step (on tensors without memory wherever that is possible), :func:`predict` says what it will
take on a device. Everything behind the trace is C: liveness, the allocator, time.
"""

from __future__ import annotations

import dataclasses
import warnings
from array import array
from collections.abc import Callable, Collection
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from . import _core, _devices, _optimizers
from ._devices import Device
from ._target import Target
from ._trace import BACKWARD, FORWARD, Trace, Tracer
from ._values import UnknownValueError
from .config import Config
from .errors import MemScaleError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Prediction", "Profile", "Simulation", "predict", "profile"]

# By enum ms_category; what is left of the peak are blocks that are larger than what was asked for.
PARTS = ("activations", "parameters", "buffers", "inputs", "gradients", "optimizer", "working", "libraries")
PHASES = ("state", "forward", "loss", "backward", "optimizer", "optimizer", "end")
_PRECISIONS: dict[str, tuple[torch.dtype | None, torch.dtype | None]] = {  # autocast, dtype of the model
    "fp32": (None, None),
    "bf16": (torch.bfloat16, None),
    "fp16": (torch.float16, None),
    "pure-bf16": (None, torch.bfloat16),
    "pure-fp16": (None, torch.float16),
}
# How far a prediction may be off, in parts of a thousand: bench/results has what was measured.
_BAND = {"static": 20, "empirical": 30}


@dataclasses.dataclass(frozen=True)
class UnitProfile:
    """A unit of the model: a repeated block, or what stands between blocks.

    Attributes:
        name: as in ``model.named_modules()``.
        param_bytes: parameters at and below it.
        saved_bytes: what it keeps for backward when nothing is done.
        boundary_bytes: what must stay to compute it again.
        forward, backward: what it does there: ``flops``, ``bytes`` read and written, ``n_ops``, ``n_kernels``,
            ``n_random`` and ``working_bytes``, the most that is allocated within it.
    """

    name: str
    param_bytes: int
    saved_bytes: int
    boundary_bytes: int
    forward: Mapping[str, int] = dataclasses.field(repr=False)
    backward: Mapping[str, int] = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Point:
    """A stretch of a step: one phase inside a unit, or between units (``unit`` is then None)."""

    unit: str | None
    phase: str
    peak_bytes: int
    end_bytes: int
    duration_ns: int
    parts: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Simulation:
    """A step under a plan, simulated.

    Attributes:
        peak_bytes: the most that is allocated, in the first step or any later one.
        first_peak_bytes: of the first step, which makes the optimizer's state.
        steady_peak_bytes: of every later step.
        between_bytes: allocated between steps.
        reserved_bytes: the most that torch's allocator takes from the device.
        parts: what the steady peak is made of, by category.
        place: where the steady peak is: the unit, or None, and the phase.
        step_seconds: how long a steady step takes, modelled.
        timeline: the steady step, stretch by stretch.
    """

    peak_bytes: int
    first_peak_bytes: int
    steady_peak_bytes: int
    between_bytes: int
    reserved_bytes: int
    parts: Mapping[str, int]
    place: tuple[str | None, str]
    step_seconds: float
    timeline: tuple[Point, ...] = dataclasses.field(repr=False)


class Profile:
    """What is known of one training step of a model. Immutable.

    Attributes:
        source: ``"static"`` (nothing ran) or ``"empirical"`` (a real step was traced).
        why_empirical: why static analysis could not do it; ``""`` for a static profile.
        units: the units in order of registration.
        device: what it was made for.
        fused: the optimizer takes no temporaries.
        peak_bytes: the predicted peak when nothing is done.
        parts: what that peak is made of.
    """

    def __init__(
        self, core: _core.Profile, plain: _core.Profile, device: Device, *, fused: bool, why_empirical: str = ""
    ) -> None:
        self._core = core
        self._plain = plain  # the step as it is without MemScale: with a key-value cache where the model makes one
        self.device = device
        self.fused = fused
        self.why_empirical = why_empirical
        self.source = "empirical" if why_empirical else "static"
        self.units = tuple(
            UnitProfile(*row[:4], *(MappingProxyType(core.costs(i, phase)) for phase in (FORWARD, BACKWARD)))
            for i, row in enumerate(core.units())
        )
        self._unoptimized: Simulation | None = None

    @property
    def unoptimized(self) -> Simulation:
        """The step when nothing is done."""
        if self._unoptimized is None:
            self._unoptimized = self.simulate()
        return self._unoptimized

    @property
    def peak_bytes(self) -> int:
        return self.unoptimized.peak_bytes

    @property
    def parts(self) -> Mapping[str, int]:
        return self.unoptimized.parts

    def simulate(
        self,
        recompute: Collection[str] | str = (),
        *,
        device: Device | None = None,
        limit_bytes: int = 0,
        resumed: bool = False,
        keep_gradients: bool = False,
    ) -> Simulation:
        """Play the step.

        Args:
            recompute: names of units that are recomputed; ``"all"`` for every one, ``"blocks"`` for the repeated ones.
            device: another device than the one that it was made for.
            limit_bytes: what torch's allocator may reserve; 0: no limit.
            resumed: the optimizer's state is there from the start.
            keep_gradients: gradients are set to zero between steps, not to None.

        Raises:
            BudgetError: it does not fit ``limit_bytes``.
        """
        where = device or self.device
        chosen = self._chosen(recompute)
        flags = _core.SIMULATE_ALLOCATOR if where.kind == "cuda" else 0
        flags |= 0 if chosen else _core.SIMULATE_ENGINE_THREAD  # attached, backward stays on the calling thread
        for wanted, flag in (
            (self.fused, _core.SIMULATE_FUSED),
            (resumed, _core.SIMULATE_RESUMED),
            (keep_gradients, _core.SIMULATE_KEEP_GRADIENTS),
        ):
            flags |= flag if wanted else 0
        actions = array("i", [unit.name in chosen for unit in self.units])
        core = self._core if chosen else self._plain
        rates = where.rates.to_json()
        packed = actions.tobytes() if chosen else None
        found = core.simulate(packed, rates, where.n_multiprocessors, limit_bytes, flags, 0)
        return self._simulation(found)

    def at(self, batch: int, length: int = 0) -> Profile:
        """The same step at another batch size and length of sequence, without a new trace.

        Raises:
            MemScaleError: the profile was made at one shape only (``profile(..., shapes=True)`` makes it at several).
        """
        core = self._core.at(batch, length)
        plain = core if self._plain is self._core else self._plain.at(batch, length)
        return Profile(core, plain, self.device, fused=self.fused, why_empirical=self.why_empirical)

    def to_json(self) -> str:
        """The profile as JSON text: a profile taken on one machine plans on another."""
        return self._core.to_json()

    def _chosen(self, recompute: Collection[str] | str) -> set[str]:
        names = [unit.name for unit in self.units]
        if recompute == "all":
            return set(names)
        if recompute == "blocks":
            return {name for name in names if name.rpartition(".")[2].isdigit()}
        if isinstance(recompute, str) or not set(recompute) <= set(names):
            unknown = recompute if isinstance(recompute, str) else sorted(set(recompute) - set(names))[0]
            raise ValueError(f"there is no unit '{unknown}'; units are {', '.join(names[:4])}, ...")
        return set(recompute)

    def _simulation(self, found: Any) -> Simulation:
        def unit(index: int) -> str | None:
            return self.units[index].name if index >= 0 else None

        parts = dict(zip(PARTS, found["parts"]))
        parts["unused"] = found["unused_bytes"]
        return Simulation(
            peak_bytes=max(found["first_peak_bytes"], found["steady_peak_bytes"]),
            first_peak_bytes=found["first_peak_bytes"],
            steady_peak_bytes=found["steady_peak_bytes"],
            between_bytes=found["between_bytes"],
            reserved_bytes=found["reserved_bytes"],
            parts=MappingProxyType(parts),
            place=(unit(found["peak_unit"]), PHASES[found["peak_phase"]]),
            step_seconds=found["step_ns"] / 1e9,
            timeline=tuple(
                Point(unit(u), PHASES[phase], peak, end, ns, MappingProxyType(dict(zip(PARTS, sizes))))
                for u, phase, peak, end, ns, sizes in found["points"]
                if peak > 0
            ),
        )

    def __repr__(self) -> str:
        peak = self.peak_bytes / 1e9
        return f"<memscale profile: {len(self.units)} units, peak {peak:.2f} GB on {self.device.name}, {self.source}>"


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a training step will take, before it runs.

    Attributes:
        peak_bytes: the most that is allocated, as ``torch.cuda.max_memory_allocated`` would say.
        low_bytes, high_bytes: the error band.
        reserved_bytes: the most that torch's allocator takes from the device if nothing limits it.
        usable_bytes: what it can have on the device, or the budget.
        fits: does the step run there?
        parts: what the peak is made of.
        place: where the peak is: the unit, or None, and the phase.
        step_seconds: how long a step takes, modelled.
        device: the device's name.
        source: ``"static"`` or ``"empirical"``.
    """

    peak_bytes: int
    low_bytes: int
    high_bytes: int
    reserved_bytes: int
    usable_bytes: int
    fits: bool
    parts: Mapping[str, int]
    place: tuple[str | None, str]
    step_seconds: float
    device: str
    source: str


def profile(
    model: nn.Module,
    sample_input: Any,
    optimizer: torch.optim.Optimizer | None = None,
    config: Config | None = None,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    precision: str | None = None,
    device: str | torch.device | None = None,
    evaluation: bool = False,
    shapes: bool = False,
) -> Profile:
    """Trace one training step of a model without running it.

    Args:
        model: on the CPU, a GPU or the meta device; it is left as it was.
        sample_input: one batch: a tensor, a tuple of positional inputs or a dict of keyword inputs. It may be on the
            meta device: what counts is its shape.
        optimizer: the one that will be used; without it, AdamW.
        config: ``use_static_profiling`` and ``use_empirical_fallback`` say how.
        loss: the loss from the model's output. Without it: the output's ``loss``, or the sum of its tensors.
        precision: ``"fp32"``, ``"bf16"`` and ``"fp16"`` (autocast), ``"pure-bf16"`` and ``"pure-fp16"`` (the model
            converted); None: as the model is, with the autocast that is on now.
        device: ``"cuda"``, ``"cpu"``, or the name of a GPU (``"rtx3090"``) which need not be here; None: where the
            model is.
        evaluation: a forward without gradients in place of a training step.
        shapes: trace it at a few more batch sizes and lengths, so that :meth:`Profile.at` knows the others. The first
            dimension of an input counts as its batch, the second of indices and masks as its length.

    Raises:
        MemScaleError: neither way works, or the step is not of one form at all shapes; the text says why.
        TypeError, ValueError: an argument is of the wrong type or out of range.
    """
    from .api import check_arguments  # api makes the executor, which will ask for profiles

    settings, args, kwargs = check_arguments(model, sample_input, optimizer, config)
    _check_options(loss, evaluation=evaluation, shapes=shapes)
    return profile_step(
        model,
        args,
        kwargs,
        optimizer,
        settings,
        loss=loss,
        precision=precision,
        device=device,
        evaluation=evaluation,
        shapes=shapes,
    )


def profile_step(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    optimizer: torch.optim.Optimizer | None,
    settings: Config,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    precision: str | None = None,
    device: str | torch.device | None = None,
    evaluation: bool = False,
    shapes: bool = False,
    quietly: bool = False,
) -> Profile:
    """What :func:`profile` does, with positional and keyword inputs. Quietly: nobody's forward hooks see it."""
    place = _devices.find(device, model)
    autocast, dtype = _precision(precision, place)
    tracer = Tracer(model, Target(place.kind, place.capability, autocast, dtype), quietly=quietly)
    arguments = (loss or _loss_of, _optimizers.maker_of(optimizer, place.kind == "cuda"))
    samples = _at_shapes(args, kwargs) if shapes else [(args, kwargs)]
    why = "" if settings.use_static_profiling else "config.use_static_profiling is off"
    found: list[Cores] = []
    if not why:
        try:
            found = _profile_all(tracer, tracer.static, arguments, evaluation, samples)
        except MemScaleError:  # it would not run either
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}" if not isinstance(error, UnknownValueError) else str(error)
            _check_fallback(model, settings, place, dtype, why, error)
    if not found:
        try:
            found = _profile_all(tracer, tracer.empirical, arguments, evaluation, samples)
        except MemScaleError:
            raise
        except Exception as error:
            raise MemScaleError(
                f"the model does not run on sample_input ({type(error).__name__}: {error}). Give a tensor, a tuple of "
                "positional inputs or a dict of keyword inputs, on the model's device"
            ) from error
    cores = _fit(found, *shape_of(args, kwargs))
    return Profile(*cores, place, fused=_optimizers.is_fused(optimizer), why_empirical=why)


def predict(
    model: nn.Module,
    sample_input: Any,
    optimizer: torch.optim.Optimizer | None = None,
    config: Config | None = None,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    precision: str | None = None,
    device: str | torch.device | None = None,
    evaluation: bool = False,
    recompute: Collection[str] | str = (),
) -> Prediction:
    """Say what a training step will take, before anything runs. Arguments are those of :func:`profile`.

    Args:
        recompute: predict it with these units recomputed; ``"all"``, ``"blocks"`` or names.
    """
    known = profile(
        model, sample_input, optimizer, config, loss=loss, precision=precision, device=device, evaluation=evaluation
    )
    return predict_profile(known, config, recompute)


def predict_profile(known: Profile, config: Config | None = None, recompute: Collection[str] | str = ()) -> Prediction:
    """The prediction for a profile that is there already."""
    found = known.simulate(recompute)
    budget = None if config is None else config.memory_budget_gb
    usable = known.device.usable_bytes if budget is None else int(budget * 1e9)
    share = found.peak_bytes * _BAND[known.source] // 1000
    fits = found.peak_bytes <= usable
    if fits and known.device.kind == "cuda":  # what is allocated may lie too scattered in what is reserved
        try:
            known.simulate(recompute, limit_bytes=usable)
        except _core.BudgetError:
            fits = False
    return Prediction(
        peak_bytes=found.peak_bytes,
        low_bytes=found.peak_bytes - share,
        high_bytes=found.peak_bytes + share,
        reserved_bytes=found.reserved_bytes,
        usable_bytes=usable,
        fits=fits,
        parts=found.parts,
        place=found.place,
        step_seconds=found.step_seconds,
        device=known.device.name,
        source=known.source,
    )


def _check_options(loss: Any, **switches: Any) -> None:
    if loss is not None and not callable(loss):
        raise TypeError(f"loss must be a function of the model's output, not {type(loss).__name__}")
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, not {value!r}")


def _precision(precision: str | None, place: Device) -> tuple[torch.dtype | None, torch.dtype | None]:
    if precision is None:
        active = torch.is_autocast_enabled(place.kind)
        return (torch.get_autocast_dtype(place.kind) if active else None), None
    if not isinstance(precision, str) or precision not in _PRECISIONS:
        raise ValueError(f"precision={precision!r} is not allowed; it must be one of {', '.join(_PRECISIONS)}")
    return _PRECISIONS[precision]


Shape = tuple[int, int]  # batch and length; 0: there is none
Cores = tuple[_core.Profile, _core.Profile]  # with units kept or recomputed; as it is without MemScale


def _profile_all(
    tracer: Tracer, trace: Callable[..., Trace], arguments: tuple[Any, ...], evaluation: bool, samples: list[Any]
) -> list[Cores]:
    return [_profile_with(tracer, trace, (*sample, *arguments), evaluation) for sample in samples]


def _fit(found: list[Cores], batch: int, length: int) -> Cores:
    """One profile for all shapes, at the shape that was asked for. The last one checks what the rest says."""
    if len(found) == 1:
        return found[0]
    core = _core.profile_fit([pair[0] for pair in found]).at(batch, length)
    same = all(pair[0] is pair[1] for pair in found)
    return core, core if same else _core.profile_fit([pair[1] for pair in found]).at(batch, length)


def _profile_with(tracer: Tracer, trace: Callable[..., Trace], arguments: tuple[Any, ...], evaluation: bool) -> Cores:
    """The step with units kept or recomputed, and the step as it is without MemScale."""
    names, sizes = list(tracer.units), tracer.param_bytes()
    batch, length = shape_of(*arguments[:2])

    def make(kept: Trace, lean: Trace | None) -> _core.Profile:
        packed = None if lean is None else lean.packed()
        return _core.profile_from_traces(names, sizes, kept.packed(), packed, batch, length)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is not the user's step: what it warns of will be said when that runs
        if evaluation:
            core = make(trace(*arguments, use_cache=True, evaluation=True), None)
            return core, core
        kept = trace(*arguments)
        try:
            core = make(kept, trace(*arguments, recompute=True))
        except MemScaleError:  # the two do not go together: known as it is, not with units recomputed
            core = make(kept, None)
        plain = make(trace(*arguments, use_cache=True), None) if tracer.caches else core
    return core, plain


def shape_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    """Batch and length of an input: the first two dimensions of its first tensor, the second of indices only."""
    for tensor in _core.tensors_in((args, kwargs)):
        if tensor.dim() >= 1:
            has_length = tensor.dim() == 2 and not tensor.is_floating_point()
            return int(tensor.shape[0]), int(tensor.shape[1]) if has_length else 0
    return 0, 0


def _at_shapes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[Any, Any]]:
    """The input at several batches and lengths: enough to tell how sizes grow, and one more to check that.

    No batch of one: what is copied for two is often not for one.
    """
    batch, length = shape_of(args, kwargs)
    if batch <= 0:
        raise MemScaleError("shapes=True needs an input whose first dimension is the batch")
    least = max(batch, 2)
    wanted = [(least, length), (2 * least, length), (3 * least, length)]
    if length >= 8:
        quarter, half, most = (_part(length, parts) for parts in (1, 2, 3))
        wanted = [(b, t) for t in (length, half, quarter) for b in (least, 2 * least)]
        wanted.append((3 * least, most))

    return [resized((args, kwargs), (batch, length), new) for new in wanted]


def resized(value: Any, old: Shape, new: Shape, made: dict[int, torch.Tensor] | None = None) -> Any:
    """An input of one batch and length, at another. A tensor that is given twice (labels that are the input, say) stays
    one."""
    found = {} if made is None else made
    if isinstance(value, torch.Tensor):
        if id(value) not in found:
            found[id(value)] = _resize(value, old, new)
        return found[id(value)]
    if isinstance(value, dict):
        return {key: resized(v, old, new, found) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(resized(v, old, new, found) for v in value)
    return value


def _part(length: int, parts: int) -> int:
    """About so many quarters of a length. Attention kernels pad to 32: longer lengths are padded by so different shares
    that it cannot be taken for growth."""
    part = length * parts // 4
    return part if length < 64 else part // 32 * 32 + (24, 8, 16)[parts - 1]


def _resize(tensor: torch.Tensor, old: tuple[int, int], new: tuple[int, int]) -> torch.Tensor:
    """Batch first, length second; a mask of four dimensions has its lengths last."""
    lengths = (2, 3) if tensor.dim() == 4 and not tensor.is_floating_point() else (1,)
    for dim in range(tensor.dim()):
        pair = (old[0], new[0]) if dim == 0 else (old[1], new[1])
        if tensor.shape[dim] != pair[0] or pair[0] == pair[1] or (dim > 0 and (dim not in lengths or pair[0] <= 1)):
            continue
        index = torch.arange(pair[1], device=tensor.device).remainder(pair[0])
        tensor = tensor.index_select(dim, index)
    return tensor


def _loss_of(output: Any) -> torch.Tensor:
    """The loss that a model returns; else the sum of its tensors, so that backward reaches all of it."""
    named = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if isinstance(named, torch.Tensor):
        return named
    tensors = [t for t in _core.tensors_in(output) if t.requires_grad and (t.is_floating_point() or t.is_complex())]
    if not tensors:
        raise MemScaleError(
            "nothing in the model's output has a gradient: give loss=, or unfreeze a parameter that takes part"
        )
    if tensors[0].dim() == 0:
        return tensors[0]
    total = tensors[0].sum()
    for tensor in tensors[1:]:
        total = total + tensor.sum()
    return total


def _check_fallback(
    model: nn.Module, settings: Config, place: Device, dtype: torch.dtype | None, why: str, error: Exception
) -> None:
    """Static analysis failed: may a real step be traced? Raises if not."""
    where = {p.device.type for p in model.parameters()}
    reason = ""
    if not settings.use_empirical_fallback:
        reason = "config.use_empirical_fallback is off"
    elif where and where != {place.kind}:
        reason = f"the model is not on the device that it is profiled for ({place.kind})"
    elif dtype is not None:
        reason = "the model is not in the precision that is asked for"
    if reason:
        raise MemScaleError(f"the step cannot be analysed without running it ({why}), nor run: {reason}") from error
