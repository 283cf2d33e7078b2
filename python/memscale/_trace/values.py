"""The values of small index tensors on the meta device, computed only when the model asks for them.

Models look at masks and positions: is the mask all ones, do positions restart? Such tensors come from integer inputs
and constants, of any type: a mask may begin as floating-point ones. How each was made is remembered, not the tensors,
so that nothing lives longer; when Python wants a number, it is computed on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

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
