"""What recomputation costs: every block of GPT-2 medium recomputed, against the plain step and torch's checkpointing.

Steps are interleaved (plain, MemScale, torch, plain, ...), so that a machine that slows down slows all of them; the
figure is the median of the ratios of neighbours with its 95 % interval. Peaks are taken with one model at a time.

    python bench/recompute.py [--steps 40] [--small] [--json FILE]
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
from contextlib import nullcontext
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

import memscale
from memscale.plans import Plan

transformers.logging.set_verbosity_error()

WAYS = ("plain", "memscale", "torch")


class Case:
    """One configuration of the model, the batch and the precision."""

    def __init__(self, batch: int, length: int, precision: str, small: bool, device: str) -> None:
        self.name = f"GPT-2 {'small stand-in' if small else 'medium'} {batch}x{length}, {precision}, fused AdamW"
        self.precision, self.device = precision, device
        sizes = {"n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 128} if small else {}
        sizes = sizes or {"n_embd": 1024, "n_layer": 24, "n_head": 16}
        self.config = transformers.GPT2Config(n_positions=1024, use_cache=False, **sizes)
        self.tokens = torch.randint(0, self.config.vocab_size, (batch, length), device=device)

    def make(self, way: str) -> tuple[Any, torch.optim.Optimizer]:
        torch.manual_seed(0)
        with torch.device(self.device):
            model = transformers.GPT2LMHeadModel(self.config).train()
        if self.precision == "pure bf16":
            model = model.bfloat16()
        if way == "memscale":
            recompute_blocks(model, self.tokens)
        if way == "torch":
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return model, torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step(self, model: Any, optimizer: torch.optim.Optimizer) -> None:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.precision == "bf16 autocast"):
            loss = model(self.tokens, labels=self.tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def recompute_blocks(model: Any, tokens: torch.Tensor) -> None:
    """Wrap with a plan that recomputes the blocks and nothing else."""
    config = memscale.Config(enable_logging=False)
    plan = json.loads(memscale.plan(model, {"input_ids": tokens, "labels": tokens}).to_json())
    for unit in plan["units"]:
        unit["action"] = "recompute" if unit["name"].startswith("transformer.h.") else "keep"
    memscale.wrap(model, config, plan=Plan.from_json(json.dumps(plan)))


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def peak_bytes(case: Case, way: str) -> int:
    """The peak of a steady step, by the allocator; 0 without a GPU."""
    if case.device != "cuda":
        return 0
    torch._C._cuda_clearCublasWorkspaces()  # those of the variant before: each thread that multiplied has one
    model, optimizer = case.make(way)
    for _ in range(3):
        case.step(model, optimizer)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        case.step(model, optimizer)
    torch.cuda.synchronize()
    peak = int(torch.cuda.max_memory_allocated())
    del model, optimizer
    gc.collect()
    torch.cuda.empty_cache()
    return peak


def interval(values: list[float]) -> tuple[float, float]:
    """A 95 % interval of the median, by resampling with a fixed seed."""
    source = random.Random(0)
    medians = sorted(statistics.median(source.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], medians[1949]


def run_step(case: Case, way: str, run: tuple[Any, torch.optim.Optimizer]) -> None:
    """One step. MemScale keeps backward on this thread while attached; the others have torch's default."""
    with nullcontext() if way == "memscale" else torch.autograd.set_multithreading_enabled(True):
        case.step(*run)


def measure(case: Case, n_steps: int) -> dict[str, Any]:
    peaks = {way: peak_bytes(case, way) for way in WAYS}
    runs = {way: case.make(way) for way in WAYS}
    for way in WAYS:
        for _ in range(5):  # the first ones compile, fill caches and check the units
            run_step(case, way, runs[way])
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(n_steps):
        for way in WAYS:
            synchronize(case.device)
            start = time.perf_counter()
            run_step(case, way, runs[way])
            synchronize(case.device)
            times[way].append((time.perf_counter() - start) * 1e3)
    result: dict[str, Any] = {
        "case": case.name,
        "n_steps": n_steps,
    }
    for way in WAYS:
        ratios = [a / b for a, b in zip(times[way], times["plain"])]
        low, high = interval(ratios)
        result[way] = {
            "median_ms": round(statistics.median(times[way]), 2),
            "ratio": round(statistics.median(ratios), 3),
            "ratio_low": round(low, 3),
            "ratio_high": round(high, 3),
            "peak_bytes": peaks[way],
        }
    del runs
    gc.collect()
    return result


def conditions() -> dict[str, str]:
    found = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "memscale": memscale.__version__,
    }
    if torch.cuda.is_available():
        found["device"] = torch.cuda.get_device_name(0)
    return found


def table(results: list[dict[str, Any]]) -> str:
    lines = []
    for result in results:
        lines += [
            f"### {result['case']}",
            "",
            "| | step | of the plain step (95 % interval) | peak |",
            "|---|---|---|---|",
        ]
        for way in WAYS:
            row = result[way]
            ratio = f"{row['ratio']:.3f} ({row['ratio_low']:.3f} to {row['ratio_high']:.3f})"
            lines.append(f"| {way} | {row['median_ms']:.1f} ms | {ratio} | {row['peak_bytes'] / 1e9:.3f} GB |")
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40, help="interleaved steps of each way (default: 40)")
    parser.add_argument("--small", action="store_true", help="a small stand-in, to try the benchmark out on a CPU")
    parser.add_argument("--only", type=int, choices=(0, 1), help="the first or the second case alone")
    parser.add_argument("--json", help="write the results to this file, too")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not options.small:
        print("this benchmark needs a GPU; --small tries it out on the CPU", file=sys.stderr)
        return 1
    shapes = [(2, 64), (2, 64)] if options.small else [(4, 512), (16, 1024)]
    results = []
    cases = list(zip(shapes, ("pure bf16", "bf16 autocast")))
    for (batch, length), precision in cases if options.only is None else [cases[options.only]]:
        print(f"measuring {batch}x{length}, {precision}", file=sys.stderr, flush=True)
        results.append(measure(Case(batch, length, precision, options.small, device), options.steps))
    print(json.dumps(conditions()))
    print(table(results))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"conditions": conditions(), "results": results}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
