"""The search against an integer program: chains that a C program writes, solved by HiGHS."""

import json
import pathlib
import subprocess

import numpy as np
import pytest
from scipy import optimize

from fixtures import skip_without_tool

pytestmark = pytest.mark.long

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = ROOT / "build" / "c" / "tests" / "memscale_chain_prop"


def least_extra_ns(chain: dict, limit: int) -> float:
    """The least time that options take beyond keeping everything, with a peak of at most the limit."""
    options = [(i, held, peak, ns) for i, unit in enumerate(chain["units"]) for held, peak, ns in unit]
    unit, held, peak, ns = (np.array(column, dtype=float) for column in zip(*options, strict=True))
    scale = 1 / limit
    rows, lower, upper = [], [], []
    for i in range(len(chain["units"])):
        rows.append(unit == i)  # one option each
        lower.append(1.0)
        upper.append(1.0)
        rows.append(((unit < i) * held + (unit == i) * peak) * scale)
        lower.append(-np.inf)
        upper.append(1.0)
        rows.append((unit <= i) * held * scale)
        lower.append(-np.inf)
        upper.append(1.0 - chain["between"][i + 1] * scale)
    result = optimize.milp(
        c=ns / 1e6,
        constraints=optimize.LinearConstraint(np.array(rows, dtype=float), lower, upper),
        bounds=optimize.Bounds(0, 1),
        integrality=np.ones(len(ns)),
        options={"mip_rel_gap": 0.0, "time_limit": 120},
    )
    assert result.status == 0, result.message
    return result.fun * 1e6


@pytest.fixture(scope="module")
def chains() -> list[dict]:
    if not PROGRAM.exists():
        skip_without_tool(f"{PROGRAM} is not built (make test-c)")
    text = subprocess.run([PROGRAM, "--write"], capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in text.splitlines()]


def test_plans_are_within_a_percent_of_the_best(chains):
    assert len(chains) == 20
    for chain in chains:
        assert len(chain["units"]) == 24
        for found in chain["found"]:
            best = chain["base_ns"] + least_extra_ns(chain, found["limit"])
            took = chain["base_ns"] + found["ns"]
            assert best - 1 <= took <= best * 1.01, (best, took, found)
            assert found["counted_ns"] >= found["ns"]
