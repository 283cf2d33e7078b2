"""Budgets, and what training within them took: memory that was asked for, predicted and measured, and step times.

    python bench/budgets.py --out FILE.json [--table FILE.md] [--only NAME] [--steps 30]     needs a GPU

For each model, budgets between the least that a plan can reach and what the plain step takes. A wrapped model
(``memscale.wrap(model, Config(memory_budget_gb=...))``, nothing else changed) trains next to a plain one, with
interleaved steps; the time is the median of the ratios of neighbours with its 95 % interval. The peak is that of the
wrapped model alone: what torch's allocator reserved at most, which the budget bounds, and what it allocated, which the
plan predicts.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

import memscale
from memscale._cli import model_registry as _models

transformers.logging.set_verbosity_error()

# name, batch, length
CASES = [("gpt2-medium", 8, 1024), ("llama-1b", 2, 2048), ("bert-large", 32, 256), ("t5-base", 16, 512)]
SHARES = (0.03, 0.3, 0.6)  # of the way from the least peak to the plain one


def forget() -> None:
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


class Run:
    """A model that trains in bf16 autocast."""

    def __init__(self, name: str, batch: int, length: int, config: memscale.Config | None) -> None:
        torch.manual_seed(0)
        self.model: Any = _models.make_model(name, "cuda", torch.float32)
        self.batch = _models.make_batch(self.model.config, batch, length, "cuda", torch.float32)
        if config is not None:
            memscale.wrap(self.model, config)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6)

    def step(self) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = self.model(**self.batch).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def time(self) -> float:
        torch.cuda.synchronize()
        started = time.perf_counter()
        self.step()
        torch.cuda.synchronize()
        return time.perf_counter() - started


def interval(ratios: list[float]) -> tuple[float, float]:
    """A 95 % interval of the median, by resampling."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[1949]


def config_of(budget_bytes: float) -> memscale.Config:
    return memscale.Config(memory_budget_gb=budget_bytes / 1e9, enable_logging=False)


def least_peak(name: str, batch: int, length: int) -> int:
    run = Run(name, batch, length, config_of(1e6))
    try:
        run.step()
    except memscale.BudgetError as error:
        return int(error.smallest_peak_bytes or 0)
    raise AssertionError("a megabyte is enough")


def measure_peak(name: str, batch: int, length: int, config: memscale.Config) -> dict[str, Any]:
    """The wrapped model by itself: what its allocator took over the first steps, and what the plan predicted."""
    forget()
    run = Run(name, batch, length, config)
    for _ in range(4):
        run.step()
    torch.cuda.synchronize()
    plan = run.model._memscale_executor.plan
    found = {
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "predicted_bytes": plan.predicted_peak_bytes,
        "predicted_slowdown": plan.predicted_slowdown,
        "n_recomputed": plan.n_recomputed,
        "n_layers": len(plan.layers),
    }
    memscale.detach(run.model)
    return found


def measure_time(name: str, batch: int, length: int, config: memscale.Config, steps: int) -> dict[str, Any]:
    """The wrapped model next to a plain one. The cap is lifted: it would count both."""
    forget()
    saved = Run(name, batch, length, config)
    saved.step()
    plan = saved.model._memscale_executor.plan
    memscale.detach(saved.model)
    memscale.wrap(saved.model, memscale.Config(enable_logging=False), plan=plan)
    plain = Run(name, batch, length, None)
    for _ in range(5):
        plain.step(), saved.step()
    pairs = [(plain.time(), saved.time()) for _ in range(steps)]
    ratios = [b / a for a, b in pairs]
    low, high = interval(ratios)
    memscale.detach(saved.model)
    return {
        "plain_ms": 1e3 * statistics.median(a for a, _ in pairs),
        "ratio": statistics.median(ratios),
        "ratio_low": low,
        "ratio_high": high,
    }


def measure(name: str, batch: int, length: int, steps: int) -> list[dict[str, Any]]:
    forget()
    least = least_peak(name, batch, length)
    forget()
    plain = Run(name, batch, length, None)
    for _ in range(3):
        plain.step()
    torch.cuda.synchronize()
    whole = torch.cuda.max_memory_allocated()
    del plain
    rows = []
    for share in SHARES:
        budget = (least + share * (whole - least)) * 64 / 63 + (4 << 20)
        row = {"model": name, "batch": batch, "length": length, "plain_bytes": whole, "budget_bytes": int(budget)}
        try:
            row.update(measure_peak(name, batch, length, config_of(budget)))
            row.update(measure_time(name, batch, length, config_of(budget), steps))
        except torch.OutOfMemoryError as error:  # the cap held; the plan did not
            row["error"] = str(error).splitlines()[0]
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def table(rows: list[dict[str, Any]], conditions: dict[str, str]) -> str:
    lines = [json.dumps(conditions), ""]
    lines += ["| model | plain | budget | reserved | allocated | predicted | error | recomputed | time | predicted |"]
    lines += ["|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        head = f"| {row['model']} {row['batch']}x{row['length']} | {row['plain_bytes'] / 1e9:.3f} "
        head += f"| {row['budget_bytes'] / 1e9:.3f} "
        if "ratio" not in row:
            lines.append(f"{head}| {row.get('error', '')} | | | | | | |")
            continue
        error = row["predicted_bytes"] / row["allocated_bytes"] - 1
        lines.append(
            f"{head}| {row['reserved_bytes'] / 1e9:.3f} | {row['allocated_bytes'] / 1e9:.3f} "
            f"| {row['predicted_bytes'] / 1e9:.3f} | {100 * error:+.2f} % | {row['n_recomputed']} of {row['n_layers']} "
            f"| {row['ratio']:.3f} ({row['ratio_low']:.3f} to {row['ratio_high']:.3f}) "
            f"| {1 + row['predicted_slowdown']:.3f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the rows, as JSON")
    parser.add_argument("--table", type=Path, help="write a table, as Markdown")
    parser.add_argument("--only", help="one model")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("this benchmark needs a GPU", file=sys.stderr)
        return 1
    conditions = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "memscale": memscale.__version__,
        "steps": str(options.steps),
        "precision": "bf16 autocast, AdamW",
    }
    rows = [row for case in CASES if options.only in (None, case[0]) for row in measure(*case, options.steps)]
    if options.out:
        options.out.write_text(json.dumps({"conditions": conditions, "rows": rows}, indent=1) + "\n")
    text = table(rows, conditions)
    if options.table:
        options.table.write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
