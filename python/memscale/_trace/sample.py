"""Inputs of a model: their sizes, and the same inputs at other sizes."""

from __future__ import annotations

import copy
import dataclasses
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


def at_sizes(args: tuple[Any, ...], kwargs: dict[str, Any], sizes: tuple[tuple[int, ...], ...]) -> Input:
    """The input with its tensors at these sizes, in the order of :func:`sizes_of`.

    What has no values that a step could depend on is on the meta device. Indices follow what they point to: where the
    largest one is the last of a dimension that is resized (the nodes of a graph), they are spread over its new size.

    Raises:
        MemScaleError: a tensor of the input cannot be resized so.
    """
    tensors = _core.tensors_in((args, kwargs))
    resized_dims = {old: new for t, size in zip(tensors, sizes) for old, new in zip(t.shape, size) if old != new}
    copies = {id(t): _at_size(t, size, resized_dims) for t, size in zip(tensors, sizes)}
    new_args, new_kwargs = _replaced((args, kwargs), copies)
    if sizes_of(new_args, new_kwargs) != tuple(torch.Size(size) for size in sizes):
        raise MemScaleError("an input of the model has tensors that cannot be resized")
    return new_args, new_kwargs


def _at_size(tensor: torch.Tensor, size: tuple[int, ...], resized_dims: dict[int, int]) -> torch.Tensor:
    if tensor.is_floating_point() or tensor.is_complex() or tensor.is_meta:
        if tuple(tensor.shape) == size:
            return tensor
        is_last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
        memory_format = torch.channels_last if is_last else torch.contiguous_format
        like = torch.empty(size, dtype=tensor.dtype, device="meta", memory_format=memory_format)
        return like.requires_grad_(tensor.requires_grad)
    n_pointed = int(tensor.max()) + 1 if tensor.numel() > 0 and tensor.dtype != torch.bool else 0
    for dim, new in enumerate(size):
        if tensor.shape[dim] != new and tensor.shape[dim] > 0:
            index = torch.arange(new, device=tensor.device).remainder(tensor.shape[dim])
            tensor = tensor.index_select(dim, index)
    if n_pointed > 1 and n_pointed in resized_dims:
        new = resized_dims[n_pointed]
        tensor = torch.div((tensor + 1) * new - 1, n_pointed, rounding_mode="floor").clamp(0, new - 1).to(tensor.dtype)
    return tensor


def _replaced(value: Any, copies: dict[int, torch.Tensor]) -> Any:
    """The same structure with other tensors."""
    if isinstance(value, torch.Tensor):
        return copies.get(id(value), value)
    if isinstance(value, dict):
        return {key: _replaced(v, copies) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_replaced(v, copies) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        other = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(other, field.name, _replaced(getattr(value, field.name), copies))
        return other
    return value


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
