"""A C program gets the plan that Python makes: the same profile and settings give the same bytes, or refusal."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

import memscale
import zoo
from fixtures import skip_without_tool
from installed import EXAMPLE, ROOT, SAMPLE, run
from memscale import _core
from memscale._hw import devices
from memscale._plan.request import Request
from memscale.config import Config
from memscale.errors import BudgetError
from memscale.plans import Plan

PROFILES = ROOT / "tests/golden/profiles"
LLAMA, T5, VIT = (
    PROFILES / f"{name}.json" for name in ("llama-1b-2x2048-bf16", "t5-base-8x256-fp32", "vit-base-32-fp32")
)
MODES = ("conservative", "balanced", "aggressive")
HOST_GB = 12.5


def plan_in_c(program, profile, *options):
    """Exit status, standard output and standard error, as bytes."""
    command = [str(word) for word in (program, profile, *options)]
    result = subprocess.run(command, capture_output=True, timeout=60, check=False)
    return result.returncode, result.stdout, result.stderr


def plan_in_python(profile, device, config, *, fused=False, text=Plan.to_json):
    """What the program should answer."""
    request = Request(config, device).core
    core = _core.profile_from_json(profile.read_text())
    try:
        return 0, text(Plan(request.plan(core, fused=fused))).encode(), b""
    except BudgetError as error:
        smallest = f"the smallest reachable peak is {error.smallest_peak_bytes} bytes"
        return 3, b"", f"plan_file: {error}\nplan_file: {smallest}\n".encode()


def config_of(mode, budget):
    """Host memory is limited where a mode may offload: what is available on this machine changes all the time."""
    host = {} if mode == "conservative" else {"max_cpu_offload_gb": HOST_GB}
    return Config(mode, memory_budget_gb=budget, **host)


def options_of(mode, budget):
    host = () if mode == "conservative" else ("--host-memory", HOST_GB)
    return "--mode", mode, *host, *(() if budget is None else ("--budget", budget))


CASES = [
    *((SAMPLE, card, mode, None, 0) for card in ("rtx3090", "a100-80gb", "t4") for mode in MODES),
    *((SAMPLE, "rtx3090", mode, budget, 0) for mode in MODES for budget in (8.1, 9, 11.5, 100)),
    *((SAMPLE, "rtx3070", mode, None, 0) for mode in MODES),  # none fits the aim, one fits what is usable
    *((SAMPLE, "gtx1660", mode, None, 3) for mode in MODES),
    *((SAMPLE, "rtx3090", mode, 6, 3) for mode in MODES),
    *((profile, "rtx3090", mode, None, 0) for profile in (LLAMA, T5, VIT) for mode in MODES),
    *((profile, "rtx3090", "balanced", budget, 0) for profile, budget in ((LLAMA, 18), (T5, 8), (VIT, 3))),
    *((profile, "rtx3090", "balanced", 1, 3) for profile in (LLAMA, T5, VIT)),
]


@functools.cache
def answer_to(plan_file, profile, card, mode, budget):
    """What the program says to one of the cases, for all tests that ask."""
    return plan_in_c(plan_file, profile, "--json", "--gpu", card, *options_of(mode, budget))


@pytest.mark.parametrize(("profile", "card", "mode", "budget", "code"), CASES)
def test_plans_for_gpus_of_the_table(plan_file, profile, card, mode, budget, code):
    found = answer_to(plan_file, profile, card, mode, budget)
    assert found == plan_in_python(profile, devices.find(card), config_of(mode, budget))
    assert found[0] == code


def test_cases_are_different_plans(plan_file):
    """Else the comparisons above would compare one plan with itself."""
    answers = {answer_to(plan_file, *case) for *case, _ in CASES}
    assert len(answers) >= len(CASES) // 2


def test_the_text_for_people(plan_file):
    found = plan_in_c(plan_file, SAMPLE, "--gpu", "rtx3090", "--budget", 9)
    config = Config(memory_budget_gb=9)
    assert found == plan_in_python(SAMPLE, devices.find("rtx3090"), config, text=lambda plan: plan.core.explain())
    assert b"closest alternative" in found[1]


def test_a_fused_optimizer(plan_file):
    device, config = devices.find("rtx3090"), config_of("balanced", None)
    options = ("--json", "--gpu", "rtx3090", *options_of("balanced", None))
    found = plan_in_c(plan_file, SAMPLE, "--fused", *options)
    assert found == plan_in_python(SAMPLE, device, config, fused=True)
    assert found != plan_in_c(plan_file, SAMPLE, *options)


@pytest.mark.parametrize("budget", [None, 9, 6])
def test_plans_for_this_host(plan_file, tmp_path, monkeypatch, budget):
    """From its record, and as the program finds it. Threads are torch's in Python and the cores of the record in C."""
    monkeypatch.setenv("MEMSCALE_CALIBRATION", str(tmp_path / "none.json"))  # guessed in both
    record = _core.hw_detect("")
    (tmp_path / "hardware.json").write_text(record)
    n_threads = torch.get_num_threads()
    torch.set_num_threads(json.loads(record)["n_cores"])
    try:
        expected = plan_in_python(SAMPLE, devices.find("cpu"), config_of("balanced", budget))
    finally:
        torch.set_num_threads(n_threads)
    options = ("--json", *options_of("balanced", budget))
    assert plan_in_c(plan_file, SAMPLE, *options) == expected
    assert plan_in_c(plan_file, SAMPLE, *options, "--hardware", tmp_path / "hardware.json") == expected


def test_from_a_model_to_a_plan(plan_file, tmp_path):
    """By public calls alone: what memscale.plan decides is what the program decides from memscale.profile's file."""
    model, (_, batch) = zoo.LARGE.make("gpt2"), zoo.LARGE.batch_of("gpt2")
    batch = {key: value.repeat(16, 1) for key, value in batch.items()}  # it needs 422 MB as it is, 185 MB at least
    config = Config(memory_budget_gb=0.25)
    (tmp_path / "profile.json").write_text(memscale.profile(model, batch, device="rtx3090").to_json())
    plan = memscale.plan(model, batch, config=config, device="rtx3090")
    found = plan_in_c(plan_file, tmp_path / "profile.json", "--json", "--gpu", "rtx3090", "--budget", 0.25)
    assert found == (0, plan.to_json().encode(), b"")
    assert any(plan.layers.values())
    assert memscale.Plan.from_json(found[1].decode()).fingerprint == plan.fingerprint


def test_the_sample_is_what_its_script_makes():
    noted = json.loads((ROOT / "tests/golden/made_with.json").read_text())
    here = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    if here != noted:
        skip_without_tool(f"the sample was made with {noted}, this is {here}: install requirements.txt")
    path = Path(memscale.__file__).parents[1]
    assert run(sys.executable, EXAMPLE / "make_profile.py", PYTHONPATH=path).stdout == SAMPLE.read_text()
