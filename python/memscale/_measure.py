"""What a real step used: by the allocator's statistics on a GPU, by its events on the CPU."""

from __future__ import annotations

import dataclasses
import gc
import os
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ._memory import storages


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What a call took.

    Attributes:
        peak_bytes: the most that was allocated at once, with what was there before.
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
        fn: takes nothing; a training step, say.
        device: where to look; None: the GPU that is current if torch has used one, else the CPU.

    Raises:
        TypeError: ``fn`` cannot be called.
        ValueError: there is no such device.
    """
    if not callable(fn):
        raise TypeError(f"fn must be callable, not {type(fn).__name__}")
    place = torch.device(device or ("cuda" if torch.cuda.is_available() and torch.cuda.is_initialized() else "cpu"))
    if place.type == "cuda":
        return _on_gpu(fn, place)
    if place.type == "cpu":
        return _on_cpu(fn)
    raise ValueError(f"device={str(place)!r} is not allowed; it must be a CPU or a CUDA GPU")


def _on_gpu(fn: Callable[[], Any], place: torch.device) -> Measurement:
    if not torch.cuda.is_available():
        raise ValueError("there is no GPU here")
    torch.cuda.synchronize(place)
    torch.cuda.reset_peak_memory_stats(place)
    before = torch.cuda.memory_allocated(place)
    result = fn()
    torch.cuda.synchronize(place)
    peak, reserved = torch.cuda.max_memory_allocated(place), torch.cuda.max_memory_reserved(place)
    return Measurement(int(peak), int(before), int(reserved), result)


def _on_cpu(fn: Callable[[], Any]) -> Measurement:
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # figures are wanted, no messages
    before = _live_bytes()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = fn()
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    growth = peak_of_events((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    return Measurement(before + growth, before, before + growth, result)


def _live_bytes() -> int:
    """The storages of all tensors on the CPU that Python can see."""
    gc.collect()
    tensors = [o for o in gc.get_objects() if isinstance(o, torch.Tensor) and o.device.type == "cpu"]
    return sum(storages(tensors).values())


def peak_of_events(events: Iterable[tuple[int, int]]) -> int:
    """The peak of a series of (time, bytes taken or given back)."""
    current = peak = 0
    for _, change in sorted(events, key=lambda event: event[0]):
        current += change
        peak = max(peak, current)
    return peak
