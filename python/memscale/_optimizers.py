"""The optimizer of a traced step: one like the user's, over tensors without bytes."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from ._trace import Maker
from .errors import MemScaleError


def is_fused(optimizer: torch.optim.Optimizer | None) -> bool:
    """Does it update in place, without temporaries?"""
    return optimizer is not None and any(group.get("fused") for group in optimizer.param_groups)


def maker_of(optimizer: torch.optim.Optimizer | None, on_gpu: bool) -> Maker:
    """How to make an optimizer like this one for other parameters; without one, AdamW as torch makes it."""
    if optimizer is None:
        return lambda twins: torch.optim.AdamW(_trainable(twins), foreach=on_gpu) if twins else None

    lists = on_gpu and type(optimizer).__name__ != "Adafactor"  # of torch's own, the one that loops by default

    def make(twins: dict[int, nn.Parameter]) -> torch.optim.Optimizer:
        kind = type(optimizer)
        groups = [_copy_group(group, twins, lists) for group in optimizer.param_groups]
        groups = [group for group in groups if group["params"]]
        if not groups:
            raise MemScaleError("the optimizer holds none of this model's parameters")
        known = inspect.signature(kind.__init__).parameters
        options = {name: value for name, value in optimizer.defaults.items() if name in known}
        try:
            return kind(groups, **_plain_options(options, lists, known))
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


def _plain_options(options: dict[str, Any], on_gpu: bool, known: Any) -> dict[str, Any]:
    """What torch would choose on the device: lists of tensors on a GPU. No fused kernel takes meta tensors."""
    chosen = dict(options)
    fused = bool(chosen.get("fused"))
    for name in ("fused", "capturable", "differentiable"):
        if name in chosen:
            chosen[name] = False
    if "foreach" in known:
        wanted = chosen.get("foreach")
        chosen["foreach"] = False if fused else on_gpu if wanted is None else bool(wanted)
    return chosen
