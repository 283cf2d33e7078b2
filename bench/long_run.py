"""Long training with inputs of random sizes, recomputed, kept and offloaded: does anything grow, is anything left?

    python bench/long_run.py [--only NAME | --slice NAME] [--steps 300] [--json FILE]
    python bench/long_run.py --merge FILE... --json FILE

GPT-2 (lengths from 64 to 2048), the same with every block compiled, and vision-language models (random numbers of
images, their sizes, lengths of text), each in a process of its own: within a budget, in which plans change with the
sizes; with a plan that was saved and is given; and with a given mixture of all actions, in which something is offloaded
at every size. Then the mixture with inputs of one size, and with inputs that grow, so that host memory is taken in the
middle of steps. The largest batch comes twice, in the warm-up and in the middle of what follows. The same training
without MemScale is measured beside them.

After the warm-up nothing may grow: what is allocated and reserved after a step, the pool of host memory, objects of
Python, resident memory (beyond what it grows by without MemScale); what is reserved is at most 8 % more than what was
allocated at most; no memory is pinned, by MemScale's count and by those of ``outside.py`` (with inputs of one size:
after the second step). A mixture is nobody's plan: it may need more than that by its simulation, and does without a
budget where its step cannot be simulated; then what it may reserve is that, or what is reserved without MemScale.

The pool is empty after the last step, after a forward without backward, and after exceptions in forward and in
backward; after ``detach`` it is gone. On a CPU, where the models are smaller, resident memory and the pool are what
there is to see. ``--slice`` runs a few that take 200 seconds together on an H200; ``--merge`` puts files together.
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
from long_run_criteria import CASES, SLICES, Case, beside_plain, criteria, growth_table, table
from long_run_mixture import mixture, saved_plan
from long_run_models import MODELS, Batch
from long_run_watch import Watch, counts
from memscale._base.vocabulary import ACTIONS
from memscale.plans import Plan


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

    def prepare(self) -> dict[str, Any]:
        """Compile the blocks if they are to be, and wrap, if that is wanted: what was asked for."""
        torch.backends.cuda.enable_cudnn_sdp(self.case.cudnn)
        asked, config = self.budget(self.case.share), self.config
        plan = self.given(asked.get("budget_bytes"))
        if plan is not None and plan.has_budget:
            asked |= {key: getattr(plan, key) for key in ("budget_bytes", "needed_bytes", "predicted_peak_bytes")}
        elif asked:
            config = self.config.replace(memory_budget_gb=asked["budget_bytes"] / 1e9)
        if self.case.compiled:
            torch._dynamo.config.recompile_limit = 64
            for name, module in self.model.named_modules():
                if name.rpartition(".")[2].isdigit() and name.startswith(self.kind.blocks):
                    module.compile(dynamic=True)
        if not self.case.plain:
            memscale.wrap(self.model, config, plan=plan)
        return asked

    @property
    def known(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer, "precision": self.precision}

    @property
    def executor(self) -> Any:
        return memscale.executor_of(self.model)

    def stats(self) -> dict[str, int]:
        """Of the offload engine; empty if there is none."""
        return {} if self.executor is None else self.executor._offloading.stats()

    def budget(self, share: float | None) -> dict[str, Any]:
        """Between the least that the largest batch needs and what its plain step does. Where a step cannot be
        predicted, as a share of a plain step's measured peak. Empty if there is none."""
        if share is None:
            return {}
        batch, config = self.batch(1.0), dataclasses.replace(self.config, memory_budget_gb=1e-6)
        try:
            most = memscale.predict(self.model, batch, **self.known).needed_bytes
            memscale.plan(self.model, batch, config=config, **self.known)
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

    def given(self, budget_bytes: int | None) -> Plan | None:
        """The plan that is given; its budget holds. Compiled blocks need less than is predicted: they get none."""
        if not self.case.given:
            return None
        batch = self.batch(1.0)
        if budget_bytes is None:
            is_bounded = not self.case.compiled
            return mixture(self.model, batch, self.kind.blocks, self.config, is_bounded=is_bounded, **self.known)
        config = self.config.replace(memory_budget_gb=budget_bytes / 1e9)
        return saved_plan(self.model, batch, config, **self.known)

    # What is left of steps that do not end

    def leftovers(self) -> dict[str, int]:
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
            now = self.stats()
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


def at_rest(run: Run, pins: outside.Pins, log: Log) -> dict[str, Any]:
    """Everything that must not grow."""
    gc.collect()
    if run.device == "cpu":
        ctypes.CDLL(None).malloc_trim(0)
    n_objects, n_blocks = len(gc.get_objects()), sys.getallocatedblocks()
    found = {"objects": n_objects, "blocks": n_blocks, "log_lines": log.n_lines, "pool": run.stats()}
    return {**found, **counts(run.device), "outside": outside.snapshot(pins)}


class Training:
    """The steps, and what was seen of them."""

    def __init__(self, run: Run, n_steps: int) -> None:
        self.run, self.watch = run, Watch(run.device, n_steps)
        self.seconds: list[float] = []
        self.peaks, self.held, self.plans, self.used = [0], list[int](), set[str](), dict[str, int]()

    def step(self, i: int, share: float | None, *, is_warm: bool) -> None:
        run, cuda = self.run, self.run.device == "cuda"
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        batch, before = run.batch(share), run.stats().get("put_bytes", 0)
        self.watch.begin(batch)
        start = time.perf_counter()
        run.step(batch)
        self.seconds.append(time.perf_counter() - start)
        del batch
        self.watch.end(i, run.executor, is_warm=is_warm)
        if run.executor is not None and run.executor.plan is not None:
            self._count(run.executor.plan, has_copied=run.stats().get("put_bytes", 0) > before)
        if is_warm and cuda:
            self.peaks.append(torch.cuda.max_memory_allocated())
            self.held.append(torch.cuda.memory_allocated())
        if i % 50 == 49:
            plan = "" if run.executor is None else f", {run.executor.plan}"
            print(f"  step {i + 1}: {sum(self.seconds[-50:]):.1f} s{plan}", flush=True)

    def _count(self, plan: Plan, *, has_copied: bool) -> None:
        self.plans.add(plan.describe())
        done = {ACTIONS[entry.action].identifier for entry in plan.entries}
        done |= {"copied"} if has_copied else set()
        self.used |= {action: self.used.get(action, 0) + 1 for action in done}

    def row(self, warm: int) -> dict[str, Any]:
        planner = None if self.run.executor is None else self.run.executor._planner
        profile = None if planner is None else planner.profile
        return {
            "steps": len(self.seconds),
            "steps_with": self.used,
            "n_plans": len(self.plans),
            "median_ms": round(1e3 * statistics.median(self.seconds[warm:]), 1),
            "longest_ms": round(1e3 * max(self.seconds[warm:]), 1),
            "peak_bytes": max(self.peaks),
            "held_bytes": [min(self.held), max(self.held)] if self.held else [],
            "analyses": 0 if planner is None else planner.n_analyses,
            "profile": "" if profile is None else profile.source,
            "resident": self.watch.resident,
            "growth": self.watch.growth,
            "retried": self.watch.retried,
        }


def train(run: Run, n_steps: int, warm: int, until: float, look: Any) -> dict[str, Any]:
    """The steps, not after `until`. `look` is called after the warm-up and at the end. Then some of the steps after
    the warm-up once more: what grows with every new size does not grow in these."""
    training, rest, drawn = Training(run, n_steps), dict[str, Any](), run.chooser.getstate()
    all_shares = shares(run.case, n_steps, warm)
    for i, share in enumerate(all_shares):
        if i == warm:
            rest["warm"], drawn = look(), run.chooser.getstate()
        if i > warm and time.perf_counter() > until:
            break
        training.step(i, share, is_warm=i >= warm)
    rest |= {"end": look(), **training.row(warm)}
    if run.case.sizes == "random":
        run.chooser.setstate(drawn)
        n_done = rest["steps"]
        for i in range(warm, min(n_done, warm + n_steps // 6)):
            training.step(n_done + i, all_shares[i], is_warm=True)
    return rest


def measure(name: str, device: str, n_steps: int, cupti: bool, seconds: float) -> dict[str, Any]:
    case, log = CASES[name], Log()
    if device == "cpu":
        torch.set_num_threads(1)  # two that share cores with others wait for each other
        ctypes.CDLL(None).mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD: freed memory is the system's at once
    pins = outside.Pins(device == "cuda" and cupti)
    problems = outside.blind(pins)
    warm = 2 if case.sizes == "fixed" else n_steps // 5
    start = time.perf_counter()
    run = Run(case, device)
    row: dict[str, Any] = {"name": name, "wanted_steps": n_steps, "blind": problems}
    mapped = outside.pinned_bytes(outside.snapshot(pins))["not forked"]
    row |= run.prepare()
    row["wrap_seconds"] = round(time.perf_counter() - start, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        row |= train(run, n_steps, warm, start + seconds, lambda: at_rest(run, pins, log))
        if not case.plain:
            row["left"] = run.leftovers()
            memscale.detach(run.model)
            row["left_after_detach"] = outside.pinned_bytes(outside.snapshot(pins))["not forked"] - mapped
    row["warnings"] = log.warnings + [str(w.message)[:300] for w in caught if issubclass(w.category, UserWarning)]
    row["log_lines"] = log.n_lines
    row |= seen_outside(row, case, mapped, problems)
    row["criteria"] = {key: [value, ok] for key, (value, ok) in criteria(row, case).items()}
    for at in ("warm", "end"):
        del row[at]["outside"]["mappings"]
    row["seconds"] = round(time.perf_counter() - start, 1)
    return row


def seen_outside(row: dict[str, Any], case: Case, mapped: int, problems: dict[str, str]) -> dict[str, Any]:
    """Of a row: what was pinned and mapped after the warm-up, by those who are not MemScale."""
    shots = (row["warm"]["outside"], row["end"]["outside"])
    return {
        "pinned_later": outside.changes(*shots, problems) if case.sizes != "growing" else {},
        "new_mappings": outside.new_mappings(*shots),
        "seen": {
            "pool_bytes": row["end"]["pool"].get("pool_bytes", 0),
            "not_forked_bytes": outside.pinned_bytes(row["end"]["outside"])["not forked"] - mapped,
            "driver_bytes": [outside.pinned_bytes(row[at]["outside"])["driver"] for at in ("warm", "end")],
            "pinning_calls": row["end"]["outside"]["pinning_calls"],
            "n_grows": row["end"]["pool"].get("n_grows", 0),
        },
    }


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
        command += ["--device", options.device, "--seconds", str(options.seconds)]
        command += ["--no-cupti"] if options.no_cupti else []
        print(f"{name}:", flush=True)
        code = subprocess.run(command, check=False).returncode
        text = Path(file.name).read_text()
    return json.loads(text) if code == 0 and text else {"name": name, "error": f"its process ended with status {code}"}


def chosen(options: argparse.Namespace) -> list[str]:
    """Names of runs."""
    if options.slice:
        return list(SLICES[options.slice])
    return [name for name in CASES if not options.only or any(part in name for part in options.only)]


def write(rows: list[dict[str, Any]], found: dict[str, Any], path: Path | None) -> None:
    """The rows so far, each beside the plain one."""
    beside_plain(rows, CASES)
    if path is not None:
        path.write_text(json.dumps({"conditions": found, "rows": rows}, indent=1) + "\n")


def finish(rows: list[dict[str, Any]], found: dict[str, Any]) -> int:
    print(json.dumps(found))
    print(table(rows))
    print()
    print(growth_table(rows))
    return 0 if all("criteria" in row and all(ok for _, ok in row["criteria"].values()) for row in rows) else 1


def merge(paths: list[Path], to: Path | None) -> int:
    """Rows of several files; of two with one name, the later one."""
    documents = [json.loads(path.read_text()) for path in paths]
    rows = {row["name"]: row for document in documents for row in document["rows"]}
    ordered = [rows[name] for name in CASES if name in rows]
    write(ordered, documents[-1]["conditions"], to)
    return finish(ordered, documents[-1]["conditions"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", action="append", help="runs whose names contain this; may be given several times")
    parser.add_argument("--slice", choices=SLICES, help="a few runs; without it, and without --only, all")
    parser.add_argument("--steps", type=int, default=300, help="of each run; the first fifth is the warm-up")
    parser.add_argument("--seconds", type=float, default=1e9, help="of each run, after which no step begins")
    parser.add_argument("--no-cupti", action="store_true", help="do not count calls of the driver")
    parser.add_argument("--merge", type=Path, nargs="+", help="run nothing: put these files together")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.merge:
        return merge(options.merge, options.json)
    if options.one:
        row = measure(options.one, options.device, options.steps, not options.no_cupti, options.seconds)
        options.json.write_text(json.dumps(row))
        return 0
    rows: list[dict[str, Any]] = []
    found = conditions(options.device)
    for name in chosen(options):
        rows.append(run_alone(name, options))
        write(rows, found, options.json)
    return finish(rows, found)


if __name__ == "__main__":
    sys.exit(main())
