"""Figures as people read them: sizes, durations, numbers of parameters, rates. One function for each."""

from __future__ import annotations

from .. import _core


def size(n_bytes: int) -> str:
    """Bytes: three significant digits and a unit; GB are 1e9 bytes."""
    return _core.format_bytes(n_bytes)


def quantity(n: int) -> str:
    """A number of parameters."""
    for unit, one in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if n >= one:
            return f"{n / one:.{2 if n < 10 * one else 1}f} {unit}"
    return str(n)


def duration(seconds: float) -> str:
    """Seconds: three significant digits and a unit."""
    return _core.format_ns(round(seconds * 1e9))


def flops(gflops: int) -> str:
    """A rate of computation."""
    return f"{gflops / 1000:.1f} TFLOP/s" if gflops >= 10_000 else f"{gflops} GFLOP/s"


def bandwidth(mb_per_s: float) -> str:
    """A rate of copies."""
    return f"{mb_per_s / 1000:.1f} GB/s"


def cuda_version(number: int) -> str | None:
    """CUDA's way to write 12.4 is 12040; None for 0, which is unknown."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else None
