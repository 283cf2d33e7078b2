"""An estimate: what it holds, its JSON, and how a terminal shows it."""

from __future__ import annotations

import dataclasses
from typing import Any

from .._core import Device
from .._plan.advice import Alternative
from .._plan.judges import is_pass
from .._show.bars import part_lines
from .._show.terminal import GREEN, MAX_COLUMNS, RED, columns, wrap_text, write
from .._show.text import duration, peak_place, size
from ..profiles import Prediction, Segment, Simulation
from .options import EstimateOptions

_FITS, _FITS_NOT = "fits", "does not fit"
_COLOURS = {_FITS: GREEN, _FITS_NOT: RED}


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The answer."""

    options: EstimateOptions
    heading: tuple[str, str]
    batch: int | None
    seq: int | None
    n_parameters: int
    n_trainable: int
    device: Device
    precision: str
    optimizer: str
    prediction: Prediction
    simulation: Simulation
    alternatives: tuple[Alternative, ...]
    notes: tuple[str, ...]

    @property
    def passes(self) -> Segment:
        """The highest point of forward and backward."""
        return max((p for p in self.simulation.timeline if is_pass(p.phase)), key=lambda p: p.peak_bytes)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        prediction, simulation = self.prediction, self.simulation
        return {
            "model": self.options.model,
            "n_parameters": self.n_parameters,
            "n_trainable": self.n_trainable,
            "batch": self.batch,
            "seq": self.seq,
            "gpu": prediction.device,
            "capability": self.device.capability,
            "precision": self.precision,
            "precision_is_default": self.options.precision is None,
            "optimizer": self.optimizer,
            "recompute": self.options.recompute,
            "budget_gb": self.options.budget,
            "fits": prediction.fits,
            "peak_bytes": prediction.peak_bytes,
            "needed_bytes": prediction.needed_bytes,
            "low_bytes": prediction.low_bytes,
            "high_bytes": prediction.high_bytes,
            "usable_bytes": prediction.usable_bytes,
            "margin_bytes": prediction.margin_bytes,
            "reserved_bytes": prediction.reserved_bytes,
            "first_peak_bytes": simulation.first_peak_bytes,
            "steady_peak_bytes": simulation.steady_peak_bytes,
            "idle_bytes": simulation.idle_bytes,
            "parts": dict(prediction.parts),
            "place": dict(zip(("unit", "phase"), prediction.place)),
            "passes": {
                "unit": self.passes.unit,
                "phase": self.passes.phase,
                "peak_bytes": self.passes.peak_bytes,
                "parts": dict(self.passes.parts),
            },
            "step_seconds": prediction.step_seconds,
            "rates": "measured" if self.device.rates.source else "table",
            "source": prediction.source,
            "alternatives": [dataclasses.asdict(alternative) for alternative in self.alternatives],
            "notes": list(self.notes),
        }


def show(estimate: Estimate) -> None:
    """Write it, as wide as the terminal is."""
    width = min(columns(), MAX_COLUMNS)
    prediction = estimate.prediction
    for line in estimate.heading:
        wrap_text(line, width)
    write("")
    limit = (prediction.usable_bytes, "budget" if estimate.options.budget else "usable")
    band = (prediction.peak_bytes, prediction.low_bytes, prediction.high_bytes)
    for line in part_lines(prediction.parts, band, limit, width):
        write(line)
    write("")
    rows = _facts(estimate)
    indent = max(len(name) for name, _ in rows) + 2
    for name, text in rows:
        wrap_text(text, width, name, indent, _COLOURS.get(name, ""))
    if estimate.alternatives:
        write("\nalternatives")
        indent = max(len(alternative.options) for alternative in estimate.alternatives) + 4
        for alternative in estimate.alternatives:
            wrap_text(_alternative_text(alternative), width, f"  {alternative.options}", indent)


def _facts(estimate: Estimate) -> list[tuple[str, str]]:
    prediction, simulation = estimate.prediction, estimate.simulation
    band = f"{size(prediction.low_bytes)} to {size(prediction.high_bytes)}"
    place = peak_place(prediction.place, simulation.timeline)
    rows = [("peak", f"{size(prediction.peak_bytes)} ({band}) {place}")]
    if simulation.first_peak_bytes > simulation.steady_peak_bytes:
        rows.append(("", f"that is in the first step; later ones take {size(simulation.steady_peak_bytes)}, as drawn"))
    if not is_pass(prediction.place[1]):
        top = estimate.passes
        where = peak_place((top.unit, top.phase), simulation.timeline)
        rows.append((top.phase, f"{size(top.peak_bytes)} {where}, {size(top.parts['activations'])} of it activations"))
    if estimate.device.kind == "cuda":
        rows.append(("reserved", f"{size(prediction.reserved_bytes)} by torch's allocator, if nothing limits it"))
    rates = "the data sheet's rates" if estimate.device.kind == "cuda" else "a guess at its rates"
    rates = "this machine's measured rates" if estimate.device.rates.source else rates
    rows.append(("step", f"{duration(prediction.step_seconds)}, modelled from {rates}, not measured"))
    rows += [("note", note) for note in estimate.notes]
    return [*rows, _verdict(estimate)]


def _verdict(estimate: Estimate) -> tuple[str, str]:
    prediction = estimate.prediction
    room = f"{size(prediction.usable_bytes)} {'of budget' if estimate.options.budget else 'that is usable'}"
    spare = prediction.usable_bytes - prediction.peak_bytes
    margin = f"a margin of {size(prediction.margin_bytes)} has to stay free, since predictions may be wrong"
    if prediction.fits:
        barely = (
            "" if prediction.high_bytes <= prediction.usable_bytes else ", but barely: the error band goes beyond it"
        )
        return _FITS, f"{size(spare)} to spare of the {room}{barely}"
    if spare >= 0:
        return _FITS_NOT, f"only {size(spare)} is left of the {room}: {margin}"
    barely = ", but barely: the error band begins below it" if prediction.low_bytes <= prediction.usable_bytes else ""
    return _FITS_NOT, f"{size(-spare)} more than the {room}{barely}"


def _alternative_text(alternative: Alternative) -> str:
    if alternative.peak_bytes is None or alternative.step_seconds is None:
        return alternative.text
    texts = [
        size(alternative.peak_bytes),
        f"{duration(alternative.step_seconds)} a step",
        *([alternative.text] if alternative.text else []),
    ]
    return f"{_FITS if alternative.fits else _FITS_NOT}: {', '.join(texts)}"
