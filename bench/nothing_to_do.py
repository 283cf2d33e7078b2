"""What MemScale costs where nothing is to be done: time, memory and lines of the log.

    python bench/nothing_to_do.py [--device cpu|cuda] [--pairs 60] [--seconds 12] [--json FILE]

Each model trains next to a wrapped copy of itself that may use all memory, so that every layer is kept. Steps are
interleaved, and which of them goes first alternates; the figure is the median of the ratios of neighbours with its 95 %
interval. On a GPU each also trains alone, for its peak. The bar: at most 1.01 of the plain step, the same peak, and one
line about the plan.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

import memscale
import side_by_side

BAR = 1.01
PLENTY_GB = 64.0
GPU_CASES = [
    side_by_side.Case("gpt2", 4, 256),
    side_by_side.Case("gpt2-medium", 4, 512, "pure-bf16", "fused"),
    side_by_side.Case("bert-large", 8, 128),
    side_by_side.Case("modernbert-base", 16, 512),
    side_by_side.Case("t5-base", 4, 256),
    side_by_side.Case("vit-base", 32, 0),
    side_by_side.Case("llama-1b", 1, 512),
]


class Lines(logging.Handler):
    """What the log says about the plan."""

    def __init__(self) -> None:
        super().__init__()
        self.plans: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if not text.startswith(("device:", "host:", "model:", "detached")):
            self.plans.append(text)


def wrap(run: side_by_side.Run) -> side_by_side.Run:
    memscale.wrap(run.model, memscale.Config(memory_budget_gb=PLENTY_GB))
    return run


def peak_alone(case: side_by_side.Case, *, wrapped: bool) -> int:
    """What is requested at most; what is allocated depends on where the allocator's free blocks happen to lie."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    run = side_by_side.Run(case, "cuda")
    if wrapped:
        wrap(run)
    for _ in range(3):
        run.step()
    peak = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
    if wrapped:
        memscale.detach(run.model)
    return int(peak)


def measure(case: side_by_side.Case, device: str, options: argparse.Namespace) -> dict[str, Any]:
    lines, log = Lines(), logging.getLogger("memscale")
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    row: dict[str, Any] = {"case": str(case)}
    try:
        plain, wrapped = side_by_side.Run(case, device), wrap(side_by_side.Run(case, device))
        pairs = side_by_side.measure_pairs(plain, wrapped, options.pairs, options.seconds)
        executor = memscale.executor_of(wrapped.model)
        assert executor is not None
        assert executor.plan is not None
        assert executor.plan.n_recomputed == 0
        row |= {"plan": executor.plan.describe(), "n_lines": len(lines.plans)}
        memscale.detach(wrapped.model)
    finally:
        log.removeHandler(lines)
    ratios = [(b[-1] - b[0]) / (a[-1] - a[0]) for a, b in pairs]
    low, high = side_by_side.interval(ratios)
    row |= {"pairs": len(pairs), "plain_ms": 1e3 * statistics.median(a[-1] - a[0] for a, _ in pairs)}
    row |= {"ratio": statistics.median(ratios), "ratio_low": low, "ratio_high": high}
    del plain, wrapped, executor
    if device == "cuda":
        row["plain_bytes"], row["wrapped_bytes"] = (peak_alone(case, wrapped=wrapped) for wrapped in (False, True))
    return row


def holds(row: dict[str, Any]) -> bool:
    same_peak = row.get("plain_bytes") == row.get("wrapped_bytes")
    return bool(row["ratio"] <= BAR and row["n_lines"] == 1 and same_peak)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pairs", type=int, default=60, help="of steps (default: 60)")
    parser.add_argument("--seconds", type=float, default=12, help="the most that the pairs of a row take (default: 12)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for case in GPU_CASES if options.device == "cuda" else side_by_side.CPU_CASES:
        side_by_side.forget()
        rows.append(measure(case, options.device, options))
        print(json.dumps(rows[-1]), flush=True)
    conditions = {"device": options.device, "torch": torch.__version__, "threads": torch.get_num_threads()}
    if options.device == "cuda":
        conditions["gpu"] = torch.cuda.get_device_name()
    if options.json is not None:
        options.json.write_text(json.dumps({"conditions": conditions, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0 if all(map(holds, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
