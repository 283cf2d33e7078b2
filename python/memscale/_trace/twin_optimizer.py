"""The optimizer of a traced step: one like the user's, or one of the table, over tensors without bytes."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .._base.step_kinds import DEFAULT_OPTIMIZER, OPTIMIZERS, kind_of
from ..errors import MemScaleError
from .tracer import OptimizerMaker

Optimizers = tuple[torch.optim.Optimizer, ...]  # none: AdamW is assumed
_OPTIONS = ("fused", "foreach", "amsgrad", "momentum", "capturable", "differentiable")  # which state and temporaries


def find_optimizers(model: nn.Module) -> Optimizers:
    """The optimizers that exist and update this model. Those that wrap another (of Accelerate, for example) are left
    out. torch keeps no list of them, so all objects are looked at, which takes some hundredths of a second."""
    wanted = {id(p) for p in model.parameters()}
    alive = [o for o in gc.get_objects() if issubclass(type(o), torch.optim.Optimizer)]
    inner = [o for o in alive if not isinstance(vars(o).get("optimizer"), torch.optim.Optimizer)]
    return tuple(o for o in inner if wanted.intersection(id(p) for p in _parameters_of(o)))


def updates(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> bool:
    """Does the optimizer hold one of these parameters?"""
    wanted = {id(p) for p in parameters}
    return any(id(p) in wanted for p in _parameters_of(optimizer))


def signature_of(optimizers: Optimizers) -> object:
    """What a step's memory and time depend on: equal for an optimizer that was made anew for the same parameters."""
    return frozenset(
        (
            type(optimizer),
            *(
                (*(group.get(name) for name in _OPTIONS), *map(id, group["params"]))
                for group in vars(optimizer).get("param_groups", ())
            ),
        )
        for optimizer in optimizers
    )


def _parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in vars(optimizer).get("param_groups", ()):
        yield from group["params"]


def is_fused(optimizers: Optimizers) -> bool:
    """Do these optimizers update in place, without temporaries?"""
    return bool(optimizers) and all(any(group.get("fused") for group in o.param_groups) for o in optimizers)


def maker_of(optimizers: Optimizers, on_gpu: bool) -> OptimizerMaker:
    """How to make optimizers like these for other parameters; without any, the default as torch makes it."""
    if not optimizers:
        default = getattr(torch.optim, OPTIMIZERS[DEFAULT_OPTIMIZER].class_name)
        return lambda twins: [default(_trainable(twins), foreach=on_gpu)] if twins else []
    return lambda twins: [_twin_of(optimizer, twins, on_gpu) for optimizer in optimizers]


def _twin_of(optimizer: torch.optim.Optimizer, twins: dict[int, nn.Parameter], on_gpu: bool) -> torch.optim.Optimizer:
    kind = kind_of(optimizer)
    lists = on_gpu and (kind is None or kind.has_lists)  # torch's default
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
