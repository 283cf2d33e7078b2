"""What a real step used: by the allocator's statistics on a GPU, by its events on the CPU."""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._C._profiler import _EventType

from ..errors import MemScaleError
from .memory import storages


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What a call took.

    Attributes:
        peak_bytes: the most that was allocated at once, including what was allocated before.
        before_bytes: what was allocated when it began.
        reserved_bytes: the most that the allocator held of the device; on the CPU, the peak.
        result: what the call returned.
    """

    peak_bytes: int
    before_bytes: int
    reserved_bytes: int
    result: Any = dataclasses.field(default=None, repr=False)


def measure_peak(fn: Callable[[], Any], device: str | torch.device | None = None) -> Measurement:
    """Call ``fn`` and measure the memory of tensors meanwhile.

    Args:
        fn: a function without arguments, such as a training step.
        device: where to look; None: the GPU that is current if torch has used one, else the CPU.

    Raises:
        TypeError: ``fn`` cannot be called, or ``device`` is no name.
        ValueError: there is no such device.
        MemScaleError: on the CPU, while torch's profiler runs.
    """
    if not callable(fn):
        raise TypeError(f"fn must be callable, not {type(fn).__name__}")
    place = _place(device)
    return _on_gpu(fn, place) if place.type == "cuda" else _on_cpu(fn)


def _place(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() and torch.cuda.is_initialized() else "cpu")
    if not isinstance(device, (str, torch.device)):
        raise TypeError(f"device must be a name or a torch.device, not {type(device).__name__}")
    try:
        place = torch.device(device)
    except RuntimeError:
        place = torch.device("meta")  # no such name
    if place.type not in ("cpu", "cuda"):
        raise ValueError(f"device={str(device)!r} is not allowed; it must be a CPU or a CUDA GPU")
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device={str(device)!r} is not allowed: there are {torch.cuda.device_count()} GPUs here")
    return place


def _on_gpu(fn: Callable[[], Any], place: torch.device) -> Measurement:
    torch.cuda.synchronize(place)
    torch.cuda.reset_peak_memory_stats(place)
    before = torch.cuda.memory_allocated(place)
    result = fn()
    torch.cuda.synchronize(place)
    peak, reserved = torch.cuda.max_memory_allocated(place), torch.cuda.max_memory_reserved(place)
    return Measurement(int(peak), int(before), int(reserved), result)


def _on_cpu(fn: Callable[[], Any]) -> Measurement:
    """By torch's reports of blocks. Blocks from before are not reported: Python sees their storages die."""
    if torch._C._autograd._profiler_enabled():
        raise MemScaleError("measure_peak uses torch's profiler on the CPU, and one is running already")
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # only the figures are wanted, not the profiler's messages
    changes: list[tuple[int, int]] = []  # when, and how many bytes more
    watched = _watch(changes)
    before = sum(n_bytes for _, n_bytes in watched)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = fn()
    del watched
    results: Any = profiler.profiler.kineto_results  # type: ignore[union-attr]
    changes += _block_changes(results.experimental_event_tree())
    growth = peak_of_events(changes)
    return Measurement(before + growth, before, before + growth, result)


def _watch(changes: list[tuple[int, int]]) -> list[tuple[Any, int]]:
    """The storages of all tensors on the CPU that Python can see, with their bytes; deaths are noted."""
    gc.collect()
    tensors = [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor) and o.device.type == "cpu"]
    tensors += [o.grad for o in tensors if o.is_leaf and o.grad is not None]  # the collector does not list these
    watched: dict[int, tuple[Any, int]] = {}
    for tensor in tensors:
        for address, n_bytes in storages([tensor]).items():
            if address not in watched:
                note = functools.partial(_note_death, changes, n_bytes)
                watched[address] = (weakref.ref(tensor.untyped_storage(), note), n_bytes)
    return list(watched.values())


def _note_death(changes: list[tuple[int, int]], n_bytes: int, _: Any) -> None:
    changes.append((time.time_ns(), -n_bytes))


def _block_changes(events: list[Any]) -> list[tuple[int, int]]:
    """What the blocks change that were allocated meanwhile."""
    found, stack = [], list(events)
    while stack:
        event = stack.pop()
        if event.tag == _EventType.Allocation:
            fields = event.extra_fields
            if fields.device.type == "cpu":
                found.append((event.start_time_ns, fields.ptr, fields.alloc_size))
        stack.extend(event.children)
    live: dict[int, int] = {}
    changes = []
    for time_ns, address, n_bytes in sorted(found, key=lambda block: block[0]):
        if n_bytes > 0:
            live[address] = n_bytes
            changes.append((time_ns, n_bytes))
        elif address in live:
            changes.append((time_ns, -live.pop(address)))
    return changes


def peak_of_events(events: Iterable[tuple[int, int]]) -> int:
    """The peak of a series of (time, bytes taken or given back)."""
    current = peak = 0
    for _, change in sorted(events, key=lambda event: event[0]):
        current += change
        peak = max(peak, current)
    return peak
