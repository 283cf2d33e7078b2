"""What MemScale adds to training with inputs of varying sizes, where nothing is to be done.

    python bench/varying_sizes.py [--device cuda] [--steps 300] [--json FILE]

T5 with two lengths, images of any height and width, and graphs of any numbers of nodes and edges. A plain and a wrapped
model take turns on the same batches, and which of them goes first alternates. The first step, which has the analysis,
does not count. The bar: the wrapped model takes at most 3 % longer, and analyses after the first take at most 2 %.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/python"))

import torch
import transformers

import memscale
import varying
import zoo

BAR = 1.03
CASES = {
    "cpu": {
        "t5": varying.Case(lambda: varying.t5(128, 3), varying.sequences, 96),
        "images": varying.Case(lambda: varying.Pictures(32, 4).train(), varying.pictures, 128),
        "graphs": varying.Case(lambda: varying.Graphs(64, 4).train(), varying.graphs, 2400),
    },
    "cuda": {
        "t5": varying.Case(lambda: varying.t5(512, 6), lambda *a: varying.sequences(*a, batch=16), 512),
        "images": varying.Case(
            lambda: varying.Pictures(64, 12).train(), lambda *a: varying.pictures(*a, batch=16), 320
        ),
        "graphs": varying.Case(lambda: varying.Graphs(256, 8).train(), varying.graphs, 12000),
    },
}


class Side:
    """One of the two models, and how long its steps took."""

    def __init__(self, case: varying.Case, device: str) -> None:
        torch.manual_seed(0)
        self.model = case.make().to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.seconds: list[float] = []

    def step(self, batch: varying.Batch, device: str) -> None:
        synchronize(device)
        start = time.perf_counter()
        zoo.loss_of(self.model(**batch)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        synchronize(device)
        self.seconds.append(time.perf_counter() - start)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure(case: varying.Case, device: str, n_steps: int) -> dict[str, Any]:
    """Both models on the same batches."""
    plain, wrapped = Side(case, device), Side(case, device)
    memscale.wrap(wrapped.model, memscale.Config(enable_logging=False))
    chooser = random.Random(0)
    for i in range(n_steps + 1):
        batch = {key: tensor.to(device) for key, tensor in case.batch(chooser, case.largest).items()}
        for side in (plain, wrapped) if i % 2 else (wrapped, plain):
            side.step(batch, device)
    executor = memscale.executor_of(wrapped.model)
    assert executor is not None
    planner, description = executor._planner, executor.plan.describe() if executor.plan is not None else ""
    memscale.detach(wrapped.model)
    totals = [sum(side.seconds[1:]) for side in (plain, wrapped)]
    pairs = [b / a for a, b in zip(plain.seconds[1:], wrapped.seconds[1:])]
    return {
        "plan": description,
        "first_step_s": round(wrapped.seconds[0], 4),
        "plain_s": round(totals[0], 4),
        "wrapped_s": round(totals[1], 4),
        "ratio": round(totals[1] / totals[0], 4),
        "median_ratio": round(statistics.median(pairs), 4),
        "analyses_after_the_first": planner.n_analyses,
        "analysed_share": round(planner.analysed_ns / 1e9 / totals[1], 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=CASES, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    cases = CASES[options.device]
    for case in cases.values():
        measure(case, options.device, 2)  # kernels load, modules are imported
    rows = {name: measure(case, options.device, options.steps) for name, case in cases.items()}
    conditions = {"device": options.device, "torch": torch.__version__, "steps": options.steps}
    if options.device == "cuda":
        conditions["gpu"] = torch.cuda.get_device_name()
    for name, row in rows.items():
        print(name, json.dumps(row))
    if options.json is not None:
        options.json.write_text(json.dumps({"conditions": conditions, "rows": rows}, indent=1) + "\n")
    return 0 if all(row["ratio"] <= BAR for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
