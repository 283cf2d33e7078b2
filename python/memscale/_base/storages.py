"""What the extension needs of torch to keep saved tensors in host memory, and results of products and attention:
storages, views of them, casts, streams, functions.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as nnf

from .. import _core


def _new_storage(n_bytes: int, device: torch.device) -> torch.UntypedStorage:
    return torch.empty(n_bytes, dtype=torch.uint8, device=device).untyped_storage()


def _view_of(
    storage: torch.UntypedStorage, dtype: torch.dtype, shape: Any, stride: tuple[int, ...], offset: int
) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, shape, stride)


def _note_stream(storage: torch.UntypedStorage) -> None:
    if storage.device.type == "cuda":
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        whole.record_stream(torch.cuda.current_stream(storage.device))


def _autocast_dtype(tensor: torch.Tensor) -> torch.dtype | None:
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def _count_users(storage: torch.UntypedStorage) -> int:
    count = getattr(torch._C, "_storage_Use_Count", None)  # torch 2.4 to 2.7 have it in builds with CUDA
    return 0 if count is None else count(storage._cdata)


def _cast_source(node: Any, tensor: torch.Tensor) -> torch.nn.Parameter | None:
    """The parameter that a tensor with this ``grad_fn`` is a cast of."""
    source: Any = getattr(node.next_functions[0][0], "variable", None)
    if type(source) is not torch.nn.Parameter or source.device != tensor.device or source.shape != tensor.shape:
        return None
    return source if source.stride() == tensor.stride() else None


# Functions that keep the order of the elements in memory, so that a cast after them is one of the whole operand.
_VIEWS = frozenset(
    f"{name}Backward0"
    for name in ("View", "UnsafeView", "ReshapeAlias", "Transpose", "T", "Permute", "Unsqueeze", "Squeeze", "Alias")
)


def _cast_operand(node: Any, operands: list[torch.Tensor]) -> int:
    """Which of these, or which view of which, is cast by an operation with this ``grad_fn``; -1: none."""
    source, number = node.next_functions[0]
    for n_views in range(8):
        leaf = getattr(source, "variable", None)
        for i, operand in enumerate(operands):
            if operand is leaf or (leaf is None and operand.grad_fn is source and operand.output_nr == number):
                return i if n_views == 0 or operand.is_contiguous() else -1
        if source is None or source.name() not in _VIEWS:
            break
        source, number = source.next_functions[0]
    return -1


def _cast_to(
    tensor: torch.Tensor, dtype: torch.dtype, shape: Any, stride: tuple[int, ...], offset: int
) -> torch.Tensor:
    with torch.no_grad():
        return tensor.to(dtype).as_strided(shape, stride, offset)


def _view_again(
    tensor: torch.Tensor, dtype: torch.dtype, shape: Any, stride: tuple[int, ...], offset: int
) -> torch.Tensor:
    return tensor.detach().as_strided(shape, stride, offset)


def _with_history(tensor: torch.Tensor) -> torch.Tensor:
    """The graph of a recomputation holds this history for long, so the memory is only that of the result itself."""
    leaf = tensor.detach().requires_grad_()
    result = leaf.view_as(leaf)
    leaf.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return result


def _pop_mode(mode: Any) -> None:
    """Take a mode off torch's stack of function modes; what the user's code has left above it stays."""
    above = []
    while torch._C._len_torch_function_stack() > 0:
        top = torch._C._pop_torch_function_stack()
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        torch._C._push_on_torch_function_stack(other)


def _named(places: tuple[Any, ...], names: str) -> tuple[Any, ...]:
    found = [getattr(place, name) for name in names.split() for place in places if hasattr(place, name)]
    return tuple({id(function): function for function in found}.values())


_PRODUCTS = (
    "linear matmul __matmul__ __rmatmul__ mm bmm addmm baddbmm addbmm einsum "
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"
)
_ATTENTION_FUNCTIONS = (nnf.scaled_dot_product_attention,)
_PRODUCT_FUNCTIONS = _named((torch, torch.Tensor, nnf), _PRODUCTS)

# The functions whose results a recomputed layer may keep, and what it has to keep for that.
KEPT_FUNCTIONS: dict[Any, int] = {
    **dict.fromkeys(_PRODUCT_FUNCTIONS, _core.KEEP_PRODUCTS),
    **dict.fromkeys(_ATTENTION_FUNCTIONS, _core.KEEP_ATTENTION),
}

# Functions whose result depends on their operands alone, element by element, and for which autocast casts nothing: what
# they returned can be made again.
_POINTWISE = (
    "add __add__ __radd__ sub __sub__ rsub __rsub__ subtract mul __mul__ __rmul__ multiply div __truediv__ divide "
    "true_divide neg negative __neg__ abs square maximum minimum clamp clamp_min clamp_max lerp "
    "relu relu6 leaky_relu elu selu celu silu mish gelu hardtanh hardswish hardsigmoid softsign logsigmoid sigmoid "
    "tanh to type type_as float half bfloat16 double"
)

# Those of which chains are computed as one program on a GPU, by their name in _core/pointwise/fused.c. Autocast may
# cast for these: a program computes in the type of the result.
_FUSED = {
    "cast": "to type type_as float half bfloat16",
    "neg": "neg negative __neg__",
    "abs": "abs",
    "relu": "relu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "silu": "silu",
    "gelu": "gelu",
    "add": "add __add__ __radd__",
    "sub": "sub __sub__ subtract",
    "rsub": "rsub __rsub__",
    "mul": "mul __mul__ __rmul__ multiply",
    "div": "div __truediv__ divide true_divide",
    "square": "square",
    "pow": "pow __pow__",
}


def _new_result(like: torch.Tensor, dtype: torch.dtype, shape: Any, stride: tuple[int, ...]) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        return torch.empty_strided(shape, stride, dtype=dtype, device=like.device)


_top_of_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


def _top_hooks() -> tuple[Any, Any] | None:
    """The hooks on saved tensors that are active."""
    return None if _top_of_hooks is None else _top_of_hooks(True)


def _extra_users() -> int | None:
    """What `_count_users` counts beyond the tensors on a storage."""
    tensor = torch.empty(2)
    aliases = [tensor.detach() for _ in range(2)]
    counted = _count_users(aliases[0].untyped_storage())
    return counted - 3 if counted > 0 else None


def _make_again(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> torch.Tensor:
    with torch.no_grad(), torch._C.DisableTorchFunction():
        kind = next(arg.device.type for arg in args if isinstance(arg, torch.Tensor))
        if kind == "meta" or not torch.is_autocast_enabled(kind):
            return function(*args, **(kwargs or {}))
        with torch.autocast(kind, enabled=False):
            return function(*args, **(kwargs or {}))


BINDINGS = {
    "strided": torch.strided,
    "storage_of": torch.Tensor.untyped_storage,
    "new_storage": _new_storage,
    "view_of": _view_of,
    "note_stream": _note_stream,
    "autocast_dtype": _autocast_dtype,
    "count_users": _count_users,
    "raw_stream": getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0),
    "cast_node_type": type(torch.zeros(1, requires_grad=True).to(torch.float64).grad_fn),
    "cast_source": _cast_source,
    "cast_to": _cast_to,
    "cast_operand": _cast_operand,
    "view_again": _view_again,
    "with_history": _with_history,
    "attention_functions": _ATTENTION_FUNCTIONS,
    "product_functions": _PRODUCT_FUNCTIONS,
    "pointwise_functions": tuple(filter(callable, _named((torch, torch.Tensor, nnf), _POINTWISE))),
    "fused_functions": {
        function: name
        for name, names in _FUSED.items()
        for function in filter(callable, _named((torch, torch.Tensor, nnf), names))
    },
    "fused_dtypes": (torch.float32, torch.bfloat16, torch.float16),
    "new_result": _new_result,
    "cast_function": torch.Tensor.to,
    "extra_users": _extra_users(),
    "make_again": _make_again,
    "top_hooks": _top_hooks,
    "push_mode": torch._C._push_on_torch_function_stack,
    "pop_mode": _pop_mode,
}
