"""Long training with inputs of random sizes, recomputed, kept and offloaded: does anything grow, is anything left?

    python bench/long_run.py [--only NAME] [--steps 300] [--json FILE]

GPT-2 (lengths from 64 to 2048), the same with every block compiled, and vision-language models (random numbers of
images, their sizes, lengths of text), each in a process of its own: within a budget, in which plans change with the
sizes, and with a given mixture of all actions, in which something is offloaded at every size. Then the mixture with
inputs of one size, and with inputs that grow, so that host memory is taken in the middle of steps. The largest batch
comes twice, in the warm-up and in the middle of what follows.

After the warm-up nothing may grow: what is allocated and reserved after a step, the pool of host memory, objects of
Python, resident memory; what is reserved is at most 8 % more than what was allocated at most; no memory is pinned, by
MemScale's count and by those of ``outside.py`` (with inputs of one size: after the second step). The pool is empty
after the last step, after a forward without backward, and after exceptions in forward and in backward; after ``detach``
it is gone. On a CPU, where the models are smaller, resident memory and the pool are what there is to see.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import gc
import json
import logging
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/python"))

import torch
import transformers

import memscale
import outside
import zoo
from long_run_criteria import Case, criteria, table
from long_run_models import MODELS, Batch
from memscale import _core
from memscale._base.vocabulary import ACTIONS
from memscale._trace.model_modules import find_units
from memscale.plans import Plan
from offload import NUMBERS

MIXTURE = (
    "offload", "recompute_offload", "recompute", "keep", "recompute_except_attention", "offload_blocking",
    "recompute_except_products", "recompute_offload_blocking",
)  # fmt: skip


CASES = {
    "gpt2, budget": Case("gpt2", 0.3),
    "gpt2, tight budget": Case("gpt2", 0.08),
    "gpt2, mixture": Case("gpt2"),
    "gpt2 compiled, budget": Case("gpt2", 0.3, compiled=True),
    "gpt2 compiled, mixture": Case("gpt2", compiled=True),
    "llava, budget": Case("llava", 0.3),
    "llava, mixture": Case("llava"),
    "qwen2.5-vl, budget": Case("qwen2.5-vl", 0.3),
    "qwen2.5-vl, mixture": Case("qwen2.5-vl"),
    "gpt2, mixture, one size": Case("gpt2", sizes="fixed"),
    "gpt2, mixture, growing": Case("gpt2", sizes="growing"),
}


class InterruptError(Exception):
    """Raised in the middle of a step, to see what is left of it."""


class Run:
    """A model that trains."""

    def __init__(self, case: Case, device: str) -> None:
        torch.manual_seed(0)
        self.case, self.device = case, device
        self.kind = MODELS[case.model]
        self.sizes = self.kind.sizes[device]
        with torch.device(device):
            self.model: Any = self.kind.make(self.sizes).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=device == "cuda")
        self.chooser = random.Random(0)
        self.config = memscale.Config("balanced", async_offload=True)

    def batch(self, share: float | None = None) -> Batch:
        """A random one, or one of which all sizes are that share of their range."""
        made = self.kind.batch(self.sizes, self.chooser.random if share is None else lambda: share)
        return {key: tensor.to(self.device) for key, tensor in made.items()}

    def loss(self, batch: Batch) -> torch.Tensor:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            return self.model(**batch).loss

    def step(self, batch: Batch) -> None:
        self.loss(batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.device == "cuda":
            torch.cuda.synchronize()

    @property
    def precision(self) -> str:
        return "bf16" if self.device == "cuda" else "fp32"

    # Wrapping

    def wrap(self) -> dict[str, Any]:
        """Compile the blocks if they are to be, and wrap: what was asked for."""
        asked: dict[str, Any] = {}
        if self.case.share is None:
            plan = self.mixture()
        else:
            asked = self.budget(self.case.share)
            self.config = memscale.Config("balanced", async_offload=True, memory_budget_gb=asked["budget_bytes"] / 1e9)
        if self.case.compiled:
            torch._dynamo.config.recompile_limit = 64
            for name, module in self.model.named_modules():
                if name.rpartition(".")[2].isdigit() and name.startswith(self.kind.blocks):
                    module.compile(dynamic=True)
        memscale.wrap(self.model, self.config, plan=plan if self.case.share is None else None)
        return asked

    def budget(self, share: float) -> dict[str, Any]:
        """Between the least that the largest batch needs and what its plain step does. Where a step cannot be
        predicted, as a share of a plain step's measured peak."""
        batch, config = self.batch(1.0), dataclasses.replace(self.config, memory_budget_gb=1e-6)
        options: dict[str, Any] = {"optimizer": self.optimizer, "precision": self.precision}
        try:
            most = memscale.predict(self.model, batch, **options).needed_bytes
            memscale.plan(self.model, batch, config=config, **options)
            least = most
        except memscale.BudgetError as error:
            least = int(error.smallest_peak_bytes or 0)
        except memscale.MemScaleError:
            torch.cuda.reset_peak_memory_stats()
            self.step(batch)
            most, self.optimizer.state = torch.cuda.max_memory_allocated(), self.optimizer.state.__class__(dict)
            least = most // 2
            torch.cuda.empty_cache()
        budget = int(1.06 * (least + share * (most - least)))
        return {"least_bytes": least, "plain_bytes": most, "budget_bytes": budget}

    def mixture(self) -> Plan:
        """All actions in turn, on repeated layers, with copies in time for the largest batch if that can be known."""
        names = list(find_units(self.model))
        layers = [name for name in names if name.startswith(self.kind.blocks)]
        by_name = {name: MIXTURE[i % len(MIXTURE)] for i, name in enumerate(layers)}
        actions, schedule = [by_name.get(name, "keep") for name in names], None
        try:
            profile = memscale.profile(self.model, self.batch(1.0), optimizer=self.optimizer, precision=self.precision)
            packed = b"".join(NUMBERS[action].to_bytes(4, sys.byteorder) for action in actions)
            found = profile.core.simulate(profile.device, actions=packed, flags=_core.SIMULATE_FUSED)
            schedule = found["schedule"]
        except memscale.MemScaleError as error:
            print(f"  no schedule: {error}", flush=True)
        return zoo.plan_of(self.model, actions, schedule)

    # What is left of steps that do not end

    def leftovers(self, stats: Any) -> dict[str, int]:
        """Of the pool's bytes and groups: after the last step, a forward alone, an exception in forward and one in
        backward."""
        left = {}
        blocks = [m for name, m in self.model.named_modules() if name.startswith(self.kind.blocks)]
        last, middle = self.model.get_output_embeddings(), blocks[len(blocks) // 2]

        def raises(*_: Any) -> None:
            raise InterruptError

        def look(name: str) -> None:
            self.model.zero_grad()
            gc.collect()
            now = stats()
            left[name] = now.get("used_bytes", 0) + now.get("n_groups", 0) + now.get("n_pending", 0)

        look("after the last step")
        self.loss(self.batch())
        look("after a forward alone")
        hooks = {
            "after an exception in forward": last.register_forward_pre_hook,
            "after an exception in backward and another step": next(middle.parameters()).register_hook,
        }
        for name, register in hooks.items():
            hook = register(raises)
            try:
                self.loss(self.batch()).backward()
                raise RuntimeError(f"no exception was raised: {name}")
            except InterruptError:
                pass
            hook.remove()
            if "step" in name:  # torch's engine lets go of what it had not come to when the next backward runs
                self.step(self.batch())
            look(name)
        return left


class Log(logging.Handler):
    """Lines that MemScale logs."""

    def __init__(self) -> None:
        super().__init__()
        self.n_lines, self.warnings = 0, list[str]()
        logger = logging.getLogger("memscale")
        logger.addHandler(self)
        logger.setLevel(logging.INFO)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self.n_lines += 1
        if record.levelno >= logging.WARNING:
            self.warnings.append(record.getMessage()[:300])


def shares(case: Case, n_steps: int, warm: int) -> list[float | None]:
    """Of each step's batch; None: random."""
    if case.sizes == "fixed":
        return [0.5] * n_steps
    if case.sizes == "growing":
        return [i / (n_steps - 1) for i in range(n_steps)]
    found: list[float | None] = [None] * n_steps
    found[warm // 2] = found[(warm + n_steps) // 2] = 1.0
    return found


def counts(device: str) -> dict[str, int]:
    """Of torch's allocator, now."""
    if device != "cuda":
        return {}
    stats = torch.cuda.memory_stats()
    return {
        "allocated_bytes": torch.cuda.memory_allocated(),
        "reserved_bytes": torch.cuda.memory_reserved(),
        "retries": stats["num_alloc_retries"],
        "ooms": stats["num_ooms"],
    }


def at_rest(run: Run, pins: outside.Pins, stats: Any, log: Log) -> dict[str, Any]:
    """Everything that must not grow."""
    gc.collect()
    if run.device == "cpu":
        ctypes.CDLL(None).malloc_trim(0)
    n_objects, n_blocks = len(gc.get_objects()), sys.getallocatedblocks()
    found = {"objects": n_objects, "blocks": n_blocks, "log_lines": log.n_lines, "pool": stats(), **counts(run.device)}
    return {**found, "outside": outside.snapshot(pins)}


def train(run: Run, n_steps: int, warm: int, look: Any) -> dict[str, Any]:
    """The steps. `look` is called after the warm-up; in the row: what happened after it."""
    executor = memscale.executor_of(run.model)
    assert executor is not None
    seconds, peaks, held, plans, used = [], [0], [], set[str](), dict[str, int]()
    rest: dict[str, Any] = {}
    for i, share in enumerate(shares(run.case, n_steps, warm)):
        if i == warm:
            rest["warm"] = look()
        if run.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        batch, before = run.batch(share), executor._offloading.stats().get("put_bytes", 0)
        start = time.perf_counter()
        run.step(batch)
        seconds.append(time.perf_counter() - start)
        del batch
        if executor.plan is not None:
            plans.add(executor.plan.describe())
            done = {ACTIONS[entry.action].identifier for entry in executor.plan.entries}
            done |= {"copied"} if executor._offloading.stats().get("put_bytes", 0) > before else set()
            used |= {action: used.get(action, 0) + 1 for action in done}
        if i >= warm and run.device == "cuda":
            peaks.append(torch.cuda.max_memory_allocated())
            held.append(torch.cuda.memory_allocated())
        if i % 50 == 49:
            print(f"  step {i + 1}: {sum(seconds[-50:]):.1f} s, {executor.plan}", flush=True)
    return rest | {
        "end": look(),
        "steps": n_steps,
        "steps_with": used,
        "n_plans": len(plans),
        "median_ms": round(1e3 * statistics.median(seconds[warm:]), 1),
        "longest_ms": round(1e3 * max(seconds[warm:]), 1),
        "peak_bytes": max(peaks),
        "held_bytes": [min(held), max(held)] if held else [],
        "analyses": executor._planner.n_analyses,
        "profile": executor._planner.profile.source if executor._planner.profile else "",
    }


def measure(name: str, device: str, n_steps: int, cupti: bool) -> dict[str, Any]:
    case, log = CASES[name], Log()
    if device == "cpu":
        torch.set_num_threads(1)  # two that share cores with others wait for each other
        ctypes.CDLL(None).mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD: freed memory is the system's at once
    pins = outside.Pins(device == "cuda" and cupti)
    problems = outside.blind(pins)
    warm = 2 if case.sizes == "fixed" else n_steps // 5
    start = time.perf_counter()
    run = Run(case, device)
    row: dict[str, Any] = {"name": name, "blind": problems}
    mapped = outside.pinned_bytes(outside.snapshot(pins))["not forked"]
    row |= run.wrap()
    executor = memscale.executor_of(run.model)
    assert executor is not None
    row["wrap_seconds"] = round(time.perf_counter() - start, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        row |= train(run, n_steps, warm, lambda: at_rest(run, pins, executor._offloading.stats, log))
        row["left"] = run.leftovers(executor._offloading.stats)
        memscale.detach(run.model)
        row["left_after_detach"] = outside.pinned_bytes(outside.snapshot(pins))["not forked"] - mapped
    row["warnings"] = log.warnings + [str(w.message)[:300] for w in caught if issubclass(w.category, UserWarning)]
    row["log_lines"] = log.n_lines
    shots = (row["warm"]["outside"], row["end"]["outside"])
    row["pinned_later"] = outside.changes(*shots, problems) if case.sizes != "growing" else {}
    row["new_mappings"] = outside.new_mappings(*shots)
    pool = row["end"]["pool"].get("pool_bytes", 0)
    row["seen"] = {
        "pool_bytes": pool,
        "not_forked_bytes": outside.pinned_bytes(row["end"]["outside"])["not forked"] - mapped,
        "driver_bytes": [outside.pinned_bytes(row[at]["outside"])["driver"] for at in ("warm", "end")],
        "pinning_calls": row["end"]["outside"]["pinning_calls"],
        "n_grows": row["end"]["pool"].get("n_grows", 0),
    }
    row["criteria"] = {key: [value, ok] for key, (value, ok) in criteria(row, case).items()}
    for at in ("warm", "end"):
        del row[at]["outside"]["mappings"]
    row["seconds"] = round(time.perf_counter() - start, 1)
    return row


def conditions(device: str) -> dict[str, Any]:
    found = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "memscale": memscale.__version__,
        "device": torch.cuda.get_device_name(0) if device == "cuda" else "cpu",
        "precision": "bf16 autocast, fused AdamW" if device == "cuda" else "fp32, AdamW",
        "seed": 0,
        "sizes": {name: dataclasses.asdict(model.sizes[device]) for name, model in MODELS.items()},
    }
    return found


def run_alone(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """In a process of its own."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, __file__, "--one", name, "--json", file.name, "--steps", str(options.steps)]
        command += ["--device", options.device] + (["--no-cupti"] if options.no_cupti else [])
        print(f"{name}:", flush=True)
        code = subprocess.run(command, check=False).returncode
        text = Path(file.name).read_text()
    return json.loads(text) if code == 0 and text else {"name": name, "error": f"its process ended with status {code}"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", action="append", help="runs whose names contain this; may be given several times")
    parser.add_argument("--steps", type=int, default=300, help="of each run; the first fifth is the warm-up")
    parser.add_argument("--no-cupti", action="store_true", help="do not count calls of the driver")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.one:
        options.json.write_text(json.dumps(measure(options.one, options.device, options.steps, not options.no_cupti)))
        return 0
    rows: list[dict[str, Any]] = []
    for name in CASES:
        if options.only and not any(part in name for part in options.only):
            continue
        rows.append(run_alone(name, options))
        if options.json is not None:
            document = {"conditions": conditions(options.device), "rows": rows}
            options.json.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(conditions(options.device)))
    print(table(rows))
    return 0 if all("criteria" in row and all(ok for _, ok in row["criteria"].values()) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
