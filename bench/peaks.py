"""Peaks of training steps, predicted and measured.

    python bench/peaks.py --out FILE.json [--table FILE.md] [--only NAME]      needs a GPU
    python bench/peaks.py --from FILE.json --table FILE.md                     the table of an earlier run

For each model, precision, way (plain, every block recomputed), optimizer and batch: what memscale.profile predicts
before the step, and the peaks of torch's allocator for the first and for a steady step.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
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
from memscale.plans import Plan

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


def recompute_blocks(model: Any, sample: Any) -> None:
    """Wrap with a plan that recomputes the repeated blocks and nothing else."""
    config = memscale.Config(enable_logging=False)
    plan = json.loads(memscale.plan(model, sample).to_json())
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


def predict(model: Any, batch: dict[str, torch.Tensor], precision: str) -> memscale.Profile:
    """The profile of a step, before anything runs."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, foreach=True)
    return memscale.profile(
        model, batch, optimizer=optimizer, precision="bf16" if precision == "bf16 autocast" else None
    )


def measure_row(model: Any, batch: dict[str, torch.Tensor], precision: str, kind: str) -> dict[str, int]:
    """The allocator's peaks of a first, and of a steady step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, **{kind: True})
    forget()
    step(model, optimizer, batch, precision)
    first = torch.cuda.max_memory_allocated()
    step(model, optimizer, batch, precision)
    torch.cuda.reset_peak_memory_stats()
    step(model, optimizer, batch, precision)
    torch.cuda.synchronize()
    row = {
        "first_peak_bytes": first,
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
    }
    del optimizer
    model.zero_grad()
    return row


def measure(name: str, batches: tuple[int, ...], length: int) -> list[dict[str, Any]]:
    rows = []
    for precision in PRECISIONS:
        dtype = torch.bfloat16 if precision == "pure bf16" else torch.float32
        forget()
        torch.manual_seed(0)
        model: Any = _models.make_model(name, "cuda", dtype)
        started = time.perf_counter()
        samples = {b: _models.make_batch(model.config, b, length, "meta", dtype) for b in batches}
        profiles = {b: predict(model, samples[b], precision) for b in batches}
        seconds = (time.perf_counter() - started) / len(batches)
        for way in ("plain", "recompute"):
            if way == "recompute":
                recompute_blocks(model, samples[batches[0]])
            batch = _models.make_batch(model.config, batches[0], length, "cuda", dtype)
            step(model, torch.optim.SGD(model.parameters()), batch, precision)  # kernels load, units are checked
            for batch_size in batches:
                batch = _models.make_batch(model.config, batch_size, length, "cuda", dtype)
                for kind in ("foreach", "fused"):
                    measured = measure_row(model, batch, precision, kind)
                    profiles[batch_size].fused = kind == "fused"
                    predicted = profiles[batch_size].simulate("blocks" if way == "recompute" else ())
                    row = {
                        "model": name,
                        "batch": batch_size,
                        "length": length,
                        "precision": precision,
                        "way": way,
                        "optimizer": kind,
                        **measured,
                        "predicted_first_peak_bytes": predicted.first_peak_bytes,
                        "predicted_peak_bytes": predicted.steady_peak_bytes,
                        "predicted_reserved_bytes": predicted.reserved_bytes,
                        "held_out": batch_size != batches[0],
                        "profile_seconds": round(seconds, 2),
                    }
                    rows.append(row)
                    print(json.dumps(row), file=sys.stderr, flush=True)
        memscale.detach(model)
        del model, batch, profiles
        gc.collect()
    return rows


def error(row: dict[str, Any], what: str) -> float:
    return float(row[f"predicted_{what}"] / row[what] - 1)


def summary(rows: list[dict[str, Any]]) -> str:
    lines = []
    for what in ("peak_bytes", "first_peak_bytes", "reserved_bytes"):
        errors = [100 * error(row, what) for row in rows]
        sizes = [abs(e) for e in errors]
        lines.append(
            f"* {what}: median error {statistics.median(sizes):.2f} %, largest {max(sizes):.2f} %, "
            f"lowest {min(errors):+.2f} %, highest {max(errors):+.2f} % ({len(rows)} rows)"
        )
    return "\n".join(lines)


def table(rows: list[dict[str, Any]], conditions: dict[str, str]) -> str:
    lines = [json.dumps(conditions), "", summary(rows), ""]
    lines += ["| model | batch x length | precision | way | AdamW | predicted | measured | error | reserved | error |"]
    lines += ["|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        shape = f"{row['batch']}x{row['length']}" if row["length"] else str(row["batch"])
        lines.append(
            f"| {row['model']} | {shape} | {row['precision']} | {row['way']} | {row['optimizer']} "
            f"| {row['predicted_peak_bytes'] / 1e6:.1f} | {row['peak_bytes'] / 1e6:.1f} "
            f"| {100 * error(row, 'peak_bytes'):+.2f} % | {row['reserved_bytes'] / 1e6:.1f} "
            f"| {100 * error(row, 'reserved_bytes'):+.2f} % |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the rows, as JSON")
    parser.add_argument("--table", type=Path, help="write them as a table")
    parser.add_argument("--from", dest="source", type=Path, help="rows of an earlier run")
    parser.add_argument("--only", help="one model")
    options = parser.parse_args()
    if options.source:
        found = json.loads(options.source.read_text())
    elif not torch.cuda.is_available():
        print("this needs a GPU", file=sys.stderr)
        return 1
    else:
        transformers.logging.set_verbosity_error()
        found = {"conditions": conditions(), "rows": []}
        for name, batches, length in CASES:
            if options.only in (None, name):
                found["rows"] += measure(name, batches, length)
                if options.out:
                    options.out.write_text(json.dumps(found, indent=0))
    print(summary(found["rows"]))
    if options.table:
        options.table.write_text(table(found["rows"], found["conditions"]))
    return 0


def conditions() -> dict[str, str]:
    return {
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "memscale": memscale.__version__,
    }


if __name__ == "__main__":
    sys.exit(main())
