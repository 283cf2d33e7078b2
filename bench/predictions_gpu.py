"""Peaks of many architectures on a GPU: predicted before they run, measured by torch's own statistics.

    python bench/predictions_gpu.py --out FILE.json [--part 1/2] [--minutes 11] [--only NAME] [--watched]

For each architecture of tests/ecosystem/architectures.py: plain and with everything recomputed, in fp32 and under
accelerate-like autocast inside of forward; for some also with hooks that change outputs, with accumulated gradients,
and with three optimizers. With --watched, the step is not analysed but watched while it runs. It can be stopped and
started again: cases that the file has are not run twice, and after so many minutes it ends by itself.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import gc
import importlib.metadata
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/ecosystem"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/python"))

import torch
import transformers
from torch import nn

import memscale
import torchvision_ops  # noqa: F401  (before transformers)
import zoo
from architectures import ARCHITECTURES, loss_of

SOME = ("deberta-v3", "qwen3", "bart", "clip", "swin", "timm-convnext", "wav2vec2")
DROPS_LAYERS = ("wav2vec2", "speech-to-text")  # at random: predicted is the largest step, and measured that of many
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "fused adamw": functools.partial(torch.optim.AdamW, fused=True),
    "sgd": functools.partial(torch.optim.SGD, lr=1e-4, momentum=0.9),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A way to train one architecture."""

    name: str
    way: str = "plain"  # or "autocast", "hooks", "accumulated"
    optimizer: str = "adamw"

    def __str__(self) -> str:
        return f"{self.name}, {self.way}, {self.optimizer}"


def all_cases() -> list[Case]:
    cases = [Case(name, way) for name in ARCHITECTURES for way in ("plain", "autocast")]
    cases += [Case(name, way) for name in SOME for way in ("hooks", "accumulated")]
    return cases + [Case(name, "plain", optimizer) for name in SOME for optimizer in ("fused adamw", "sgd")]


def build(case: Case) -> nn.Module:
    model = ARCHITECTURES[case.name].build("gpu").cuda()
    if case.way == "autocast":
        plain = model.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast("cuda", torch.bfloat16):
                return plain(*args, **kwargs)

        model.forward = forward  # type: ignore[method-assign]
    if case.way == "hooks":
        for module in list(model.modules()):
            if isinstance(module, nn.Linear) and module.out_features >= 64:
                module.register_forward_hook(lambda m, a, output: output + output.detach().tanh() * 0.1)
    return model


def batch_of(case: Case) -> tuple[Any, Any]:
    args, kwargs = ARCHITECTURES[case.name].batch_of("gpu")
    return tuple(_moved(value) for value in args), {name: _moved(value) for name, value in kwargs.items()}


def _moved(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cuda()
    if isinstance(value, list):
        return [_moved(item) for item in value]
    return {name: _moved(item) for name, item in value.items()} if isinstance(value, dict) else value


@contextlib.contextmanager
def fresh() -> Iterator[None]:
    """Nothing of the case before is left on the device."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    yield
    gc.collect()
    torch.cuda.empty_cache()


def train(case: Case, model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer, n_steps: int) -> None:
    args, kwargs = batch
    for _ in range(n_steps):
        for _ in range(2 if case.way == "accumulated" else 1):
            loss = loss_of(model(*args, **kwargs))
            loss.backward()
            del loss
        optimizer.step()
        optimizer.zero_grad()


def measure(case: Case, *, recomputed: bool) -> dict[str, int]:
    """The peaks of a steady step."""
    with fresh():
        before = torch.cuda.memory_allocated()
        model, batch = build(case), batch_of(case)
        if recomputed:
            zoo.everything_recomputed(model)
            loss_of(model(*batch[0], **batch[1])).backward()  # units are checked in their first run
            model.zero_grad()
            torch.cuda.empty_cache()
        optimizer = OPTIMIZERS[case.optimizer]([p for p in model.parameters() if p.requires_grad])
        train(case, model, batch, optimizer, 2)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        train(case, model, batch, optimizer, 16 if case.name in DROPS_LAYERS else 1)
        peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        if recomputed:
            memscale.detach(model)
        del model, batch, optimizer
    before = min(before, torch.cuda.memory_allocated())  # something of the case before may have died since
    return {"allocated": peak - before, "reserved": reserved}


def analyse(case: Case) -> memscale.Profile:
    """Before anything runs."""
    model, (args, kwargs) = build(case), batch_of(case)
    optimizer = OPTIMIZERS[case.optimizer]([p for p in model.parameters() if p.requires_grad])
    return memscale.profile(model, args or kwargs, optimizer=optimizer, loss=loss_of)


def watch(case: Case) -> memscale.Profile:
    """From a real step, or from the largest of many."""
    model, batch = build(case), batch_of(case)
    optimizer = OPTIMIZERS[case.optimizer]([p for p in model.parameters() if p.requires_grad])
    config = memscale.Config("aggressive", force_optimize=True, enable_logging=False, use_static_profiling=False)
    memscale.wrap(model, config)
    train(case, model, batch, optimizer, 16 if case.name in DROPS_LAYERS else 2)
    profile: memscale.Profile = model._memscale_executor._planner.profile
    memscale.detach(model)
    return profile


def rows_of(case: Case, *, watched: bool) -> list[dict[str, Any]]:
    with fresh():
        start = time.perf_counter()
        known = watch(case) if watched else analyse(case)
        seconds = time.perf_counter() - start
    rows = []
    for recomputed in (False, True):
        predicted = known.simulate("all" if recomputed else (), keep_gradients=case.way == "accumulated")
        measured = measure(case, recomputed=recomputed)
        row = {"case": str(case), "units": "recomputed" if recomputed else "plain", "source": known.source}
        row |= {"seconds": round(seconds, 2), "why": known.why_empirical[:120]}
        for name, figure in (("allocated", predicted.steady_peak_bytes), ("reserved", predicted.reserved_bytes)):
            error = round(figure / measured[name] - 1, 5)
            row |= {f"predicted_{name}": figure, f"measured_{name}": measured[name], f"{name}_error": error}
        rows.append(row)
    return rows


def summary_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"rows": len(rows)}
    for name in ("allocated", "reserved") if rows else ():
        errors = sorted((abs(row[f"{name}_error"]), row["case"], row["units"]) for row in rows)
        found[f"{name}_median"] = statistics.median(error for error, *_ in errors)
        found[f"{name}_worst"] = errors[-1]
    return found


def conditions() -> dict[str, Any]:
    versions = {}
    for name in ("torch", "transformers", "timm", "diffusers"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {**versions, "gpu": torch.cuda.get_device_name(), "size": "gpu", "step": "third or later"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--part", default="1/1", help="such as 2/3: every third case, beginning with the second")
    parser.add_argument("--minutes", type=float, default=11)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--watched", action="store_true")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    part, n_parts = (int(n) for n in options.part.split("/"))
    known = json.loads(options.out.read_text()) if options.out.exists() else {"rows": [], "failures": {}}
    done = {row["case"] for row in known["rows"]} | set(known["failures"])
    cases = [case for case in all_cases()[part - 1 :: n_parts] if options.only in str(case) and str(case) not in done]
    deadline = time.monotonic() + 60 * options.minutes
    for case in cases:
        if time.monotonic() > deadline:
            break
        try:
            rows = rows_of(case, watched=options.watched)
        except Exception as error:
            known["failures"][str(case)] = f"{type(error).__name__}: {error}"[:300]
            print(case, "FAILED", known["failures"][str(case)], flush=True)
            rows = []
        known["rows"] += rows
        for row in rows:
            print(
                f"{row['case']}, {row['units']}: {row['allocated_error']:+.3%} {row['reserved_error']:+.2%}", flush=True
            )
        document = {"conditions": conditions(), "summary": summary_of(known["rows"]), **known}
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(summary_of(known["rows"])), known["failures"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
