"""Peaks of many architectures on the CPU, predicted and measured by the tests' meter.

    python bench/predictions.py --out FILE.json [--only NAME]      needs tests/ecosystem/requirements.txt

For each architecture of tests/ecosystem/architectures.py, plain and with everything recomputed, the first and a steady
step with AdamW; for some of them also other optimizers, hooks and autocast inside of forward.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/ecosystem"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/python"))

import torch
import transformers

import torchvision_ops  # noqa: F401  (before transformers)
from architectures import ARCHITECTURES
from prediction_cases import Case, rows_of

SOME = ("deberta-v3", "qwen3", "bart", "clip", "swin", "timm-convnext", "wav2vec2")
OTHER_WAYS = (("plain", "sgd"), ("plain", "adafactor"), ("hooks", "sgd"), ("autocast inside", "sgd"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--only", help="architectures whose name contains this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    cases = [Case(name) for name in ARCHITECTURES] + [Case(name, *way) for name in SOME for way in OTHER_WAYS]
    rows, failures = _run([case for case in cases if not options.only or options.only in case.name])
    errors = sorted(abs(row["error"]) for row in rows)
    summary = {"rows": len(rows), "median": statistics.median(errors), "worst": errors[-1]} if errors else {}
    document = {"conditions": _conditions(), "summary": summary, "failures": failures, "rows": rows}
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(summary, failures)
    return 1 if failures else 0


def _run(cases: list[Case]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    rows, failures = [], {}
    for case in cases:
        name = f"{case.name}, {case.way}, {case.optimizer}"
        try:
            found = rows_of(case)
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}"[:200]
            continue
        for row in found:
            kind = "recomputed" if row.recomputed else "plain"
            figures = {"predicted": row.predicted, "measured": row.measured, "error": round(row.error, 5)}
            rows.append({"case": name, "units": kind, "step": row.step, "source": row.source, **figures})
        print(name, *(f"{row.error:+.2%}" for row in found), flush=True)
    return rows, failures


def _conditions() -> dict[str, Any]:
    names = ("torch", "transformers", "timm", "diffusers")
    versions = {name: importlib.metadata.version(name) for name in names}
    machine = {"python": platform.python_version(), "cpu": torch.backends.cpu.get_cpu_capability(), "threads": 1}
    return {**versions, **machine, "size": "cpu", "meter": "tests/python/meter.py"}


if __name__ == "__main__":
    sys.exit(main())
