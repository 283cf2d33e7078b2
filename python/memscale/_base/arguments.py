"""Checks of the arguments that public calls share. Errors are sentences, with the remedy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from .._settings import check_available
from ..config import AsyncOffloadConfig, Config
from ..errors import MemScaleError
from .attachment import COMPILED_CALL, touched_modules

ASYNC_VARIABLE = "MEMSCALE_ASYNC_OFFLOAD"
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off", ""}


def model_of(target: Any) -> nn.Module:
    """The model to work on: the target itself, or the model of a Trainer."""
    if isinstance(target, nn.Module):
        return target
    if isinstance(target, type) or not (hasattr(target, "model") and callable(getattr(target, "train", None))):
        raise TypeError(
            f"memscale takes a torch.nn.Module or a Hugging Face Trainer (something with .model and .train), "
            f"not {type_name(target)}"
        )
    if not isinstance(target.model, nn.Module):
        raise TypeError(
            f"{type_name(target)}.model is {type_name(target.model)}, not a torch.nn.Module. A Trainer with "
            "model_init makes its model when training starts: build it with model=... to wrap it"
        )
    return target.model


def check_model(model: nn.Module) -> None:
    """Raise if this kind of model can never be wrapped."""
    name = type(model).__name__
    is_wrapped = hasattr(model, "_orig_mod") and type(model).__module__.startswith("torch._dynamo")
    if is_wrapped or getattr(model, COMPILED_CALL, None) is not None:
        raise MemScaleError(
            "this model went through torch.compile as a whole, whose graph fixes what is kept for backward. "
            f"{'Wrap model._orig_mod, and compile' if is_wrapped else 'Compile'} its layers one by one ('for layer in "
            "layers: layer.compile()'), or use torch.compile's own activation memory budget"
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


def check_parts(model: nn.Module) -> None:
    """Raise if a part of this model is wrapped already."""
    for name, module in model.named_modules():
        if module in touched_modules:
            raise MemScaleError(
                f"a part of this model ({name or 'the model itself'}) is wrapped already, by itself or as part of "
                "another model; memscale.detach that one first"
            )


def split_sample(sample: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A sample as positional and keyword inputs."""
    if isinstance(sample, torch.Tensor):
        return (sample,), {}
    if isinstance(sample, (tuple, list)):
        return tuple(sample), {}
    if isinstance(sample, Mapping) and all(isinstance(key, str) for key in sample):
        return (), dict(sample)
    raise TypeError(
        "sample_input must be a tensor, a tuple of positional inputs or a dict of keyword inputs by name, "
        f"not {type_name(sample)}"
    )


def check_arguments(
    model: Any, sample: Any, optimizer: Any, config: Any
) -> tuple[Config, tuple[Any, ...], dict[str, Any]]:
    """What every call takes, checked: the settings, and the sample as positional and keyword inputs."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type_name(model)}")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, not {type_name(optimizer)}")
    return make_settings(config), *split_sample(sample)


def make_settings(
    config: Any, async_offload: bool | None = None, async_config: AsyncOffloadConfig | None = None
) -> Config:
    """The settings of a call. Raises ``MemScaleError`` for a field that asks for what is not in this version."""
    if config is not None and not isinstance(config, Config):
        raise TypeError(f"config must be a memscale.Config, not {type_name(config)}")
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


def type_name(value: Any) -> str:
    """The class of a value, or the value itself if it is a class."""
    return value.__name__ if isinstance(value, type) else type(value).__name__


def check_options(loss: Any, **switches: Any) -> None:
    """Raise unless loss can be called and every switch is True or False."""
    if loss is not None and not callable(loss):
        raise TypeError(f"loss must be a function of the model's output, not {type(loss).__name__}")
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, not {value!r}")
