"""``memscale calibrate``: measures this machine's rates into the file that plans use."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

from .._hw import calibration
from .._hw.rate_bench import Figure
from .._show.terminal import Progress, table, write
from .._show.text import bandwidth, duration, flops


def run_calibrate(arguments: argparse.Namespace) -> int:
    progress = Progress(sys.stderr)
    try:
        result = calibration.run(arguments.device, arguments.output, progress=progress, force=arguments.force)
    finally:
        progress.clear()
    rates = result.rates.as_dict()
    if arguments.json:
        report = {"device": result.device, "path": str(result.path), "rates": rates}
        spread = {name: [figure.low, figure.high] for name, figure in result.figures.items() if figure.value}
        write(json.dumps({**report, "spread": spread, "busy": result.busy}, indent=2))
        return 0
    table("", [("device", result.device), ("file", str(result.path))])
    table("rates", [(text, _shown(result.figures[name], unit)) for text, name, unit in _RATES if rates[name]])
    if result.busy:
        table("", [("busy", result.busy)])
    return 0


def _shown(figure: Figure, unit: Callable[[int], str]) -> str:
    """A figure, and between which values its repeats were."""
    if figure.low == figure.high:
        return unit(figure.value)
    return f"{unit(figure.value)} ({unit(figure.low)} to {unit(figure.high)})"


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
    ("product, on the host", "product_ns", _time),
    ("view, on the host", "view_ns", _time),
    ("operator in backward", "backward_ns", _time),
    ("product in backward", "backward_product_ns", _time),
    ("view in backward", "backward_view_ns", _time),
    ("tensor in a list", "list_tensor_ns", _time),
    ("parameter that is updated", "parameter_ns", _time),
    ("recomputed saved tensor", "saved_tensor_ns", _time),
    ("recomputation of a layer", "recomputation_ns", _time),
    ("random numbers", "random_mb_per_s", bandwidth),
    ("new memory", "fresh_mb_per_s", bandwidth),
)
