"""How well peaks are predicted of plans with kept results and offloaded layers, on the CPU.

    python bench/predictions_actions.py --out FILE.json [--only MODEL]

The models of the tests (``tests/python/zoo.py``, LARGE), in fp32 and under autocast, with the mixtures of actions of
``tests/python/test_predict_actions.py``, measured by the tests' meter in the fifth step. The second step, in which kept
results are compared, is compared with what a plan would need.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/python"))

import torch
import transformers

import memscale
import zoo
from test_predict_actions import MIXTURES, N_STEPS, measure, simulate
from zoo import LARGE


def rows_of(name: str, precision: str) -> list[dict[str, Any]]:
    model, (args, kwargs) = LARGE.make(name), LARGE.batch_of(name)
    updater = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    known = memscale.profile(model, args or kwargs, optimizer=updater, loss=zoo.loss_of, precision=precision)
    del model, updater
    rows = []
    for mixture, actions in MIXTURES.items():
        predicted = simulate(known, actions)
        meter = measure(lambda: LARGE.make(name), lambda: LARGE.batch_of(name), actions, precision)
        steady, second = meter[f"step {N_STEPS - 1}"].peak, meter["step 1"].peak
        row = {"model": name, "precision": precision, "mixture": mixture, "peak_bytes": steady}
        row |= {"predicted_bytes": predicted["steady_peak_bytes"], "second_peak_bytes": second}
        row |= {"needed_bytes": predicted["needed_bytes"], "host_bytes": predicted["host_bytes"]}
        row["error"] = round(row["predicted_bytes"] / steady - 1, 5)
        rows.append(row)
        print(name, precision, mixture, f"{row['error']:+.3%}", flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", action="append", help="a model, by its name; may be given several times")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.only or LARGE.names
    rows = [row for name in names for precision in ("fp32", "bf16") for row in rows_of(name, precision)]
    conditions = {
        "device": platform.machine(),
        "threads": "1",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "memscale": memscale.__version__,
    }
    options.out.write_text(json.dumps({"conditions": conditions, "rows": rows}, indent=1))
    errors = sorted(abs(row["error"]) for row in rows)
    within = sum(error <= 0.02 for error in errors)
    print(f"{len(rows)} plans: median error {statistics.median(errors):.3%}, {within} within 2 %")
    print(f"lowest {min(row['error'] for row in rows):+.2%}, highest {max(row['error'] for row in rows):+.2%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
