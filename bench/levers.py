"""What all actions together are worth within a budget, next to recomputation alone and to checkpointing.

    python bench/levers.py --out FILE.json [--only NAME] [--budget GB] [--pairs 30] [--peers]   needs a GPU

For each model some budgets. First each budget alone: ``memscale.wrap(model, Config(memory_budget_gb=...,
async_offload=True))``, nothing else changed, and 20 steps: what torch's allocator reserved and allocated at most, what
was predicted, and whether it ran out of memory. Then the plans that were chosen, without the budgets, in steps that are
interleaved: all actions, recomputation alone (mode CONSERVATIVE within the same budget) and, with --peers, the plain
model and Hugging Face's checkpointing where the model has it. A ratio is the median of those of neighbours, with its
95 % interval. Each model runs in a process of its own; those that are timed run one at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from torch import nn

import memscale
from budgets import forget, registered
from memscale._cli import model_registry
from recompute import interval

transformers.logging.set_verbosity_error()

N_STEPS = 20
LOGGED = memscale.Config(enable_logging=False)
ROOMY = LOGGED.replace(memory_budget_gb=140)  # a plan that is given brings its budget, and here others train beside it


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, and its budgets in GB; none: four between what all actions reach and what the plain step needs."""

    make: Callable[[], tuple[nn.Module, dict[str, Any]]]
    budgets: tuple[float, ...] = ()
    fused: bool = True


def tokens(vocabulary: int, batch: int, length: int) -> dict[str, Any]:
    ids = torch.randint(0, vocabulary, (batch, length), device="cuda")
    return {"input_ids": ids, "labels": ids}


def gpt2_medium() -> tuple[nn.Module, dict[str, Any]]:
    sizes = {"n_embd": 1024, "n_layer": 24, "n_head": 16, "n_positions": 1024}
    config = transformers.GPT2Config(**sizes, use_cache=False)
    with torch.device("cuda"):
        model = transformers.GPT2LMHeadModel(config)
    return model, tokens(config.vocab_size, 16, 1024)


def mixture_of_experts() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.MixtralConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=1792,
        num_hidden_layers=12,
        num_attention_heads=16,
        num_key_value_heads=4,
        num_local_experts=4,
        num_experts_per_tok=2,
        use_cache=False,
    )
    with torch.device("cuda"):
        model = transformers.MixtralForCausalLM(config)
    return model, tokens(config.vocab_size, 8, 1024)


def lora_on_llama() -> tuple[nn.Module, dict[str, Any]]:
    import peft

    model: Any = model_registry.make_model("llama-1b", "cuda", torch.float32)
    config = peft.LoraConfig(r=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"])
    wrapped = peft.get_peft_model(model, config)
    return wrapped, tokens(model.config.vocab_size, 4, 1024)


class Denoiser(nn.Module):
    """A U-Net of diffusers with its loss."""

    def __init__(self) -> None:
        super().__init__()
        import diffusers

        self.unet = diffusers.UNet2DConditionModel(
            sample_size=64, block_out_channels=(320, 640, 1280), layers_per_block=2, cross_attention_dim=768,
            down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"), attention_head_dim=8,
        )  # fmt: skip

    def forward(self, sample: torch.Tensor, timestep: torch.Tensor, text: torch.Tensor, noise: torch.Tensor) -> Any:
        found = self.unet(sample, timestep, text).sample
        return transformers.utils.ModelOutput(loss=nn.functional.mse_loss(found.float(), noise))


def unet() -> tuple[nn.Module, dict[str, Any]]:
    with torch.device("cuda"):
        model = Denoiser()
        batch = {
            "sample": torch.randn(16, 4, 64, 64),
            "timestep": torch.randint(0, 1000, (16,)),
            "text": torch.randn(16, 77, 768),
            "noise": torch.randn(16, 4, 64, 64),
        }
    return model, batch


CASES = {
    "gpt2-medium 16x1024": Case(gpt2_medium, (13, 16, 20, 25, 30, 36, 42, 50)),
    "vit-large 128": Case(registered("vit-large", 128, 0)),
    "whisper-small 16": Case(registered("whisper-small", 16, 448)),
    "t5-base 32x512": Case(registered("t5-base", 32, 512)),
    "moe 8x1024": Case(mixture_of_experts),
    "lora on llama-1b 4x1024": Case(lora_on_llama),
    "unet 16x64x64": Case(unet),
}
SHARES = (0.05, 0.2, 0.45, 0.8)  # of the way from the least to the plain step


class Run:
    """A model that trains."""

    def __init__(self, case: Case, config: memscale.Config | None = None, plan: str = "", peer: bool = False) -> None:
        torch.manual_seed(0)
        self.model: Any
        self.model, self.batch = case.make()
        self.model.train()
        if peer:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if plan:
            memscale.wrap(self.model, ROOMY, plan=memscale.Plan.from_json(plan))
        elif config is not None:
            memscale.wrap(self.model, config)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-6, fused=case.fused)
        self.is_wrapped = bool(plan) or config is not None

    def step(self) -> float:
        """Its seconds."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        threads = contextlib.nullcontext() if self.is_wrapped else torch.autograd.set_multithreading_enabled(True)
        with threads:
            with torch.autocast("cuda", torch.bfloat16):
                loss = self.model(**self.batch).loss
            loss.backward()
            del loss
            self.optimizer.step()
            self.optimizer.zero_grad()
        torch.cuda.synchronize()
        return time.perf_counter() - start


def config_of(budget_gb: float, mode: str = "balanced") -> memscale.Config:
    asynchronous = {"async_offload": True} if mode != "conservative" else {}
    return memscale.Config(mode, memory_budget_gb=budget_gb, enable_logging=False, **asynchronous)


def within(case: Case, budget_gb: float, mode: str, n_steps: int = N_STEPS) -> dict[str, Any]:
    """Some steps within a budget."""
    forget()
    run, seconds, retries = Run(case, config_of(budget_gb, mode)), [], 0
    before = torch.cuda.memory_stats()
    row: dict[str, Any] = {"budget_bytes": round(budget_gb * 1e9), "mode": mode}
    executor = memscale.executor_of(run.model)
    grown = 0
    try:
        for step in range(n_steps):
            seconds.append(run.step())
            if step == 2:
                grown = executor._offloading.stats().get("n_grows", 0)
                retries = torch.cuda.memory_stats()["num_alloc_retries"]
                torch.cuda.reset_peak_memory_stats()
    except (torch.OutOfMemoryError, memscale.BudgetError) as error:
        row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"
    plan, after = executor.plan, torch.cuda.memory_stats()
    row |= {
        "ooms": after["num_ooms"] - before["num_ooms"],
        "retries_later": after["num_alloc_retries"] - retries if retries else 0,
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "allocated_bytes": torch.cuda.max_memory_allocated(),
    }
    if plan is not None:
        stats = executor._offloading.stats()
        row |= {
            "predicted_bytes": plan.predicted_peak_bytes,
            "predicted_slowdown": round(plan.predicted_slowdown, 4),
            "needed_bytes": plan.needed_bytes,
            "actions": "".join(memscale._base.vocabulary.ACTIONS[entry.action].letter for entry in plan.entries),
            "step_ms": round(1e3 * statistics.median(seconds[5:] or [0]), 1),
            "copied_bytes": stats.get("put_bytes", 0) // n_steps,
            "late": stats.get("n_late", 0) / n_steps,
            "refused": stats.get("n_refused", 0),
            "pool_grew_later": stats.get("n_grows", 0) - grown,
            "plan": plan.to_json(),
            "source": executor._planner.profile.source if executor._planner.profile else "",
        }
    memscale.detach(run.model)
    return row


def budgets_of(case: Case) -> tuple[float, ...]:
    if case.budgets:
        return case.budgets
    run = Run(case)
    predicted = memscale.predict(run.model, run.batch, optimizer=run.optimizer, precision="bf16")
    plain = predicted.needed_bytes
    try:
        memscale.plan(run.model, run.batch, optimizer=run.optimizer, config=config_of(0.01), precision="bf16")
        least = plain // 4
    except memscale.BudgetError as error:
        least = int(error.smallest_peak_bytes or 0)
    del run
    forget()
    return tuple(round((least + share * (plain - least)) * 1.04 / 1e9, 2) for share in SHARES)


def ratio_of(mine: list[float], theirs: list[float]) -> dict[str, float]:
    ratios = [a / b for a, b in zip(mine, theirs)]
    low, high = interval(ratios)
    return {"ratio": round(statistics.median(ratios), 4), "low": round(low, 4), "high": round(high, 4)}


def compare(case: Case, row: dict[str, Any], runs: dict[str, Run], pairs: int) -> None:
    """Steps of the plan with all actions, interleaved with those of the others."""
    forget()
    mine = {"all": Run(case, plan=row["plan"])}
    if row["recompute alone"].get("plan") and "error" not in row["recompute alone"]:
        mine["recompute"] = Run(case, plan=row["recompute alone"]["plan"])
    everybody = {**mine, **runs}
    times: dict[str, list[float]] = {name: [] for name in everybody}
    for _ in range(4):
        for run in mine.values():
            run.step()
    for i in range(pairs):
        names = list(everybody)
        for name in names if i % 2 else reversed(names):
            times[name].append(everybody[name].step())
    row["ms"] = {name: round(1e3 * statistics.median(found), 1) for name, found in times.items()}
    for name in everybody:
        if name != "all":
            row[f"of {name}"] = ratio_of(times["all"], times[name])
    for run in mine.values():
        memscale.detach(run.model)


def find_rows(name: str, budgets: list[float]) -> list[dict[str, Any]]:
    """Each budget alone."""
    case = CASES[name]
    rows = []
    for budget in budgets or budgets_of(case):
        alone = within(case, budget, "conservative", 4)
        rows.append({"model": name, **within(case, budget, "balanced"), "recompute alone": alone})
    return rows


def time_rows(rows: list[dict[str, Any]], pairs: int, peers: bool) -> list[dict[str, Any]]:
    """Their plans, interleaved. Two that do the same need no comparison."""
    case = CASES[rows[0]["model"]]
    runs = {}
    if peers:
        runs["plain"] = Run(case)
        if getattr(runs["plain"].model, "supports_gradient_checkpointing", False):  # of Hugging Face, and it has it
            runs["checkpointing"] = Run(case, peer=True)
    for run in runs.values():
        for _ in range(4):
            run.step()
    for row in rows:
        is_same = row.get("actions") == row["recompute alone"].get("actions")
        if row.get("plan") and "error" not in row and (peers or not is_same):
            compare(case, row, runs, pairs)
        for found in (row, row["recompute alone"]):
            found.pop("plan", None)
    return rows


def text_of(row: dict[str, Any]) -> str:
    if "predicted_bytes" not in row:
        return f"| {row['model']} | {row['budget_bytes'] / 1e9:.2f} | {row.get('error', '')}"
    figures = [f"{row[key] / 1e9:.3f}" for key in ("budget_bytes", "reserved_bytes", "allocated_bytes")]
    figures += [f"{row['predicted_bytes'] / row['allocated_bytes'] - 1:+.2%}", f"{1 + row['predicted_slowdown']:.3f}"]
    for name in ("plain", "checkpointing", "recompute"):
        found = row.get(f"of {name}")
        figures.append(f"{found['ratio']:.3f} ({found['low']:.3f} to {found['high']:.3f})" if found else "")
    faults = [row.get("error", "")] + ["over"] * (row["reserved_bytes"] > row["budget_bytes"])
    faults += [f"{row['ooms']} ooms"] * (row["ooms"] > 0) + [f"{row['late']} late"] * (row["late"] > 0)
    figures += [f"{row['copied_bytes'] / 1e9:.2f}", row["actions"], " ".join(faults)]
    return f"| {row['model']} | {' | '.join(figures)} |"


def run_child(task: str, options: argparse.Namespace, given: Any) -> Any:
    """The answer of a process of its own; None if it failed."""
    command = [sys.executable, __file__, "--child", task, "--pairs", str(options.pairs)]
    command += ["--peers"] * options.peers
    done = subprocess.run(command, input=json.dumps(given), stdout=subprocess.PIPE, text=True, check=False)
    with contextlib.suppress(ValueError, IndexError):
        return json.loads(done.stdout.splitlines()[-1])
    print(f"{task} failed with status {done.returncode}", file=sys.stderr)
    return None


def child(options: argparse.Namespace) -> None:
    given = json.loads(sys.stdin.read())
    answer = find_rows(*given) if options.child == "within" else time_rows(given, options.pairs, options.peers)
    print(json.dumps(answer))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the rows, as JSON")
    parser.add_argument("--only", action="append", help="models whose name contains this")
    parser.add_argument("--budget", type=float, action="append", default=[], help="these alone, in GB")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--peers", action="store_true", help="compare with the plain step and with checkpointing, too")
    parser.add_argument("--jobs", type=int, default=6, help="models whose budgets are tried at a time")
    parser.add_argument("--minutes", type=float, default=9, help="no model is timed after so many")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("this benchmark needs a GPU", file=sys.stderr)
        return 1
    if options.child:
        child(options)
        return 0
    conditions = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "memscale": memscale.__version__,
        "steps": N_STEPS,
        "pairs": options.pairs,
    }
    deadline = time.monotonic() + 60 * options.minutes
    names = [name for name in CASES if not options.only or any(part in name for part in options.only)]
    with ThreadPoolExecutor(options.jobs) as pool:
        answers = pool.map(lambda name: run_child("within", options, [name, options.budget]), names)
        found = [rows for rows in answers if rows]
    titles = "model budget reserved allocated error predicted plain checkpointing recompute copied actions faults"
    print(f"| {' | '.join(titles.split())} |")
    rows: list[dict[str, Any]] = []
    for untimed in found:
        timed = run_child("compare", options, untimed) if time.monotonic() < deadline else None
        for row in timed or untimed:
            for each in (row, row["recompute alone"]):
                each.pop("plan", None)
            rows.append(row)
            print(text_of(row), flush=True)
        if options.out:
            options.out.write_text(json.dumps({"conditions": conditions, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
