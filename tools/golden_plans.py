#!/usr/bin/env python
"""Golden plans: what the engine decides for a list of models, cards, modes and budgets, with every technique allowed.

Plans are made from stored profiles, so that they change with the engine and with nothing else. Without arguments it
rewrites tests/golden/plans.txt and the parts of docs/PLANNING.md that show it; review the difference like code.

    python tools/golden_plans.py              write plans and documentation
    python tools/golden_plans.py --profiles   trace the models, too (needs transformers; after a change of the profiler)
    python tools/golden_plans.py --table      print the table of the documentation
    python tools/golden_plans.py --explain gpt2-xl/rtx3090/balanced
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import os
import re
import sys
import textwrap
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

from memscale import _core
from memscale._base.vocabulary import ACTIONS, KEEP, MODEL_OPTIONS
from memscale._hw import devices as _devices
from memscale._plan.request import Request
from memscale.config import Config
from memscale.errors import BudgetError
from memscale.plans import Plan

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "golden"
PLANS = FOLDER / "plans.txt"
MADE_WITH = FOLDER / "made_with.json"
DOCS = ROOT / "docs" / "PLANNING.md"

HOST_GB = 48
# What is profiled: batch and length (of an image model, only the batch), and the 16 bits of the second profile.
SUBJECTS = {
    "gpt2-medium": (4, 512),
    "gpt2-large": (2, 512),
    "gpt2-xl": (1, 512),
    "bert-base": (16, 128),
    "bert-large": (16, 128),
    "llama-1b": (2, 2048),
    "llama-8b": (1, 1024),
    "t5-base": (8, 256),
    "vit-base": (32, 0),
}
MODES = ("conservative", "balanced", "aggressive")
CARDS = ("rtx3070", "rtx3060", "rtx4060ti-16gb", "rtx3090")
IN_TABLE = tuple(name for name in SUBJECTS if name not in ("t5-base", "vit-base"))
TURING = ("gpt2-medium",)  # profiled in fp16 on a card without bf16, too


def _legend(title: str, rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join([f"# {title}:", *(f"#   {short:<18} {name}" for short, name in rows)])


LEGEND = f"""\
# Golden plans, one a line: tools/golden_plans.py writes this file, tests/python/test_golden.py checks every line.
#
# model, batch x length | card | mode | budget in GB ("-": 85 % of the card) | model options | what is done to the
# layers, in order | peak and budget in GB | step in ms, and how much longer than the plain one | host memory in GB
#
{_legend("model options", ((option.identifier, option.name) for option in MODEL_OPTIONS))}
{_legend("layers", ((action.letter, action.name) for action in ACTIONS))}
#
# Techniques that this version cannot run are allowed; {HOST_GB} GB of host memory may be used, or what "host" gives.
# "refused": no plan fits.
"""


@dataclasses.dataclass(frozen=True)
class Case:
    """One plan that is asked for; `budget`: None: 85 % of the card; `host`: GB of host memory."""

    subject: str
    card: str
    mode: str
    budget: float | None = None
    host: int = HOST_GB


def cases() -> list[Case]:
    """In the order of the file."""
    found = [Case(*each) for each in itertools.product(IN_TABLE, CARDS, MODES)]
    found += [Case(*each) for each in itertools.product(("t5-base", "vit-base"), ("rtx3070", "rtx3090"), MODES)]
    found += [Case(subject, "rtx4090", "balanced") for subject in ("gpt2-xl", "llama-1b", "llama-8b")]
    found += [Case("llama-8b", card, "aggressive", host=64) for card in ("rtx3090", "rtx4090")]
    found += [Case("gpt2-medium", "t4", mode) for mode in MODES]
    budgets = [
        ("gpt2-medium", "rtx3090", "conservative", (11.5, 10, 8, 7)),
        ("gpt2-medium", "rtx3090", "balanced", (11.5, 10, 8, 7, 6, 5, 4, 3)),
        ("gpt2-medium", "rtx3090", "aggressive", (8, 4, 3, 2)),
        ("gpt2-medium", "rtx3070", "balanced", (7, 6, 5)),
        ("gpt2-xl", "rtx3090", "balanced", (20, 16, 12, 10)),
        ("gpt2-xl", "rtx3090", "aggressive", (20, 12, 8, 6)),
        ("llama-1b", "rtx3090", "balanced", (23, 16, 12)),
        ("llama-1b", "rtx3090", "aggressive", (23, 16, 12, 8, 6)),
        ("t5-base", "rtx3090", "balanced", (8, 6, 4)),
        ("vit-base", "rtx3090", "balanced", (4, 3, 2)),
    ]
    found += [Case(*head, budget) for *head, each in budgets for budget in each]
    return found


# Profiles


def precisions(subject: str) -> tuple[str, ...]:
    return ("fp32", "bf16", "fp16") if subject in TURING else ("fp32", "bf16")


def profile_path(subject: str, precision: str) -> Path:
    batch, length = SUBJECTS[subject]
    return FOLDER / "profiles" / f"{subject}-{batch}{f'x{length}' if length else ''}-{precision}.json"


def trace(subject: str, precision: str) -> str:
    """The profile as it is today."""
    import torch

    import memscale
    from memscale._cli import model_registry as _models

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    model = _models.make_model(subject, "meta", dtype)
    batch = _models.make_batch(model.config, *SUBJECTS[subject], "meta", dtype, type(model))
    return memscale.profile(model, batch, device="t4" if precision == "fp16" else CARDS[0]).to_json()


def versions() -> dict[str, str]:
    import torch

    from memscale._cli import model_registry as _models

    return {"torch": torch.__version__.split("+")[0], "transformers": _models.transformers().__version__}


def write_profiles() -> None:
    for subject in SUBJECTS:
        for precision in precisions(subject):
            profile_path(subject, precision).write_text(trace(subject, precision))
    MADE_WITH.write_text(json.dumps(versions()) + "\n")


@functools.lru_cache(None)
def load(subject: str, precision: str) -> _core.Profile:
    return _core.profile_from_json(profile_path(subject, precision).read_text())


# Plans


def request(case: Case) -> Request:
    host = {} if case.mode == "conservative" else {"max_cpu_offload_gb": case.host}
    budget = {} if case.budget is None else {"memory_budget_gb": case.budget}
    return Request(Config(case.mode).replace(**host, **budget), _devices.find(case.card), unrunnable=True)


@functools.lru_cache(None)
def make(case: Case) -> Plan | BudgetError:
    asked = request(case)
    narrow = None if asked.half is None else load(case.subject, asked.half.removeprefix("pure-"))
    try:
        return asked.create(load(case.subject, "fp32"), narrow)
    except BudgetError as error:
        return error


def done_to_model(plan: Plan) -> str:
    return "+".join(plan.model_options) or "-"


def done_to_layers(plan: Plan) -> str:
    runs = [
        (ACTIONS[action].letter, len(list(run))) for action, run in itertools.groupby(e.action for e in plan.entries)
    ]
    return " ".join(f"{n}{letter}" for letter, n in runs)


def gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.3f}"


def line(case: Case, plan: Plan | BudgetError) -> str:
    batch, length = SUBJECTS[case.subject]
    shape = f"{batch}x{length}" if length else str(batch)
    budget = "-" if case.budget is None else f"{case.budget:g}"
    budget += f", host {case.host}" if case.host != HOST_GB else ""
    head = f"{case.subject + ' ' + shape:<17} | {case.card:<14} | {case.mode:<12} | {budget:>4}"
    if isinstance(plan, BudgetError):
        asked = request(case)
        limit = max(asked.budget_bytes, asked.core.limit_bytes)
        return f"{head} | refused: the least is {gb(plan.smallest_peak_bytes)}, not {gb(limit)}"
    time = f"{plan.step_seconds * 1e3:.1f} ms {plan.predicted_slowdown * 100:+.1f} %"
    peak = f"{gb(plan.predicted_peak_bytes)} of {gb(plan.budget_bytes)}"
    done = "skipped" if plan.skipped else done_to_layers(plan)
    return f"{head} | {done_to_model(plan)} | {done} | {peak} | {time} | {gb(plan.host_bytes)}"


def make_all(asked: Iterable[Case]) -> dict[Case, Plan | BudgetError]:
    """Several at once: the engine releases the interpreter's lock."""
    wanted = list(asked)
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(wanted, pool.map(make, wanted)))


def text() -> str:
    """The whole file."""
    groups = itertools.groupby(make_all(cases()).items(), key=lambda item: (item[0].subject, item[0].budget is None))
    blocks = ["".join(line(*item) + "\n" for item in group) for _, group in groups]
    return "\n".join([LEGEND, *blocks])


# The documentation

EXPLAINED = {
    "conservative": Case("gpt2-medium", "rtx3060", "conservative"),
    "balanced": Case("gpt2-xl", "rtx4060ti-16gb", "balanced"),
    "aggressive": Case("gpt2-xl", "rtx3060", "aggressive"),
}
CARD_NAMES = {"rtx3070": "8 GB", "rtx3060": "12 GB", "rtx4060ti-16gb": "16 GB", "rtx3090": "24 GB"}


def cell(plan: Plan | BudgetError) -> str:
    """A plan in a few words."""
    if isinstance(plan, BudgetError):
        return f"does not fit: {plan.smallest_peak_bytes / 1e9:.1f} GB at least"
    if plan.skipped:
        return f"nothing: {plan.predicted_peak_bytes / 1e9:.2f} GB"
    counts: dict[str, int] = {}
    for entry in plan.entries:
        if entry.action != KEEP:
            sentence = ACTIONS[entry.action].sentence
            counts[sentence] = counts.get(sentence, 0) + 1
    options = [option.name for option in MODEL_OPTIONS if option.identifier in plan.model_options]
    done = [sentence % n for sentence, n in counts.items()] + options
    time = f"{plan.step_seconds * 1e3:.0f} ms ({plan.predicted_slowdown * 100:+.0f} %)"
    return f"{', '.join(done) or 'all kept'}: **{plan.predicted_peak_bytes / 1e9:.2f} GB**, {time}"


def row(subject: str, card: str) -> str:
    batch, length = SUBJECTS[subject]
    cells = [cell(make(Case(subject, card, mode))) for mode in MODES]
    return f"| {subject}, {batch} x {length} | {CARD_NAMES[card]} | {' | '.join(cells)} |"


def table() -> str:
    """One row a model and card, one column a mode."""
    head = ["| model | card | CONSERVATIVE | BALANCED | AGGRESSIVE |", "|---|---|---|---|---|"]
    return "\n".join(head + [row(*each) for each in itertools.product(IN_TABLE, CARDS)])


def explanation(case: Case) -> str:
    """A plan's own words; a run of layers that got the same is shown by its first and its last."""
    plan = make(case)
    assert isinstance(plan, Plan), f"{case} has no plan to explain"
    head, _, body = plan.explain().rstrip("\n").partition("\n\n")
    title, *rows = body.split("\n")
    words = [re.split(r"  +", row)[1:] for row in rows]
    lines = [title.rstrip()]
    for _, run in itertools.groupby(range(len(rows)), key=lambda i: words[i]):
        same = list(run)
        lines += [rows[i] for i in (same if len(same) < 4 else same[:1])]
        lines += [f"... {len(same) - 2} more alike", rows[same[-1]]] if len(same) >= 4 else []
    return "\n".join(["```text", *textwrap.wrap(head, 130), "", *lines, "```"])


def documented(document: str) -> str:
    """The documentation, with the plans between its marks rewritten."""
    parts = {"table": table(), **{name: explanation(case) for name, case in EXPLAINED.items()}}
    for name, part in parts.items():
        mark = re.compile(f"(<!-- golden: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not mark.search(document):
            raise SystemExit(f"{DOCS.name} has no mark for {name}")
        document = mark.sub(lambda found, part=part: found[1] + part + "\n" + found[2], document)
    return document


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--profiles", action="store_true", help="trace the models again, too")
    parser.add_argument("--table", action="store_true", help="print the table of the documentation")
    parser.add_argument("--explain", metavar="CASE", help="print why: model/card/mode[/budget]")
    asked = parser.parse_args()
    if asked.explain:
        subject, card, mode, *budget = asked.explain.split("/")
        plan = make(Case(subject, card, mode, float(budget[0]) if budget else None))
        print(plan.explain().rstrip("\n") if isinstance(plan, Plan) else plan)
        return 0
    if asked.table:
        print(table())
        return 0
    if asked.profiles:
        write_profiles()
    PLANS.write_text(text())
    DOCS.write_text(documented(DOCS.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
