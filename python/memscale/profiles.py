"""What a training step needs, layer by layer, and whether it fits, before it runs.

:func:`profile` traces a step (on tensors without memory wherever possible); :func:`predict` predicts what it needs on a
device. Everything after the trace is computed in C: lifetimes of tensors, torch's allocator, time.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from . import _core
from ._base.arguments import check_arguments, check_options
from ._base.vocabulary import ACTIONS, BACKWARD, CATEGORIES, FORWARD, KEEP, PHASES
from ._core import Device
from ._hw import devices
from ._show.text import size
from ._trace.profiling import trace_step
from ._trace.twin_optimizer import is_fused
from .config import Config, engine_settings

__all__ = ["Prediction", "Profile", "Simulation", "predict", "profile"]

# Layers that are recomputed: all, the repeated ones, these; or what is done to each.
Layers = str | Collection[str] | Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class UnitProfile:
    """A layer of the model: a repeated block, or what is between blocks.

    Attributes:
        name: as in ``model.named_modules()``.
        param_bytes: parameters at and below it.
        saved_bytes: what it keeps for backward when nothing is done.
        input_bytes: inputs that must be kept to recompute it.
        forward, backward: what it does there: ``flops``, ``bytes`` read and written, ``n_ops``, ``n_kernels``,
            ``n_random`` and ``working_bytes``, the most that is allocated within it.
    """

    name: str
    param_bytes: int
    saved_bytes: int
    input_bytes: int
    forward: Mapping[str, int] = dataclasses.field(repr=False)
    backward: Mapping[str, int] = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Segment:
    """A segment of a step: one phase inside one layer, or between layers (``unit`` is None there)."""

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
        idle_bytes: allocated between steps.
        reserved_bytes: the most that torch's allocator takes from the device.
        parts: what the steady peak is made of, by category.
        place: where the steady peak is: the layer, or None, and the phase.
        step_seconds: how long a steady step takes, modelled.
        timeline: the steady step, segment by segment.
    """

    peak_bytes: int
    first_peak_bytes: int
    steady_peak_bytes: int
    idle_bytes: int
    reserved_bytes: int
    parts: Mapping[str, int]
    place: tuple[str | None, str]
    step_seconds: float
    timeline: tuple[Segment, ...] = dataclasses.field(repr=False)


class Profile:
    """What is known of one training step of a model. Immutable.

    Attributes:
        source: ``"static"`` (nothing ran) or ``"empirical"`` (a real step was traced).
        why_empirical: why static analysis could not do it; ``""`` for a static profile.
        units: the layers in order of registration.
        device: the device that it was made for.
        fused: the optimizer needs no temporaries.
        peak_bytes: the predicted peak when nothing is done.
        parts: what that peak is made of.
        core: the profile as the extension has it.
        plain_core: of the step as it is without MemScale: with a key-value cache, where the model makes one.
    """

    has_pointwise = False  # are there pointwise results that a layer can drop?

    def __init__(
        self, core: _core.Profile, plain: _core.Profile, device: Device, *, fused: bool, why_empirical: str = ""
    ) -> None:
        self.core = core
        self.plain_core = plain
        self.device = device
        self.fused = fused
        self.why_empirical = why_empirical
        self.source = "empirical" if why_empirical else "static"
        self.units = tuple(
            UnitProfile(*row[:4], *(MappingProxyType(core.costs(i, phase)) for phase in (FORWARD, BACKWARD)))
            for i, row in enumerate(core.units())
        )
        self._unoptimized: Simulation | None = None
        self._prediction: Prediction | None = None  # of the step when nothing is done

    @property
    def unoptimized(self) -> Simulation:
        """The step when nothing is done."""
        if self._unoptimized is None:
            self._unoptimized = self.simulate()
        return self._unoptimized

    @property
    def peak_bytes(self) -> int:
        return self._predicted.peak_bytes

    @property
    def parts(self) -> Mapping[str, int]:
        return self._predicted.parts

    @property
    def _predicted(self) -> Prediction:
        if self._prediction is None:
            self._prediction = self.predict()
        return self._prediction

    @property
    def blocks(self) -> frozenset[str]:
        """The names of the layers that are repeated blocks."""
        return frozenset(name for name, *_, flags in self.core.units() if flags & _core.UNIT_BLOCK)

    def simulate(
        self,
        recompute: Layers = (),
        *,
        device: Device | None = None,
        limit_bytes: int = 0,
        resumed: bool = False,
        keep_gradients: bool = False,
    ) -> Simulation:
        """Simulate the step.

        Args:
            recompute: names of layers that are recomputed; ``"all"`` for every one, ``"blocks"`` for the repeated ones;
                or what is done to each layer (:attr:`Plan.actions`).
            device: the device to simulate; by default the one that the profile was made for.
            limit_bytes: what torch's allocator may reserve; 0: no limit.
            resumed: the optimizer's state exists from the start.
            keep_gradients: gradients are set to zero between steps, not to None.

        Raises:
            BudgetError: it does not fit ``limit_bytes``.
        """
        core, actions, flags = self._arguments(recompute, resumed=resumed, keep_gradients=keep_gradients)
        where = device or self.device
        flags |= _device_flags(where, bool(flags & _core.SIMULATE_GROWING))
        return self._simulation(core.simulate(where, actions=actions, limit_bytes=limit_bytes, flags=flags))

    def predict(self, recompute: Layers = (), *, usable_bytes: int = 0, device: Device | None = None) -> Prediction:
        """Will the step fit into ``usable_bytes``, by default into what the device has?

        A plan that does the same to the layers has the same peak.

        Args:
            recompute: as for :meth:`simulate`.
            usable_bytes: a budget; 0: what the device has.
            device: as for :meth:`simulate`.
        """
        core, actions, flags = self._arguments(recompute)
        where = device or self.device
        flags |= _device_flags(where, bool(flags & _core.SIMULATE_GROWING))
        record = core.predict(
            where, actions=actions, flags=flags, usable_bytes=usable_bytes, was_run=self.source == "empirical"
        )
        return Prediction(
            peak_bytes=record["peak_bytes"],
            needed_bytes=record["needed_bytes"],
            low_bytes=record["low_bytes"],
            high_bytes=record["high_bytes"],
            reserved_bytes=record["reserved_bytes"],
            usable_bytes=record["usable_bytes"],
            margin_bytes=record["margin_bytes"],
            fits=bool(record["fits"]),
            parts=self._parts(record),
            place=self._place(record),
            step_seconds=record["step_ns"] / 1e9,
            device=where.name,
            source=self.source,
        )

    def _arguments(
        self, recompute: Layers, *, resumed: bool = False, keep_gradients: bool = False
    ) -> tuple[_core.Profile, bytes | None, int]:
        """What the extension takes: the profile, the actions of its units, and how the step runs."""
        actions = self._actions(recompute)
        is_changed = any(action != KEEP for action in actions)
        flags = _core.SIMULATE_GROWING if is_changed else 0  # where something is done, segments of the allocator grow
        for wanted, flag in (
            (self.fused, _core.SIMULATE_FUSED),
            (resumed, _core.SIMULATE_RESUMED),
            (keep_gradients, _core.SIMULATE_KEEP_GRADIENTS),
        ):
            flags |= flag if wanted else 0
        if not is_changed:
            return self.plain_core, None, flags
        return self.core, actions.tobytes(), flags

    def at(self, batch: int, length: int = 0) -> Profile:
        """The same step at another batch size and length of sequence, without a new trace.

        Raises:
            MemScaleError: the profile was made at one shape only (``profile(..., shapes=True)`` makes it at several).
        """
        core = self.core.at(batch, length)
        plain = core if self.plain_core is self.core else self.plain_core.at(batch, length)
        return Profile(core, plain, self.device, fused=self.fused, why_empirical=self.why_empirical)

    def to_json(self) -> str:
        """The profile as JSON text: a profile that is made on one machine can be planned for on another."""
        return self.core.to_json()

    def _actions(self, recompute: Layers) -> array[int]:
        """What is done to each unit, by the numbers of actions."""
        names = [unit.name for unit in self.units]
        if isinstance(recompute, str):
            chosen = {"all": names, "blocks": self.blocks}.get(recompute)
            if chosen is None:
                allowed = "'all', 'blocks' or names of layers"
                raise ValueError(f"recompute={recompute!r} is not allowed; it must be {allowed}")
            recompute = chosen
        if unknown := sorted(set(recompute) - set(names)):
            raise ValueError(f"there is no layer '{unknown[0]}'; layers are {', '.join(names[:4])}, ...")
        numbers = {row.identifier: row.number for row in ACTIONS}
        done = recompute if isinstance(recompute, Mapping) else dict.fromkeys(recompute, "recompute")
        if unknown := sorted(set(done.values()) - set(numbers)):
            raise ValueError(f"there is no action '{unknown[0]}'; actions are {', '.join(numbers)}")
        return array("i", [numbers[done.get(name, "keep")] for name in names])

    def _name(self, index: int) -> str | None:
        return self.units[index].name if index >= 0 else None

    def _parts(self, record: Any) -> Mapping[str, int]:
        return MappingProxyType({**dict(zip(CATEGORIES, record["parts"])), "unused": record["unused_bytes"]})

    def _place(self, record: Any) -> tuple[str | None, str]:
        return self._name(record["peak_unit"]), PHASES[record["peak_phase"]]

    def _simulation(self, record: Any) -> Simulation:
        return Simulation(
            peak_bytes=max(record["first_peak_bytes"], record["steady_peak_bytes"]),
            first_peak_bytes=record["first_peak_bytes"],
            steady_peak_bytes=record["steady_peak_bytes"],
            idle_bytes=record["idle_bytes"],
            reserved_bytes=record["reserved_bytes"],
            parts=self._parts(record),
            place=self._place(record),
            step_seconds=record["step_ns"] / 1e9,
            timeline=tuple(
                Segment(self._name(u), PHASES[phase], peak, end, ns, MappingProxyType(dict(zip(CATEGORIES, sizes))))
                for u, phase, peak, end, ns, sizes in record["segments"]
                if peak > 0
            ),
        )

    def __repr__(self) -> str:
        peak = size(self.peak_bytes)
        return f"<memscale profile: {len(self.units)} layers, peak {peak} on {self.device.name}, {self.source}>"


def _device_flags(device: Device, grows: bool) -> int:
    """How steps run on a device; segments of torch's allocator may grow only where something is done to the step."""
    flags = _core.Request(device=device).simulation
    return flags if grows else flags & ~_core.SIMULATE_GROWING


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a training step needs, predicted before it runs.

    Attributes:
        peak_bytes: the most that is allocated, as ``torch.cuda.max_memory_allocated`` reports it. A plan for the same
            step has the same figure.
        needed_bytes: what torch's allocator must be allowed to reserve; on a CPU the peak.
        low_bytes, high_bytes: the error band around the peak.
        reserved_bytes: the most that torch's allocator takes from the device if nothing limits it.
        usable_bytes: what the allocator can use on the device, or the budget.
        margin_bytes: the part of that which has to stay free, since predictions may be wrong.
        fits: is what is needed within what is usable, less the margin?
        parts: what the peak is made of.
        place: where the peak is: the layer, or None, and the phase.
        step_seconds: how long a step takes, modelled.
        device: the device's name.
        source: ``"static"`` or ``"empirical"``.
    """

    peak_bytes: int
    needed_bytes: int
    low_bytes: int
    high_bytes: int
    reserved_bytes: int
    usable_bytes: int
    margin_bytes: int
    fits: bool
    parts: Mapping[str, int]
    place: tuple[str | None, str]
    step_seconds: float
    device: str
    source: str


def profile(
    model: nn.Module,
    sample_input: Any,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    config: Config | None = None,
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
        config: settings, of which ``use_static_profiling`` and ``use_empirical_fallback`` apply.
        loss: the loss from the model's output. Without it: the output's ``loss``, or the sum of its tensors.
        precision: ``"fp32"``, ``"bf16"`` and ``"fp16"`` (autocast), ``"pure-bf16"`` and ``"pure-fp16"`` (the model
            converted); None: as the model is, with the autocast that is on now.
        device: ``"cuda"``, ``"cpu"``, or the name of a GPU (``"rtx3090"``) which need not be here; None: where the
            model is.
        evaluation: a forward without gradients in place of a training step.
        shapes: trace it at a few more batch sizes and lengths, so that :meth:`Profile.at` works for others. The first
            dimension of an input counts as its batch, the second of indices and masks as its length.

    Raises:
        MemScaleError: the step can be neither analysed nor run, or it changes its form with the shape.
        TypeError, ValueError: an argument is of the wrong type or out of range.
    """
    return profile_given(
        model,
        sample_input,
        optimizer,
        config,
        loss=loss,
        precision=precision,
        device=device,
        evaluation=evaluation,
        shapes=shapes,
    )


def profile_given(
    model: nn.Module,
    sample_input: Any,
    optimizer: torch.optim.Optimizer | None = None,
    config: Config | None = None,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    evaluation: bool = False,
    shapes: bool = False,
    **options: Any,
) -> Profile:
    """What :func:`profile` does; with ``pointwise=False`` faster, where no plan is made."""
    settings, args, kwargs = check_arguments(model, sample_input, optimizer, config)
    check_options(loss, evaluation=evaluation, shapes=shapes)
    optimizers = () if optimizer is None else (optimizer,)
    return profile_step(
        model, args, kwargs, optimizers, settings, loss=loss, evaluation=evaluation, shapes=shapes, **options
    )


def profile_step(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    optimizers: tuple[torch.optim.Optimizer, ...],
    settings: Config,
    *,
    device: str | torch.device | None = None,
    **options: Any,
) -> Profile:
    """What :func:`profile` does, with positional and keyword inputs; options are those of ``trace_step``."""
    place = devices.find(device, model)
    step = trace_step(model, args, kwargs, optimizers, settings, place, **options)
    made = Profile(step.core, step.plain, place, fused=is_fused(optimizers), why_empirical=step.why_empirical)
    made.has_pointwise = step.has_pointwise
    return made


def predict(
    model: nn.Module,
    sample_input: Any,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    config: Config | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    precision: str | None = None,
    device: str | torch.device | None = None,
    evaluation: bool = False,
    recompute: Collection[str] | str = (),
) -> Prediction:
    """Predict what a training step needs, before anything runs. The arguments are those of :func:`profile`.

    Args:
        recompute: predict it with these layers recomputed; ``"all"``, ``"blocks"`` or names.
    """
    step = profile_given(
        model,
        sample_input,
        optimizer,
        config,
        loss=loss,
        precision=precision,
        device=device,
        evaluation=evaluation,
        pointwise=isinstance(recompute, Mapping),
    )
    return step.predict(recompute, usable_bytes=usable_by(config))


def usable_by(config: Config | None) -> int:
    """The budget of these settings in bytes; 0: none is set."""
    return 0 if config is None else int(engine_settings(config)["budget_bytes"])
