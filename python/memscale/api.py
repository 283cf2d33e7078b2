"""The calls: :func:`wrap`, :func:`optimize`, :func:`detach`."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from ._attach import touched_modules
from ._settings import check_available
from .config import AsyncOffloadConfig, Config
from .errors import MemScaleError, MemScaleWarning
from .executor import HANDLE, Executor
from .plans import Plan

__all__ = ["detach", "optimize", "wrap"]

Target = TypeVar("Target")

ASYNC_VARIABLE = "MEMSCALE_ASYNC_OFFLOAD"
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off", ""}


def wrap(
    target: Target,
    config: Config | None = None,
    sample_input: Any = None,
    async_offload: bool | None = None,
    async_config: AsyncOffloadConfig | None = None,
    plan: Plan | None = None,
) -> Target:
    """Attach MemScale to a model in place and return it; the training loop stays as it is.

    Args:
        target: a ``torch.nn.Module``, or a Hugging Face ``Trainer``, whose model is then wrapped.
        config: settings; ``Config()`` if left out.
        sample_input: one batch, to settle the plan now: a tensor, a tuple of positional inputs or a dict of keyword
            inputs. Without it the plan is settled by the first training forward.
        async_offload: use the asynchronous transfer engine; ``None`` asks the environment variable
            ``MEMSCALE_ASYNC_OFFLOAD``, then the config.
        async_config: settings of that engine.
        plan: a saved plan, used as it is. It must belong to this model.

    Raises:
        TypeError: ``target``, ``config``, ``sample_input`` or ``plan`` is of the wrong type.
        BudgetError: no plan fits the budget (from the first forward, if there was no sample input).
        MemScaleError: the model cannot be wrapped, or something was asked for that is not in this version.
    """
    model = _model_of(target)
    settings = _settings(config, async_offload, async_config)
    _attach(model, settings, sample_input, plan=_check_plan(plan))
    return target


@contextlib.contextmanager
def optimize(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    config: Config | None = None,
    sample_input: Any = None,
) -> Iterator[Executor]:
    """MemScale for the length of a ``with`` block; yields the executor and detaches at the end, whatever happens.

    Knows the optimizer, so that its state is part of the estimate.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"memscale.optimize takes a torch.nn.Module, not {_kind(model)}")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"memscale.optimize takes a torch.optim.Optimizer as optimizer, not {_kind(optimizer)}")
    executor = _attach(model, _settings(config, None, None), sample_input, optimizer=optimizer)
    executor.in_context = True
    try:
        yield executor
    finally:
        executor.detach()


def detach(model: Any) -> None:
    """Take MemScale off a model (or a Trainer's model) again: everything is as it was before ``wrap``."""
    executor = _executor_of(_model_of(model))
    if executor is None:
        warnings.warn(f"memscale.detach: {_kind(model)} is not wrapped", MemScaleWarning, stacklevel=2)
        return
    if executor.in_context:
        raise MemScaleError(
            "this model is inside an active memscale.optimize block, which detaches by itself at its end"
        )
    executor.detach()


def _attach(
    model: nn.Module,
    config: Config,
    sample_input: Any,
    *,
    plan: Plan | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Executor:
    _check_model(model)
    sample = None if sample_input is None else _split_sample(sample_input)
    old = _executor_of(model)
    if old is not None:
        if old.in_context:
            raise MemScaleError(
                "this model is inside an active memscale.optimize block; leave the block before you wrap it again, or "
                "give the settings to optimize()"
            )
        warnings.warn(
            "this model was wrapped before; its old plan is replaced (memscale.detach first avoids this warning)",
            MemScaleWarning,
            stacklevel=4,
        )
        old.detach()
    try:
        _check_parts(model)
        executor = Executor(model, config, optimizer)
        executor.attach(sample, plan)
    except BaseException:
        if old is not None:
            old.attach(plan=old.plan)  # a failed attempt leaves things as they were
        raise
    return executor


def _model_of(target: Any) -> nn.Module:
    """The model to work on: the target itself, or the model of a Trainer."""
    if isinstance(target, nn.Module):
        return target
    if isinstance(target, type) or not (hasattr(target, "model") and callable(getattr(target, "train", None))):
        raise TypeError(
            f"memscale takes a torch.nn.Module or a Hugging Face Trainer (something with .model and .train), "
            f"not {_kind(target)}"
        )
    if not isinstance(target.model, nn.Module):
        raise TypeError(
            f"{_kind(target)}.model is {_kind(target.model)}, not a torch.nn.Module. A Trainer with model_init makes "
            "its model when training starts: build it with model=... to wrap it"
        )
    return target.model


def _check_model(model: nn.Module) -> None:
    name = type(model).__name__
    if hasattr(model, "_orig_mod") and type(model).__module__.startswith("torch._dynamo"):
        raise MemScaleError(
            "this model went through torch.compile, whose graph fixes what is kept for backward. Wrap the plain model "
            "(model._orig_mod) and train it without compiling, or use torch.compile's own activation memory budget"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise MemScaleError(
            f"{name} is a TorchScript module, which takes no hooks; wrap the Python module it came from"
        )
    if next(model.parameters(), None) is None:
        raise ValueError(
            f"{name} has no parameters, so there is nothing to train: wrap the model that holds the layers"
        )
    if any(isinstance(p, nn.parameter.UninitializedTensorMixin) for p in model.parameters()):
        raise ValueError(f"{name} has lazy layers whose shapes are not known yet: run one forward before you wrap it")


def _check_parts(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if module in touched_modules:
            raise MemScaleError(
                f"a part of this model ({name or 'the model itself'}) is wrapped already, by itself or as part of "
                "another model; memscale.detach that one first"
            )


def _executor_of(model: nn.Module) -> Executor | None:
    executor = vars(model).get(HANDLE)
    return executor if isinstance(executor, Executor) else None


def _check_plan(plan: Any) -> Plan | None:
    if plan is None or isinstance(plan, Plan):
        return plan
    raise TypeError(f"plan must be a memscale plan (executor.plan, or Plan.from_json), not {_kind(plan)}")


def _split_sample(sample: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(sample, torch.Tensor):
        return (sample,), {}
    if isinstance(sample, (tuple, list)):
        return tuple(sample), {}
    if isinstance(sample, Mapping) and all(isinstance(key, str) for key in sample):
        return (), dict(sample)
    raise TypeError(
        "sample_input must be a tensor, a tuple of positional inputs or a dict of keyword inputs by name, "
        f"not {_kind(sample)}"
    )


def check_arguments(
    model: Any, sample: Any, optimizer: Any, config: Any
) -> tuple[Config, tuple[Any, ...], dict[str, Any]]:
    """What every call takes, checked: the settings, and the sample as positional and keyword inputs."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {_kind(model)}")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, not {_kind(optimizer)}")
    return _settings(config, None, None), *_split_sample(sample)


def _settings(config: Any, async_offload: Any, async_config: Any) -> Config:
    if config is not None and not isinstance(config, Config):
        raise TypeError(f"config must be a memscale.Config, not {_kind(config)}")
    settings: Config = Config() if config is None else config
    if async_offload is None:
        async_offload = _async_from_environment()
    changes = {"async_offload": async_offload, "async_config": async_config}
    changes = {name: value for name, value in changes.items() if value is not None}
    if changes:
        settings = settings.replace(**changes)
    check_available(settings)
    return settings


def _async_from_environment() -> bool | None:
    text = os.environ.get(ASYNC_VARIABLE)
    if text is None:
        return None
    if text.strip().lower() in _TRUE:
        return True
    if text.strip().lower() in _FALSE:
        return None
    raise ValueError(f"{ASYNC_VARIABLE}={text!r} is not allowed; it must be 1 or 0")


def _kind(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else type(value).__name__
