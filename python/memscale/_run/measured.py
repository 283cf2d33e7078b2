"""What a unit did in one forward that was measured. Only the fallback uses this."""

from __future__ import annotations

import torch

from .._hw.storages import storages


class Measured:
    """What a unit did in one forward."""

    __slots__ = ("boundary_bytes", "calls", "order", "rows", "saved_bytes")

    def __init__(self) -> None:
        self.calls = self.saved_bytes = self.boundary_bytes = self.rows = self.order = 0

    def add(self, inputs: list[torch.Tensor], saved: list[torch.Tensor], seen: set[int]) -> None:
        """Count one call; `seen` has the storages that somebody keeps already."""
        boundary = {address: size for address, size in storages(inputs).items() if address not in seen}
        seen.update(boundary)
        kept = {address: size for address, size in storages(saved).items() if address not in seen}
        self.calls += 1
        self.boundary_bytes += sum(boundary.values())
        self.saved_bytes += sum(boundary.values()) + sum(kept.values())
        self.rows += max((t.numel() // t.shape[-1] for t in inputs if t.dim() and t.shape[-1]), default=1)
