"""Settings of torch that an attachment changes, and puts back: the cap on its allocator, the thread of its backward."""

from __future__ import annotations

import contextlib
import threading
import weakref

import torch
from torch import nn


def has_expandable_segments() -> bool | None:
    """May segments of torch's allocator grow, or None if that cannot be known or changed."""
    if torch.cuda.get_allocator_backend() != "native":
        return None
    try:
        return bool(torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"])
    except (KeyError, RuntimeError, TypeError):
        return None


def _set_expandable_segments(wanted: bool) -> None:
    """Where this version of torch can change it at run time, and the platform has such segments."""
    names = ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings")
    change = next((getattr(torch._C, name) for name in names if hasattr(torch._C, name)), None)
    if change is not None:
        with contextlib.suppress(RuntimeError):
            change(f"expandable_segments:{wanted}")


class _ExpandableSegments:
    """Segments that grow, while any device is capped: free memory is then never too fragmented to be used, and what is
    reserved stays close to what is allocated. Afterwards the setting is as it was before."""

    def __init__(self) -> None:
        self._before: bool | None = None
        self._n = 0

    def begin(self) -> None:
        self._n += 1
        if self._n == 1:
            self._before = has_expandable_segments()
            if self._before is False:
                _set_expandable_segments(True)

    def end(self) -> None:
        self._n -= 1
        if self._n == 0 and self._before is False:
            _set_expandable_segments(False)


_expandable_segments = _ExpandableSegments()


class _DeviceCaps:
    """The caps on torch's allocator of one device: the lowest is in force. After the last, the previous setting is."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.total_bytes = int(torch.cuda.get_device_properties(device).total_memory)
        self.before = get_memory_fraction(device)
        self.caps: dict[object, int] = {}

    def apply(self) -> None:
        fraction = min([self.before, *(cap / self.total_bytes for cap in self.caps.values())])
        if self.caps and int(torch.cuda.memory_reserved(self.device)) > min(self.caps.values()):
            torch.cuda.empty_cache()  # unused memory in the cache would count
        torch.cuda.set_per_process_memory_fraction(fraction, self.device)


def get_memory_fraction(device: torch.device) -> float:
    """The share of the device that torch's allocator may reserve. All of it for torch before 2.7, which cannot tell."""
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
            _expandable_segments.begin()
        self.release = weakref.finalize(self, _release_cap, index, holder)
        self.release.atexit = False


def _release_cap(index: int, holder: object) -> None:
    with _caps_lock:
        caps = _device_caps[index]
        del caps.caps[holder]
        caps.apply()
        _expandable_segments.end()
        if not caps.caps:
            del _device_caps[index]


class _Thread(threading.local):
    """The mode of this thread's engine before MemScale changed it, and the attachments that it was changed for."""

    def __init__(self) -> None:
        self.holders: set[object] = set()
        self.before = True


_this_thread = _Thread()


def _release(holder: object) -> None:
    mine = _this_thread
    if holder not in mine.holders:
        return
    mine.holders.remove(holder)
    if not mine.holders and not torch._C._is_multithreading_enabled():
        torch._C._set_multithreading_enabled(mine.before)


class BackwardOnCallingThread:
    """Keeps backward on the thread that calls it, for each thread that takes it.

    Attributes:
        release: puts this thread's engine back; does nothing a second time, and happens by itself when this dies.
    """

    def __init__(self) -> None:
        self._holder = object()
        self.release = weakref.finalize(self, _release, self._holder)
        self.release.atexit = False

    def take(self) -> None:
        """Keep this thread's backward here. Does nothing a second time: a mode that the user sets in between stays."""
        mine = _this_thread
        if self._holder in mine.holders:
            return
        if not mine.holders:
            mine.before = torch._C._is_multithreading_enabled()
        mine.holders.add(self._holder)
        torch._C._set_multithreading_enabled(False)


def is_on_one_gpu(model: nn.Module) -> bool:
    """Are all parameters on one and the same GPU?"""
    devices = {p.device for p in model.parameters()}
    return len(devices) == 1 and devices.pop().type == "cuda"
