"""One binary for every Python from 3.10 on: the extension of these tests, loaded by the other interpreters here."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from memscale import _core

SAMPLE = Path(__file__).parents[2] / "examples" / "c" / "gpt2_medium.json"
PROGRAM = """
import importlib.util, json, random, sys
spec = importlib.util.spec_from_file_location("memscale._core", sys.argv[1])
core = importlib.util.module_from_spec(spec)
spec.loader.exec_module(core)
profile = core.profile_from_json(open(sys.argv[2]).read())
device = core.Device.of_model("rtx3090")
plan = core.Request(device=device, techniques=core.TECHNIQUE_RECOMPUTE, budget_bytes=8_000_000_000).plan(profile)
try:
    core.bind({})
except TypeError as error:
    refused = str(error)
page_bytes = json.loads(core.hw_detect(""))["page_bytes"]
print(json.dumps([core.version, core.hash64(b"x"), page_bytes, plan.to_json(), refused]))
"""


def interpreters():
    """Other versions of Python on this machine, by name and where pyenv keeps them."""
    found = {}
    for minor in range(10, 20):
        if (3, minor) == sys.version_info[:2]:
            continue
        pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
        candidates = [shutil.which(f"python3.{minor}"), *sorted(pyenv.glob(f"3.{minor}.*/bin/python"))]
        for candidate in filter(None, candidates):
            check = [str(candidate), "-c", f"import sys; sys.exit(sys.version_info[:2] != (3, {minor}))"]
            if subprocess.run(check, capture_output=True, check=False).returncode == 0:
                found[f"3.{minor}"] = str(candidate)
                break
    return found


def load_with(python):
    result = subprocess.run(
        [python, "-I", "-c", PROGRAM, _core.__file__, str(SAMPLE)], capture_output=True, text=True, check=True
    )
    return json.loads(result.stdout)


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_the_binary_works_under(version):
    python = interpreters().get(version)
    if python is None:
        pytest.skip(f"no other Python {version} on this machine")
    ours = load_with(sys.executable)
    assert load_with(python) == ours
    assert ours[0] == _core.version
    assert "tensor_type" in ours[4]


def test_its_name_says_so():
    assert _core.__file__.endswith(".abi3.so")
