"""Settings of torch that an attachment changes, and puts back: its allocator's, and the thread of its backward."""

from __future__ import annotations

import threading
import weakref

import torch
from torch import nn

from .._hw import torch_allocator

_caps_lock = threading.RLock()  # a holder may die while another is made


class _Growth:
    """Segments that grow, while anybody needs them: free memory is then never too fragmented to be used, and what is
    reserved stays close to what is allocated. Afterwards all settings are as they were before."""

    def __init__(self) -> None:
        self._before: torch_allocator.Settings | None = None
        self._holders: set[object] = set()

    def begin(self, holder: object) -> bool:
        """Do segments grow now?"""
        if not self._holders:
            self._before = torch_allocator.read_settings()
        if self._before is None:
            return False
        if not self._holders and not self._before.get("expandable_segments"):
            torch.cuda.empty_cache()  # what is cached in segments of fixed size could not be used for larger requests
            if not torch_allocator.start_growing(self._before):
                torch_allocator.stop_growing(self._before)
                return False
        self._holders.add(holder)
        return True

    def end(self, holder: object) -> None:
        if holder not in self._holders:
            return
        self._holders.remove(holder)
        if not self._holders and self._before is not None and not self._before.get("expandable_segments"):
            torch_allocator.stop_growing(self._before)


_growth = _Growth()


class GrowingSegments:
    """Lets segments of torch's allocator grow, until it is released. Several may be in force at once.

    Attributes:
        works: do they grow? Not where torch or the platform cannot.
        release: does nothing a second time, and happens by itself when this dies.
    """

    def __init__(self) -> None:
        holder = object()
        with _caps_lock:
            self.works = _growth.begin(holder)
        self.release = weakref.finalize(self, _end_growth, holder)
        self.release.atexit = False


def _end_growth(holder: object) -> None:
    with _caps_lock:
        _growth.end(holder)


class _DeviceCaps:
    """The caps on torch's allocator of one device: the lowest is in force. After the last, the previous setting is."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.total_bytes = int(torch.cuda.get_device_properties(device).total_memory)
        self.before = get_memory_fraction(device)
        self.caps: dict[object, int] = {}

    def apply(self) -> None:
        fraction = min([self.before, *(cap / self.total_bytes for cap in self.caps.values())])
        if self.caps:
            torch.cuda.empty_cache()  # unused memory in the cache would count
        torch.cuda.set_per_process_memory_fraction(fraction, self.device)


def get_memory_fraction(device: torch.device) -> float:
    """The share of the device that torch's allocator may reserve. All of it for torch before 2.7, which cannot tell."""
    getter = getattr(torch.cuda.memory, "get_per_process_memory_fraction", None)
    return 1.0 if getter is None else float(getter(_index(device)))


def _index(device: torch.device) -> int:
    return int(torch.cuda.current_device() if device.index is None else device.index)


_device_caps: dict[int, _DeviceCaps] = {}


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
        self.release = weakref.finalize(self, _release_cap, index, holder)
        self.release.atexit = False


def _release_cap(index: int, holder: object) -> None:
    with _caps_lock:
        caps = _device_caps[index]
        del caps.caps[holder]
        caps.apply()
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
