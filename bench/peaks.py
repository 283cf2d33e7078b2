"""Measured peaks of training steps: what predictions are held to.

    python bench/peaks.py --out FILE [--only NAME] [--traces FOLDER]

For each model, precision, way (plain, every block recomputed), optimizer and batch: the allocator's peaks of the first
and of a steady step. With --traces also every allocation and release of one steady step.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch

import memscale
from memscale import _models
from memscale.plan import Plan

# name, batches (the second is used for no tuning), length
CASES = [
    ("gpt2-medium", (4, 6), 512),
    ("gpt2-xl", (1, 2), 512),
    ("bert-base", (16, 24), 128),
    ("bert-large", (16, 24), 128),
    ("llama-1b", (2, 1), 4096),
    ("t5-base", (8, 12), 256),
    ("vit-base", (32, 48), 0),
]
PRECISIONS = ("fp32", "bf16 autocast", "pure bf16")


def recompute_blocks(model: Any) -> None:
    """Wrap with a plan that recomputes the repeated blocks and nothing else."""
    config = memscale.Config(enable_logging=False)
    memscale.wrap(model, config)
    plan = json.loads(model._memscale_executor.plan.to_json())
    memscale.detach(model)
    for unit in plan["units"]:
        unit["action"] = "recompute" if unit["name"].rpartition(".")[2].isdigit() else "keep"
    memscale.wrap(model, config, plan=Plan.from_json(json.dumps(plan)))


def step(model: Any, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor], precision: str) -> None:
    with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16 autocast"):
        loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def forget() -> None:
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def events_of(run: Any, *arguments: Any) -> list[tuple[int, int, int]]:
    """(1 allocated or -1 freed, address, bytes) in order, while it runs with these arguments."""
    torch.cuda.memory._record_memory_history(context=None, max_entries=400000)
    run(*arguments)
    torch.cuda.synchronize()
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    kinds = {"alloc": 1, "free_completed": -1}
    found = [(kinds[e["action"]], e["addr"], e["size"]) for e in snapshot["device_traces"][0] if e["action"] in kinds]
    return found


def measure(name: str, batches: tuple[int, ...], length: int, traces: Path | None) -> list[dict[str, Any]]:
    rows = []
    for precision in PRECISIONS:
        dtype = torch.bfloat16 if precision == "pure bf16" else torch.float32
        for way in ("plain", "recompute"):
            torch.manual_seed(0)
            model: Any = _models.make_model(name, "cuda", dtype)
            if way == "recompute":
                recompute_blocks(model)
            for batch_size in batches:
                batch = _models.make_batch(model.config, batch_size, length, "cuda", dtype)
                for kind in ("foreach", "fused"):
                    options = {kind: True}
                    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, **options)
                    if rows == [] or way == "recompute":
                        step(model, optimizer, batch, precision)  # units are checked, kernels loaded
                        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, **options)
                    forget()
                    base = torch.cuda.memory_allocated()
                    start = time.perf_counter()
                    step(model, optimizer, batch, precision)
                    first = torch.cuda.max_memory_allocated()
                    torch.cuda.reset_peak_memory_stats()
                    reserved_first = torch.cuda.memory_reserved()
                    step(model, optimizer, batch, precision)
                    torch.cuda.reset_peak_memory_stats()
                    step(model, optimizer, batch, precision)
                    torch.cuda.synchronize()
                    row = {
                        "model": name,
                        "batch": batch_size,
                        "length": length,
                        "precision": precision,
                        "way": way,
                        "optimizer": kind,
                        "before_bytes": base,
                        "first_peak_bytes": first,
                        "peak_bytes": torch.cuda.max_memory_allocated(),
                        "between_bytes": torch.cuda.memory_allocated(),
                        "first_reserved_bytes": reserved_first,
                        "reserved_bytes": torch.cuda.max_memory_reserved(),
                        "seconds": round(time.perf_counter() - start, 3),
                    }
                    rows.append(row)
                    print(json.dumps(row), flush=True)
                    if traces is not None and batch_size == batches[0] and kind == "foreach":
                        events = events_of(step, model, optimizer, batch, precision)
                        path = traces / f"{name}-{precision.replace(' ', '_')}-{way}.json.gz"
                        path.write_bytes(gzip.compress(json.dumps(events).encode()))
                    del optimizer
                    model.zero_grad()
            if way == "recompute":
                memscale.detach(model)
            del model
            gc.collect()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, help="the rows, as JSON")
    parser.add_argument("--only", help="one model")
    parser.add_argument("--traces", help="a folder for the allocations of single steps")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("this needs a GPU", file=sys.stderr)
        return 1
    traces = Path(options.traces) if options.traces else None
    rows: list[dict[str, Any]] = []
    for name, batches, length in CASES:
        if options.only in (None, name):
            rows += measure(name, batches, length, traces)
            Path(options.out).write_text(json.dumps({"rows": rows}, indent=0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
