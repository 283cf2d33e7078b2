"""What operations give on meta tensors: a cache by shapes, results whose shapes depend on values, and corrections where
torch's own meta kernels are wrong or missing.
"""

from __future__ import annotations

from typing import Any

import torch

from .._core import tensors_in
from .cpu_kernels import is_channels_last
from .meta_values import UnknownValueError, Values, concrete

_aten = torch.ops.aten


def _known_shape(func: Any, args: Any, kwargs: Any, values: Values) -> Any:
    """An operation whose result has as many elements as the values of its inputs say."""
    if not any(t.is_meta for t in tensors_in((args, kwargs))):
        return func(*args, **kwargs)
    known = values.known_arguments(args, kwargs)
    if known is None:
        raise UnknownValueError(f"the shape of a result of {func} depends on values of tensors")
    with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
        result = func(*concrete(known[0]), **concrete(known[1]))
    return tuple(t.to("meta") for t in result) if isinstance(result, (tuple, list)) else result.to("meta")


def _selected(func: Any, args: Any, kwargs: Any, values: Values) -> Any:
    """``masked_select``: only the mask must be known."""
    if not any(t.is_meta for t in tensors_in((args, kwargs))):
        return func(*args, **kwargs)
    mask = values.known_value(args[1])
    if mask is None:
        raise UnknownValueError("how many elements a mask selects depends on values of tensors")
    shape = torch.broadcast_shapes(args[0].shape, mask.shape)
    return torch.empty(int(mask.expand(shape).sum()), dtype=args[0].dtype, device="meta")


def _indexed(func: Any, args: Any, kwargs: Any, values: Values) -> Any:
    """Boolean indices become numbers, whose count must be known."""
    if not args[0].is_meta or not any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1]):
        return func(*args, **kwargs)
    indices: list[Any] = []
    for index in args[1]:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            indices.append(index)
            continue
        mask = values.known_value(index)
        if mask is None:
            raise UnknownValueError("how many elements a mask selects depends on values of tensors")
        with torch.utils._python_dispatch._disable_current_modes():
            indices.extend(values.twin(column) for column in mask.nonzero().unbind(1))
    return func(args[0], indices, *args[2:], **kwargs)


def _by_value() -> dict[Any, Any]:
    dynamic = torch.Tag.dynamic_output_shape
    table = {}
    for name in (
        "nonzero",
        "unique_dim",
        "_unique2",
        "unique_consecutive",
        "repeat_interleave",
        "bincount",
        "argwhere",
    ):
        for overload in getattr(_aten, name).overloads():
            function = getattr(getattr(_aten, name), overload)
            if dynamic in function.tags and not overload.endswith("out"):
                table[function] = _known_shape
    table[_aten.masked_select.default] = _selected
    table[_aten.index.Tensor] = _indexed
    table[_aten._ctc_loss_backward.default] = _ctc_gradient
    if hasattr(_aten, "_grouped_mm"):
        table[_aten._grouped_mm.default] = _grouped_product
    return table


def _ctc_gradient(func: Any, args: Any, kwargs: Any, values: Values) -> Any:
    if not args[1].is_meta:
        return func(*args, **kwargs)
    return torch.empty_like(args[1], memory_format=torch.contiguous_format)


def _grouped_product(func: Any, args: Any, kwargs: Any, values: Values) -> Any:
    """The products of groups of rows with one matrix each (experts); torch has shapes for it in bf16 only. Rows of the
    result begin at multiples of 16 bytes."""
    a, b = args[:2]
    offsets = kwargs.get("offs", args[2] if len(args) > 2 else None)
    dtype = kwargs.get("out_dtype") or a.dtype
    if not a.is_meta:
        return func(*args, **kwargs)
    shape: tuple[int, ...]
    if a.dim() == 2 and b.dim() == 2:
        shape = (offsets.size(0), a.size(0), b.size(1))
    elif a.dim() == 2 or b.dim() == 2:
        shape = (a.size(-2), b.size(-1))
    else:
        shape = (a.size(0), a.size(1), b.size(2))
    step = 16 // dtype.itemsize
    width = -(-shape[-1] // step) * step
    strides = (shape[1] * width, width, 1)[-len(shape) :]
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


_BY_VALUE = _by_value()

_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_CONVOLUTION = torch.ops.aten.convolution.default
_GROUP_NORM = torch.ops.aten.native_group_norm.default
_LAYER_NORM_BACKWARD = torch.ops.aten.native_layer_norm_backward.default
_CONVOLUTION_BACKWARD = torch.ops.aten.convolution_backward.default
Description = tuple[torch.Size, tuple[int, ...], torch.dtype]


class _NoKeyError(Exception):
    """An argument that cannot be part of a key."""


class MetaCache:
    """Results of operations on meta tensors by their arguments' shapes, strides and types."""

    def __init__(self) -> None:
        self._results: dict[Any, list[Description | None] | Description] = {}
        self._fresh: dict[Any, bool] = {}  # does the operation make tensors of its own?
        self._in_place: dict[Any, bool] = {}  # does it do no more than to write into what it is given?
        self._done: set[Any] = set()  # such operations, by the same keys: on the meta device there is nothing to write

    def run(self, func: Any, args: Any, kwargs: dict[str, Any], values: Values) -> Any:
        """The result of an operation, computed at most once for each key, unless its shape depends on values."""
        try:
            return self._run(func, args, kwargs, values)
        except RuntimeError:
            tensors = tensors_in((args, kwargs))
            if not any(t.is_meta for t in tensors) or not any(t.device.type == values.kind for t in tensors):
                raise
        return self._run(func, values.on_target(args), values.on_target(kwargs), values)

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any], values: Values) -> Any:
        fresh = self._fresh.get(func)
        if fresh is None:
            fresh = self._fresh[func] = _is_fresh(func)
        shaped = _BY_VALUE.get(func)
        if shaped is not None:
            return shaped(func, args, kwargs, values)
        if not fresh:
            return self._change(func, args, kwargs)
        try:
            key = (func, _key(args), _key(kwargs) if kwargs else None)
        except _NoKeyError:
            return func(*args, **kwargs)
        remembered = self._results.get(key)
        if remembered is not None:
            return _make(remembered)
        output = _corrected(func, args, func(*args, **kwargs), values.kind)
        if _shares_memory(output, (args, kwargs)):  # a view that is not declared as one: aten._unsafe_view
            self._fresh[func] = False
            return output
        description = _describe(output)
        if description is not None:
            self._results[key] = description
        return output

    def _change(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """An operation in place (an optimizer's step is made of these), a view, or another with results of others."""
        in_place = self._in_place.get(func)
        if in_place is None:
            in_place = self._in_place[func] = _is_in_place(func)
        if not in_place or not args:
            return func(*args, **kwargs)
        try:
            key = (func, _key(args), _key(kwargs) if kwargs else None)
        except _NoKeyError:
            return func(*args, **kwargs)
        if key not in self._done:
            if any(t.layout is not torch.strided for t in tensors_in((args, kwargs))):
                return func(*args, **kwargs)
            before = _forms((args, kwargs))
            output = func(*args, **kwargs)
            if output is not (args[0] if func._schema.returns else None) or _forms((args, kwargs)) != before:
                self._in_place[func] = False
                return output
            self._done.add(key)
        return args[0] if func._schema.returns else None


def _corrected(func: Any, args: Any, output: Any, device_type: str) -> Any:
    """Meta kernels do not lay all results out as real ones do: the output of a convolution as its input and weight, the
    one of a norm as its input, a weight's gradient as the weight; on a GPU an input's gradient as the output."""
    if func is _CONVOLUTION and output.dim() == 4 and is_channels_last(args[0], args[1]):
        return torch.empty_like(output, memory_format=torch.channels_last)
    if func is _GROUP_NORM and args[0].dim() == 4 and is_channels_last(args[0]):
        return torch.empty_like(args[0]), *output[1:]
    if func is _LAYER_NORM_BACKWARD and output[0] is not None:
        return torch.empty_like(output[0], memory_format=torch.contiguous_format), *output[1:]
    if func is not _CONVOLUTION_BACKWARD:
        return output
    data, weight = output[:2]
    if weight is not None and all(t.is_contiguous() for t in args[1:3]):
        weight = torch.empty_like(args[2])
    if data is not None and data.dim() == 4 and device_type == "cuda":
        last = is_channels_last(args[1], args[2])
        data = torch.empty_like(data, memory_format=torch.channels_last if last else torch.contiguous_format)
    return data, weight, output[2]


def _is_fresh(func: Any) -> bool:
    schema = func._schema
    aliases = any(a.alias_info is not None for a in (*schema.arguments, *schema.returns))
    tensors = all(str(r.type) == "Tensor" for r in schema.returns)
    return not aliases and not schema.is_mutable and tensors and len(schema.returns) > 0


def _is_in_place(func: Any) -> bool:
    """It writes into its first argument and returns that, or into several and returns nothing; none has another form
    then."""
    schema = func._schema
    if not schema.is_mutable or torch.Tag.inplace_view in func.tags or not schema.arguments:
        return False
    first = schema.arguments[0].alias_info
    if first is None or not first.is_write or any(a.is_out for a in schema.arguments):
        return False
    return not schema.returns or (len(schema.returns) == 1 and str(schema.returns[0].type) == "Tensor")


def _forms(values: Any) -> list[Any]:
    """What of tensors an operation in place may not change."""
    found = []
    for t in tensors_in(values):
        storage = t.untyped_storage()
        found.append((t.shape, t.stride(), t.storage_offset(), t.dtype, storage._cdata, storage.nbytes()))
    return found


def _shares_memory(output: Any, inputs: Any) -> bool:
    addresses = {t.untyped_storage()._cdata for t in tensors_in(inputs) if t.layout is torch.strided}
    return any(t.untyped_storage()._cdata in addresses for t in tensors_in(output) if t.layout is torch.strided)


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
