"""``memscale calibrate``: measures this machine's rates into the file that plans use."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

from .._hw import calibration
from .._show.terminal import Progress, table, write
from .._show.text import bandwidth, duration, flops


def run_calibrate(arguments: argparse.Namespace) -> int:
    progress = Progress(sys.stderr)
    try:
        result = calibration.run(arguments.device, arguments.output, progress=progress)
    finally:
        progress.clear()
    rates = result.rates.as_dict()
    if arguments.json:
        write(json.dumps({"device": result.device, "path": str(result.path), "rates": rates}, indent=2))
        return 0
    table("", [("device", result.device), ("file", str(result.path))])
    table("rates", [(text, unit(rates[name])) for text, name, unit in _RATES if rates[name]])
    return 0


def _time(ns: int) -> str:
    return duration(ns / 1e9)


_RATES: tuple[tuple[str, str, Callable[[int], str]], ...] = (
    ("matrix products, fp32", "fp32_gflops", flops),
    ("matrix products, tf32", "tf32_gflops", flops),
    ("matrix products, fp16", "fp16_gflops", flops),
    ("matrix products, bf16", "bf16_gflops", flops),
    ("memory, read and written", "memory_mb_per_s", bandwidth),
    ("link, to the GPU", "to_device_mb_per_s", bandwidth),
    ("link, from the GPU", "from_device_mb_per_s", bandwidth),
    ("link, both at once", "both_mb_per_s", bandwidth),
    ("pinning of host memory", "pinning_mb_per_s", bandwidth),
    ("least time of a kernel", "launch_ns", _time),
    ("operator, on the host", "dispatch_ns", _time),
)
