"""How much longer a step takes with layers recomputed: predicted and measured, limited by the host or by the device.

    python bench/slowdown.py --out FILE.json [--device cpu|cuda] [--only NAME] [--pairs 40] [--minutes 11] [--table F]

Each model trains next to a copy of itself with every block recomputed, and with every second one: the models of
``bench/budgets.py``, and some that are limited by the host. Steps are interleaved, and which of them goes first
alternates; the figure is the median of the ratios of neighbours with its 95 % interval. On a GPU, all threads that
queue operations share one core: torch runs the plain backward on a thread of its own and MemScale runs it on the
calling one, so on cores of unequal speed the ratio would be that of the cores. Predicted is the ratio of two
simulations: with rates that were calibrated once, at the start; with host costs that were measured between the steps of
the row, as calibration measures them, since the speed of a shared host doubles and halves within minutes; and with the
rates of the table. A row also has what the host took to queue each phase, and how many operations of each kind, saved
tensors and recomputations the profile counts, so that costs can be fitted to the rows. It can be stopped and started
again: rows that the file has are not measured twice, and after so many minutes it ends by itself.
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
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

import budgets
import memscale
from memscale import _core
from memscale._cli.model_registry import make_batch, make_model
from memscale._core import Device, Rates
from memscale._hw import host_costs
from memscale._hw.host_costs import HostBench
from memscale.plans import Plan
from memscale.profiles import Profile

transformers.logging.set_verbosity_error()

SHARES = ("all", "half")
LEAST_PAIRS = 12  # of a model that takes too long


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and a batch; a batch of 0: a model of ``bench/budgets.py``, which has its own."""

    model: str
    batch: int
    length: int
    precision: str = "bf16"  # autocast; or "fp32", "pure-bf16"
    optimizer: str = "foreach"  # or "fused"

    def __str__(self) -> str:
        size = f" {self.batch}x{self.length}" if self.batch else ""
        return f"{self.model}{size}, {self.precision}, {self.optimizer} AdamW"


def _modern_bert(**sizes: Any) -> Any:
    config = transformers.ModernBertConfig(attn_implementation="sdpa", **sizes)
    return transformers.ModernBertForMaskedLM(config)


def _opt(width: int, layers: int, heads: int, **sizes: Any) -> Any:
    widths = {"hidden_size": width, "ffn_dim": 4 * width, "word_embed_proj_dim": width}
    config = transformers.OPTConfig(num_hidden_layers=layers, num_attention_heads=heads, **widths, **sizes)
    return transformers.OPTForCausalLM(config)


def _gpt2(width: int, layers: int, heads: int, vocabulary: int) -> Any:
    sizes = {"n_embd": width, "n_layer": layers, "n_head": heads, "vocab_size": vocabulary}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, use_cache=False))


def _bert(width: int, layers: int, heads: int, vocabulary: int) -> Any:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    config = transformers.BertConfig(**sizes, intermediate_size=4 * width, vocab_size=vocabulary)
    return transformers.BertForMaskedLM(config)


def _llama(width: int, layers: int, heads: int, vocabulary: int) -> Any:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    config = transformers.LlamaConfig(**sizes, intermediate_size=3 * width, vocab_size=vocabulary, use_cache=False)
    return transformers.LlamaForCausalLM(config)


def _vit(width: int, layers: int, heads: int) -> Any:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(**sizes, intermediate_size=4 * width, image_size=64)
    )


_SMALL_MODERN = {
    "hidden_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "intermediate_size": 192,
    "vocab_size": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}

# Models that the registry does not have, and small ones for CPUs.
MODELS: dict[str, Callable[[], Any]] = {
    "modernbert-base": _modern_bert,
    "tiny-gpt2": lambda: _gpt2(64, 6, 4, 256),
    "small-gpt2": lambda: _gpt2(256, 6, 4, 2048),
    "tiny-bert": lambda: _bert(64, 6, 4, 256),
    "small-bert": lambda: _bert(256, 6, 4, 2048),
    "tiny-llama": lambda: _llama(64, 6, 4, 256),
    "small-llama": lambda: _llama(256, 6, 4, 2048),
    "tiny-opt": lambda: _opt(64, 6, 4, vocab_size=256),
    "small-modernbert": lambda: _modern_bert(**_SMALL_MODERN),
    "small-vit": lambda: _vit(192, 6, 3),
}

# All of those of the budgets, and others: small batches, for which the host is the limit, and other optimizers.
GPU_CASES = [
    *(Case(name, 0, 0, "bf16" if case.autocast else "fp32") for name, case in budgets.CASES.items()),
    Case("gpt2", 4, 256),
    Case("gpt2-medium", 4, 512, "pure-bf16", "fused"),
    Case("bert-large", 8, 128),
    Case("bert-base", 64, 128, "fp32"),
    Case("t5-base", 4, 256),
    Case("vit-base", 32, 0),
    Case("llama-1b", 1, 512),
    Case("qwen-0.5b", 4, 512, "pure-bf16", "fused"),
]
CPU_CASES = [
    Case("tiny-gpt2", 2, 16, "fp32"),
    Case("small-gpt2", 4, 128, "fp32"),
    Case("tiny-bert", 2, 16, "fp32"),
    Case("small-bert", 4, 128, "fp32"),
    Case("tiny-llama", 2, 16, "fp32"),
    Case("small-llama", 4, 128, "fp32"),
    Case("tiny-opt", 2, 16, "fp32"),
    Case("small-modernbert", 2, 64, "fp32"),
    Case("small-vit", 4, 0, "fp32"),
]


class Run:
    """A model that trains."""

    def __init__(self, case: Case, device: str) -> None:
        torch.manual_seed(0)
        self.case, self.device = case, device
        self.plan: str | None = None  # as JSON: what is recomputed changes
        dtype = torch.bfloat16 if case.precision == "pure-bf16" else torch.float32
        if case.model in budgets.CASES:
            self.model, self.batch = budgets.CASES[case.model].make()
            self.model.train()
        else:
            if case.model in MODELS:
                with torch.device(device):
                    self.model = MODELS[case.model]().to(dtype).train()
            else:
                self.model = make_model(case.model, device, dtype)
            self.batch = make_batch(self.model.config, case.batch, case.length, device, dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6, **{case.optimizer: True})

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def step(self) -> list[float]:
        """The time at which forward, backward and the optimizer's step have been queued, and all of it is done."""
        self.synchronize()
        times = [time.perf_counter()]
        with torch.autocast(self.device, torch.bfloat16, enabled=self.case.precision == "bf16"):
            loss = self.model(**self.batch).loss
        times.append(time.perf_counter())
        loss.backward()
        times.append(time.perf_counter())
        self.optimizer.step()
        self.optimizer.zero_grad()
        times.append(time.perf_counter())
        self.synchronize()
        return [*times, time.perf_counter()]

    def profile(self) -> Profile:
        precision = "bf16" if self.case.precision == "bf16" else None
        return memscale.profile(self.model, self.batch, optimizer=self.optimizer, precision=precision)

    def recompute(self, names: list[str]) -> None:
        if self.plan is None:
            self.plan = memscale.plan(self.model, self.batch).to_json()
        plan = json.loads(self.plan)
        for unit in plan["units"]:
            unit["action"] = "recompute" if unit["name"] in names else "keep"
        plan["model_options"] = []
        memscale.wrap(self.model, memscale.Config(enable_logging=False), plan=Plan.from_json(json.dumps(plan)))


# Predicting


def with_rates(device: Device, rates: Rates) -> Device:
    return Device(
        kind=device.kind,
        name=device.name,
        rates=rates,
        n_multiprocessors=device.n_multiprocessors,
        usable_bytes=device.usable_bytes,
    )


def table_rates(device: Device) -> Rates:
    known = device.rates
    try:
        return Rates.of_model(device.name)
    except ValueError:
        return Rates.guess(known.capability, known.memory_bytes, device.n_multiprocessors)


def actions_of(profile: Profile, names: list[str]) -> bytes:
    """Keep is 0, recompute is 1."""
    return array("i", [unit.name in names for unit in profile.units]).tobytes()


def simulate(profile: Profile, names: list[str], device: Device) -> dict[str, float]:
    """The step in milliseconds, and what the device and the host do in it."""
    flags = _core.SIMULATE_FUSED if profile.fused else 0
    summary = profile.core.simulate(device, actions=actions_of(profile, names), flags=flags)
    return {name: summary[f"{name}_ns"] / 1e6 for name in ("step", "host", "device")}


def count(profile: Profile, names: list[str]) -> dict[str, int]:
    """How often each host cost occurs: what a nanosecond more of it adds."""
    rates = {**profile.device.rates.as_dict(), **dict.fromkeys(host_costs.FIELDS, 1)}
    actions = actions_of(profile, names)

    def host_ns(kind: str | None) -> int:
        more = {} if kind is None else {kind: 2}
        # A device that does nothing itself, so that a host that is the device shows nothing but these costs.
        quick = {"fp32_gflops": 10**9, "memory_mb_per_s": 10**9, "random_mb_per_s": 0, "fresh_mb_per_s": 0}
        device = with_rates(profile.device, Rates(**{**rates, **quick, **more}))
        flags = _core.SIMULATE_FUSED if profile.fused else 0
        return int(profile.core.simulate(device, actions=actions, flags=flags)["host_ns"])

    base = host_ns(None)
    return {kind: host_ns(kind) - base for kind in host_costs.FIELDS}


# Measuring


def interval(ratios: list[float]) -> tuple[float, float]:
    """A 95 % interval of the median, by resampling."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[1949]


def phases(steps: list[list[float]]) -> dict[str, float]:
    """Milliseconds in which the host queued each phase, and of the whole step."""
    found = {
        name: 1e3 * statistics.median(step[i + 1] - step[i] for step in steps)
        for i, name in enumerate(("forward", "backward", "optimizer"))
    }
    return {**found, "step": 1e3 * statistics.median(step[-1] - step[0] for step in steps)}


@contextlib.contextmanager
def on_one_core() -> Iterator[None]:
    """Keep this thread and those of autograd on the core that this thread is on, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    core = {int(fields[36])}  # "processor", the 39th field of the line
    os.sched_setaffinity(0, core)
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text(encoding="utf-8").startswith("pt_autograd"):
            os.sched_setaffinity(int(task.name), core)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


Pair = tuple[list[float], list[float]]


def measure_pairs(
    plain: Run, wrapped: Run, pairs: int, seconds: float, between: Callable[[], object] | None = None
) -> list[Pair]:
    """Steps of both, one after the other. MemScale keeps backward on this thread; the other has torch's default."""

    def plain_step() -> list[float]:
        with torch.autograd.set_multithreading_enabled(True):
            return plain.step()

    found: list[Pair] = []
    for _ in range(2):
        plain_step(), wrapped.step()  # autograd's threads exist after it
    with on_one_core() if plain.device == "cuda" else contextlib.nullcontext():
        for _ in range(2):
            plain_step(), wrapped.step()
        end = time.monotonic() + seconds
        while len(found) < pairs and (len(found) < LEAST_PAIRS or time.monotonic() < end):
            if len(found) % 2:
                found.append((plain_step(), wrapped.step()))
            else:
                after = wrapped.step()
                found.append((plain_step(), after))
            if between is not None:
                between()
    return found


class Subject:
    """A model and a copy of it, and what is known about its step."""

    def __init__(self, case: Case, device: str) -> None:
        self.plain, self.wrapped = Run(case, device), Run(case, device)
        self.profile = self.wrapped.profile()


def measure(subject: Subject, share: str, options: argparse.Namespace) -> dict[str, Any]:
    plain, wrapped, profile = subject.plain, subject.wrapped, subject.profile
    case, device = plain.case, plain.device
    blocks = [unit.name for unit in profile.units if unit.name in profile.blocks]
    names = blocks if share == "all" else blocks[::2]
    row: dict[str, Any] = {"case": str(case), **dataclasses.asdict(case), "share": share, "source": profile.source}
    row |= {"n_recomputed": len(names), "n_units": len(profile.units)}
    for label, where in (
        ("once_", profile.device),
        ("table_", with_rates(profile.device, table_rates(profile.device))),
    ):
        before, after = simulate(profile, [], where), simulate(profile, names, where)
        row |= {f"{label}predicted": after["step"] / before["step"], f"{label}plain": before, f"{label}wrapped": after}
    row["counts"] = {"plain": count(profile, []), "wrapped": count(profile, names)}
    wrapped.recompute(names)
    bench, rounds = HostBench(torch.device(device), plain.synchronize), []
    pairs = measure_pairs(plain, wrapped, options.pairs, options.seconds, between=lambda: rounds.append(bench.round()))
    host = bench.costs({name: statistics.median(times[name] for times in rounds) for name in rounds[0]})
    where = with_rates(profile.device, Rates(**{**profile.device.rates.as_dict(), **host}))
    before, after = simulate(profile, [], where), simulate(profile, names, where)
    row |= {"predicted": after["step"] / before["step"], "plain": before, "wrapped": after, "host": host}
    ratios = [(b[-1] - b[0]) / (a[-1] - a[0]) for a, b in pairs]
    low, high = interval(ratios)
    row |= {"pairs": len(pairs), "ratio": statistics.median(ratios), "ratio_low": low, "ratio_high": high}
    row["measured"] = {"plain": phases([a for a, _ in pairs]), "wrapped": phases([b for _, b in pairs])}
    row |= {f"{label}error": row[f"{label}predicted"] - row["ratio"] for label in ("", "once_", "table_")}
    row["n_run_recomputed"] = memscale.executor_of(wrapped.model).plan.n_recomputed
    memscale.detach(wrapped.model)
    return row


def forget() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# The whole


def table(document: dict[str, Any]) -> str:
    rows = [row for row in document["rows"] if "ratio" in row]
    lines = [json.dumps(document["conditions"]), ""]
    lines += ["| model | recomputed | plain | measured | predicted | error | calibrated once | error | table | error |"]
    lines += ["|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        lines.append(
            f"| {row['case']} | {row['n_run_recomputed']} of {row['n_units']} "
            f"| {row['measured']['plain']['step']:.1f} ms "
            f"| {row['ratio']:.3f} ({row['ratio_low']:.3f} to {row['ratio_high']:.3f}) | {row['predicted']:.3f} "
            f"| {row['error']:+.3f} | {row['once_predicted']:.3f} | {row['once_error']:+.3f} "
            f"| {row['table_predicted']:.3f} | {row['table_error']:+.3f} |"
        )
    for name, key in (("predicted", "error"), ("calibrated once", "once_error"), ("table", "table_error")):
        errors = [row[key] for row in rows]
        if errors:
            middle = statistics.median(abs(error) for error in errors)
            lines += ["", f"{name}: median error {middle:.3f}, lowest {min(errors):+.3f}, highest {max(errors):+.3f}"]
    return "\n".join(lines) + "\n"


def start(options: argparse.Namespace) -> dict[str, Any]:
    """The file as it is, and the rates that were measured when it was begun."""
    if options.out.exists():
        return dict(json.loads(options.out.read_text(encoding="utf-8")))
    with tempfile.TemporaryDirectory() as folder:
        print("calibrating", file=sys.stderr, flush=True)
        rates = memscale.calibrate(options.device, Path(folder) / "calibration.json", force=True)
        text = (Path(folder) / "calibration.json").read_text(encoding="utf-8")
    conditions = {
        "device": torch.cuda.get_device_name() if options.device == "cuda" else platform.machine(),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "memscale": memscale.__version__,
    }
    return {"conditions": conditions, "rates": rates.as_dict(), "calibration": json.loads(text), "rows": []}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the rows, as JSON; continued if it exists")
    parser.add_argument("--table", type=Path, help="write a table, as Markdown")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", action="append", help="a model, by its name; may be given several times")
    parser.add_argument("--pairs", type=int, default=40, help="of steps (default: 40)")
    parser.add_argument("--seconds", type=float, default=20, help="the most that the pairs of a row take (default: 20)")
    parser.add_argument("--minutes", type=float, default=11, help="no row is begun after so long (default: 11)")
    options = parser.parse_args()
    document, end = start(options), time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MEMSCALE_CALIBRATION"] = str(Path(folder) / "calibration.json")
        Path(os.environ["MEMSCALE_CALIBRATION"]).write_text(json.dumps(document["calibration"]), encoding="utf-8")
        for case in CPU_CASES if options.device == "cpu" else GPU_CASES:
            known = {row["share"] for row in document["rows"] if row["case"] == str(case)}
            subject = None
            forget()
            for share in SHARES:
                if share in known or time.monotonic() > end or (options.only and case.model not in options.only):
                    continue
                row: dict[str, Any] = {"case": str(case), "share": share}
                try:
                    subject = subject or Subject(case, options.device)
                    row = measure(subject, share, options)
                except (RuntimeError, ValueError) as error:  # of this model alone: the others still count
                    row["problem"] = str(error).splitlines()[0]
                document["rows"].append(row)
                options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
                shown = {
                    key: row[key]
                    for key in ("ratio", "predicted", "once_predicted", "table_predicted", "problem")
                    if key in row
                }
                print(f"{case}, {share}: {json.dumps(shown)}", file=sys.stderr, flush=True)
    text = table(document)
    if options.table:
        options.table.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
