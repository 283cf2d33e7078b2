"""What the extension needs of torch to keep saved tensors in host memory: storages, views of them, casts, streams."""

from __future__ import annotations

from typing import Any

import torch


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


def _cast_to(
    parameter: torch.nn.Parameter, dtype: torch.dtype, shape: Any, stride: tuple[int, ...], offset: int
) -> torch.Tensor:
    with torch.no_grad():
        return parameter.to(dtype).as_strided(shape, stride, offset)


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
}
