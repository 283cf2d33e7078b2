"""``memscale estimate``: what a training step takes on a GPU, before you have the model or the GPU.

A step is traced once, on the meta device, and simulated for the chosen GPU. If it does not fit, a few
alternatives are tried within a few seconds. `run` gathers, `Estimate.to_dict` is the JSON, ``estimate_view.py`` writes
what a terminal gets.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator

from .._base.step_kinds import default_precision, has_precision
from .._core import Device
from .._plan.advice import StepAdviser, units_of
from .._plan.steps import StepChange, Steps
from .._show.terminal import Progress, write
from ..config import Config
from ..profiles import Profile
from .estimate_view import Estimate, show
from .listings import show_list
from .options import EstimateOptions, read_options
from .subjects import Report, Subject, find_device, find_subject, heading, optimizer_name, quiet, trace

_SECONDS = 10.0  # that alternatives may be tried for, all together
_RECOMPUTED = {"blocks": ("every block recomputed",), "all": ("everything recomputed",)}


def run_estimate(arguments: argparse.Namespace) -> int:
    if show_list(arguments):
        return 0
    progress = Progress(sys.stderr, delay=1.0)
    try:
        estimate = run(read_options(EstimateOptions, arguments), progress)
    finally:
        progress.close()
    if arguments.json:
        write(json.dumps(estimate.to_dict(), indent=2))
    else:
        show(estimate)
    return 0 if estimate.prediction.fits else 3


def run(options: EstimateOptions, progress: Report = lambda text: None) -> Estimate:
    """Trace and simulate the step. Raises MemScaleError, with a message of one line, if that is not possible."""
    deadline = time.monotonic() + _SECONDS
    with quiet():
        device = find_device(options)
        return _estimate(options, device, find_subject(options, progress), progress, deadline)


def _estimate(
    options: EstimateOptions, device: Device, subject: Subject, progress: Report, deadline: float
) -> Estimate:
    step = subject.step(subject.batch)
    precision = options.precision or default_precision(device.capability)
    optimizer = optimizer_name(options, step)

    def traced(change: StepChange) -> Profile:
        batch = subject.batch if change.batch is None else change.batch
        progress(f"tracing {options.model}" + ("" if change == StepChange() else f", batch {batch}"))
        return trace(options, subject.step(batch), precision, change.optimizer)

    steps = Steps(traced, (subject.batch or 0) if subject.resizable else 0)
    config = None if options.budget is None else Config(memory_budget_gb=options.budget)
    adviser = StepAdviser(steps, device, config, options.recompute, precision, optimizer, deadline)
    prediction = adviser.predict(steps.profile, options.recompute)
    parameters = list(step.model.parameters())
    return Estimate(
        options=options,
        heading=heading(options, device, step, precision, *_RECOMPUTED.get(options.recompute, ())),
        batch=subject.batch,
        seq=subject.seq,
        n_parameters=sum(p.numel() for p in parameters),
        n_trainable=sum(p.numel() for p in parameters if p.requires_grad),
        device=device,
        precision=precision,
        optimizer=optimizer,
        prediction=prediction,
        simulation=steps.profile.simulate(units_of(options.recompute)),
        alternatives=() if prediction.fits else tuple(adviser.alternatives()),
        notes=(*subject.notes, *_notes(options, device, precision, steps.profile)),
    )


def _notes(options: EstimateOptions, device: Device, precision: str, profile: Profile) -> Iterator[str]:
    if device.kind == "cuda" and "bf16" in precision and not has_precision(device.capability, precision):
        yield "this GPU has no bf16: torch emulates it, slowly"
    if options.recompute == "blocks" and not profile.blocks:
        yield "the model has no repeated blocks, so nothing is recomputed: see --recompute all"
