"""What ``estimate`` and ``plan`` share: the GPU, the model, and a trace of the step, without warnings or network."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator

import torch

from .._base.optimizer_kinds import DEFAULT_OPTIMIZER
from .._core import Device
from .._hw import devices
from .._show.figures import quantity, size
from .._trace.twin_optimizer import make_optimizer
from ..errors import MemScaleError
from ..profiles import Profile, profile
from .model_registry import one_line
from .options import StepOptions
from .subjects import BuiltModel, NamedModel, Step, describe, find, own_code

_LOGGING = "transformers.utils.logging"
_VERBOSITY, _OFFLINE = "TRANSFORMERS_VERBOSITY", "HF_HUB_OFFLINE"
_SOME_GPUS = ("rtx3060", "rtx3090", "rtx4090", "t4", "a100-40gb", "h100")

Report = Callable[[str], None]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No warnings, no network, and nothing that transformers logs: it is not the user's step. Transformers may be
    imported for the first time inside. Afterwards the environment is as it was."""
    before = {name: os.environ.get(name) for name in (_VERBOSITY, _OFFLINE)}
    loaded = sys.modules.get(_LOGGING)
    level = logging.WARNING if loaded is None else loaded.get_verbosity()  # its default
    os.environ.update({_VERBOSITY: "error", _OFFLINE: "1"})
    if loaded is not None:
        loaded.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if _LOGGING in sys.modules:
            sys.modules[_LOGGING].set_verbosity(level)


def find_device(options: StepOptions) -> Device:
    """The GPU of these options. Raises MemScaleError if there is none, or if the budget is more than it has."""
    name = options.gpu or "cuda"
    if name.split(":")[0] == "cuda" and not torch.cuda.is_available():
        raise MemScaleError(
            f"torch cannot use a GPU here: name one with --gpu, such as {', '.join(_SOME_GPUS)} (--gpu list shows all)"
        )
    try:
        device = devices.find(name)
    except MemScaleError:
        raise
    except (ValueError, RuntimeError, AssertionError) as error:  # the last two: cuda:x, cuda:9
        raise MemScaleError(f"--gpu: {str(error).splitlines()[0]} (--gpu list shows all)") from error
    if options.budget is not None and options.budget * 1e9 > device.usable_bytes:
        budget = size(round(options.budget * 1e9))
        raise MemScaleError(f"a budget of {budget} is more than {device.name} has: {size(device.usable_bytes)}")
    return device


def find_subject(options: StepOptions, progress: Report) -> NamedModel | BuiltModel:
    """Make the model of these options."""
    progress(f"making {options.model}")
    return find(options.model, options.batch, options.seq)


def trace(options: StepOptions, step: Step, precision: str, optimizer: str | None = None) -> Profile:
    """A step, traced; with the optimizer of this name, else the one asked for, the step's own, or the default.

    Raises:
        MemScaleError: it cannot be traced; the message is one line and names the model.
    """
    chosen = optimizer or options.optimizer
    if chosen is None and step.optimizer is not None:
        used = step.optimizer
    else:
        used = make_optimizer(chosen or DEFAULT_OPTIMIZER, step.model)
    try:
        with own_code():
            return profile(step.model, step.sample, optimizer=used, precision=precision, device=options.gpu or "cuda")
    except MemScaleError as error:
        cause = error.__cause__
        why = str(error) if cause is None else str(cause) if isinstance(cause, MemScaleError) else describe(cause)
        hint = " (those of indices are known if they are made with device='cpu')" if "values of tensors" in why else ""
        raise MemScaleError(f"a step of {options.model} cannot be traced: {why}{hint}") from error
    except (TypeError, ValueError, RuntimeError) as error:
        raise MemScaleError(f"{options.model}: {one_line(error)}") from error


def optimizer_name(options: StepOptions, step: Step) -> str:
    """The optimizer that a step is traced with, by name."""
    if options.optimizer is None and step.optimizer is not None:
        return type(step.optimizer).__name__
    return options.optimizer or DEFAULT_OPTIMIZER


def heading(options: StepOptions, device: Device, step: Step, precision: str, *more: str) -> tuple[str, str]:
    """The first two lines of an answer: what was asked for."""
    parameters = list(step.model.parameters())
    n, n_trained = (sum(p.numel() for p in ps) for ps in (parameters, [p for p in parameters if p.requires_grad]))
    trained = "" if n_trained == n else f", {quantity(n_trained)} of them trained"
    autocast = " autocast" if precision in ("bf16", "fp16") else ""
    default = " (default for this GPU)" if options.precision is None and device.kind == "cuda" else ""
    facts = [f"{quantity(n)} parameters{trained}", step.text, f"{precision}{autocast}{default}"]
    facts += [optimizer_name(options, step), *more]
    return f"{options.model} on {device.name}", ", ".join(facts)
