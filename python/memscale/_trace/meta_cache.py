"""A cache of results on meta tensors: models repeat layers, and torch computes their shapes in Python, slowly.

Only results that depend on nothing but the key are remembered: those of operations that neither mutate nor alias.
"""

from __future__ import annotations

from typing import Any

import torch

from .._core import tensors_in

_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_CONVOLUTION_BACKWARD = torch.ops.aten.convolution_backward.default
Description = tuple[torch.Size, tuple[int, ...], torch.dtype]


class _NoKeyError(Exception):
    """An argument that cannot be part of a key."""


class MetaCache:
    """Results of operations on meta tensors by their arguments' shapes, strides and types."""

    def __init__(self) -> None:
        self._results: dict[Any, list[Description | None] | Description] = {}
        self._fresh: dict[Any, bool] = {}  # does the operation make tensors of its own?

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The result of an operation, computed at most once for each key."""
        fresh = self._fresh.get(func)
        if fresh is None:
            fresh = self._fresh[func] = _is_fresh(func)
        if not fresh:
            return func(*args, **kwargs)
        try:
            key = (func, _key(args), _key(kwargs) if kwargs else None)
        except _NoKeyError:
            return func(*args, **kwargs)
        remembered = self._results.get(key)
        if remembered is not None:
            return _make(remembered)
        output = _corrected(func, args, func(*args, **kwargs))
        if _shares_memory(output, (args, kwargs)):  # a view that is not declared as one: aten._unsafe_view
            self._fresh[func] = False
            return output
        description = _describe(output)
        if description is not None:
            self._results[key] = description
        return output


def _corrected(func: Any, args: Any, output: Any) -> Any:
    """Meta kernels of some versions of torch lay a weight's gradient out as that of the convolution's output."""
    if func is not _CONVOLUTION_BACKWARD or output[1] is None or not all(t.is_contiguous() for t in args[1:3]):
        return output
    return output[0], torch.empty_like(args[2]), output[2]


def _is_fresh(func: Any) -> bool:
    schema = func._schema
    aliases = any(a.alias_info is not None for a in (*schema.arguments, *schema.returns))
    tensors = all(str(r.type) == "Tensor" for r in schema.returns)
    return not aliases and not schema.is_mutable and tensors and len(schema.returns) > 0


def _shares_memory(output: Any, inputs: Any) -> bool:
    addresses = {t.untyped_storage()._cdata for t in tensors_in(inputs)}
    return any(t.untyped_storage()._cdata in addresses for t in tensors_in(output))


def _key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if not value.is_meta:
            raise _NoKeyError
        return value.shape, value.stride(), value.dtype
    if isinstance(value, (tuple, list)):
        return tuple([_key(v) for v in value])
    if isinstance(value, dict):
        return tuple([(name, _key(v)) for name, v in value.items()])
    if isinstance(value, _PLAIN):
        return type(value), value
    raise _NoKeyError


def _describe(output: Any) -> list[Description | None] | Description | None:
    """How to make such tensors again; None if they cannot be made the same way."""
    if isinstance(output, torch.Tensor):
        return _describe_one(output)
    if not isinstance(output, tuple):
        return None
    descriptions = [None if t is None else _describe_one(t) for t in output]
    return None if any(f is None and t is not None for f, t in zip(descriptions, output)) else descriptions


def _describe_one(tensor: torch.Tensor) -> Description | None:
    if not tensor.is_meta or tensor.layout is not torch.strided:
        return None
    description = (tensor.shape, tensor.stride(), tensor.dtype)
    same = _make(description).untyped_storage().nbytes() == tensor.untyped_storage().nbytes()
    return description if same and tensor.storage_offset() == 0 else None


def _make(description: list[Description | None] | Description) -> Any:
    if isinstance(description, list):
        return tuple(None if m is None else _make(m) for m in description)
    shape, stride, dtype = description
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")
