"""Every example runs, and the demo keeps its promise."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import memscale

ROOT = Path(__file__).parents[2]


def run(*command, timeout=280):
    environment = {**os.environ, "CI": "true"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(Path(memscale.__file__).parents[1]), environment.get("PYTHONPATH", "")]
    )
    result = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def test_hand_loop():
    result = run("examples/hand_loop.py")
    assert "step 30" in result.stdout
    assert re.search(r"recomputed|pointwise results", result.stdout)
    assert result.stderr == ""


@pytest.mark.parametrize("layers", [4, pytest.param(8, marks=pytest.mark.long)])  # 8: as `make demo` shows it
def test_demo_saves_memory_and_changes_no_loss(layers, tmp_path):
    arguments = ("--steps", "3", "--layers", str(layers), "--json", str(tmp_path / "figures.json"))
    result = run("examples/demo.py", *arguments)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["loss_difference"] == 0
    assert figures["peak_wrapped"] <= 0.65 * figures["peak_plain"]  # measured by torch's allocator events
    for words in ("host: ", "layers recomputed: peak", "peak memory", "step time", "last loss"):
        assert words in result.stdout


def test_demo_says_what_is_wrong_with_its_arguments():
    result = subprocess.run(
        [sys.executable, "examples/demo.py", "--steps", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(memscale.__file__).parents[1])},
    )
    assert result.returncode == 2
    assert "at least 3 steps" in result.stderr


def test_the_benchmark_of_recomputation(tmp_path):
    result = run("bench/recompute.py", "--small", "--steps", "2", "--json", str(tmp_path / "figures.json"))
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert len(figures["results"]) == 2
    assert all(row[way]["median_ms"] > 0 for row in figures["results"] for way in ("plain", "memscale", "torch"))
    assert "of the plain step" in result.stdout


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_every_example_has_a_test(path):
    assert path.name in Path(__file__).read_text()
