"""What the extension needs of torch to keep saved tensors in host memory, and results of products and attention:
storages, views of them, casts, streams, functions.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as nnf


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
    leaf = tensor.detach().requires_grad_()
    return leaf.view_as(leaf)


def _named(places: tuple[Any, ...], names: str) -> tuple[Any, ...]:
    found = [getattr(place, name) for name in names.split() for place in places if hasattr(place, name)]
    return tuple({id(function): function for function in found}.values())


_PRODUCTS = (
    "linear matmul __matmul__ __rmatmul__ mm bmm addmm baddbmm addbmm einsum "
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"
)


BINDINGS = {
    "strided": torch.strided,
    "storage_of": torch.Tensor.untyped_storage,
    "new_storage": _new_storage,
    "view_of": _view_of,
    "note_stream": _note_stream,
    "raw_stream": getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0),
    "cast_node_type": type(torch.zeros(1, requires_grad=True).to(torch.float64).grad_fn),
    "cast_source": _cast_source,
    "cast_to": _cast_to,
    "cast_operand": _cast_operand,
    "view_again": _view_again,
    "with_history": _with_history,
    "attention_functions": (nnf.scaled_dot_product_attention,),
    "product_functions": _named((torch, torch.Tensor, nnf), _PRODUCTS),
    "push_mode": torch._C._push_on_torch_function_stack,
    "pop_mode": torch._C._pop_torch_function_stack,
}
