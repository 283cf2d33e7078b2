"""What meta tensors lack: the values of integer tensors and of small constants, which models compute shapes and masks
from, and a cache of the sizes that operations give.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from .._core import tensors_in

MAX_ELEMENTS = 1 << 22
MAX_FLOATS = 1 << 18
_aten = torch.ops.aten
_IS_RANDOM = torch.Tag.nondeterministic_seeded
_SCALARS = {_aten._local_scalar_dense.default, _aten.is_nonzero.default, _aten.equal.default}
_BY_SHAPE = {
    getattr(_aten, name).default
    for name in ("ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full")
}
_ONE_RANDOM = {_aten.rand.default, _aten.rand_like.default, _aten.uniform.default}
LARGEST_RANDOM = 1 - 2**-24  # a number that decides whether a layer is dropped: it is not, which takes the most memory
_KEY = "_memscale_value"  # the attribute of a tensor that has its origin


class UnknownValueError(RuntimeError):
    """Something was asked for that is only known in a run, such as a value that depends on data."""


class _Made:
    """How a tensor was made: an operation and its arguments, or the tensor itself."""

    __slots__ = ("args", "function", "kwargs", "position", "result", "version")

    def __init__(self, function: Any, args: Any, kwargs: Any, position: int | None, version: int) -> None:
        self.function, self.args, self.kwargs, self.position = function, args, kwargs, position
        self.version = version  # of the tensor then: after a change in place its value is another
        self.result: Any = None

    def value(self) -> torch.Tensor:
        if self.result is None:
            result = self.function(*concrete(self.args), **concrete(self.kwargs))
            self.result = result if self.position is None else result[self.position]
            self.args = self.kwargs = None
        return self.result  # type: ignore[no-any-return]


def _constant(value: torch.Tensor, version: int = 0) -> _Made:
    made = _Made(None, None, None, None, version)
    made.result = value
    return made


def concrete(value: Any) -> Any:
    if isinstance(value, _Made):
        return value.value()
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, (list, tuple)):
        return type(value)(concrete(v) for v in value)
    if isinstance(value, dict):
        return {key: concrete(v) for key, v in value.items()}
    return value


class Values:
    """What is known of the tensors of one trace."""

    def __init__(self) -> None:
        self.kind = ""  # of the target device
        self.n_threads = torch.get_num_threads()  # of a CPU
        self._twins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # of real tensors that models hold
        self.copies: dict[int, torch.Tensor] = {}  # of tensors that this process cannot read, by their identity
        self.guess: float | None = None  # the answer where a value depends on data and its size does not matter

    def know(self, twin: torch.Tensor, real: torch.Tensor) -> None:
        """An input of integers: its values, or ones if it has none either, as a mask that hides nothing."""
        if _is_float(real):
            return
        if real.is_meta:
            self.assume(twin, torch.ones)
        else:
            self._keep(twin, real)

    def _keep(self, twin: torch.Tensor, real: torch.Tensor) -> None:
        if not _is_kept(real) or real.requires_grad:
            return
        copy = self.copies.get(id(real), real if real.device.type == "cpu" else None)
        if copy is not None:
            setattr(twin, _KEY, _constant(copy.detach(), _version_of(twin)))

    def assume(self, tensor: torch.Tensor, maker: Any) -> None:
        """A tensor is taken to be what torch.ones or torch.zeros makes, unless its value is known."""
        if _is_kept(tensor) and _origin(tensor) is None:
            setattr(
                tensor, _KEY, _Made(maker, (tuple(tensor.shape),), {"dtype": tensor.dtype}, None, _version_of(tensor))
            )

    def twin(self, real: torch.Tensor) -> torch.Tensor:
        """A meta tensor with the values of a real one."""
        twin = real.to("meta")
        self._keep(twin, real)
        return twin

    def on_target(self, value: Any) -> Any:
        """Arguments with meta tensors in place of real ones that are on the target device: a model may hold some where
        nobody looks for them, in a list or a global."""
        if isinstance(value, torch.Tensor):
            if value.is_meta or value.device.type != self.kind:
                return value
            if id(value) not in self._twins:
                self._twins[id(value)] = (value, self.twin(value))
            return self._twins[id(value)][1]
        if isinstance(value, (list, tuple)):
            return type(value)(self.on_target(v) for v in value)
        if isinstance(value, dict):
            return {key: self.on_target(v) for key, v in value.items()}
        return value

    def note(self, function: Any, args: Any, kwargs: Any, output: Any) -> None:
        """An operation was done; if its results may be asked for, remember how they were made."""
        outputs = output if isinstance(output, (tuple, list)) else (output,)
        if not any(isinstance(t, torch.Tensor) and t.is_meta and _is_kept(t) for t in outputs):
            return
        if function._schema.is_mutable:
            self._change(function, args, kwargs or {})
            return
        if _IS_RANDOM in function.tags:
            self._note_random(function, args, kwargs or {}, output)
            return
        if "empty" in function._schema.name:  # it will be written to
            self.assume(output, torch.zeros)
            return
        if function in _BY_SHAPE:  # whatever its first argument contains
            args = (torch.zeros((), dtype=args[0].dtype).expand(args[0].shape), *args[1:])
        known = self.known_arguments(args, kwargs or {})
        if known is None:
            return
        for i, tensor in enumerate(outputs):
            if isinstance(tensor, torch.Tensor) and tensor.is_meta and _is_kept(tensor):
                position = i if isinstance(output, (tuple, list)) else None
                setattr(tensor, _KEY, _Made(function, *known, position, _version_of(tensor)))

    def _note_random(self, function: Any, args: Any, kwargs: Any, output: Any) -> None:
        """One random number may decide whether a layer runs; others are drawn as in a run."""
        if function in _ONE_RANDOM and output.numel() == 1:
            setattr(output, _KEY, _constant(torch.full(output.shape, LARGEST_RANDOM, dtype=output.dtype)))
        elif isinstance(output, torch.Tensor) and self.kind == "cpu" and not tensors_in((args, kwargs)):
            with torch.utils._python_dispatch._disable_current_modes():
                setattr(output, _KEY, _constant(function(*concrete(args), **concrete(kwargs))))

    def known_arguments(self, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        try:
            return self._known(args), self._known(kwargs)
        except UnknownValueError:
            return None

    def _change(self, function: Any, args: Any, kwargs: Any) -> None:
        """A change in place of a known tensor, or of a view of one, by what is known."""
        target = args[0]
        if not isinstance(target, torch.Tensor) or not _is_kept(target):
            return
        base = target if target._base is None else target._base
        origin, rest = _origin(base), self.known_arguments(args[1:], kwargs)
        if origin is None or rest is None or _IS_RANDOM in function.tags or not base.is_contiguous():
            return
        with torch.utils._python_dispatch._disable_current_modes():
            value = origin.value().contiguous().clone()
            view = value.as_strided(target.shape, target.stride(), target.storage_offset() - base.storage_offset())
            function(view, *concrete(rest[0]), **concrete(rest[1]))
        version = _version_of(target) + 1  # torch counts the change when the operation has returned
        setattr(base, _KEY, _constant(value, version))
        setattr(target, _KEY, _constant(view, version))

    def asks(self, function: Any) -> bool:
        return function in _SCALARS

    def answer(self, function: Any, args: Any) -> Any:
        """The number that Python wants; raises UnknownValueError if it depends on data."""
        if not any(isinstance(t, torch.Tensor) and t.is_meta for t in args):
            return function(*args)
        if self.guess is not None and _origin(args[0]) is None:
            return self.guess
        with torch.utils._python_dispatch._disable_current_modes():
            return function(*(self.value_of(t) if isinstance(t, torch.Tensor) else t for t in args))

    def known_value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The value of a tensor as a real one, or None."""
        if not tensor.is_meta:
            return tensor
        origin = _origin(tensor)
        if origin is None:
            return None
        with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
            return origin.value()

    def value_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The value of a tensor as a real one; raises UnknownValueError if it depends on data."""
        value = self.known_value(tensor)
        if value is None:
            raise UnknownValueError("the model's Python depends on values of tensors")
        return value

    def _known(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if not value.is_meta:
                return value
            origin = _origin(value)
            if origin is None:
                raise UnknownValueError
            return origin
        if isinstance(value, (list, tuple)):
            return type(value)(self._known(v) for v in value)
        if isinstance(value, dict):
            return {key: self._known(v) for key, v in value.items()}
        return value


def _origin(tensor: torch.Tensor) -> _Made | None:
    made: _Made | None = getattr(tensor, _KEY, None)
    return made if made is not None and made.version == _version_of(tensor) else None


def copy_values(tensors: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
    """The values of tensors of integers that a child could not read, since they are on a GPU or in pinned memory; by
    the identity of the tensor."""
    if not torch.cuda.is_initialized():
        return {}
    indices = [t for t in tensors if not t.is_meta and not _is_float(t) and _is_kept(t)]
    return {id(t): t.detach().cpu().clone() for t in indices if t.device.type == "cuda" or t.is_pinned()}


def _version_of(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _is_float(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_floating_point() or tensor.is_complex())


def _is_kept(tensor: torch.Tensor) -> bool:
    return int(tensor.numel()) <= (MAX_FLOATS if _is_float(tensor) else MAX_ELEMENTS)
