"""Bytes of tensors and their storages, and the device that holds most of a model."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the elements of tensors."""
    return sum(int(t.numel() * t.element_size()) for t in tensors)


def storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """The bytes of each distinct storage of these tensors, by address. The tensors must stay alive meanwhile."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        try:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
        except (RuntimeError, NotImplementedError):  # sparse, fake and other tensors without plain storage
            continue
    sizes.pop(0, None)
    return sizes


def state_storages(model: nn.Module) -> dict[int, int]:
    """Storages of parameters and buffers."""
    return storages([*model.parameters(), *model.buffers()])


def main_device(model: nn.Module) -> torch.device:
    """The device that holds most of the model."""
    sizes: dict[torch.device, int] = {}
    for p in model.parameters():
        sizes[p.device] = sizes.get(p.device, 0) + p.numel()
    return max(sizes, key=lambda device: (sizes[device], str(device))) if sizes else torch.device("cpu")
