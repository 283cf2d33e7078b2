"""The spacer of a plan: a block on the device that is there while one layer runs forward.

What the layer allocates then lies above it, and what comes after finds its place. It is taken once in each step, where
segments of torch's allocator grow, as the simulation has it (``src/plan/spacer.c``).
"""

from __future__ import annotations

import torch

from ..plans import Plan
from .device_memory import DeviceMemory


class Spacer:
    """The spacer of the plan that is in use, if it has one."""

    def __init__(self, device: torch.device, memory: DeviceMemory) -> None:
        self._device = device
        self._device_memory = memory
        self._n_bytes = 0
        self._is_due = False
        self._block: torch.Tensor | None = None

    def use(self, plan: Plan) -> None:
        """Steps run with this plan from now on."""
        self._n_bytes = plan.spacer_bytes if self._device.type == "cuda" else 0
        self._is_due = False

    def begin_step(self) -> None:
        """A step begins."""
        self._is_due = self._n_bytes > 0

    def take(self) -> None:
        """Take the block, if it is due. Without memory for it there is none until another plan is used."""
        if not self._is_due or not self._device_memory.is_growing or torch.cuda.is_current_stream_capturing():
            return
        self._is_due = False
        try:
            self._block = torch.empty(self._n_bytes, dtype=torch.uint8, device=self._device)
        except torch.OutOfMemoryError:
            self._n_bytes = 0
            self._device_memory.forgive()

    def give_back(self) -> None:
        """The layer has run, or needs the memory: its first run is checked, and so takes more."""
        self._block = None
