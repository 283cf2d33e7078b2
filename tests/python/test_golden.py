"""The golden plans: what the engine decides for stored profiles is what was reviewed, byte for byte.

After a change of the engine: `python tools/golden_plans.py`, and review the difference like code.
"""

import difflib
import importlib.util
import itertools
import json
import sys
from array import array
from pathlib import Path

import pytest

from fixtures import skip_without_tool
from memscale import _core
from memscale._base.vocabulary import ACTIONS
from memscale._hw import devices as _devices
from memscale.errors import BudgetError
from memscale.plans import Plan
from memscale.profiles import Profile

ROOT = Path(__file__).resolve().parents[2]
HOW = "if this is what was meant, write them anew with `python tools/golden_plans.py` and review the difference"

spec = importlib.util.spec_from_file_location("golden_plans", ROOT / "tools" / "golden_plans.py")
golden = importlib.util.module_from_spec(spec)
sys.modules["golden_plans"] = golden
spec.loader.exec_module(golden)

RECOMPUTES = {action.letter for action in ACTIONS if action.techniques in (0, _core.TECHNIQUE_RECOMPUTE)}


def assert_same(found, stored, name):
    if found != stored:
        lines = difflib.unified_diff(
            stored.splitlines(), found.splitlines(), f"{name}, stored", "now", lineterm="", n=0
        )
        pytest.fail("\n".join([*lines, HOW]), pytrace=False)


def is_slow(subject, mode):
    """Where the engine has most plans to simulate: a third of the time of all of them."""
    return subject == "gpt2-large" and mode == "aggressive"


QUICK = [case for case in golden.cases() if not is_slow(case.subject, case.mode)]


def test_plans_are_what_was_reviewed():
    stored = [line for line in golden.PLANS.read_text().splitlines(keepends=True) if line[0] not in "#\n"]
    kept = [line for line, case in zip(stored, golden.cases()) if case in QUICK]
    found = [golden.line(*item) + "\n" for item in golden.make_all(QUICK).items()]
    assert_same("".join(found), "".join(kept), golden.PLANS.name)


def test_the_documentation_shows_them():
    stored = golden.DOCS.read_text()
    rows = [
        golden.row(subject, card)
        for subject, card in itertools.product(golden.IN_TABLE, golden.CARDS)
        if not any(is_slow(subject, mode) for mode in golden.MODES)
    ]
    for part in [*rows, *map(golden.explanation, golden.EXPLAINED.values())]:
        assert part in stored, HOW


@pytest.mark.long
def test_all_plans_are_what_was_reviewed():
    assert_same(golden.text(), golden.PLANS.read_text(), golden.PLANS.name)
    stored = golden.DOCS.read_text()
    assert_same(golden.documented(stored), stored, golden.DOCS.name)


def test_there_are_enough():
    assert len(set(golden.cases())) == len(golden.cases()) >= 110


def test_plans_are_within_their_limits():
    for case, plan in golden.make_all(QUICK).items():
        check_limits(case, plan, golden.request(case))


def check_limits(case, plan, request):
    usable = request.usable_bytes
    if isinstance(plan, BudgetError):
        assert plan.smallest_peak_bytes > usable
        return
    assert plan.predicted_peak_bytes <= usable
    assert plan.host_bytes <= case.host * 1e9
    letters = set(golden.done_to_layers(plan)) - set("0123456789 ")
    if case.mode == "conservative":
        assert letters <= RECOMPUTES
        assert plan.model_options == ()
        assert plan.host_bytes == 0
    if case.mode == "balanced":
        assert "t" not in letters
        assert set(plan.model_options) <= {"offload", "offload_gradients"}
    fits_plainly = plan.baseline_peak_bytes <= usable
    if case.budget is None and case.mode != "aggressive" and fits_plainly:
        assert plan.predicted_slowdown <= {"conservative": 0.15, "balanced": 0.55}[case.mode]


def test_modes_are_in_order():
    """A mode can do all that the mode before it can: it fits what that fits, with a peak that is not higher."""
    for (subject, card, budget, _), group in itertools.groupby(
        sorted(
            golden.make_all(QUICK).items(),
            key=lambda item: (item[0].subject, item[0].card, item[0].budget or 0, item[0].host),
        ),
        key=lambda item: (item[0].subject, item[0].card, item[0].budget, item[0].host),
    ):
        found = {case.mode: plan for case, plan in group}
        plans = [found[mode] for mode in golden.MODES if mode in found]
        for lesser, greater in itertools.pairwise(plans):
            if isinstance(lesser, Plan):
                assert isinstance(greater, Plan), (subject, card, budget)
                if budget is None and not greater.skipped:
                    assert greater.predicted_peak_bytes <= lesser.predicted_peak_bytes, (subject, card)


def test_a_larger_budget_is_never_slower():
    budgets = [case for case in golden.cases() if case.budget is not None]
    for _, group in itertools.groupby(
        sorted(budgets, key=lambda case: (case.subject, case.card, case.mode, case.budget)),
        key=lambda case: (case.subject, case.card, case.mode),
    ):
        plans = [golden.make(case) for case in group]
        times = [plan.step_seconds if isinstance(plan, Plan) else float("inf") for plan in plans]
        assert times == sorted(times, reverse=True)


def test_what_profiles_were_made_with_is_pinned():
    """Otherwise the test below would be skipped everywhere without anybody noticing."""
    pinned = dict(line.split("==") for line in (ROOT / "requirements.txt").read_text().split() if "==" in line)
    assert json.loads(golden.MADE_WITH.read_text()) == {name: pinned[name] for name in ("torch", "transformers")}


@pytest.mark.long
@pytest.mark.parametrize("subject", golden.SUBJECTS)
def test_profiles_are_what_profiling_gives(subject):
    noted, here = json.loads(golden.MADE_WITH.read_text()), golden.versions()
    if noted["transformers"] != here["transformers"]:
        skip_without_tool(
            f"the stored profiles were made with transformers {noted['transformers']}, this is {here['transformers']}: "
            "install requirements.txt, or make them anew with `python tools/golden_plans.py --profiles`"
        )
    device = golden.request(golden.Case(subject, golden.CARDS[0], "balanced")).device
    for precision in golden.precisions(subject):
        stored, now = golden.load(subject, precision), _core.profile_from_json(golden.trace(subject, precision))
        peaks = [profile.simulate(device, flags=_core.SIMULATE_ALLOCATOR) for profile in (stored, now)]
        assert [unit[0] for unit in stored.units()] == [unit[0] for unit in now.units()]
        for peak in ("first_peak_bytes", "steady_peak_bytes"):
            assert peaks[1][peak] == pytest.approx(peaks[0][peak], rel=0.01), (precision, peak)


def test_what_is_needed_holds_in_both_ways():
    """Segments that grow: memory is taken as one block after the first step, as under a budget, or as it is needed.
    Which of them reserves more depends on the step."""
    device, granule, differ = _devices.find("rtx3090"), 20 << 20, []
    flags = _core.SIMULATE_ALLOCATOR | _core.SIMULATE_GROWING
    for subject in ("gpt2-medium", "gpt2-large", "bert-large"):
        core = golden.load(subject, "fp32")
        everything = array("i", [1] * len(core.units())).tobytes()
        as_needed = core.simulate(device, actions=everything, flags=flags)["needed_bytes"]
        needed = Profile(core, core, device, fused=False).predict("all").needed_bytes - granule
        assert needed >= as_needed
        differ.append(needed > as_needed)
    assert differ == [True, True, False]
