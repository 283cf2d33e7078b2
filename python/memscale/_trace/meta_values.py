"""What meta tensors lack: the values of small integer tensors, which models compute shapes and masks from, and a cache
of the sizes that operations give.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from .._core import tensors_in

MAX_ELEMENTS = 1 << 22
_IS_RANDOM = torch.Tag.nondeterministic_seeded
_SCALARS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default}
_CONSTANTS = {torch.ops.aten.ones.default, torch.ops.aten.zeros.default, torch.ops.aten.full.default}


class UnknownValueError(RuntimeError):
    """Something was asked for that is only known in a run, such as a value that depends on data."""


class _Made:
    """How a tensor was made: an operation and its arguments, or the tensor itself."""

    __slots__ = ("args", "function", "kwargs", "position", "result")

    def __init__(self, function: Any, args: Any, kwargs: Any, position: int | None, result: Any = None) -> None:
        self.function, self.args, self.kwargs, self.position, self.result = function, args, kwargs, position, result

    def value(self) -> torch.Tensor:
        if self.result is None:
            result = self.function(*_concrete(self.args), **_concrete(self.kwargs))
            self.result = result if self.position is None else result[self.position]
            self.args = self.kwargs = None
        return self.result  # type: ignore[no-any-return]


def _concrete(value: Any) -> Any:
    if isinstance(value, _Made):
        return value.value()
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, (list, tuple)):
        return type(value)(_concrete(v) for v in value)
    if isinstance(value, dict):
        return {key: _concrete(v) for key, v in value.items()}
    return value


class Values:
    """What is known of the tensors of one trace."""

    def __init__(self) -> None:
        self._made: Any = WeakTensorKeyDictionary()
        self.guess: float | None = None  # the answer where a value depends on data and its size does not matter

    def know(self, twin: torch.Tensor, real: torch.Tensor) -> None:
        """A meta tensor gets the values of a real one, or ones if that has none either: a mask that hides nothing."""
        if not _is_index(real):
            return
        if real.device.type == "meta":
            self._made[twin] = _Made(torch.ones, (tuple(real.shape),), {"dtype": real.dtype}, None)
        else:
            self._made[twin] = _Made(None, None, None, None, real.detach().cpu())

    def note(self, function: Any, args: Any, kwargs: Any, output: Any) -> None:
        """An operation was done; if its results are index tensors, remember how they were made."""
        schema = function._schema
        if schema.is_mutable:
            self._forget(args)
            return
        if _IS_RANDOM in function.tags or "empty" in schema.name:
            return
        outputs = output if isinstance(output, (tuple, list)) else (output,)
        is_remembered = _is_small if function in _CONSTANTS else _is_index
        if not any(isinstance(t, torch.Tensor) and t.is_meta and is_remembered(t) for t in outputs):
            return
        try:
            known_args, known_kwargs = self._known(args), self._known(kwargs or {})
        except UnknownValueError:
            return
        for i, tensor in enumerate(outputs):
            if isinstance(tensor, torch.Tensor) and is_remembered(tensor):
                position = i if isinstance(output, (tuple, list)) else None
                self._made[tensor] = _Made(function, known_args, known_kwargs, position)

    def asks(self, function: Any) -> bool:
        return function in _SCALARS

    def answer(self, function: Any, args: Any) -> Any:
        """The number that Python wants; raises UnknownValueError if it depends on data."""
        if args[0].device.type != "meta":
            return function(*args)
        origin = self._made.get(args[0])
        if origin is None and self.guess is not None:
            return self.guess
        if origin is None:
            raise UnknownValueError("the model's Python depends on values of tensors")
        with torch.utils._python_dispatch._disable_current_modes():
            return origin.value().item()

    def _known(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.device.type != "meta":
                return value
            origin = self._made.get(value)
            if origin is None:
                raise UnknownValueError
            return origin
        if isinstance(value, (list, tuple)):
            return type(value)(self._known(v) for v in value)
        if isinstance(value, dict):
            return {key: self._known(v) for key, v in value.items()}
        return value

    def _forget(self, args: Any) -> None:
        for value in args:
            if isinstance(value, torch.Tensor):
                self._made.pop(value, None)
                base = value._base
                if base is not None:
                    self._made.pop(base, None)


def _is_index(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and _is_small(tensor)


def _is_small(tensor: torch.Tensor) -> bool:
    return int(tensor.numel()) <= MAX_ELEMENTS


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
