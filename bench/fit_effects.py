"""What actions really cost, next to what the simulator says: layer by layer, from measured steps.

    python bench/fit_effects.py [--repeats 5] [--only NAME] [--small] [--json FILE] [--minutes 2]

Each model is trained plain and with plans that are given: all blocks recomputed, with the one or the other kind of
results kept, their inputs or every third block offloaded. One step is read where layers begin for what is allocated
there, and some for the time, as the executor does when it checks a plan. For each action: the extra time of all blocks
against the plain step, measured and simulated; the factor that fits them best (least squares through the origin) with
its error, the median of what it misses, as a share of what was measured; and by how much allocated bytes differ from
the simulation at any boundary, as a share of the simulated peak. A factor of 1 says that the effect is right.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import re
import statistics
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

import memscale
from memscale import _core
from memscale._base.vocabulary import ACTIONS
from memscale._cli import model_registry
from memscale._run.measuring import GpuSource, Measurement, Row
from memscale.plans import Plan
from recompute import conditions, synchronize

NUMBERS = {action.identifier: action.number for action in ACTIONS}
WAYS: dict[str, Callable[[int], str]] = {
    "plain": lambda i: "keep",
    "recompute": lambda i: "recompute",
    "recompute_except_products": lambda i: "recompute_except_products",
    "recompute_except_attention": lambda i: "recompute_except_attention",
    "recompute_except_both": lambda i: "recompute_except_both",
    "recompute_offload": lambda i: "recompute_offload",
    "offload": lambda i: "keep" if i % 3 else "offload",
}
# name, batch, length, precision
CASES = [
    ("gpt2-medium", 8, 1024, "bf16 autocast"),
    ("gpt2-medium", 8, 512, "fp32"),
    ("bert-large", 24, 256, "bf16 autocast"),
    ("vit-base", 64, 0, "bf16 autocast"),
    ("llama-1b", 1, 2048, "bf16 autocast"),
]
SMALL = [("small GPT-2", 2, 128, "fp32"), ("small GPT-2", 4, 128, "fp32")]
_ANY = 1 << 60  # a margin in which every difference counts alike
N_WARM = 3  # steps: units are checked, kept results compared


class CpuMoment:
    def __init__(self) -> None:
        self.ns = time.perf_counter_ns()

    def elapsed_time(self, end: CpuMoment) -> float:
        return (end.ns - self.ns) / 1e6


def make(name: str) -> tuple[Any, Any]:
    """A model and its configuration."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    if name.startswith("small"):
        sizes = {"n_embd": 192, "n_layer": 6, "n_head": 4, "vocab_size": 512}
        model: Any = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, use_cache=False)).to(device).train()
    else:
        model = model_registry.make_model(name, device, torch.float32)
    return model, model.config


@dataclasses.dataclass
class Case:
    """A model in training, and its profile."""

    name: str
    model: Any
    batch: dict[str, torch.Tensor]
    precision: str
    device: str

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6, fused=True)
        half = "bf16" if self.precision == "bf16 autocast" else None
        self.profile = memscale.profile(self.model, self.batch, optimizer=self.optimizer, precision=half)
        self.plan = memscale.plan(self.model, self.batch).to_json()
        self.names = [unit.name for unit in self.profile.units]
        self.blocks = [name for name in self.names if name in self.profile.blocks]

    def step(self) -> None:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.precision == "bf16 autocast"):
            loss = self.model(**self.batch).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def actions(self, way: str) -> list[str]:
        of = WAYS[way]
        return [of(self.blocks.index(name)) if name in self.blocks else "keep" for name in self.names]

    def arguments(self, way: str) -> dict[str, Any]:
        """What the extension takes to simulate it."""
        flags = _core.SIMULATE_FUSED
        if self.profile.device.kind == "gpu":
            flags |= _core.SIMULATE_ALLOCATOR | _core.SIMULATE_GROWING
        numbers = array("i", [NUMBERS[action] for action in self.actions(way)])
        return {"actions": numbers.tobytes(), "flags": flags}

    def wrap(self, way: str) -> None:
        plan = json.loads(self.plan)
        schedule = self.profile.core.simulate(self.profile.device, **self.arguments(way))["schedule"]
        done = dict(zip(self.names, zip(self.actions(way), schedule)))
        for unit in plan["units"]:
            action, (leaves_after, fetched_before) = done[unit["name"]]
            unit |= {"action": action, "leaves_after": leaves_after, "fetched_before": fetched_before}
        config = memscale.Config(enable_logging=False)
        memscale.wrap(self.model, config, plan=Plan.from_json(json.dumps(plan)))


def read_step(case: Case, read: Callable[[], Any]) -> Measurement:
    """A step that is read at the boundaries of its units."""
    synchronize(case.device)
    measurement = Measurement(memscale.executor_of(case.model)._units, read)
    case.step()
    measurement.close()
    synchronize(case.device)
    if not measurement.is_whole:
        raise RuntimeError("the step was not measured as a whole")
    return measurement


def block_ns(case: Case, rows: list[Row], times: list[int]) -> dict[str, int]:
    """How long forward and backward of each block take; without those whose backward has no end here."""
    found = dict.fromkeys(case.blocks, 0)
    for at, (row, ns) in enumerate(zip(rows, times)):
        name = case.names[row.unit]
        if name not in found or row.boundary == _core.BOUNDARY_FORWARD_BEGINS:
            continue
        if row.boundary == _core.BOUNDARY_FORWARD_ENDS:
            found[name] += ns - times[at - 1]
        elif at + 1 < len(rows):
            found[name] += times[at + 1] - ns
        else:
            del found[name]
    return found


def measure(case: Case, way: str, repeats: int) -> dict[str, Any]:
    """A plan: what its blocks take, and what is allocated where they begin."""
    case.wrap(way)
    for _ in range(N_WARM):
        case.step()
    source = GpuSource(torch.device("cuda", torch.cuda.current_device())) if case.device == "cuda" else None
    first = read_step(case, source.allocated_bytes if source else lambda: 0)
    flat = [n for row in first.rows for n in (row.unit, row.boundary, row.value - first.start)]
    found = case.profile.core.compare(
        case.profile.device, array("q", flat).tobytes(), margin_bytes=_ANY, **case.arguments(way)
    )
    summary = case.profile.core.simulate(case.profile.device, **case.arguments(way))
    taken: list[dict[str, int]] = []
    for _ in range(repeats):
        timed = read_step(case, source.moment if source else CpuMoment)
        times = [round(1e6 * timed.start.elapsed_time(row.value)) for row in timed.rows]
        taken.append(block_ns(case, timed.rows, times))
    memscale.detach(case.model)
    if None in found["predicted"]:
        raise RuntimeError("a layer runs in another way than it was simulated")
    simulated = block_ns(case, first.rows, [ns for _, ns in found["predicted"]])
    return {
        "measured_ns": {name: round(statistics.median(t[name] for t in taken)) for name in taken[0]},
        "simulated_ns": simulated,
        "difference_bytes": found["difference_bytes"] if source else None,
        "worst": case.names[first.rows[found["worst"]].unit] if source else None,
        "peak_bytes": summary["steady_peak_bytes"],
    }


def run_case(name: str, batch: int, length: int, precision: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    model, config = make(name)
    device = next(model.parameters()).device.type
    inputs = model_registry.make_batch(config, batch, length, device, torch.float32)
    case = Case(f"{name} {batch}x{length}, {precision}", model, inputs, precision, device)
    found = {way: measure(case, way, options.repeats) for way in WAYS}
    rows = []
    for way, of_way in found.items():
        plain = found["plain"]
        blocks = [block for block in of_way["measured_ns"] if block in plain["measured_ns"]]
        extra = {
            kind: sum(of_way[kind][block] - plain[kind][block] for block in blocks)
            for kind in ("measured_ns", "simulated_ns")
        }
        row = {"case": case.name, "way": way, **{f"extra_{kind}": ns for kind, ns in extra.items()}, **of_way}
        row["plain_ns"] = sum(plain["measured_ns"][block] for block in blocks)
        rows.append(row)
        text = " and ".join(f"{ns / 1e6:.2f} ms {kind.removesuffix('_ns')}" for kind, ns in extra.items())
        print(f"{case.name}, {way}: {text}", file=sys.stderr, flush=True)
    return rows


def fit(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each action, the factor on its simulated extra time, and how far off bytes are."""
    fits = []
    for way in WAYS:
        mine = [row for row in rows if row["way"] == way]
        pairs = [(row["extra_simulated_ns"], row["extra_measured_ns"]) for row in mine]
        square = sum(p * p for p, _ in pairs)
        found: dict[str, Any] = {"way": way, "n": len(mine)}
        if square > 0:
            factor = sum(p * m for p, m in pairs) / square
            found["factor"] = round(factor, 3)
            found["error"] = round(statistics.median(abs(m - factor * p) / max(abs(m), 1) for p, m in pairs), 3)
            found["error_unfitted"] = round(statistics.median(abs(m - p) / max(abs(m), 1) for p, m in pairs), 3)
        shares = [row["difference_bytes"] / row["peak_bytes"] for row in mine if row["difference_bytes"] is not None]
        if shares:
            found["bytes_median"] = round(statistics.median(map(abs, shares)), 5)
            found["bytes_most"] = round(max(shares, key=abs), 5)
        fits.append(found)
    return fits


def table(fits: list[dict[str, Any]]) -> str:
    lines = [
        "| plan | steps | factor on time | error | without it | bytes: median | most |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in fits:
        cells = [row["way"].replace("_", " "), str(row["n"])]
        cells += [f"{row['factor']:.2f}" if "factor" in row else ""]
        cells += [f"{row[key]:.1%}" if key in row else "" for key in ("error", "error_unfitted")]
        cells += [f"{row['bytes_median']:.2%}" if "bytes_median" in row else ""]
        cells += [f"{row['bytes_most']:+.2%}" if "bytes_most" in row else ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def place_of(device: str) -> Path:
    """The file of a device's results."""
    name = re.sub(r"[^a-z0-9]+", "-", device.lower().replace("nvidia", "")).strip("-")
    return Path(__file__).parent / "results" / f"effects-{name}.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="steps that are timed of each plan (default: 5)")
    parser.add_argument("--small", action="store_true", help="two small models, to try the benchmark out on a CPU")
    parser.add_argument("--only", action="append", help="models whose names contain this; may be given several times")
    parser.add_argument("--json", type=Path, help="default: bench/results/effects-DEVICE.json, if there is a GPU")
    parser.add_argument("--minutes", type=float, default=2, help="no model is begun after so many")
    options = parser.parse_args()
    if not torch.cuda.is_available() and not options.small:
        print("this benchmark needs a GPU; --small tries it out on the CPU", file=sys.stderr)
        return 1
    deadline, rows = time.monotonic() + 60 * options.minutes, []
    for case in SMALL if options.small else CASES:
        if (options.only and not any(part in case[0] for part in options.only)) or time.monotonic() > deadline:
            continue
        rows += run_case(*case, options)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    fits, found = fit(rows), conditions() | {"repeats": str(options.repeats)}
    print(table(fits))
    path = options.json or (place_of(found["device"]) if "device" in found and not options.small else None)
    if path is not None:
        path.write_text(json.dumps({"conditions": found, "fits": fits, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
