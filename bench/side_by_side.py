"""Models that train side by side, step by step: what other benchmarks measure."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

import budgets
import memscale
from memscale._cli.model_registry import make_batch, make_model
from memscale.plans import Plan
from memscale.profiles import Profile

transformers.logging.set_verbosity_error()

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

    def run(self, actions: dict[str, str]) -> None:
        """Wrap, with a plan that does this to layers."""
        if self.plan is None:
            self.plan = memscale.plan(self.model, self.batch).to_json()
        plan = json.loads(self.plan)
        for unit in plan["units"]:
            unit["action"] = actions.get(unit["name"], "keep")
        plan["model_options"] = []
        memscale.wrap(self.model, memscale.Config(enable_logging=False), plan=Plan.from_json(json.dumps(plan)))


# Measuring


def interval(ratios: list[float]) -> tuple[float, float]:
    """A 95 % interval of the median, by resampling."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[1949]


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


def forget() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
