"""Bytes: of storages, of model state, and of the budget."""

from __future__ import annotations

import contextlib
import json
import threading
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from . import _core
from .config import Config

STEP_BYTES = 256 << 20  # free memory is rounded down to this, so that plans repeat
_LEAST_RESERVE = 2 << 30  # of host memory, left to the program and to others: this, or a part of all
_RESERVE_PARTS = 16
_MOST_BYTES = 1 << 50  # more than any device has: what was said beyond that is as good as no limit
_ADAMW_BYTES = 8  # two fp32 moments a parameter: assumed until an optimizer is known


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the elements of tensors."""
    return sum(int(t.numel() * t.element_size()) for t in tensors)


def _elements(tensors: Iterable[torch.Tensor]) -> int:
    return sum(int(t.numel()) for t in tensors)


def storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """The bytes of each distinct storage behind these tensors, by address. The tensors must stay alive meanwhile."""
    found: dict[int, int] = {}
    for tensor in tensors:
        try:
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        except (RuntimeError, NotImplementedError):  # sparse, fake and other tensors without plain storage
            continue
    found.pop(0, None)
    return found


def state_storages(model: nn.Module) -> dict[int, int]:
    """Storages of parameters and buffers."""
    return storages([*model.parameters(), *model.buffers()])


def _optimizer_bytes(optimizer: torch.optim.Optimizer, trainable: list[nn.Parameter]) -> int:
    held = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    if held:
        return sum(storages(held).values())
    if isinstance(optimizer, torch.optim.SGD):
        momentum = any(group.get("momentum", 0) for group in optimizer.param_groups)
        return tensor_bytes(trainable) if momentum else 0
    if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        return 2 * tensor_bytes(trainable)
    return _ADAMW_BYTES * _elements(trainable)


def model_state_bytes(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> int:
    """Parameters and buffers, gradients, optimizer state: what is there in every step, whatever a plan does."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    gradients = tensor_bytes(trainable)
    moments = _ADAMW_BYTES * _elements(trainable) if optimizer is None else _optimizer_bytes(optimizer, trainable)
    return sum(state_storages(model).values()) + gradients + moments


def main_device(model: nn.Module) -> torch.device:
    """The device that holds most of the model."""
    sizes: dict[torch.device, int] = {}
    for p in model.parameters():
        sizes[p.device] = sizes.get(p.device, 0) + p.numel()
    return max(sizes, key=lambda device: (sizes[device], str(device))) if sizes else torch.device("cpu")


def host() -> dict[str, Any]:
    """The host record of this machine."""
    record: dict[str, Any] = json.loads(_core.hw_detect(""))
    return record


def budget_bytes(config: Config, device: torch.device) -> int:
    """What a plan may use on this device: what torch's allocator may reserve there."""
    if config.memory_budget_gb is not None:
        return budget_of(config, 0, device.type)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)  # the context and other processes are not in it
        usable = int(free + torch.cuda.memory_reserved(device))
    else:
        usable = int(host()["memory_limit_bytes"])
    return budget_of(config, usable, device.type)


def budget_of(config: Config, usable_bytes: int, kind: str) -> int:
    """What a plan may use of a device ("cuda" or "cpu") on which so much could be had."""
    if config.memory_budget_gb is not None:
        return max(1, int(min(config.memory_budget_gb * 1e9, _MOST_BYTES)))
    if kind == "cuda":
        usable_bytes = usable_bytes // STEP_BYTES * STEP_BYTES
    return max(1, int(usable_bytes * config.target_gpu_utilization))


def host_limit_bytes(config: Config) -> int:
    """Host memory that a plan may fill: what was said, else what is available now, rounded down, less a reserve."""
    if config.max_cpu_offload_gb is not None:
        return int(min(config.max_cpu_offload_gb * 1e9, _MOST_BYTES))
    record = host()
    reserve = max(_LEAST_RESERVE, int(record["memory_limit_bytes"]) // _RESERVE_PARTS)
    return max(0, (int(record["memory_available_bytes"]) - reserve) // STEP_BYTES * STEP_BYTES)


def _has_expandable_segments() -> bool | None:
    """May segments of torch's allocator grow, or None if that cannot be known or changed."""
    if torch.cuda.get_allocator_backend() != "native":
        return None
    try:
        return bool(torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"])
    except (KeyError, RuntimeError, TypeError):
        return None


def _set_expandable_segments(wanted: bool) -> None:
    """Where torch lets itself be told, and the platform has them."""
    names = ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings")
    change = next((getattr(torch._C, name) for name in names if hasattr(torch._C, name)), None)
    if change is not None:
        with contextlib.suppress(RuntimeError):
            change(f"expandable_segments:{wanted}")


class _Growing:
    """Segments that grow, while any device is capped: free memory then never lies too scattered to be used, and what is
    reserved stays close to what is allocated. Afterwards it is as it was before."""

    def __init__(self) -> None:
        self._before: bool | None = None
        self._n = 0

    def begin(self) -> None:
        self._n += 1
        if self._n == 1:
            self._before = _has_expandable_segments()
            if self._before is False:
                _set_expandable_segments(True)

    def end(self) -> None:
        self._n -= 1
        if self._n == 0 and self._before is False:
            _set_expandable_segments(False)


_growing = _Growing()


class _DeviceCaps:
    """The caps on torch's allocator of one device: the lowest holds. After the last, what was there before."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.total_bytes = int(torch.cuda.get_device_properties(device).total_memory)
        self.before = get_memory_fraction(device)
        self.caps: dict[object, int] = {}

    def apply(self) -> None:
        fraction = min([self.before, *(cap / self.total_bytes for cap in self.caps.values())])
        if self.caps and int(torch.cuda.memory_reserved(self.device)) > min(self.caps.values()):
            torch.cuda.empty_cache()  # what lies unused in the cache would count
        torch.cuda.set_per_process_memory_fraction(fraction, self.device)


def get_memory_fraction(device: torch.device) -> float:
    """The share of the device that torch's allocator may reserve. Where torch cannot tell (before 2.7): all of it."""
    getter = getattr(torch.cuda.memory, "get_per_process_memory_fraction", None)
    return 1.0 if getter is None else float(getter(_index(device)))


def _index(device: torch.device) -> int:
    return int(torch.cuda.current_device() if device.index is None else device.index)


_device_caps: dict[int, _DeviceCaps] = {}
_caps_lock = threading.RLock()  # a cap may die while another is made


class AllocatorCap:
    """Bounds what torch's allocator may reserve on a GPU, until it is released. Several may be in force at once.

    Attributes:
        release: does nothing a second time, and happens by itself when the cap dies.
    """

    def __init__(self, device: torch.device, n_bytes: int) -> None:
        index, holder = _index(device), object()
        with _caps_lock:
            caps = _device_caps.setdefault(index, _DeviceCaps(torch.device("cuda", index)))
            caps.caps[holder] = min(n_bytes, caps.total_bytes)
            caps.apply()
            _growing.begin()
        self.release = weakref.finalize(self, _release_cap, index, holder)
        self.release.atexit = False


def _release_cap(index: int, holder: object) -> None:
    with _caps_lock:
        caps = _device_caps[index]
        del caps.caps[holder]
        caps.apply()
        _growing.end()
        if not caps.caps:
            del _device_caps[index]
