"""How much longer a step takes with layers recomputed: predicted and measured, limited by the host or by the device.

    python bench/slowdown.py --out FILE.json [--device cpu|cuda] [--only NAME] [--pairs 40] [--minutes 11] [--table F]

Each model trains next to a copy of itself with every block recomputed, with every second one, and with every one
but its products, or its products and attention: the models of ``bench/budgets.py``, and some that are limited by
the host. Steps are interleaved, and which of them goes first alternates; the figure is the median of the ratios of
neighbours with its 95 % interval. On a GPU, all threads that queue operations share one core: torch runs the plain
backward on a thread of its own and MemScale runs it on the calling one, so on cores of unequal speed the ratio
would be that of the cores. Predicted is the ratio of two simulations: with rates that were calibrated once, at the
start; with host costs that were measured between the steps of the row, as calibration measures them, since the
speed of a shared host doubles and halves within minutes; and with the rates of the table. A row also has what the
host took to queue each phase, and how many operations of each kind, saved tensors and recomputations the profile
counts, so that costs can be fitted to the rows. It can be stopped and started again: rows that the file has are not
measured twice, and after so many minutes it ends by itself.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

import memscale
from memscale import _core
from memscale._base.vocabulary import ACTIONS
from memscale._core import Device, Rates
from memscale._hw import host_costs
from memscale._hw.host_costs import HostBench
from memscale.profiles import Profile
from side_by_side import CPU_CASES, GPU_CASES, Case, Run, forget, interval, measure_pairs

transformers.logging.set_verbosity_error()

# Of the blocks every n-th, and what is done to it.
SHARES = {
    "all": (1, "recompute"),
    "half": (2, "recompute"),
    "except products": (1, "recompute_except_products"),
    "except both": (1, "recompute_except_both"),
}


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


def numbers_of(profile: Profile, actions: dict[str, str]) -> bytes:
    """What is done to each unit; where nothing is said, it is kept."""
    numbers = {action.identifier: action.number for action in ACTIONS}
    return array("i", [numbers[actions.get(unit.name, "keep")] for unit in profile.units]).tobytes()


def simulate(profile: Profile, actions: dict[str, str], device: Device) -> dict[str, float]:
    """The step in milliseconds, and what the device and the host do in it."""
    flags = _core.SIMULATE_FUSED if profile.fused else 0
    summary = profile.core.simulate(device, actions=numbers_of(profile, actions), flags=flags)
    return {name: summary[f"{name}_ns"] / 1e6 for name in ("step", "host", "device")}


def count(profile: Profile, done: dict[str, str]) -> dict[str, int]:
    """How often each host cost occurs: what a nanosecond more of it adds."""
    rates = {**profile.device.rates.as_dict(), **dict.fromkeys(host_costs.FIELDS, 1)}
    actions = numbers_of(profile, done)

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


def phases(steps: list[list[float]]) -> dict[str, float]:
    """Milliseconds in which the host queued each phase, and of the whole step."""
    found = {
        name: 1e3 * statistics.median(step[i + 1] - step[i] for step in steps)
        for i, name in enumerate(("forward", "backward", "optimizer"))
    }
    return {**found, "step": 1e3 * statistics.median(step[-1] - step[0] for step in steps)}


class Subject:
    """A model and a copy of it, and what is known about its step."""

    def __init__(self, case: Case, device: str) -> None:
        self.plain, self.wrapped = Run(case, device), Run(case, device)
        self.profile = self.wrapped.profile()


def measure(subject: Subject, share: str, options: argparse.Namespace) -> dict[str, Any]:
    plain, wrapped, profile = subject.plain, subject.wrapped, subject.profile
    case, device = plain.case, plain.device
    blocks = [unit.name for unit in profile.units if unit.name in profile.blocks]
    every, action = SHARES[share]
    done = dict.fromkeys(blocks[::every], action)
    row: dict[str, Any] = {"case": str(case), **dataclasses.asdict(case), "share": share, "source": profile.source}
    row |= {"n_recomputed": len(done), "n_units": len(profile.units)}
    for label, where in (
        ("once_", profile.device),
        ("table_", with_rates(profile.device, table_rates(profile.device))),
    ):
        before, after = simulate(profile, {}, where), simulate(profile, done, where)
        row |= {f"{label}predicted": after["step"] / before["step"], f"{label}plain": before, f"{label}wrapped": after}
    row["counts"] = {"plain": count(profile, {}), "wrapped": count(profile, done)}
    wrapped.run(done)
    bench, rounds = HostBench(torch.device(device), plain.synchronize), []
    pairs = measure_pairs(plain, wrapped, options.pairs, options.seconds, between=lambda: rounds.append(bench.round()))
    host = bench.costs({name: statistics.median(times[name] for times in rounds) for name in rounds[0]})
    where = with_rates(profile.device, Rates(**{**profile.device.rates.as_dict(), **host}))
    before, after = simulate(profile, {}, where), simulate(profile, done, where)
    row |= {"predicted": after["step"] / before["step"], "plain": before, "wrapped": after, "host": host}
    ratios = [(b[-1] - b[0]) / (a[-1] - a[0]) for a, b in pairs]
    low, high = interval(ratios)
    row |= {"pairs": len(pairs), "ratio": statistics.median(ratios), "ratio_low": low, "ratio_high": high}
    row["measured"] = {"plain": phases([a for a, _ in pairs]), "wrapped": phases([b for _, b in pairs])}
    row |= {f"{label}error": row[f"{label}predicted"] - row["ratio"] for label in ("", "once_", "table_")}
    row["n_run_recomputed"] = memscale.executor_of(wrapped.model).plan.n_recomputed
    memscale.detach(wrapped.model)
    return row


# The whole


def table(document: dict[str, Any]) -> str:
    rows = [row for row in document["rows"] if "ratio" in row]
    lines = [json.dumps(document["conditions"]), ""]
    lines += ["| model | recomputed | plain | measured | predicted | error | calibrated once | error | table | error |"]
    lines += ["|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        lines.append(
            f"| {row['case']} | {row['n_run_recomputed']} of {row['n_units']}, {row['share']} "
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
