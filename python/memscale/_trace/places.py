"""Where tensors are, as a model sees it while its step is analysed.

Tensors of the target device are meta tensors, and say that they are on the target. What a model creates there, or moves
there, becomes a meta tensor whose value stays known where that matters (``meta_values.py``). On a GPU, what it keeps on
the CPU is real, as in the real step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as nnf
from torch.utils._device import _device_constructors

from .meta_values import LARGEST_RANDOM, Values

_Handler = Callable[[Any, Any, Any], Any]
_META = torch.device("meta")
_TENSOR = torch.Tensor
_FROM_DATA = {torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy, torch.scalar_tensor}
_RANDOM_LIKE = {torch.rand_like, torch.randn_like, torch.randint_like}


def _getter(name: str) -> Any:
    return getattr(_TENSOR, name).__get__


class _HostCopy(torch.autograd.Function):  # type: ignore[misc]
    """A copy on the host, which does not count. Its gradient comes back to the device."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, dtype: torch.dtype, ignore: Callable[[Any], None]) -> torch.Tensor:
        ctx.dtype = tensor.dtype
        with torch.utils._python_dispatch._disable_current_modes():
            copy = torch.empty_like(tensor, dtype=dtype)
        ignore(copy)
        return copy

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0].to(ctx.dtype, copy=True), None, None


class Places:
    """Answers and maps devices for one target."""

    def __init__(self, kind: str, values: Values, ignore: Callable[[Any], None]) -> None:
        self.kind = kind
        self.device = torch.device("cuda", 0) if kind == "cuda" else torch.device("cpu")
        self.values = values
        values.kind = kind
        self.ignore = ignore  # a tensor that is on the host while the target is a GPU: it does not count
        self._table = self._handlers()

    def handler_of(self, func: Any) -> _Handler | None:
        """How to run a function that creates, moves or locates tensors, or asks for their values."""
        return self._table.get(func)

    def with_device(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {**kwargs, "device": self.place(kwargs["device"])}

    def place(self, device: Any) -> Any:
        """A device argument as this process understands it: the meta device for the target's."""
        if device is None:
            return None
        if isinstance(device, int):
            return _META if self.kind == "cuda" else device
        found = torch.device(device) if isinstance(device, str) else device
        return _META if found.type == self.kind else found

    def _handlers(self) -> dict[Any, _Handler]:
        on_gpu = self.kind == "cuda"
        table: dict[Any, _Handler] = {
            _getter("device"): self._answer(self.device),
            _getter("is_cuda"): self._answer(on_gpu),
            _getter("is_cpu"): self._answer(not on_gpu),
            _getter("is_meta"): self._answer(False),
            _TENSOR.get_device: self._answer(0 if on_gpu else -1),
            _TENSOR.to: self._to,
            _TENSOR.cpu: self._to_host,
            _TENSOR.cuda: self._to_gpu,
            _TENSOR.pin_memory: lambda func, args, kwargs: args[0],
            _TENSOR.is_pinned: lambda func, args, kwargs: False,
            _TENSOR.type: self._type,
            _TENSOR.numpy: self._of_value,
            _TENSOR.tolist: self._of_value,
            _TENSOR.__array__: self._of_value,
            _TENSOR.__getitem__: self._item,
            torch.ctc_loss: self._ctc_loss,
            nnf.ctc_loss: self._ctc_loss,
            torch._VF._pack_padded_sequence: self._pack,  # type: ignore[attr-defined]
        }
        table.update(dict.fromkeys((torch.isfinite, _TENSOR.isfinite), self._assume(torch.ones)))
        table.update(dict.fromkeys((torch.isnan, _TENSOR.isnan, torch.isinf, _TENSOR.isinf), self._assume(torch.zeros)))
        table.update(dict.fromkeys(_RANDOM_LIKE, self._create))
        table.update(dict.fromkeys(_device_constructors(), self._create))
        table.update(dict.fromkeys(_FROM_DATA, self._from_data))
        return table

    # Questions

    def _answer(self, answer: Any) -> _Handler:
        def handler(func: Any, args: Any, kwargs: Any) -> Any:
            return answer if args[0].is_meta else func(*args, **kwargs)

        return handler

    def _assume(self, maker: Callable[..., torch.Tensor]) -> _Handler:
        """Models ask whether values are finite before they clamp them. They are, as long as training works."""

        def handler(func: Any, args: Any, kwargs: Any) -> Any:
            result = func(*args, **kwargs)
            if result.is_meta:
                self.values.assume(result, maker)
            return result

        return handler

    def _type(self, func: Any, args: Any, kwargs: Any) -> Any:
        if len(args) > 1 or kwargs or not args[0].is_meta:
            if len(args) > 1 and isinstance(args[1], str):
                args = (args[0], args[1].replace("torch.cuda.", "torch."), *args[2:])
            return func(*args, **kwargs)
        name = torch.empty(0, dtype=args[0].dtype).type()
        return name.replace("torch.", "torch.cuda.") if self.kind == "cuda" else name

    def _of_value(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Python or numpy wants the whole value."""
        tensor = args[0]
        if not tensor.is_meta:
            return func(*args, **kwargs)
        return func(self.values.value_of(tensor), *args[1:], **kwargs)

    # Creation

    def _create(self, func: Any, args: Any, kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None and self.kind == "cpu" and func not in _RANDOM_LIKE:
            kwargs = {**kwargs, "device": _META}
        if kwargs.get("generator") is not None and kwargs.get("device") == _META:
            kwargs = {**kwargs, "generator": None}  # it belongs to the target device
        result = func(*args, **kwargs)
        if func is torch.rand and not result.is_meta and result.numel() == 1:
            result.fill_(LARGEST_RANDOM)
        return result

    def _from_data(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Tensors from numbers, lists and arrays: their values are known."""
        device = kwargs.get("device")
        if device is None and len(args) > 2 and func is torch.as_tensor:
            device, args = self.place(args[2]), args[:2]
        wanted = device if device is not None else _META if self.kind == "cpu" else None
        if wanted != _META or (isinstance(args[0], torch.Tensor) and args[0].is_meta):
            return func(*args, **kwargs)
        named = {name: value for name, value in kwargs.items() if name not in ("device", "requires_grad")}
        real = func(self._plain(args[0]), *args[1:], **named)
        twin = self.values.twin(real)
        return twin.requires_grad_() if kwargs.get("requires_grad") else twin

    def _plain(self, data: Any) -> Any:
        """Data that may contain 0-dimensional meta tensors, as numbers."""
        if isinstance(data, torch.Tensor):
            return self.values.value_of(data) if data.is_meta else data
        if isinstance(data, (list, tuple)) and data and not isinstance(data[0], (int, float, bool, str)):
            return type(data)(self._plain(value) for value in data)
        return data

    # Movement

    def _to(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor, rest = args[0], args[1:]
        if rest and not isinstance(rest[0], (torch.dtype, torch.Tensor)):
            rest = (self.place(rest[0]), *rest[1:])
        device = kwargs.get("device", rest[0] if rest else None)
        if isinstance(device, torch.Tensor):
            device = device.device
        if tensor.is_meta and isinstance(device, torch.device) and device.type == "cpu":
            dtype = kwargs.get("dtype", next((value for value in rest if isinstance(value, torch.dtype)), None))
            return self._host_copy(tensor, dtype)
        return func(tensor, *rest, **kwargs)

    def _to_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        if not args[0].is_meta:
            return func(*args, **kwargs)
        return args[0] if self.kind == "cpu" else self._host_copy(args[0], None)

    def _host_copy(self, tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        """On the CPU, while the target is a GPU: its value if that is known, else a tensor that does not count."""
        value = self.values.known_value(tensor)
        if value is not None:
            return value if dtype is None else value.to(dtype)
        return _HostCopy.apply(tensor, dtype or tensor.dtype, self.ignore)  # type: ignore[no-any-return]

    def _to_gpu(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self.kind != "cuda":
            return func(*args, **kwargs)
        return args[0].to(_META)

    # Values that decide shapes

    def _item(self, func: Any, args: Any, kwargs: Any) -> Any:
        return func(args[0], self._index(args[1], args[0]))

    def _index(self, index: Any, tensor: torch.Tensor) -> Any:
        """Lists of numbers and arrays become tensors, whose values stay known."""
        if isinstance(index, tuple):
            return tuple(self._index(i, tensor) for i in index)
        if isinstance(index, np.ndarray) or (isinstance(index, list) and index and isinstance(index[0], int)):
            index = torch.as_tensor(index)
            return self.values.twin(index) if tensor.is_meta and self.kind == "cpu" else index
        return index

    def _ctc_loss(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The lengths are numbers to it."""
        names = ("log_probs", "targets", "input_lengths", "target_lengths")
        given = {**dict(zip(names, args)), **kwargs}
        for name in names[2:]:
            if isinstance(given[name], torch.Tensor):
                given[name] = [int(n) for n in self._of_value(_TENSOR.tolist, (given[name],), {})]
        rest = args[4:] if len(args) > 4 else ()
        named = {name: value for name, value in given.items() if name not in names}
        if func is nnf.ctc_loss and isinstance(named.get("reduction"), str):
            named["reduction"] = {"none": 0, "mean": 1, "sum": 2}[named["reduction"]]
        return torch.ctc_loss(*(given[name] for name in names), *rest, **named)

    def _pack(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A packed sequence: its lengths are numbers, too."""
        data, lengths, *rest = args
        return func(data, self.values.value_of(lengths), *rest, **kwargs)
