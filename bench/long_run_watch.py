"""What long_run.py sees around each step: resident memory by kind of mapping, growth by whether the step's sizes are
new, and steps in which torch's allocator had to return memory."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

import outside

MARKS = (20, 100, 200, 300)  # of 300 steps: where resident memory is read mapping by mapping

NEW, SEEN = "new sizes", "sizes seen before"


def counts(device: str) -> dict[str, int]:
    """Of torch's allocator, now."""
    if device != "cuda":
        return {}
    stats = torch.cuda.memory_stats()
    return {
        "allocated_bytes": torch.cuda.memory_allocated(),
        "reserved_bytes": torch.cuda.memory_reserved(),
        "retries": stats["num_alloc_retries"],
        "ooms": stats["num_ooms"],
    }


class Watch:
    """Asked around every step.

    Attributes:
        resident: resident bytes of each kind of mapping, and what the C library has handed out, by number of steps.
        growth: steps, and by how much resident memory grew in them, by whether their sizes are new; after the warm-up.
        retried: steps in which torch's allocator returned memory, and what it had reserved before and after.
    """

    def __init__(self, device: str, n_steps: int) -> None:
        self._device = device
        self._marks = {max(1, n_steps * mark // MARKS[-1]) for mark in MARKS}
        self._seen: set[Any] = set()
        self._sizes: Any = None
        self._resident = 0
        self._counts: dict[str, int] = {}
        self.resident: dict[str, dict[str, int]] = {}
        self.growth = {NEW: {"steps": 0, "bytes": 0}, SEEN: {"steps": 0, "bytes": 0}}
        self.retried: list[dict[str, int]] = []

    def begin(self, batch: dict[str, torch.Tensor]) -> None:
        """A step begins, with this batch."""
        self._sizes = tuple(tuple(tensor.shape) for tensor in batch.values())
        self._counts = counts(self._device)
        if self._device == "cpu":
            ctypes.CDLL(None).malloc_trim(0)
        self._resident = outside.resident_bytes()

    def end(self, i: int, executor: Any, *, is_warm: bool) -> None:
        """Step `i` ends."""
        if self._device == "cpu":
            ctypes.CDLL(None).malloc_trim(0)
        if is_warm:
            group = self.growth[SEEN if self._sizes in self._seen else NEW]
            group["steps"] += 1
            group["bytes"] += outside.resident_bytes() - self._resident
        self._seen.add(self._sizes)
        now = counts(self._device)
        if now and now["retries"] > self._counts["retries"]:
            self.retried.append({"step": i, **self._retry(now, executor)})
        if i + 1 in self._marks:
            found = {**outside.resident(), **{f"malloc, {key}": n for key, n in outside.malloc().items()}}
            self.resident[str(i + 1)] = found

    def _retry(self, now: dict[str, int], executor: Any) -> dict[str, int]:
        plan, memory = getattr(executor, "plan", None), getattr(executor, "_device_memory", None)
        return {
            "length": self._sizes[0][-1],
            "retries": now["retries"] - self._counts["retries"],
            "reserved_before": self._counts["reserved_bytes"],
            "reserved_after": now["reserved_bytes"],
            "allocated_peak": torch.cuda.max_memory_allocated(),
            "predicted_peak": getattr(plan, "predicted_peak_bytes", 0),
            "needed_bytes": getattr(plan, "needed_bytes", 0),
            "occupied_bytes": getattr(plan, "occupied_bytes", 0),
            "settled": getattr(memory, "_n_settled", 0),
        }
