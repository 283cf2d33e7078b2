"""Inputs of a model: their batch and length, and the same inputs at other sizes."""

from __future__ import annotations

from typing import Any

import torch

from .. import _core
from ..errors import MemScaleError

Input = tuple[tuple[Any, ...], dict[str, Any]]  # positional and keyword
Shape = tuple[int, int]  # batch and length; 0: there is none
Sizes = tuple[torch.Size, ...]  # of all tensors of an input


def sizes_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sizes:
    """The sizes of all tensors of an input."""
    return tuple(tensor.shape for tensor in _core.tensors_in((args, kwargs)))


def shape_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    """Batch and length of an input: the first two dimensions of its first tensor, the second of indices only."""
    for tensor in _core.tensors_in((args, kwargs)):
        if tensor.dim() >= 1:
            has_length = tensor.dim() == 2 and not tensor.is_floating_point()
            return int(tensor.shape[0]), int(tensor.shape[1]) if has_length else 0
    return 0, 0


def at_shapes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[Any, Any]]:
    """The input at several batches and lengths: enough to tell how sizes grow, and one more to check that."""
    known = shape_of(args, kwargs)
    if known[0] <= 0:
        raise MemScaleError("shapes=True needs an input whose first dimension is the batch")
    return [resized((args, kwargs), known, new) for new in _core.fit_shapes(*known)]


def resized(value: Any, old: Shape, new: Shape, copies: dict[int, torch.Tensor] | None = None) -> Any:
    """An input of one batch and length, at another. A tensor that is given twice (such as labels that are the
    input) stays one tensor."""
    resized_tensors = {} if copies is None else copies
    if isinstance(value, torch.Tensor):
        if id(value) not in resized_tensors:
            resized_tensors[id(value)] = _resize(value, old, new)
        return resized_tensors[id(value)]
    if isinstance(value, dict):
        return {key: resized(v, old, new, resized_tensors) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(resized(v, old, new, resized_tensors) for v in value)
    return value


def _resize(tensor: torch.Tensor, old: tuple[int, int], new: tuple[int, int]) -> torch.Tensor:
    """Batch first, length second; a mask of four dimensions has its lengths last."""
    lengths = (2, 3) if tensor.dim() == 4 and not tensor.is_floating_point() else (1,)
    for dim in range(tensor.dim()):
        pair = (old[0], new[0]) if dim == 0 else (old[1], new[1])
        if tensor.shape[dim] != pair[0] or pair[0] == pair[1] or (dim > 0 and (dim not in lengths or pair[0] <= 1)):
            continue
        index = torch.arange(pair[1], device=tensor.device).remainder(pair[0])
        tensor = tensor.index_select(dim, index)
    return tensor


def loss_of(output: Any) -> torch.Tensor:
    """The loss that a model returns; else the sum of its tensors, so that backward reaches all of it."""
    named = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if isinstance(named, torch.Tensor):
        return named
    tensors = [t for t in _core.tensors_in(output) if t.requires_grad and (t.is_floating_point() or t.is_complex())]
    if not tensors:
        raise MemScaleError(
            "nothing in the model's output has a gradient: give loss=, or unfreeze a parameter that takes part"
        )
    if tensors[0].dim() == 0:
        return tensors[0]
    total = tensors[0].sum()
    for tensor in tensors[1:]:
        total = total + tensor.sum()
    return total
