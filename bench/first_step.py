"""How long the first step of a wrapped model takes: analysed in a child, or watched; beside plain and recomputed steps.

    python bench/first_step.py [--device cuda] [--rounds 5] [--json FILE]

Ways take turns, each with a new model; medians. "recomputed" is given a plan that recomputes every layer, so nothing is
analysed: its first step has the same checks as a watched one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/python"))

import torch
import transformers

import memscale
import zoo

SIZES = {
    "cpu": ({"n_layer": 6, "n_embd": 384, "n_head": 6}, 4, 128),
    "cuda": ({"n_layer": 24, "n_embd": 1024, "n_head": 16}, 4, 512),
}
QUIET = memscale.Config("aggressive", force_optimize=True, enable_logging=False)

WAYS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda model: None,
    "recomputed": zoo.everything_recomputed,
    "analysed": lambda model: memscale.wrap(model, QUIET),
    "watched": lambda model: memscale.wrap(model, QUIET.replace(use_static_profiling=False)),
}


def seconds(way: str, device: str) -> float:
    """Of the first forward, backward and optimizer step after `wrap`."""
    sizes, batch, length = SIZES[device]
    torch.manual_seed(0)
    config = transformers.GPT2Config(**sizes, vocab_size=8192, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    with torch.device(device):
        model = transformers.GPT2LMHeadModel(config).train()
        ids = torch.randint(0, 8192, (batch, length))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    WAYS[way](model)
    synchronize(device)
    start = time.perf_counter()
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    synchronize(device)
    taken = time.perf_counter() - start
    if way != "plain":
        memscale.detach(model)
    return taken


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=SIZES, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    for way in WAYS:
        seconds(way, options.device)  # kernels load, modules are imported
    rounds = [{way: seconds(way, options.device) for way in WAYS} for _ in range(options.rounds)]
    medians = {way: round(statistics.median(row[way] for row in rounds), 4) for way in WAYS}
    conditions = {"device": options.device, "torch": torch.__version__, "model": SIZES[options.device]}
    if options.device == "cuda":
        conditions["gpu"] = torch.cuda.get_device_name()
    document = {"conditions": conditions, "medians": medians, "rounds": rounds}
    print(json.dumps(medians))
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
