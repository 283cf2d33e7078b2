"""``memscale estimate``: what a training step takes on a GPU, before you have the model or the GPU.

A step is traced once, on the meta device, and simulated for the chosen GPU. If it does not fit, changes with which it
would are tried for some seconds, alone and together. `run` gathers, `Estimate.to_dict` is the JSON,
``estimate_view.py`` writes what a terminal gets.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator

from .._base.step_kinds import default_precision, has_precision
from .._core import Device
from .._plan.advice import COMMAND, Adviser, Alternative, larger_gpu
from .._plan.judges import StepJudge, units_of
from .._plan.steps import StepChange, Steps, change_text, is_whole
from .._show.terminal import Progress, write
from ..config import Config
from ..profiles import Profile, usable_by
from .estimate_view import Estimate, show
from .listings import show_list
from .options import EstimateOptions, read_options
from .subjects import Report, Subject, find_device, find_subject, heading, optimizer_name, quiet, trace

_SECONDS = 15.0  # that alternatives may be tried for, all together
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
    with quiet():
        device = find_device(options)
        return _estimate(options, device, find_subject(options, progress), progress)


def _estimate(options: EstimateOptions, device: Device, subject: Subject, progress: Report) -> Estimate:
    step = subject.step(subject.batch)
    precision = options.precision or default_precision(device.capability)
    optimizer = optimizer_name(options, step)

    def traced(change: StepChange) -> Profile:
        batch = subject.batch if change.batch is None else change.batch
        progress(f"tracing {options.model}{change_text(change)}")
        return trace(options, subject.step(batch), change.precision or precision, change.optimizer)

    batch = (subject.batch or 0) if subject.resizable else 0
    steps = Steps(traced, batch, can_be_half=is_whole(step.model, precision))
    config = None if options.budget is None else Config(memory_budget_gb=options.budget)
    prediction = steps.profile.predict(units_of(options.recompute), usable_bytes=usable_by(config))
    alternatives = () if prediction.fits else _alternatives(options, steps, config, precision, optimizer)
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
        alternatives=alternatives,
        notes=(*subject.notes, *_notes(options, device, precision, steps.profile)),
    )


def _alternatives(
    options: EstimateOptions, steps: Steps, config: Config | None, precision: str, optimizer: str
) -> tuple[Alternative, ...]:
    """What would fit; a larger GPU only if nothing does on this one."""
    judge = StepJudge(steps.profile, config, options.recompute)
    adviser = Adviser(
        steps, judge, COMMAND, precision=precision, optimizer=optimizer, deadline=time.monotonic() + _SECONDS
    )
    found = adviser.alternatives()
    if any(alternative.fits for alternative in found):
        return tuple(found)
    if adviser.was_cut:
        found.append(Alternative("other changes", "not all of them could be tried in time", False))
    if config is None and steps.profile.device.kind == "cuda":
        found.append(larger_gpu(steps.profile, options.recompute, precision))
    return tuple(found)


def _notes(options: EstimateOptions, device: Device, precision: str, profile: Profile) -> Iterator[str]:
    if device.kind == "cuda" and "bf16" in precision and not has_precision(device.capability, precision):
        yield "this GPU has no bf16: torch emulates it, slowly"
    if options.recompute == "blocks" and not profile.blocks:
        yield "the model has no repeated blocks, so nothing is recomputed: see --recompute all"
