"""How long the command line takes to answer: help, version, and what is wrong with an option.

    python bench/cli_start.py --runs 30
    python bench/cli_start.py --json results.json

Each run is a process of its own. Commands take turns with ``python -c pass``, so that a machine that gets slower or
faster meanwhile does so for all of them. The median is given with the interval that holds the true one in 95 of 100
cases, by ranks.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import memscale

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "memscale --help": ["-m", "memscale", "--help"],
    "memscale --version": ["-m", "memscale", "--version"],
    "memscale plan --help": ["-m", "memscale", "plan", "--help"],
    "memscale plan (no model)": ["-m", "memscale", "plan"],
    "memscale estimate --batch x": ["-m", "memscale", "estimate", "--batch", "x"],
}
LIMIT_S = 0.3


def measure(arguments: list[str]) -> float:
    """Seconds from the start of a process to its end."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - start


def interval(samples: list[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median, by ranks."""
    n = len(samples)
    reach = 0.98 * math.sqrt(n)  # 1.96 standard deviations of a rank, which is sqrt(n) / 2
    ordered = sorted(samples)
    return ordered[max(0, math.floor(n / 2 - reach))], ordered[min(n - 1, math.ceil(n / 2 + reach))]


def run(n_runs: int) -> dict[str, dict[str, float]]:
    samples: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for arguments in COMMANDS.values():
        measure(arguments)  # the first one reads files from the disk
    for _ in range(n_runs):
        for name, arguments in COMMANDS.items():
            samples[name].append(measure(arguments))
    rows = {}
    for name, seconds in samples.items():
        low, high = interval(seconds)
        rows[name] = {"median_s": statistics.median(seconds), "low_s": low, "high_s": high}
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how long the command line takes to answer.")
    parser.add_argument("--runs", type=int, default=30, help="of each command (default: 30)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results into a file, too")
    arguments = parser.parse_args()
    rows = run(arguments.runs)
    print(f"{'':<30}{'median':>9}{'95 % interval':>20}")
    for name, row in rows.items():
        print(f"{name:<30}{row['median_s']:>7.3f} s{row['low_s']:>10.3f} to {row['high_s']:.3f} s")
    if arguments.json is not None:
        report = {
            "memscale": memscale.__version__,
            "python": platform.python_version(),
            "n_runs": arguments.runs,
            "limit_s": LIMIT_S,
            "commands": rows,
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if all(row["median_s"] < LIMIT_S for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
