"""The demo: train a small GPT-2 on MemScale's own text, once plain and once wrapped, and compare.

Both runs start from the same weights and see the same batches in the same order. Peak memory is measured by torch's
allocator, not by MemScale: on a GPU its statistics, on the CPU the events of the profiler over a run of its own.

    python examples/demo.py [--steps N] [--layers N] [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import random
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # repeatable matrix products on a GPU
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler is asked for figures, not for messages

import torch
import transformers
from tqdm import tqdm
from transformers import GPT2Config, GPT2LMHeadModel

import memscale

ROOT = Path(__file__).resolve().parent.parent
BATCH, LENGTH = 8, 256
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def read_text() -> torch.Tensor:
    """The project's documentation and source, as bytes."""
    files = sorted(
        [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("src/**/*.[ch]"), *ROOT.glob("python/**/*.py")]
    )
    return torch.frombuffer(bytearray(b"\n".join(path.read_bytes() for path in files)), dtype=torch.uint8).long()


def make_model(layers: int) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256,
        n_positions=LENGTH,
        n_embd=256,
        n_layer=layers,
        n_head=8,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    config.loss_type = "ForCausalLM"
    return GPT2LMHeadModel(config).to(DEVICE).train()


def batches(text: torch.Tensor, n: int) -> list[torch.Tensor]:
    chooser = random.Random(0)
    starts = [[chooser.randrange(len(text) - LENGTH) for _ in range(BATCH)] for _ in range(n)]
    return [torch.stack([text[s : s + LENGTH] for s in row]).to(DEVICE) for row in starts]


class Run:
    """One training run; everything but `wrapped` is the same."""

    def __init__(self, name: str, wrapped: bool, layers: int) -> None:
        self.name = name
        self.model = make_model(layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.losses: list[float] = []
        self.times: list[float] = []
        if wrapped:
            # A small model fits, and MemScale would do nothing. Here it is told to optimize anyway.
            memscale.wrap(self.model, memscale.Config(force_optimize=True))
        torch.manual_seed(1)

    def step(self, batch: torch.Tensor) -> None:
        start = time.perf_counter()
        loss = self.model(batch, labels=batch).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item())
        self.times.append(time.perf_counter() - start)

    def train(self, data: list[torch.Tensor]) -> None:
        bar = tqdm(data, desc=f"{self.name:8}", unit="step", disable=not sys.stderr.isatty() and "CI" in os.environ)
        for batch in bar:
            self.step(batch)
            bar.set_postfix(loss=f"{self.losses[-1]:.3f}")

    def finish(self) -> memscale.Plan | None:
        executor = memscale.executor_of(self.model)
        if executor is None:
            return None
        memscale.detach(self.model)
        return executor.plan


def peak_of_allocations(events: list[tuple[int, int]]) -> int:
    """The peak of a series of (time, bytes allocated or freed)."""
    current = peak = 0
    for _, change in sorted(events, key=lambda event: event[0]):
        current += change
        peak = max(peak, current)
    return peak


def measure_peak(wrapped: bool, layers: int, data: list[torch.Tensor]) -> int:
    """Peak bytes of tensors over whole steps, from the building of the model on."""
    gc.collect()
    if DEVICE.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run = Run("", wrapped, layers)
        for batch in data:
            run.step(batch)
        run.finish()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        run = Run("", wrapped, layers)
        for batch in data:
            run.step(batch)
        run.finish()
    events = profiler.profiler.kineto_results.events()
    return peak_of_allocations([(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"])


def table(rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths)))
        for row in rows
    ]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def main() -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12, help="training steps of each run")
    parser.add_argument("--layers", type=int, default=8, help="layers of the model")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    if arguments.steps < 3 or arguments.layers < 1:
        parser.error("at least 3 steps and 1 layer")
    transformers.logging.set_verbosity_error()
    torch.use_deterministic_algorithms(True)

    data = batches(read_text(), arguments.steps)
    plain = Run("plain", False, arguments.layers)
    plain.train(data)
    wrapped = Run("wrapped", True, arguments.layers)
    wrapped.train(data)
    plan = wrapped.finish()
    logging.getLogger("memscale").setLevel(logging.ERROR)  # the runs below would log the same again
    print("measuring peak memory ...", flush=True)
    peaks = [measure_peak(w, arguments.layers, data[:3]) for w in (False, True)]

    difference = max(abs(a - b) for a, b in zip(plain.losses, wrapped.losses))
    times = [statistics.median(run.times[2:]) for run in (plain, wrapped)]
    print(f"\n{plan!r}\n")
    rows = [["", "peak memory", "step time", "last loss"]]
    for run, peak, seconds in zip((plain, wrapped), peaks, times):
        rows.append([run.name, f"{peak / 1e6:.0f} MB", f"{seconds * 1e3:.0f} ms", f"{run.losses[-1]:.6f}"])
    rows.append(["change", f"{peaks[1] / peaks[0] - 1:+.0%}", f"{times[1] / times[0] - 1:+.0%}", f"{difference:.1e}"])
    print(table(rows))
    n_parameters = sum(p.numel() for p in plain.model.parameters())
    print(
        f"\nGPT-2 with {n_parameters / 1e6:.1f} M parameters, {BATCH}x{LENGTH} bytes a step, fp32, AdamW, on {DEVICE}; "
        f"{arguments.steps} steps each. Last column: the largest difference in loss at any step."
    )
    figures = {
        "peak_plain": peaks[0],
        "peak_wrapped": peaks[1],
        "ms_plain": times[0] * 1e3,
        "ms_wrapped": times[1] * 1e3,
        "loss_difference": difference,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    return figures


if __name__ == "__main__":
    main()
