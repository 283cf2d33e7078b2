"""Equality of tensors, bit for bit."""

from __future__ import annotations

import torch


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit for bit, NaN included. Tensors without plain memory are compared by torch."""
    if a.is_nested or b.is_nested:
        return False
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device or a.layout != b.layout:
        return False
    if a.numel() == 0 or a.is_meta:
        return True
    if a.layout != torch.strided or a.is_quantized:
        return bool(torch.equal(a, b))
    flat = [t.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return bool(torch.equal(flat[0], flat[1]))
