"""``memscale estimate``: what a training step takes on a GPU, before model and GPU are there.

A step is traced once, on the meta device, and played for the GPU that is meant. If it does not fit, a few other ways
are tried within a few seconds. `run` gathers, `Estimate.to_dict` is the JSON, `show` what a terminal gets.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import re
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import _core, _devices, _models, _subjects
from ._chart import duration, part_lines, quantity, size
from ._subjects import describe
from ._terminal import GREEN, PLAIN, RED, columns, has_colour, is_terminal, write
from .config import Config
from .errors import MemScaleError
from .profiles import Prediction, Profile, Simulation, predict_profile, profile

RECOMPUTE = ("none", "blocks", "all")
_LOGGING = "transformers.utils.logging"
_SOME_GPUS = ("rtx3060", "rtx3090", "rtx4090", "t4", "a100-40gb", "h100")
_SECONDS = 10.0  # what other ways may be tried for, all together
_MAX_TRIES = 6  # of batches
_LEAST_CAPABILITY = {"bf16": 80, "pure-bf16": 80, "fp16": 70, "pure-fp16": 70}

Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Request:
    """What was asked for; None: left out."""

    model: str
    batch: int | None = None
    seq: int | None = None
    gpu: str | None = None
    optimizer: str | None = None
    precision: str | None = None
    recompute: str = "none"
    budget_gb: float | None = None


@dataclasses.dataclass(frozen=True)
class Way:
    """Another way to run the step, as options of the command. Without a peak: no such way fits, and text says why."""

    options: str
    text: str
    fits: bool
    peak_bytes: int | None = None
    step_seconds: float | None = None


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What was found."""

    request: Request
    batch: int | None
    seq: int | None
    batch_text: str
    n_parameters: int
    n_trainable: int
    device: _devices.Device
    precision: str
    optimizer: str
    prediction: Prediction
    simulation: Simulation
    ways: tuple[Way, ...]
    notes: tuple[str, ...]

    @property
    def passes(self) -> Any:
        """The highest point of forward and backward."""
        return max((p for p in self.simulation.timeline if _is_pass(p.phase)), key=lambda p: p.peak_bytes)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        said, played = self.prediction, self.simulation
        return {
            "model": self.request.model,
            "n_parameters": self.n_parameters,
            "n_trainable": self.n_trainable,
            "batch": self.batch,
            "seq": self.seq,
            "gpu": said.device,
            "capability": self.device.capability,
            "precision": self.precision,
            "precision_is_default": self.request.precision is None,
            "optimizer": self.optimizer,
            "recompute": self.request.recompute,
            "budget_gb": self.request.budget_gb,
            "fits": said.fits,
            "peak_bytes": said.peak_bytes,
            "low_bytes": said.low_bytes,
            "high_bytes": said.high_bytes,
            "usable_bytes": said.usable_bytes,
            "reserved_bytes": said.reserved_bytes,
            "first_peak_bytes": played.first_peak_bytes,
            "steady_peak_bytes": played.steady_peak_bytes,
            "between_bytes": played.between_bytes,
            "parts": dict(said.parts),
            "place": dict(zip(("unit", "phase"), said.place)),
            "passes": {
                "unit": self.passes.unit,
                "phase": self.passes.phase,
                "peak_bytes": self.passes.peak_bytes,
                "parts": dict(self.passes.parts),
            },
            "step_seconds": said.step_seconds,
            "rates": "measured" if self.device.rates.source else "table",
            "source": said.source,
            "ways": [dataclasses.asdict(way) for way in self.ways],
            "notes": list(self.notes),
        }


# Gathering


def run(request: Request, progress: Progress = lambda text: None) -> Estimate:
    """Trace and play the step. Raises MemScaleError, in one line, for whatever cannot be."""
    start = time.monotonic()
    os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
    device = find_device(request.gpu)
    budget = request.budget_gb
    if budget is not None and budget * 1e9 > device.usable_bytes:
        raise MemScaleError(f"a budget of {budget:g} GB is more than {device.name} has: {size(device.usable_bytes)}")
    with quiet():
        progress(f"making {request.model}")
        subject = _subjects.find(request.model, request.batch, request.seq)
        return _Estimator(request, device, subject, progress, start + _SECONDS).estimate()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No warnings, and nothing that transformers logs: it is not the user's step. It may be imported only inside."""
    variable = "TRANSFORMERS_VERBOSITY"
    named, loaded = os.environ.get(variable), sys.modules.get(_LOGGING)
    level = logging.WARNING if loaded is None else loaded.get_verbosity()  # its default
    os.environ[variable] = "error"
    if loaded is not None:
        loaded.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.environ.pop(variable)
        os.environ.update({variable: named} if named is not None else {})
        if _LOGGING in sys.modules:
            sys.modules[_LOGGING].set_verbosity(level)


def find_device(name: str | None) -> _devices.Device:
    if (name or "cuda").split(":")[0] == "cuda" and not torch.cuda.is_available():
        raise MemScaleError(
            f"torch can use no GPU here: name one with --gpu, such as {', '.join(_SOME_GPUS)} (--gpu list shows all)"
        )
    try:
        return _devices.find(name or "cuda")
    except MemScaleError:
        raise
    except (ValueError, RuntimeError, AssertionError) as error:  # the last two: cuda:x, cuda:9
        raise MemScaleError(f"--gpu: {str(error).splitlines()[0]} (--gpu list shows all)") from error


def default_precision(capability: int) -> str:
    """What the GPU is best trained in: the fastest type that it has."""
    return "bf16" if capability >= 80 else "fp16" if capability >= 70 else "fp32"


class _Estimator:
    """One estimate while it is being made."""

    def __init__(
        self, request: Request, device: _devices.Device, subject: _subjects.Subject, progress: Progress, deadline: float
    ) -> None:
        self.request, self.device, self.subject, self.progress = request, device, subject, progress
        self.deadline = deadline
        self.seconds = math.inf  # that a trace takes; the first one also imports
        self.precision = request.precision or default_precision(device.capability)
        self.config = None if request.budget_gb is None else Config(memory_budget_gb=request.budget_gb)
        self.optimizer = request.optimizer or "adamw"
        self.known: dict[Any, Profile] = {}

    def estimate(self) -> Estimate:
        step = self.subject.step(self.subject.batch)
        if self.request.optimizer is None and step.optimizer is not None:
            self.optimizer = type(step.optimizer).__name__
        parameters = list(step.model.parameters())
        known = self.profile(self.subject.batch)
        said = self.predict(known, self.request.recompute)
        return Estimate(
            request=self.request,
            batch=self.subject.batch,
            seq=self.subject.seq,
            batch_text=step.text,
            n_parameters=sum(p.numel() for p in parameters),
            n_trainable=sum(p.numel() for p in parameters if p.requires_grad),
            device=self.device,
            precision=self.precision,
            optimizer=self.optimizer,
            prediction=said,
            simulation=known.simulate(_units(self.request.recompute)),
            ways=() if said.fits else tuple(self.ways(known, said)),
            notes=tuple(self.notes(known)),
        )

    def profile(self, batch: int | None, optimizer: str | None = None) -> Profile:
        """The step with this batch, traced; None: with the optimizer that was asked for."""
        if (batch, optimizer) in self.known:
            return self.known[batch, optimizer]
        start = time.monotonic()
        self.progress(f"tracing {self.request.model}" + (f", batch {batch}" if self.known else ""))
        step = self.subject.step(batch)
        chosen = optimizer or self.request.optimizer
        if chosen is None and step.optimizer is not None:
            made = step.optimizer
        else:
            made = _subjects.make_optimizer(chosen or "adamw", step.model)
        found = traced(self.subject.name, step, made, self.precision, self.request.gpu)
        self.known[batch, optimizer] = found
        self.seconds = min(self.seconds, time.monotonic() - start)
        return found

    def predict(self, known: Profile, recompute: str) -> Prediction:
        return predict_profile(known, self.config, _units(recompute))

    def notes(self, known: Profile) -> Iterator[str]:
        yield from self.subject.notes
        if self.device.kind == "cuda" and self.device.capability < 80 and "bf16" in self.precision:
            yield "this GPU has no bf16: torch emulates it, slowly"
        if self.request.recompute == "blocks" and not _has_blocks(known):
            yield "the model has no repeated blocks, so nothing is recomputed: see --recompute all"

    # Other ways

    def ways(self, known: Profile, said: Prediction) -> list[Way]:
        """What would fit, and what would not, though one might hope so."""
        found, stronger = [], self.stronger(known)
        if stronger is not None:
            found.append(self.way({"recompute": stronger}, self.predict(known, stronger)))
        if self.can_shrink():
            found.append(self.largest_batch(known, said, stronger))
        if self.device.kind != "cuda":
            return found
        state_bytes = known.simulate(_units(self.request.recompute)).between_bytes
        if not any(way.fits for way in found) and self.optimizer == "adamw" and state_bytes <= said.usable_bytes:
            found += self.without_lists(stronger)
        if not any(way.fits for way in found) and self.config is None:
            found.append(self.larger_gpu(known))
        return found

    def can_shrink(self) -> bool:
        return self.subject.resizable and (self.subject.batch or 0) > 1

    def stronger(self, known: Profile) -> str | None:
        """What may be recomputed beyond what was asked for."""
        following = {"none": "blocks" if _has_blocks(known) else "all", "blocks": "all"}.get(self.request.recompute)
        if following is not None:
            try:
                known.simulate(following)
            except MemScaleError:  # units of this model cannot be computed again
                return None
        return following

    def way(self, changes: dict[str, Any], said: Prediction, text: str = "") -> Way:
        options = " ".join(f"--{name} {value}" for name, value in changes.items())
        return Way(options, text, said.fits, said.peak_bytes, said.step_seconds)

    def largest_batch(self, known: Profile, said: Prediction, stronger: str | None) -> Way:
        """The largest batch that fits, as asked for, else with more recomputed."""
        why = ""
        for changes in ({}, {"recompute": stronger}) if stronger else ({},):
            recompute = changes.get("recompute") or self.request.recompute
            played, whole = known.simulate(_units(recompute)), self.predict(known, recompute)
            fixed = max([played.between_bytes, *(p.peak_bytes for p in played.timeline if not _is_pass(p.phase))])
            if fixed > said.usable_bytes:  # that is there with any batch
                why = f"no batch fits: {size(fixed)} do not depend on it"
            elif not whole.fits:
                batch, why, found = self.search_batch(whole, played.between_bytes, recompute)
                if found is not None:
                    return self.way({"batch": batch, **changes}, found, why)
        return Way("--batch 1", why, False)

    def without_lists(self, stronger: str | None) -> list[Way]:
        """AdamW on a GPU makes lists of temporaries as large as the parameters, unless it is fused. The first way
        with that which fits, else the leanest."""
        asked, batch, last = self.request.recompute, self.subject.batch, None
        tries: list[tuple[int | None, str]] = [(batch, asked)]
        tries += [(batch, stronger)] if stronger else []
        tries += [(1, stronger or asked)] if self.can_shrink() else []
        for n, recompute in tries:
            if (n, "adamw-fused") not in self.known and not self.has_time():
                break
            changes: dict[str, Any] = {"batch": n} if n != batch else {}
            changes |= {"optimizer": "adamw-fused"} | ({"recompute": recompute} if recompute != asked else {})
            with contextlib.suppress(MemScaleError):  # the model does not take this batch
                last = self.way(changes, self.predict(self.profile(n, "adamw-fused"), recompute))
            if last is not None and last.fits:
                break
        return [last] if last else []

    def search_batch(self, said: Prediction, fixed_bytes: int, recompute: str) -> tuple[int, str, Prediction | None]:
        """The largest batch between none, which takes what is fixed, and the one that does not fit, with what is known
        of it. Peaks grow about evenly, so where the limit lies between what two reserve is a good guess."""
        low, low_bytes, best = 0, fixed_bytes, None
        high, high_bytes = int(self.subject.batch or 0), said.reserved_bytes
        for n_tried in range(_MAX_TRIES):
            if high - low <= 1 or not self.has_time(for_sure=n_tried > 0):
                break
            share = (said.usable_bytes - low_bytes) * (high - low) // max(high_bytes - low_bytes, 1)
            batch = min(max(low + share, low + 1), high - 1)
            try:
                tried = self.predict(self.profile(batch), recompute)
            except MemScaleError:  # the model does not take this one
                break
            if tried.fits:
                low, low_bytes, best = batch, tried.reserved_bytes, tried
            else:
                high, high_bytes = batch, tried.reserved_bytes
        if high - low <= 1:
            return low, "the largest batch" if best else "no batch fits", best
        return low, "larger ones were not tried" if best else "none that fits was found in time", best

    def larger_gpu(self, known: Profile) -> Way:
        """The smallest GPU of the table on which it fits as it is."""
        least = _LEAST_CAPABILITY.get(self.precision, 0)
        for row in sorted(_core.gpu_models(), key=lambda row: row["memory_bytes"]):
            device = _devices.find(str(row["key"]))
            if device.usable_bytes <= self.device.usable_bytes or device.capability < least:
                continue
            with contextlib.suppress(_core.BudgetError):
                units = _units(self.request.recompute)
                found = known.simulate(units, device=device, limit_bytes=device.usable_bytes)
                text = f"the smallest that is known with enough memory, {size(device.usable_bytes)}"
                return Way(f"--gpu {row['key']}", text, True, found.peak_bytes, found.step_seconds)
        return Way("--gpu", "no GPU that is known has so much memory", False)

    def has_time(self, for_sure: bool = True) -> bool:
        """Is there time for one more trace, or at least to begin one?"""
        return time.monotonic() + (self.seconds if for_sure else 0) < self.deadline


def traced(
    name: str, step: _subjects.Step, optimizer: torch.optim.Optimizer, precision: str, gpu: str | None
) -> Profile:
    try:
        with _subjects.own_code():
            return profile(step.model, step.sample, optimizer, precision=precision, device=gpu or "cuda")
    except MemScaleError as error:
        cause = error.__cause__
        why = str(error) if cause is None else str(cause) if isinstance(cause, MemScaleError) else describe(cause)
        hint = " (those of indices are known if they are made with device='cpu')" if "values of tensors" in why else ""
        raise MemScaleError(f"a step of {name} cannot be traced: {why}{hint}") from error
    except (TypeError, ValueError, RuntimeError) as error:
        raise MemScaleError(f"{name}: {_models.one_line(error)}") from error


def _units(recompute: str) -> str | tuple[str, ...]:
    return () if recompute == "none" else recompute


def _has_blocks(known: Profile) -> bool:
    return any(unit.name.rpartition(".")[2].isdigit() for unit in known.units)


def _is_pass(phase: str) -> bool:
    return phase in ("forward", "loss", "backward")


def gpu_rows() -> list[dict[str, Any]]:
    """The GPUs that are known."""
    return [
        {
            "key": row["key"],
            "name": row["name"],
            "memory_bytes": row["memory_bytes"],
            "capability": row["capability"],
            "precision": default_precision(row["capability"]),
        }
        for row in _core.gpu_models()
    ]


def model_rows() -> list[dict[str, Any]]:
    """The models that are known by name."""
    return [{"name": name, "class": e.model, "seq": e.length or None} for name, e in _models.REGISTRY.items()]


# What a terminal gets

_FITS, _FITS_NOT = "fits", "does not fit"
_MAX_COLUMNS = 200
_FIGURE = re.compile(r"(\d) (?=[kMGT]?B\b|[mu]?s\b|[BMk] param)")  # and its unit, which stay on one line


def show(found: Estimate) -> None:
    """Write it, as wide as the terminal is."""
    width = min(columns(), _MAX_COLUMNS)
    for line in _heading(found):
        wrap_text(line, width)
    write("")
    for line in _chart_lines(found, width):
        write(line)
    write("")
    rows = _facts(found)
    indent = max(len(name) for name, _ in rows) + 2
    for name, text in rows:
        wrap_text(text, width, name, indent)
    if found.ways:
        write("\nother ways")
        indent = max(len(way.options) for way in found.ways) + 4
        for way in found.ways:
            wrap_text(_way_text(way), width, f"  {way.options}", indent)


def _heading(found: Estimate) -> Iterator[str]:
    yield f"{found.request.model} on {found.device.name}"
    trained = "" if found.n_trainable == found.n_parameters else f", {quantity(found.n_trainable)} of them trained"
    autocast = " autocast" if found.precision in ("bf16", "fp16") else ""
    default = " (default for this GPU)" if found.request.precision is None and found.device.kind == "cuda" else ""
    recompute = {"none": "", "blocks": ", every block recomputed", "all": ", everything recomputed"}
    yield (
        f"{quantity(found.n_parameters)} parameters{trained}, {found.batch_text}, {found.precision}{autocast}"
        f"{default}, {found.optimizer}{recompute[found.request.recompute]}"
    )


def _chart_lines(found: Estimate, width: int) -> Iterator[str]:
    said = found.prediction
    limit = (said.usable_bytes, "budget" if found.request.budget_gb else "usable")
    return part_lines(said.parts, (said.peak_bytes, said.low_bytes, said.high_bytes), limit, width)


def _facts(found: Estimate) -> list[tuple[str, str]]:
    said, played = found.prediction, found.simulation
    rows = [("peak", f"{size(said.peak_bytes)} ({size(said.low_bytes)} to {size(said.high_bytes)}) {_place(found)}")]
    if played.first_peak_bytes > played.steady_peak_bytes:
        rows.append(("", f"that is the first step; later ones take {size(played.steady_peak_bytes)}, as drawn"))
    if not _is_pass(said.place[1]):
        top = found.passes
        where = _inside(top.unit, top.phase, played).replace(f"in {top.phase} of", "in").removeprefix("in backward ")
        rows.append((top.phase, f"{size(top.peak_bytes)} {where}, {size(top.parts['activations'])} of it activations"))
    if found.device.kind == "cuda":
        rows.append(("reserved", f"{size(said.reserved_bytes)} by torch's allocator, if nothing limits it"))
    rates = "the data sheet's rates" if found.device.kind == "cuda" else "a guess at its rates"
    rates = "this machine's measured rates" if found.device.rates.source else rates
    rows.append(("step", f"{duration(said.step_seconds)}, modelled from {rates}, not measured"))
    rows += [("note", note) for note in found.notes]
    return [*rows, _verdict(found)]


def _verdict(found: Estimate) -> tuple[str, str]:
    said = found.prediction
    room = f"{size(said.usable_bytes)} {'of budget' if found.request.budget_gb else 'that are usable'}"
    spare = said.usable_bytes - said.peak_bytes
    if said.fits:
        barely = "" if said.high_bytes <= said.usable_bytes else ", but barely: the error band goes beyond it"
        return _FITS, f"{size(spare)} to spare of the {room}{barely}"
    if spare >= 0:
        return _FITS_NOT, f"what is free of the {room} lies too scattered for torch's allocator"
    barely = ", but barely: the error band begins below it" if said.low_bytes <= said.usable_bytes else ""
    return _FITS_NOT, f"{size(-spare)} more than the {room}{barely}"


def _place(found: Estimate) -> str:
    """Where the peak is."""
    unit, phase = found.prediction.place
    if phase == "optimizer":
        return "in the optimizer's step"
    return "between steps" if phase in ("state", "end") else _inside(unit, phase, found.simulation)


def _inside(unit: str | None, phase: str, played: Simulation) -> str:
    """Where in forward or backward. Backward begins with the loss, which belongs to no layer."""
    if unit is not None:
        return f"in {phase} of {unit}"
    if phase == "loss":
        return "in the loss"
    first = next((p for p in played.timeline if p.phase == "backward"), None)
    if phase == "backward" and first is not None and first.unit is None:
        highest = max(p.peak_bytes for p in played.timeline if p.phase == "backward")
        if first.peak_bytes == highest:
            return "in backward of the loss"
    return f"in {phase} between layers"


def _way_text(way: Way) -> str:
    if way.peak_bytes is None or way.step_seconds is None:
        return way.text
    texts = [size(way.peak_bytes), f"{duration(way.step_seconds)} a step", *([way.text] if way.text else [])]
    return f"{_FITS if way.fits else _FITS_NOT}: {', '.join(texts)}"


def wrap_text(text: str, width: int, name: str = "", indent: int = 0) -> None:
    """A text beside a name. As a whole where the output is no terminal, to be searched."""
    label, text = f"{name:<{indent}}", _FIGURE.sub("\\1\xa0", text)
    if has_colour() and name in (_FITS, _FITS_NOT):
        label = f"{GREEN if name == _FITS else RED}{label}{PLAIN}"
    if not is_terminal(sys.stdout):
        found = [f"{label}{text}"]
    elif width - indent >= 24:
        first, *rest = textwrap.wrap(text, width - indent, break_on_hyphens=False) or [""]
        found = [f"{label}{first}", *(f"{'':<{indent}}{line}" for line in rest)]
    else:
        margin = "  " if name else ""
        found = textwrap.wrap(name.strip(), width)
        found += textwrap.wrap(text, width, initial_indent=margin, subsequent_indent="  ")
    for line in found:
        write(line.replace("\xa0", " ").rstrip())
