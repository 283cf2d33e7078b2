"""The optimizer of a traced step: one like the user's, or one of the table, over tensors without bytes."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from .._base.step_kinds import DEFAULT_OPTIMIZER, OPTIMIZERS, kind_of
from ..errors import MemScaleError
from .tracer import OptimizerMaker


def is_fused(optimizer: torch.optim.Optimizer | None) -> bool:
    """Does this optimizer update in place, without temporaries?"""
    return optimizer is not None and any(group.get("fused") for group in optimizer.param_groups)


def maker_of(optimizer: torch.optim.Optimizer | None, on_gpu: bool) -> OptimizerMaker:
    """How to make an optimizer like this one for other parameters; without one, the default as torch makes it."""
    if optimizer is None:
        default = getattr(torch.optim, OPTIMIZERS[DEFAULT_OPTIMIZER].class_name)
        return lambda twins: default(_trainable(twins), foreach=on_gpu) if twins else None

    kind = kind_of(optimizer)
    lists = on_gpu and (kind is None or kind.has_lists)  # torch's default

    def make(twins: dict[int, nn.Parameter]) -> torch.optim.Optimizer:
        cls = type(optimizer)
        groups = [_copy_group(group, twins, lists) for group in optimizer.param_groups]
        groups = [group for group in groups if group["params"]]
        if not groups:
            raise MemScaleError("the optimizer holds none of this model's parameters")
        accepted = inspect.signature(cls.__init__).parameters
        options = {name: value for name, value in optimizer.defaults.items() if name in accepted}
        try:
            return cls(groups, **_plain_options(options, lists, accepted))
        except Exception:  # it wants something that is not among its defaults
            return _copy(optimizer, groups)

    return make


def _copy(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """The same optimizer over other parameters: without hooks, and without what others put on the instance."""
    twin = object.__new__(type(optimizer))
    plain = torch.optim.Optimizer([nn.Parameter(torch.empty(0))], optimizer.defaults)
    vars(twin).update({name: value for name, value in vars(optimizer).items() if not callable(value)})
    vars(twin).update(vars(plain), param_groups=groups)
    return twin


def _trainable(twins: dict[int, nn.Parameter]) -> list[nn.Parameter]:
    return [p for p in twins.values() if p.requires_grad] or list(twins.values())


def _copy_group(group: dict[str, Any], twins: dict[int, nn.Parameter], on_gpu: bool) -> dict[str, Any]:
    copy = {name: value for name, value in group.items() if name != "params"}
    copy = _plain_options(copy, on_gpu, copy)
    copy["params"] = [twins[id(p)] for p in group["params"] if id(p) in twins]
    return copy


def _plain_options(options: dict[str, Any], on_gpu: bool, accepted: Any) -> dict[str, Any]:
    """What torch would choose on the device: lists of tensors on a GPU. No fused kernel takes meta tensors."""
    chosen = dict(options)
    fused = bool(chosen.get("fused"))
    for name in ("fused", "capturable", "differentiable"):
        if name in chosen:
            chosen[name] = False
    if "foreach" in accepted:
        foreach = chosen.get("foreach")
        chosen["foreach"] = False if fused else on_gpu if foreach is None else bool(foreach)
    return chosen


def make_optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer of the table over what the model trains. Raises MemScaleError if the model trains nothing."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise MemScaleError("the model has no parameter that is trained")
    kind = OPTIMIZERS[name]
    cls = getattr(torch.optim, kind.class_name, None)
    if cls is None:
        raise MemScaleError(f"torch {torch.__version__} has no torch.optim.{kind.class_name}")
    optimizer: torch.optim.Optimizer = cls(parameters, **kind.options)
    for group in optimizer.param_groups if kind.fused else ():
        group["fused"] = (
            True  # torch refuses it as an argument on the meta device; what counts is the flag of the groups
        )
    return optimizer
