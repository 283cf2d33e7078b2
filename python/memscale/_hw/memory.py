"""Memory: the host within its container's limit, and the bytes of storages and models."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from .. import _core


def host() -> dict[str, Any]:
    """The host record of this machine."""
    record: dict[str, Any] = json.loads(_core.hw_detect(""))
    return record


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
