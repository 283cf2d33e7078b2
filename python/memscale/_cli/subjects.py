"""The model that a command is about: a name, a configuration file, or a function of the user that builds one.

Everything is made on the meta device, so nothing is allocated, and nothing is downloaded. Code of the user's runs here:
an exception becomes a message of one line, and what it prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from .._base.step_kinds import DEFAULT_OPTIMIZER
from .._core import Device, tensors_in
from .._hw import devices
from .._show.text import quantity, size
from .._trace.child import ForeignError
from .._trace.twin_optimizer import make_optimizer
from ..errors import MemScaleError
from ..profiles import Profile, profile_given
from . import model_registry
from .model_registry import one_line
from .options import StepOptions

_FUNCTION = re.compile(r"([^:]*):([^:/]*)")
_WHAT = "it must return (model, sample_input) or (model, sample_input, optimizer)"
_META = (
    "It is run on the meta device, where nothing has memory: name no device, except 'cpu' for indices whose values "
    "matter"
)


@dataclasses.dataclass(frozen=True)
class Step:
    """What is traced: a model, one batch, and the optimizer that came with them, if any did."""

    model: nn.Module
    sample: Any
    optimizer: torch.optim.Optimizer | None
    text: str  # of the batch


class NamedModel:
    """A model of the registry or of a configuration file."""

    resizable = True

    def __init__(self, name: str, batch: int | None, seq: int | None) -> None:
        self.name = name
        self.batch: int | None = batch or 1
        self._model: Any = model_registry.make_model(name)
        self._config = self._model.config
        limit = model_registry.max_length(self._model)
        self.seq = seq
        if model_registry.takes_images(self._config, type(self._model)):
            if seq is not None:
                raise MemScaleError(f"{name} takes images, which have no length: leave --seq out")
        elif seq is None:
            length = model_registry.default_length(name, self._config)
            self.seq = length if limit is None else min(length, limit)
        elif limit is not None and seq > limit:
            raise MemScaleError(f"{name} takes at most {limit} tokens, not {seq}")
        self.notes: list[str] = []
        if getattr(self._config, "quantization_config", None):
            self.notes.append("its configuration has quantized weights; this is for training all of them unquantized")

    def step(self, batch: int | None) -> Step:
        n = batch or 1
        sample = model_registry.make_batch(self._config, n, self.seq or 0, model_class=type(self._model))
        return Step(self._model, sample, None, self._text(n, sample))

    def _text(self, batch: int, sample: dict[str, torch.Tensor]) -> str:
        if "pixel_values" in sample:
            height, width = sample["pixel_values"].shape[-2:]
            return f"{_count(batch, 'image')} of {height} x {width}"
        speech = " of transcript" if "input_features" in sample else ""
        return f"{_count(batch, 'sequence')} of {self.seq} tokens{speech}"


class BuiltModel:
    """What a function of the user's returns."""

    def __init__(self, name: str, batch: int | None, seq: int | None) -> None:
        self.name, self.notes = name, list[str]()
        self._function = _find(name)
        self._options = _options(name, self._function, batch, seq)
        self.resizable = isinstance(self._options.get("batch"), int)
        self._first: Step | None = self._build(self._options)
        first = next((t for t in tensors_in(self._first.sample) if t.dim() > 0), None)
        self.batch: int | None = self._options.get("batch", None if first is None else int(first.shape[0]))
        self.seq: int | None = self._options.get("seq")

    def step(self, batch: int | None) -> Step:
        if batch == self.batch and self._first is not None:
            return self._first
        return self._build({**self._options, "batch": batch})

    def _build(self, options: dict[str, Any]) -> Step:
        with _as_one_line(f"{self.name} failed"), own_code(), torch.device("meta"):
            result = self._function(**options)
        if not isinstance(result, (tuple, list)) or len(result) not in (2, 3):
            raise MemScaleError(f"{self.name} returned {_kind(result)}; {_WHAT}")
        model, sample, optimizer = (*result, None)[:3]
        if not isinstance(model, nn.Module):
            raise MemScaleError(f"{self.name} returned {_kind(model)} as model; {_WHAT}")
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            raise MemScaleError(f"{self.name} returned {_kind(optimizer)} as optimizer; {_WHAT}")
        elsewhere = next((p.device for p in model.parameters() if p.device.type != "meta"), None)
        if elsewhere is not None:
            raise MemScaleError(f"{self.name} makes its model on '{elsewhere}'. {_META}")
        shapes = [tuple(t.shape) for t in tensors_in(sample)]
        texts = [" x ".join(map(str, shape)) or "a number" for shape in shapes[:3]]
        more = ", ..." if len(shapes) > 3 else ""
        return Step(model, sample, optimizer, f"input {', '.join(texts)}{more}" if texts else "no input")


Subject = NamedModel | BuiltModel


def find(name: str, batch: int | None, seq: int | None) -> Subject:
    """Make the model with this name."""
    if name not in model_registry.REGISTRY and not model_registry.is_file(name) and ":" in name:
        return BuiltModel(name, batch, seq)
    return NamedModel(name, batch, seq)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


# Functions of the user's


def _find(name: str) -> Callable[..., Any]:
    """The function that module:function names, from the current folder."""
    match = _FUNCTION.fullmatch(name)
    module, function = match.groups() if match else ("", "")
    if module.endswith(".py"):
        raise MemScaleError(f"'{name}' names a file; as a module it is {module[:-3].replace('/', '.')}:{function}")
    if not function.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise MemScaleError(f"'{name}' is not module:function, such as train:build for build() in train.py")
    try:
        with own_code():
            target = getattr(importlib.import_module(module), function, None)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise MemScaleError(
                f"there is no module '{module}' in {os.getcwd()} or among the installed ones"
            ) from error
        raise MemScaleError(f"importing {module} failed: {describe(error)}") from error
    except (Exception, SystemExit) as error:
        raise MemScaleError(f"importing {module} failed: {describe(error)}") from error
    if not callable(target):
        what = f"there is no function '{function}'" if target is None else f"'{function}' is not a function"
        raise MemScaleError(f"{what} in the module {module}")
    return target  # type: ignore[no-any-return]


def _options(name: str, function: Callable[..., Any], batch: int | None, seq: int | None) -> dict[str, Any]:
    """What to call the function with: batch and seq where it has them."""
    parameters: Mapping[str, inspect.Parameter] = {}
    with contextlib.suppress(TypeError, ValueError):  # a function written in C may have no signature
        parameters = inspect.signature(function).parameters
    options: dict[str, Any] = {}
    for option, value in (("batch", batch), ("seq", seq)):
        parameter = parameters.get(option)
        if parameter is None:
            if value is not None:
                raise MemScaleError(
                    f"{name} takes no {option}: leave --{option} out, or give the function that keyword"
                )
        elif value is not None:
            options[option] = value
        elif parameter.default is not parameter.empty:
            options[option] = parameter.default
        elif option == "batch":
            options[option] = 1
        else:
            raise MemScaleError(f"{name} needs a length: give --seq")
    named = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for parameter in parameters.values():
        if parameter.default is parameter.empty and parameter.name not in options and parameter.kind not in named:
            raise MemScaleError(f"{name} takes '{parameter.name}'; it may take nothing but batch and seq")
    return options


@contextlib.contextmanager
def own_code() -> Iterator[None]:
    """The user's modules are found in the current folder; what they print goes to standard error, as progress does."""
    sys.path.insert(0, os.getcwd())
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(os.getcwd())


@contextlib.contextmanager
def _as_one_line(what: str) -> Iterator[None]:
    try:
        yield
    except (Exception, SystemExit) as error:
        text = f"{what}: {describe(error)}"
        on_meta = isinstance(error, (NotImplementedError, RuntimeError, AssertionError)) and re.search(
            r"meta|CUDA|cuda|item\(\)", str(error)
        )
        raise MemScaleError(f"{text}. {_META}" if on_meta else text) from error


def describe(error: BaseException) -> str:
    """What was raised, and where in the user's code, in one line."""
    text = model_registry.one_line(error)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_users(f.filename)]
    return f"{text} ({os.path.relpath(frames[-1].filename)}, line {frames[-1].lineno})" if frames else text


def _is_users(path: str) -> bool:
    ours = (os.path.dirname(os.path.dirname(__file__)), os.path.dirname(torch.__file__), os.path.dirname(os.__file__))
    return os.path.isfile(path) and not path.startswith(ours) and "-packages" not in path


def _kind(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__


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


def trace(
    options: StepOptions, step: Step, precision: str, optimizer: str | None = None, *, plans: bool = False
) -> Profile:
    """A step, traced; with the optimizer of this name, else the one asked for, the step's own, or the default. `plans`:
    with all that a plan could do.

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
            where = options.gpu or "cuda"
            return profile_given(step.model, step.sample, used, precision=precision, device=where, pointwise=plans)
    except MemScaleError as error:
        cause = error.__cause__
        is_text = isinstance(cause, (MemScaleError, ForeignError))
        why = str(error) if cause is None else str(cause) if is_text else describe(cause)
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
