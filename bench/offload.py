"""What it costs to keep activations in host memory, or some results, and what it saves, next to recomputing all.

    python bench/offload.py [--pairs 30] [--small] [--only WAY] [--json FILE]

GPT-2 medium, 16 x 1024 tokens, bf16 autocast, fused AdamW, with plans that are given. Steps are interleaved with those
of the plain model, and which of them goes first alternates; the figure is the median of the ratios of neighbours with
its 95 % interval. The peak is that of the wrapped model's steps, less what the plain model holds between its own.
Predicted are peak and step by the simulator, and their ratio to the plain step. Of the engine: bytes copied to the host
in a step, host memory, how often it grew after the second step, and how many groups were not foreseen.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import statistics
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import memscale
from memscale import _core
from memscale._base.vocabulary import ACTIONS
from memscale.plans import Plan
from recompute import Case, conditions, interval, synchronize

NUMBERS = {action.identifier: action.number for action in ACTIONS}


@dataclasses.dataclass(frozen=True)
class Way:
    """What is done to the n-th of so many blocks: an action."""

    of: Callable[[int, int], str]
    is_peers: bool = False  # torch's checkpointing


WAYS = {
    "torch's checkpointing": Way(lambda i, n: "keep", is_peers=True),
    "recompute": Way(lambda i, n: "recompute"),
    "recompute except products": Way(lambda i, n: "recompute_except_products"),
    "recompute except attention": Way(lambda i, n: "recompute_except_attention"),
    "recompute except both": Way(lambda i, n: "recompute_except_both"),
    "recompute, inputs offloaded": Way(lambda i, n: "recompute_offload"),
    "recompute, inputs offloaded, blocking": Way(lambda i, n: "recompute_offload_blocking"),
    "first third offloaded": Way(lambda i, n: "offload" if i < n // 3 else "keep"),
    "every third offloaded": Way(lambda i, n: "offload" if i % 3 == 0 else "keep"),
    "every third offloaded, others recomputed": Way(lambda i, n: "offload" if i % 3 == 0 else "recompute"),
    "every fourth offloaded, two recomputed": Way(lambda i, n: ("offload", "recompute", "keep", "recompute")[i % 4]),
    "every third offloaded, blocking": Way(lambda i, n: "offload_blocking" if i % 3 == 0 else "keep"),
}


def actions_of(names: list[str], way: Way) -> list[str]:
    """The action of each layer, by the names of all."""
    blocks = [name for name in names if name.startswith("transformer.h.")]
    return [way.of(blocks.index(name), len(blocks)) if name in blocks else "keep" for name in names]


def wrap(model: Any, way: Way, text: str, schedule: list[tuple[int, int]]) -> None:
    plan = json.loads(text)
    actions = actions_of([unit["name"] for unit in plan["units"]], way)
    for unit, action, (leaves_after, fetched_before) in zip(plan["units"], actions, schedule):
        unit |= {"action": action, "leaves_after": leaves_after, "fetched_before": fetched_before}
    memscale.wrap(model, memscale.Config(enable_logging=False), plan=Plan.from_json(json.dumps(plan)))


def predict(profile: Any, way: Way) -> dict[str, Any]:
    """By the simulator; and when what is offloaded leaves and comes back."""
    names = [row[0] for row in profile.core.units()]
    actions = array("i", [NUMBERS[action] for action in actions_of(names, way)]).tobytes()
    flags = _core.SIMULATE_FUSED
    if profile.device.kind == "gpu":
        flags |= _core.SIMULATE_ALLOCATOR | _core.SIMULATE_GROWING
    plain = profile.core.simulate(profile.device, flags=flags)
    found = profile.core.simulate(profile.device, actions=actions, flags=flags)
    return {
        "predicted_bytes": found["steady_peak_bytes"],
        "predicted_ratio": round(found["step_ns"] / plain["step_ns"], 3),
        "predicted_host_bytes": found["host_bytes"],
        "schedule": found["schedule"],
    }


def timed(case: Case, run: tuple[Any, Any], *, is_wrapped: bool) -> float:
    """A step. MemScale keeps backward on this thread while attached; the others have torch's default."""
    synchronize(case.device)
    start = time.perf_counter()
    with contextlib.nullcontext() if is_wrapped else torch.autograd.set_multithreading_enabled(True):
        case.step(*run)
    synchronize(case.device)
    return time.perf_counter() - start


def measure(
    case: Case, name: str, plain: tuple[Any, Any], plan: str, predicted: dict[str, Any], pairs: int
) -> dict[str, Any]:
    way, is_gpu = WAYS[name], case.device == "cuda"
    held = torch.cuda.memory_allocated() if is_gpu else 0
    model, optimizer = case.make("torch" if way.is_peers else "plain")
    start = time.perf_counter()
    if not way.is_peers:
        wrap(model, way, plan, predicted["schedule"])
    row: dict[str, Any] = {"way": name, "wrap_seconds": round(time.perf_counter() - start, 2)}
    executor, run = memscale.executor_of(model), (model, optimizer)
    for _ in range(3):
        timed(case, run, is_wrapped=not way.is_peers)
    if is_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        timed(case, run, is_wrapped=not way.is_peers)
        row["peak_bytes"] = torch.cuda.max_memory_allocated() - held
        row["reserved_bytes"] = torch.cuda.max_memory_reserved()
    before = executor._offloading.stats() if executor is not None else {}
    ratios, times = [], []
    for i in range(pairs):
        mine = timed(case, run, is_wrapped=not way.is_peers) if i % 2 else 0.0
        theirs = timed(case, plain, is_wrapped=False)
        mine = mine or timed(case, run, is_wrapped=not way.is_peers)
        ratios.append(mine / theirs)
        times.append(mine)
    low, high = interval(ratios)
    row |= {
        "ms": round(1e3 * statistics.median(times), 1),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_low": round(low, 3),
        "ratio_high": round(high, 3),
    }
    if before:
        after = executor._offloading.stats()
        row |= {
            "copied_bytes": (after["put_bytes"] - before["put_bytes"]) // pairs,
            "pool_bytes": after["pool_bytes"],
            "grew_later": after["n_grows"] - before["n_grows"],
            "late": (after["n_late"] - before["n_late"]) / pairs,
            "refused": after["n_refused"],
        }
    memscale.detach(model) if executor is not None else None
    return row


def text_of(row: dict[str, Any]) -> str:
    figures = [f"{row['ratio']:.3f} ({row['ratio_low']:.3f} to {row['ratio_high']:.3f})"]
    figures += [f"{row[key] / 1e9:.3f}" if key in row else "" for key in ("peak_bytes", "predicted_bytes")]
    figures += [f"{row['predicted_ratio']:.3f}" if "predicted_ratio" in row else ""]
    figures += [f"{row[key] / 1e9:.3f}" if key in row else "" for key in ("copied_bytes", "predicted_host_bytes")]
    return f"| {row['way']} | {' | '.join(figures)} | {row.get('late', '')} | {row.get('grew_later', '')} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=30, help="of steps (default: 30)")
    parser.add_argument("--small", action="store_true", help="a small stand-in, to try the benchmark out on a CPU")
    parser.add_argument("--only", action="append", help="ways whose names contain this; may be given several times")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not options.small:
        print("this benchmark needs a GPU; --small tries it out on the CPU", file=sys.stderr)
        return 1
    case = Case(*((2, 64) if options.small else (16, 1024)), "bf16 autocast", options.small, device)
    plain, batch = case.make("plain"), {"input_ids": case.tokens, "labels": case.tokens}
    profile = memscale.profile(plain[0], batch, optimizer=plain[1], precision="bf16")
    plan = memscale.plan(plain[0], batch).to_json()
    for _ in range(3):
        timed(case, plain, is_wrapped=False)
    rows = []
    print("| way | of the plain step | peak GB | predicted | predicted | copied GB | predicted | late | grew |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, way in WAYS.items():
        if options.only and not any(part in name for part in options.only):
            continue
        predicted = {} if way.is_peers else predict(profile, way)
        row = measure(case, name, plain, plan, predicted, options.pairs) | predicted
        rows.append(row)
        print(text_of(row), flush=True)
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
        if options.json:
            options.json.write_text(json.dumps({"conditions": conditions(), "case": case.name, "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
