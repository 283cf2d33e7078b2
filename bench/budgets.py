"""Budgets, kept or not: many models, each within four budgets, in processes whose allocator is fragmented.

    python bench/budgets.py --out FILE.json [--table FILE.md] [--only NAME] [--minutes 11] [--jobs 8]     needs a GPU

For each model four budgets, from the least with which torch's allocator need not return memory in every step to what
the plain step needs; and a fifth one, the least of all, in which it has to. Before a model is built, tensors of many
sizes come and go, and some stay. Then ``memscale.wrap(model, Config(memory_budget_gb=...))``, nothing else changed, and
20 steps. A row has what torch's allocator reserved and allocated at most, how often it ran out of memory or had to
return memory first, how many recomputed layers could have been kept by the simulator, and what the driver counts for
the process beyond what torch reserved, next to that of an unwrapped run before.

Each model runs in a process of its own, several at a time. It can be stopped and started again: models that the file
has are not run twice, and after so many minutes no more are started.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import os
import platform
import random
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from torch import nn

import memscale
from memscale import _core
from memscale._base.vocabulary import ACTIONS
from memscale._cli import model_registry
from memscale._plan.request import Request

transformers.logging.set_verbosity_error()

SHARES = (0.0, 1 / 3, 2 / 3, 1.0)  # of the way from the least calm budget to that of the plain step
CRAMPED = -1.0  # the least budget of all
N_STEPS = 20
GRANULE = 20 << 20
DRIVER_GRANULE = 2 << 20  # what the driver counts is rounded
Batch = dict[str, torch.Tensor]


def tokens(model: Any, batch: int, length: int, vocabulary: int) -> Batch:
    ids = torch.randint(3, vocabulary, (batch, length), device="cuda")
    return {"input_ids": ids, "labels": ids.clone()}


def images(model: Any, batch: int, size: int) -> Batch:
    labels = torch.randint(0, 2, (batch,), device="cuda")
    return {"pixel_values": torch.randn(batch, 3, size, size, device="cuda"), "labels": labels}


def registered(name: str, batch: int, length: int) -> Callable[[], tuple[nn.Module, Batch]]:
    def make() -> tuple[nn.Module, Batch]:
        model: Any = model_registry.make_model(name, "cuda", torch.float32)
        return model, model_registry.make_batch(model.config, batch, length, "cuda", torch.float32)

    return make


def configured(
    config: str, model: str, batch_of: Callable[..., Batch], *sizes: int, **options: Any
) -> Callable[[], tuple[nn.Module, Batch]]:
    def make() -> tuple[nn.Module, Batch]:
        built = getattr(transformers, model)(getattr(transformers, config)(**options)).cuda()
        return built, batch_of(built, *sizes)

    return make


@dataclasses.dataclass(frozen=True)
class Case:
    make: Callable[[], tuple[nn.Module, Batch]]
    autocast: bool = True


_OPT_350M = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "ffn_dim": 4096,
    "word_embed_proj_dim": 512,
    "do_layer_norm_before": False,
}
_PYTHIA = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "vocab_size": 50304,
}
_DEBERTA = {"vocab_size": 128100, "relative_attention": True, "position_buckets": 256, "pos_att_type": ["p2c", "c2p"]}
_CONVNEXT = {"depths": [3, 3, 27, 3], "hidden_sizes": [128, 256, 512, 1024], "num_labels": 1000}
_GEMMA = {
    "hidden_size": 1152,
    "num_hidden_layers": 14,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 144,
    "intermediate_size": 4608,
    "vocab_size": 100000,
}

CASES: dict[str, Case] = {
    "gpt2-medium 4x1024": Case(registered("gpt2-medium", 4, 1024)),
    "llama-1b 1x2048": Case(registered("llama-1b", 1, 2048)),
    "bert-large 32x256": Case(registered("bert-large", 32, 256)),
    "t5-base 8x512": Case(registered("t5-base", 8, 512)),
    "opt-1.3b 2x1024": Case(registered("opt-1.3b", 2, 1024)),
    "whisper-small 8": Case(registered("whisper-small", 8, 448)),
    "vit-large 24": Case(registered("vit-large", 24, 0), autocast=False),
    "qwen-0.5b 4x1024": Case(registered("qwen-0.5b", 4, 1024)),
    "bart-base 16x512": Case(registered("bart-base", 16, 512)),
    "modernbert 16x512": Case(configured("ModernBertConfig", "ModernBertForMaskedLM", tokens, 16, 512, 50000)),
    "opt-350m 8x512": Case(configured("OPTConfig", "OPTForCausalLM", tokens, 8, 512, 50000, **_OPT_350M)),
    "pythia-410m 4x1024": Case(configured("GPTNeoXConfig", "GPTNeoXForCausalLM", tokens, 4, 1024, 50000, **_PYTHIA)),
    "deberta-v3 8x256": Case(
        configured("DebertaV2Config", "DebertaV2ForMaskedLM", tokens, 8, 256, 100000, **_DEBERTA), autocast=False
    ),
    "convnext-base 32": Case(
        configured("ConvNextConfig", "ConvNextForImageClassification", images, 32, 224, **_CONVNEXT), autocast=False
    ),
    "gemma2 4x1024": Case(configured("Gemma2Config", "Gemma2ForCausalLM", tokens, 4, 1024, 90000, **_GEMMA)),
}


class Run:
    """A model that trains, wrapped or not."""

    def __init__(self, case: Case, config: memscale.Config | None) -> None:
        torch.manual_seed(0)
        self.model: Any
        self.model, self.batch = case.make()
        self.model.train()
        self.autocast = case.autocast
        if config is not None:
            memscale.wrap(self.model, config)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6)

    def step(self) -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=self.autocast):
            loss = self.model(**self.batch).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def fragment() -> list[torch.Tensor]:
    """Work of before: tensors of many sizes come and go, and some of them stay."""
    draw = random.Random(0)
    sizes = [int(2 ** draw.uniform(9, 25.5)) for _ in range(400)]
    tensors = [torch.empty(n, dtype=torch.uint8, device="cuda") for n in sizes]
    return [tensor for tensor in tensors if tensor.numel() < 4 << 20 and draw.random() < 0.3]


def forget() -> None:
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def config_of(budget_bytes: float) -> memscale.Config:
    return memscale.Config(memory_budget_gb=budget_bytes / 1e9, enable_logging=False)


def budget_for(needed: float) -> int:
    """With the margin, and a little more: what is occupied varies."""
    return int((needed + (32 << 20)) * 64 / 63) + 1


def find_range(case: Case) -> dict[float, int]:
    """The budgets, by share."""
    run = Run(case, config_of(torch.cuda.get_device_properties(0).total_memory))
    run.step()
    planner = memscale.executor_of(run.model)._planner
    device, occupied = planner.request.device, planner.request.core.occupied_bytes
    memscale.detach(run.model)

    def plan(budget: float) -> memscale.Plan | None:
        try:
            return Request(config_of(budget), device, occupied_bytes=occupied).create(planner.profile)
        except memscale.BudgetError as error:
            smallest.append(int(error.smallest_peak_bytes or 0))
            return None

    smallest: list[int] = []
    plan(1e6)
    plain = planner.profile.predict(device=device).needed_bytes + occupied
    low, high = smallest[0] + occupied, plain
    while high - low > 4 << 20:  # the least that is not cramped
        middle = (low + high) // 2
        found = plan(middle * 64 / 63 + 1)
        low, high = (middle, high) if found is None or found.is_cramped else (low, middle)
    budgets = {share: budget_for(high + share * (plain - high)) for share in SHARES}
    return {CRAMPED: budget_for(smallest[0] + occupied), **budgets}


def could_keep(executor: Any) -> list[str]:
    """Recomputed layers of which each alone could be kept within the budget, by the simulator."""
    plan, planner = executor.plan, executor._planner
    usable = plan.budget_bytes - plan.margin_bytes - plan.occupied_bytes - GRANULE
    recompute = next(action.number for action in ACTIONS if action.identifier == "recompute")
    flags = _core.SIMULATE_ALLOCATOR | (_core.SIMULATE_GROWING if plan.grows else 0)
    chosen, names = [entry.action for entry in plan.entries], []
    for i, entry in enumerate(plan.entries):
        if entry.action != recompute:
            continue
        actions = array("i", [0 if k == i else action for k, action in enumerate(chosen)]).tobytes()
        record = planner.profile.core.simulate(planner.request.device, actions=actions, flags=flags)
        if record["needed_bytes"] <= usable:
            names.append(entry.name)
    return names


def train(case: Case, budget: int) -> dict[str, Any]:
    """20 steps within a budget."""
    forget()
    before = torch.cuda.memory_stats()
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    run = Run(case, config_of(budget))
    executor = memscale.executor_of(run.model)
    row: dict[str, Any] = {"budget_bytes": budget}
    started = time.perf_counter()
    retries = 0
    try:
        for i in range(N_STEPS):
            run.step()
            if i == 1:
                retries = torch.cuda.memory_stats()["num_alloc_retries"]
        torch.cuda.synchronize()
    except (torch.OutOfMemoryError, memscale.BudgetError) as error:
        row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"
    after = torch.cuda.memory_stats()
    plan = executor.plan
    row |= {
        "seconds": round(time.perf_counter() - started, 2),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "retries_first": (retries or after["num_alloc_retries"]) - before["num_alloc_retries"],
        "retries_later": after["num_alloc_retries"] - retries if retries else 0,
        "ooms": after["num_ooms"] - before["num_ooms"],
        "source": executor._planner.profile.source if executor._planner.profile else "",
    }
    if plan is not None:
        row |= {
            "occupied_bytes": plan.occupied_bytes,
            "needed_bytes": plan.needed_bytes,
            "predicted_reserved_bytes": plan.reserved_bytes,
            "predicted_bytes": plan.predicted_peak_bytes,
            "predicted_slowdown": plan.predicted_slowdown,
            "n_recomputed": plan.n_recomputed,
            "n_layers": len(plan.layers),
            "grows": plan.grows,
            "is_cramped": plan.is_cramped,
            "could_keep": could_keep(executor),
        }
    row["driver_beyond_bytes"] = driver_beyond()
    memscale.detach(run.model)
    row["settings_are_back"] = torch.cuda.memory._snapshot()["allocator_settings"] == settings
    return row


def driver_beyond() -> int | None:
    """What the driver counts for this process and torch has not reserved; None where it does not say."""
    command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    used = dict(line.split(", ") for line in listed.splitlines() if line.count(", ") == 1).get(str(os.getpid()), "")
    return (int(used) << 20) - torch.cuda.memory_reserved() if used.isdigit() else None


def measure(name: str) -> list[dict[str, Any]]:
    case = CASES[name]
    stays = fragment()
    run = Run(case, None)
    for _ in range(3):
        run.step()
    torch.cuda.synchronize()
    unwrapped = {"driver_beyond_unwrapped_bytes": driver_beyond()}
    del run
    forget()
    budgets = find_range(case)
    rows: list[dict[str, Any]] = []
    for share, budget in budgets.items():
        rows.append({"model": name, "share": round(share, 3), **train(case, budget), **unwrapped})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    del stays
    return rows


def verdict(row: dict[str, Any]) -> str:
    """What of the bars does not hold; "" if all do."""
    faults = []
    if "error" in row or row["ooms"] > 0:
        faults.append(row.get("error", f"{row['ooms']} times out of memory"))
    if row["reserved_bytes"] > row["budget_bytes"]:
        faults.append("over budget")
    if row["retries_later"] > 0 and not row.get("is_cramped"):
        faults.append(f"{row['retries_later']} retries")
    used = row["reserved_bytes"] / row["budget_bytes"]
    if row.get("n_recomputed") and used < 0.95 and row["could_keep"]:
        faults.append(f"{100 * used:.1f} % used, and {len(row['could_keep'])} layers could be kept")
    if (row["driver_beyond_bytes"] or 0) > (row["driver_beyond_unwrapped_bytes"] or 0) + DRIVER_GRANULE:
        faults.append("the driver counts more beyond torch's than for the unwrapped run")
    if not row["settings_are_back"]:
        faults.append("settings of the allocator changed")
    return "; ".join(faults)


def driver_text(row: dict[str, Any]) -> str:
    """What the driver counts beyond torch's, and that of the unwrapped run, in MB."""
    beyond, plain = row["driver_beyond_bytes"], row["driver_beyond_unwrapped_bytes"]
    return "" if beyond is None or plain is None else f"{beyond / 1e6:.0f} ({plain / 1e6:.0f})"


def table(rows: list[dict[str, Any]], conditions: dict[str, Any]) -> str:
    lines = [json.dumps(conditions), ""]
    lines += ["| model | budget | reserved | used | driver | allocated | predicted | error | recomputed | fault |"]
    lines += ["|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        predicted = row.get("predicted_bytes", 0)
        error = predicted / row["allocated_bytes"] - 1
        lines.append(
            f"| {row['model']} | {row['budget_bytes'] / 1e9:.3f} | {row['reserved_bytes'] / 1e9:.3f} "
            f"| {100 * row['reserved_bytes'] / row['budget_bytes']:.1f} % | {driver_text(row)} "
            f"| {row['allocated_bytes'] / 1e9:.3f} "
            f"| {predicted / 1e9:.3f} | {100 * error:+.2f} % | {row.get('n_recomputed')} of {row.get('n_layers')}"
            f"{', cramped' if row.get('is_cramped') else ''} "
            f"| {verdict(row)} |"
        )
    return "\n".join(lines) + "\n"


def conditions(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "memscale": memscale.__version__,
        "steps": N_STEPS,
        "processes at a time": options.jobs,
    }


def run_child(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one model, from a process of its own."""
    command = [sys.executable, __file__, "--child", name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    with contextlib.suppress(ValueError, IndexError):
        return list(json.loads(done.stdout.splitlines()[-1]))
    print(f"{name}: failed with status {done.returncode}", file=sys.stderr)
    return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the rows, as JSON; rows that it has are kept")
    parser.add_argument("--table", type=Path, help="write a table, as Markdown")
    parser.add_argument("--only", help="models whose name contains this")
    parser.add_argument("--minutes", type=float, default=11, help="no model is started after so many")
    parser.add_argument("--jobs", type=int, default=8, help="processes at a time")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("this benchmark needs a GPU", file=sys.stderr)
        return 1
    if options.child:
        print(json.dumps(measure(options.child)))
        return 0
    rows: list[dict[str, Any]] = []
    if options.out and options.out.exists():
        rows = json.loads(options.out.read_text())["rows"]
    known, deadline = {row["model"] for row in rows}, time.monotonic() + 60 * options.minutes
    names = [name for name in CASES if name not in known and (options.only or "") in name]

    def work(name: str) -> list[dict[str, Any]]:
        return run_child(name, options) if time.monotonic() < deadline else []

    with ThreadPoolExecutor(options.jobs) as pool:
        for found in pool.map(work, names):
            rows += found
            if options.out:
                text = json.dumps({"conditions": conditions(options), "rows": rows}, indent=1) + "\n"
                options.out.write_text(text)
    text = table(rows, conditions(options))
    if options.table:
        options.table.write_text(text)
    print(text)
    return 0 if len(rows) == (len(SHARES) + 1) * len(CASES) and not any(map(verdict, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
