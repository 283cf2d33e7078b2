"""Units, measurement and plans, as Python sees them."""

import copy
import html.parser
import inspect
import json
import math
import pickle
import xml.etree.ElementTree
from itertools import pairwise

import pytest
import torch
import transformers
from torch import nn

import memscale
import zoo
from memscale import Config, ParetoPoint, Plan, _core
from memscale._base.vocabulary import ACTIONS, MODEL_OPTIONS, PHASES
from memscale._hw import devices as _devices
from memscale._plan import advice as _advice
from memscale._plan import dry_run as _dry_run
from memscale._plan.request import Request
from memscale._plan.steps import Steps
from memscale._show.svg import pareto_svg
from memscale._show.text import ranges
from memscale._trace.model_modules import find_units
from memscale.profiles import profile


@pytest.mark.parametrize(
    ("name", "some", "not_these"),
    [
        ("gpt2", ["transformer.wte", "transformer.h.0", "transformer.h.2", "transformer.ln_f", "lm_head"], []),
        ("bert", ["bert.embeddings", "bert.encoder.layer.1", "cls"], []),
        ("llama", ["model.embed_tokens", "model.layers.0", "model.norm", "lm_head"], []),
        ("t5", ["encoder.block.0", "decoder.block.1", "lm_head"], []),
        (
            "resnet",
            ["resnet.encoder.stages.0.layers.0", "resnet.encoder.stages.1.layers.1"],
            ["resnet.encoder.stages.0"],
        ),
        ("encoder", ["encoder.layers.0", "encoder.layers.2", "head"], ["encoder.layers.0.linear1"]),
        ("lstm", ["embedding", "lstm", "head"], []),
        ("albert", ["albert.encoder.albert_layer_groups.0"], []),
        ("mixtral", ["model.layers.0", "model.layers.1"], []),
    ],
)
def test_units_of_known_models(name, some, not_these):
    units = list(find_units(zoo.make(name)))
    assert set(some) <= set(units)
    assert not set(not_these) & set(units)
    for unit in units:
        assert not any(other.startswith(unit + ".") for other in units)


def test_a_shared_module_is_one_unit():
    block = nn.TransformerEncoderLayer(8, 2, 16)
    assert list(find_units(nn.Sequential(block, nn.Linear(8, 8), block))) == ["0", "1"]


@pytest.fixture(scope="module")
def gpt2():
    """A model whose activations are most of what it takes, a batch, and its profiles for a GPU: as it is, and in 16
    bits. What it needs is hundreds of MB, so that plans differ by more than the granules of torch's allocator."""
    config = transformers.GPT2Config(vocab_size=512, n_positions=128, n_embd=128, n_layer=6, n_head=4, use_cache=False)
    config.loss_type = "ForCausalLM"
    model = transformers.GPT2LMHeadModel(config)
    ids = torch.zeros(64, 128, dtype=torch.int64)
    sample = {"input_ids": ids, "labels": ids}
    known, half = (profile(model, sample, device="t4", precision=how) for how in (None, "pure-fp16"))
    return model, sample, known, half


@pytest.fixture
def planned(gpt2, quiet_config):
    def plan(**changes):
        return memscale.plan(gpt2[0], gpt2[1], config=quiet_config.replace(**changes), device="t4")

    return plan


@pytest.fixture
def rich(gpt2):
    """A plan with every technique."""
    _, _, known, half = gpt2

    def plan(**changes):
        fields = {"mode": "aggressive", "force_optimize": True, "max_cpu_offload_gb": 1, **changes}
        return Request(Config(**fields), known.device, unrunnable=True).create(known, half)

    return plan


def test_plan_is_a_function_and_nothing_hides_it():
    import memscale.plans

    assert inspect.isfunction(memscale.plan)
    assert memscale.plans.Plan is Plan is memscale.Plan


def test_a_dry_run_leaves_no_trace(gpt2, quiet_config):
    model, sample, *_ = gpt2
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    plan = memscale.plan(model, sample, config=quiet_config)
    assert plan.n_changed > 0
    assert not hasattr(model, "_memscale_executor")
    assert torch.equal(state, torch.get_rng_state())
    zoo.assert_same(before, model.state_dict())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(p.grad is None for p in model.parameters())


def test_a_dry_run_is_what_wrap_does(quiet_config):
    model = zoo.make("gpt2")
    args, kwargs = zoo.batch_of("gpt2")
    sample = {"input_ids": args[0], **kwargs}
    plan = memscale.plan(model, sample, config=quiet_config)
    memscale.wrap(model, quiet_config, sample_input=sample)
    assert model._memscale_executor.plan.to_json() == plan.to_json()
    assert memscale.plan(model, sample, config=quiet_config).to_json() == plan.to_json()  # wrapped, too
    assert memscale.plan(model, transformers.BatchEncoding(sample), config=quiet_config).to_json() == plan.to_json()


def test_a_dry_run_of_a_model_without_memory(gpt2, quiet_config):
    model, sample, *_ = gpt2
    with torch.device("meta"):
        twin = transformers.GPT2LMHeadModel(model.config)
        there = dict.fromkeys(sample, torch.zeros(64, 128, dtype=torch.int64))
    plan = memscale.plan(twin, there, config=quiet_config, device="t4")
    assert plan.to_json() == memscale.plan(model, sample, config=quiet_config, device="t4").to_json()


def test_the_same_plan_every_time(planned):
    first, second = planned(), planned()
    assert first.to_json() == second.to_json()
    assert first.fingerprint == second.fingerprint
    assert first.predicted_peak_bytes < first.baseline_peak_bytes


def test_attributes(planned, gpt2):
    plan = planned(memory_budget_gb=1)
    names = [unit.name for unit in gpt2[2].units]
    assert list(plan.layers) == names
    assert plan.budget_bytes == 10**9
    assert plan.margin_bytes == 10**9 // 64
    assert plan.baseline_peak_bytes == plan.predicted_peak_bytes  # it all fits
    assert plan.baseline_step_seconds == plan.step_seconds > 0
    assert plan.predicted_slowdown == 0
    assert plan.host_bytes == 0 < plan.host_limit_bytes < plan.baseline_peak_bytes  # all that could be offloaded
    assert plan.model_options == ()
    assert plan.shape == tuple(gpt2[1]["input_ids"].shape)
    assert plan.fits
    assert not plan.skipped
    assert plan is not None
    assert sum(plan.parts.values()) == plan.predicted_peak_bytes
    unit, phase = plan.place
    assert unit is None or unit in names
    assert phase in PHASES
    with pytest.raises(TypeError):
        plan.layers["x"] = ()
    with pytest.raises(TypeError):
        plan.parts["x"] = 1


def test_a_plan_through_json(planned, rich):
    for plan in (planned(), rich()):
        again = Plan.from_json(plan.to_json())
        assert again.to_json() == plan.to_json()
        for name in (
            "layers", "model_options", "parts", "place", "budget_bytes", "margin_bytes", "host_bytes",
            "host_limit_bytes", "step_seconds", "baseline_step_seconds", "predicted_slowdown", "predicted_peak_bytes",
            "baseline_peak_bytes", "shape", "fits", "skipped", "fingerprint", "entries",
        ):  # fmt: skip
            assert getattr(again, name) == getattr(plan, name), name
        assert again.describe() == plan.describe()
        assert again.explain() == plan.explain()


def test_bad_json(planned):
    text = planned().to_json()
    version = f'"memscale_plan": {json.loads(text)["memscale_plan"]}'
    assert version in text
    for broken in (
        text[:-10], text[: len(text) // 2], text[1:], text + "x", text.replace(version, '"memscale_plan": 99'),
        text.replace(version, '"memscale_plan": 1'), text.replace('"recompute"', '"reconsider"'),
        text.replace('"budget_bytes"', '"budget"'), text.replace('"units"', '"layers"'),
        text.replace('"model_options": []', '"model_options": ["quantum"]'), "", "null", "[]", "{}", "\0", "NaN",
    ):  # fmt: skip
        assert broken != text
        with pytest.raises((ValueError, memscale.MemScaleError)):
            Plan.from_json(broken)
    with pytest.raises(memscale.MemScaleError, match="version"):
        Plan.from_json(text.replace(version, '"memscale_plan": 99'))
    for wrong in (3, None, text.encode(), json.loads(text)):
        with pytest.raises(TypeError, match="to_json"):
            Plan.from_json(wrong)


def least_needed(plan, *args, **changes):
    """What the leanest plan needs, as the error says that is raised where none fits."""
    with pytest.raises(memscale.BudgetError) as error:
        plan(*args, memory_budget_gb=1e-6, **changes)
    return error.value.smallest_peak_bytes


def test_budgets(planned, gpt2, quiet_config):
    """A larger budget never gives a slower plan, a smaller one never one that needs more, and none is exceeded."""
    _, _, known, _ = gpt2

    def plan_known(**changes):  # without another analysis
        return Request(quiet_config.replace(**changes), known.device).create(known)

    roomy = plan_known(memory_budget_gb=1)
    assert roomy.to_json() == planned(memory_budget_gb=1).to_json()
    assert roomy.n_recomputed == roomy.n_changed == 0
    low, high = least_needed(plan_known), roomy.needed_bytes
    assert low <= plan_known(max_slowdown=1000).needed_bytes < high / 3
    plans = []
    for share in range(11):
        budget = _core.budget_for_peak(low + (high - low) * share // 10)
        plan = plan_known(memory_budget_gb=budget / 1e9)
        assert plan.fits
        assert plan.predicted_peak_bytes <= plan.needed_bytes <= plan.budget_bytes - plan.margin_bytes
        if plans:
            assert plan.predicted_slowdown <= plans[-1].predicted_slowdown
            assert plan.step_seconds <= plans[-1].step_seconds
            assert plan.needed_bytes >= plans[-1].needed_bytes
            assert plan.predicted_peak_bytes >= plans[-1].predicted_peak_bytes
        plans.append(plan)
    assert plans[-1].n_recomputed == 0
    assert len({tuple(plan.layers.items()) for plan in plans}) >= 6
    with pytest.raises(memscale.BudgetError):
        plan_known(memory_budget_gb=low / 1e9)  # the margin is missing


def test_slowdown_limits(planned):
    plans = [planned(max_slowdown=limit) for limit in (0.0, 0.05, 0.1, 0.2, 1000)]
    assert plans[0].n_recomputed == 0
    assert [plan.predicted_slowdown <= limit for plan, limit in zip(plans, (0, 0.05, 0.1, 0.2, 1000))] == [True] * 5
    peaks = [plan.predicted_peak_bytes for plan in plans]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[-1] < peaks[0]
    assert planned(mode="conservative").predicted_slowdown <= 0.15
    assert planned(mode="balanced").predicted_slowdown <= 0.55


def test_smart_skip_and_checkpointing_off(planned):
    plan = planned(force_optimize=False)
    assert plan.skipped
    assert plan.n_changed == 0
    assert "nothing to do" in repr(plan)
    assert planned(enable_checkpointing=False).n_recomputed == 0


def test_techniques(rich):
    """Every name is documented, and every layer has those of its action."""
    names = set()
    for changes in ({}, {"memory_budget_gb": 0.13}, {"mode": "balanced"}, {"enable_tiling": False}):
        plan = rich(**changes)
        names |= {name for techniques in plan.layers.values() for name in techniques} | set(plan.model_options)
        assert plan.n_changed == sum(bool(techniques) for techniques in plan.layers.values())
        assert sum(map(len, plan.groups().values())) == len(plan.layers)
        for techniques, entries in plan.groups().items():
            assert all(plan.layers[entry.name] == techniques for entry in entries)
    assert "recompute" in names
    assert len(names) >= 5
    for name in names:
        assert f'"{name}"' in " ".join(Plan.__doc__.split()), name


def test_the_tables_of_c():
    """Rows are in the order of their numbers, and no two share a name, an identifier or a letter."""
    assert [action.name for action in ACTIONS][:2] == ["keep", "recompute"]
    assert [action.number for action in ACTIONS] == list(range(len(ACTIONS)))
    assert [option.flag for option in MODEL_OPTIONS] == [1 << i for i in range(len(MODEL_OPTIONS))]
    for rows in (ACTIONS, MODEL_OPTIONS):
        for field in ("name", "identifier", "sentence"):
            assert len({getattr(row, field) for row in rows}) == len(rows)
    assert len({action.letter for action in ACTIONS}) == len(ACTIONS)
    assert all(action.sentence.count("%s") == 1 for action in ACTIONS)


def test_the_trade(rich, planned):
    plan = rich(memory_budget_gb=1)
    points = plan.pareto()
    assert 2 <= len(points) <= 16
    assert all(isinstance(point, ParetoPoint) for point in points)
    for a, b in pairwise(points):
        assert a.peak_bytes > b.peak_bytes
        assert a.step_seconds < b.step_seconds
    assert len(plan.pareto(2)) <= 2
    assert len(plan.pareto(64)) >= len(points)
    for wrong in (0, 1, 65, -3, 2.5, True, "4"):
        with pytest.raises(ValueError, match="n_points"):
            plan.pareto(wrong)
    for reached in planned().pareto():
        assert reached.model_options == ()
        assert reached.host_bytes >= 0
    for again in (Plan.from_json(plan.to_json()), pickle.loads(pickle.dumps(plan))):
        with pytest.raises(memscale.MemScaleError, match="read from JSON.*memscale.plan"):
            again.pareto()


def test_the_leanest_and_the_fastest_of_the_trade_are_plans(planned):
    points = planned().pareto()
    assert planned(memory_budget_gb=1).step_seconds == points[0].step_seconds
    assert planned(max_slowdown=1000).predicted_peak_bytes == points[-1].peak_bytes


# Drawings and pages


class _Reader(html.parser.HTMLParser):
    """Checks that tags close, and gathers what a page would load."""

    VOID = ("meta", "br", "link", "img", "rect", "line", "path", "polyline")

    def __init__(self):
        super().__init__()
        self.open, self.loads, self.texts = [], [], []

    def handle_starttag(self, tag, attributes):
        self.loads += [v for k, v in attributes if k in ("src", "href", "xlink:href", "action", "data")]
        self.loads += [tag] if tag in ("script", "link", "img", "iframe", "object", "embed") else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.loads += [v for k, v in attributes if k in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def _read_page(plan):
    text = plan.to_html()
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    assert reader.loads == []
    assert "url(" not in text
    assert "@import" not in text
    assert text.count("http") == text.count("http://www.w3.org/2000/svg")
    return text, " ".join(reader.texts)


def test_a_page_that_needs_nothing_else(rich, planned):
    for plan in (rich(), planned(), planned(force_optimize=False), planned(memory_budget_gb=1)):
        text, words = _read_page(plan)
        assert text.startswith("<!doctype html>")
        assert "<svg" in text
        assert plan.fingerprint in words
        assert all(name in words for name in plan.layers)
    text, _ = _read_page(Plan.from_json(plan.to_json()))
    assert "<svg" not in text  # that would need the profile


def test_names_on_a_page_are_text():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module("<script>alert(1)</script>&\"'", nn.Linear(4, 4))

        def forward(self, x):
            return next(self.children())(x)

    plan = memscale.plan(Odd(), torch.ones(2, 4), config=Config(force_optimize=True))
    assert any("<script>" in name for name in plan.layers)
    text, _ = _read_page(plan)
    assert "<script" not in text


def _point(gb, seconds, **fields):
    return ParetoPoint(int(gb * 1e9), seconds, fields.get("host", 0), fields.get("n", 0), fields.get("state", ()))


SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    "points",
    [
        [_point(8, 0.2), _point(6, 0.3), _point(4, 0.5, host=10**9, n=3, state=("half",))],
        [_point(8, 0.2)],
        [_point(0, 0)],
        [_point(1e-6, 1e-6), _point(5e-7, 2e-6)],
        [_point(800, 90), _point(799.9, 90.01)],
    ],
)
@pytest.mark.parametrize("budget", [None, 5 * 10**9, 10**13, 1])
def test_the_drawing_is_xml_and_inside_its_frame(points, budget):
    chosen = (points[-1].peak_bytes, points[-1].step_seconds)
    root = xml.etree.ElementTree.fromstring(pareto_svg(points, budget_bytes=budget, chosen=chosen, title="a < b & \0c"))
    assert root.tag == f"{SVG}svg"
    _, _, width, height = map(float, root.get("viewBox").split())
    circles = root.findall(f"{SVG}circle")
    assert len(circles) == len(points) + 1
    for element in root.iter():
        for name in ("cx", "x", "x1", "x2"):
            assert 0 <= float(element.get(name, 0)) <= width
        for name in ("cy", "y", "y1", "y2"):
            assert 0 <= float(element.get(name, 0)) <= height
    words = " ".join(root.itertext())
    assert "peak memory, GB" in words
    assert "time of a step, " in words
    assert ("budget" in words.replace(".budget", "")) == (budget is not None)
    assert "this plan" in words


def test_the_drawing_needs_points_and_has_few_ticks():
    with pytest.raises(ValueError, match="one point"):
        pareto_svg([])
    for high in (1e-3, 0.7, 3, 9.99, 10, 11, 123, 4e5):
        root = xml.etree.ElementTree.fromstring(pareto_svg([_point(high, high), _point(high / 3, high * 1.2)]))
        ticks = [e.text for e in root.iter(f"{SVG}text") if e.get("class") == "small"]
        assert 6 <= len(ticks) <= 18
        assert len(set(ticks)) >= len(ticks) / 2


def test_ranges_of_names():
    assert ranges(["h.0", "h.1", "h.2"]) == "h.0 to 2"
    assert ranges(["wte", "h.0", "h.2", "h.3", "ln", "g.4", "h.4"]) == "wte, h.0, h.2 to 3, ln, g.4, h.4"
    assert ranges([]) == ""
    assert ranges(["7", "8", "08"]) == "7 to 8, 08"


# Errors


def test_there_has_to_be_a_sample(gpt2):
    with pytest.raises(memscale.MemScaleError, match="sample_input, one batch.*shapes"):
        memscale.plan(gpt2[0])


def test_arguments_of_the_wrong_type(gpt2):
    model, sample, *_ = gpt2
    for arguments in (
        ("model", sample), (None, sample), (nn.Linear, sample), (model, 3), (model, "text"), (model, {1: 2}),
        (model, sample, "adamw"), (model, sample, None, None),
    ):  # fmt: skip
        with pytest.raises(TypeError):
            memscale.plan(*arguments)
    for named in (
        {"loss": 3},
        {"device": 3},
        {"optimizer": "adamw"},
        {"config": {"mode": "balanced"}},
        {"config": "fast"},
    ):
        with pytest.raises(TypeError):
            memscale.plan(model, sample, **named)
    for named in ({"device": "abacus"}, {"precision": "fp3"}):
        with pytest.raises(ValueError, match="abacus|fp3"):
            memscale.plan(model, sample, **named)
    for budget in (0, -1, math.nan, math.inf, "3", True):
        with pytest.raises(ValueError, match="memory_budget_gb"):
            memscale.plan(model, sample, config=Config(memory_budget_gb=budget))


def test_what_is_not_in_this_version(gpt2):
    with pytest.raises(memscale.MemScaleError, match="use_8bit_optimizer=True.*not in this version"):
        memscale.plan(*gpt2[:2], config=Config(use_8bit_optimizer=True))


def test_models_that_cannot_be_planned():
    with pytest.raises(ValueError, match="no parameters"):
        memscale.plan(nn.Sequential(), torch.ones(2))
    with pytest.raises(ValueError, match="no parameters"):
        memscale.plan(nn.ReLU(), torch.ones(2))
    with pytest.raises(memscale.MemScaleError, match="gradient"):
        memscale.plan(nn.Linear(2, 2).requires_grad_(False), torch.ones(2, 2))
    with pytest.raises(ValueError, match="lazy"):
        memscale.plan(nn.LazyLinear(3), torch.ones(2, 2))
    with pytest.raises(memscale.MemScaleError, match="does not run|mat1|shapes"):
        memscale.plan(nn.Linear(2, 2), torch.ones(2, 3))


def test_a_budget_that_is_out_of_range(gpt2):
    assert memscale.plan(*gpt2[:2], config=Config(memory_budget_gb=1e300)).n_changed == 0
    with pytest.raises(memscale.BudgetError) as error:
        memscale.plan(*gpt2[:2], config=Config(memory_budget_gb=1e-30))
    assert error.value.smallest_peak_bytes > 1


def _blocks(n=6, width=256, device=None):
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width, device=device), nn.GELU()) for _ in range(n)))


@pytest.fixture
def patient(monkeypatch):
    """No deadline for advice: it does not depend on the speed of the machine."""
    monkeypatch.setattr(_advice, "_SECONDS", 1e6)


def test_what_would_fit_does(patient):
    """The batch, the mode and the budget that an error names are the nearest that fit."""
    model, batch = _blocks(), 64

    def plan(n, budget=None, **changes):
        config = Config(memory_budget_gb=budget, **changes)
        return memscale.plan(model, torch.ones(n, 512, 256), config=config, device="t4")

    whole, least = (plan(n, force_optimize=True, max_slowdown=1000).needed_bytes for n in (batch, 1))
    budget = round((whole + least) / 2 / 1e9, 4)
    with pytest.raises(memscale.BudgetError, match=r"What would fit: memory_budget_gb=.*, or a batch of \d+ ") as error:
        plan(batch, budget)
    text = str(error.value)
    assert error.value.smallest_peak_bytes == whole
    named = int(text.split("a batch of ")[1].split()[0])
    assert plan(named, budget).fits
    with pytest.raises(memscale.BudgetError):
        plan(named + 1, budget)
    enough = float(text.split("memory_budget_gb=")[1].split()[0])
    assert plan(batch, enough).fits
    with pytest.raises(memscale.BudgetError) as error:
        plan(1, least / 1e9 / 2)
    assert "batch" not in str(error.value)


def test_nothing_would_fit(monkeypatch):
    """A device that is too small for a batch of 1: no budget is named that it does not have."""
    small = zoo.device_with(_devices.find("t4"), usable_bytes=5_000_000)
    monkeypatch.setattr(_devices, "find", lambda name, model=None: small)
    with pytest.raises(memscale.BudgetError, match=r"^No plan fits 5.00 MB: .*Not even a batch of 1 fits\.$"):
        memscale.plan(_blocks(), torch.ones(8, 4, 256), device="t4")


def test_what_would_fit_together(patient):
    """Where no single change is enough, several are, and they are named as a program writes them."""
    model, sample = _blocks(4, 2048, "meta"), torch.ones(1, 1, 2048)  # 16.8 M parameters: 67 MB, with AdamW 336 MB
    config = Config(memory_budget_gb=0.15)
    wanted = r"What would fit: .*model\.to\(torch\.float16\) and torch\.optim\.Adafactor\(\.\.\., foreach=False\) \("
    with pytest.raises(memscale.BudgetError, match=wanted):
        memscale.plan(model, sample, config=config, device="t4")
    half = _blocks(4, 2048, "meta").half()
    optimizer = torch.optim.Adafactor(half.parameters(), foreach=False)
    assert memscale.plan(half, sample.half(), optimizer=optimizer, config=config, device="t4").fits


def test_a_mode_that_would_fit(gpt2, patient):
    _, _, known, half = gpt2
    steps = Steps(lambda variant: half if variant.precision else known, 0, can_be_half=True)
    device = _devices.find("t4")

    def plan(mode, **changes):
        return Request(Config(mode, **changes), device, unrunnable=True).create(known, half)

    needed = {mode: least_needed(plan, mode) for mode in ("conservative", "balanced", "aggressive")}
    assert needed["aggressive"] < needed["balanced"] < needed["conservative"]
    for mode, target, wanted in (
        ("conservative", "balanced", "balanced"), ("conservative", "aggressive", "aggressive"),
        ("balanced", "aggressive", "aggressive"),
    ):  # fmt: skip
        config = Config(mode, memory_budget_gb=needed[target] * 1.02 / 1e9)
        with pytest.raises(memscale.BudgetError, match=rf"What would fit: .*mode='{wanted}' \("):
            _dry_run.make_plan(steps, config, device, unrunnable=True)
    config = Config("aggressive", memory_budget_gb=needed["aggressive"] / 2e9)
    with pytest.raises(memscale.BudgetError) as error:
        _dry_run.make_plan(steps, config, device, unrunnable=True)
    assert "mode" not in str(error.value)


def test_a_failure_to_try_is_no_error(monkeypatch):
    def fail(*_):
        raise memscale.MemScaleError("no")

    monkeypatch.setattr(_dry_run, "resized", fail)
    with pytest.raises(memscale.BudgetError) as error:
        memscale.plan(_blocks(), torch.ones(8, 256), config=Config(memory_budget_gb=1e-4), device="t4")
    assert "batch" not in str(error.value)
    monkeypatch.undo()
    monkeypatch.setattr(_advice, "_SECONDS", 0)
    with pytest.raises(memscale.BudgetError) as error:
        memscale.plan(_blocks(), torch.ones(8, 256), config=Config(memory_budget_gb=1e-4), device="t4")
    assert "batch" not in str(error.value)


# What is measured, and settled


def test_prediction_against_what_was_measured():
    """The plan's own figure for the baseline is what a plain step takes."""
    model = zoo.make("encoder").train()
    x = zoo.floats(8, 10, 32)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    measured = memscale.measure_peak(step)
    plan = memscale.plan(model, x, optimizer=optimizer, config=Config(force_optimize=True))
    state = sum(p.numel() * 12 for p in model.parameters()) + x.nbytes
    assert plan.baseline_peak_bytes == pytest.approx(measured.peak_bytes - measured.before_bytes + state, rel=0.03)


def test_the_optimizer_is_part_of_the_estimate(quiet_config):
    peaks = []
    for make in (lambda p: torch.optim.SGD(p, 0.1), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), torch.optim.AdamW):
        model = zoo.make("encoder")
        with memscale.optimize(model, make(model.parameters()), quiet_config, zoo.floats(2, 10, 32)) as executor:
            peaks.append(executor.plan.baseline_peak_bytes)
    n = sum(p.numel() for p in model.parameters())
    assert peaks[1] - peaks[0] == 4 * n
    assert peaks[2] - peaks[1] == 4 * n


def test_the_plan_is_settled_by_the_first_batch(quiet_config):
    model = memscale.wrap(zoo.make("gpt2"), quiet_config)
    args, kwargs = zoo.batch_of("gpt2")
    executor = model._memscale_executor
    with torch.no_grad():
        model(*args, **kwargs)
    assert executor.plan is None  # an evaluation settles nothing
    model(*args, **kwargs).loss.backward()
    assert executor.plan is not None
    assert "recompute" in repr(executor)


def test_plans_can_be_pickled_and_copied(planned, rich):
    for plan in (planned(), rich()):
        for twin in (pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan)):
            assert twin.to_json() == plan.to_json()


def test_a_given_plan_stays(quiet_config):
    model = zoo.make("encoder")
    saved = zoo.recompute_plan(model)
    memscale.wrap(model, quiet_config.replace(force_optimize=False), plan=saved)
    model(zoo.floats(2, 10, 32)).sum().backward()
    assert model._memscale_executor.plan.layers == saved.layers
    assert model._memscale_executor.plan is not None


def test_the_budget_of_a_given_plan_holds(quiet_config, tmp_path):
    """Unless the settings have one; what a plan aims for without a budget is none."""
    model, (_, batch) = zoo.LARGE.make("gpt2"), zoo.LARGE.batch_of("gpt2")
    within = memscale.plan(model, batch, config=memscale.Config(memory_budget_gb=0.5))
    assert (within.has_budget, within.budget_bytes) == (True, 500_000_000)
    (tmp_path / "plan.json").write_text(within.to_json())
    own = quiet_config.replace(memory_budget_gb=0.25)
    for config, expected in ((quiet_config, 0.5), (own, 0.25)):
        memscale.wrap(model, config, plan=tmp_path / "plan.json")
        assert memscale.executor_of(model).config.memory_budget_gb == expected
        memscale.detach(model)
    assert quiet_config.memory_budget_gb is None
    aimed = memscale.plan(model, batch)
    assert not aimed.has_budget
    memscale.wrap(model, quiet_config, plan=aimed)
    assert memscale.executor_of(model).config.memory_budget_gb is None
    memscale.detach(model)


def test_repr_says_what_matters(planned):
    plan = planned()
    text = repr(plan)
    assert plan.fingerprint in text
    assert plan.describe() in text
    assert "peak " in text
    assert "-> " in text
    assert f"memory_budget_gb={plan.full_speed_bytes / 1e9:g} keeps full speed" in text
    assert "\n" not in text


def test_the_host_record_round_trips():
    record = _core.hw_detect("")
    assert _core.hw_from_json(record) == record
    values = json.loads(record)
    assert values["memory_available_bytes"] <= values["memory_limit_bytes"] <= values["memory_total_bytes"]
    for broken in ("{}", record.replace("n_cores", "cores"), record.replace('"memscale_hw": 1', '"memscale_hw": 7')):
        with pytest.raises((ValueError, memscale.MemScaleError)):
            _core.hw_from_json(broken)


def test_core_functions_reject_wrong_types():
    unit = _core.Unit("name", torch.nn.Identity(), print)
    device = _core.Device.of_model("rtx3090")
    request, empty = _core.Request(device=device, techniques=0), zoo.empty_profile()
    plan = request.plan(empty)
    assert plan.entries() == []
    named = {"request": request, "plan": plan, "profile": empty, "sizes": (), "shape": (0, 0), "source": id, "wrap": id}
    for call in (
        lambda: _core.hash64("text"),
        lambda: _core.find_units(b"", b""),
        lambda: _core.find_units("a", "b", "c", "d", "e"),
        lambda: plan.check_units("units"),
        lambda: plan.check_units([3]),
        lambda: plan.check_units([("x",)]),
        lambda: plan.check_units([("x", "1")]),
        lambda: _core.Rates(),
        lambda: _core.Rates(1),
        lambda: _core.Rates(**{**device.rates.as_dict(), "fp32_gflops": "1"}),
        lambda: _core.Device(),
        lambda: _core.Device(device),
        lambda: _core.Device(kind="cuda", name="x", rates="{}", n_multiprocessors=1, usable_bytes=1),
        lambda: _core.Request(),
        lambda: _core.Request(device="rtx3090", techniques=0),
        lambda: request.plan(),
        lambda: request.plan(3),
        lambda: request.plan(empty, half=3),
        lambda: request.plan(empty, may_change="x"),
        lambda: request.pareto(empty),
        lambda: request.find_budget(3),
        *(lambda k=k: _core.ShapePlans(**{name: value for name, value in named.items() if name != k}) for k in named),
        lambda: _core.next_batch(fits=1, too_large=2, limit_bytes=3, n_tried=0),
        lambda: _core.next_changes(fitting=3),
        lambda: _core.next_changes(fitting=["x"]),
        lambda: _core.next_changes(limits=1),
        lambda: _core.budget_for_peak("1"),
        lambda: _core.format_bytes("1"),
        lambda: _core.SavedTensors(),
        lambda: _core.Plan(),
        lambda: _core.bind(3),
        lambda: _core.bind({"tensor_type": torch.Tensor}),
        lambda: _core.Unit("name"),
        lambda: _core.Call(_core.Unit.__new__(_core.Unit), (), {}),
        lambda: _core.Call(3, (), {}),
        lambda: _core.Call(unit, [], {}),
        lambda: _core.Call(unit, (), {}).run(()),
        lambda: _core.Call(unit, (), {}).run_checked([], {}),
        lambda: _core.Unit.__new__(_core.Unit).run((), {}),
        lambda: unit.run(()),
        lambda: unit.run([], {}),
        lambda: unit.run((), kwargs={}),
        lambda: _core.Randomness(3),
        lambda: _core.unpack(None),
        lambda: _core.set_log(3),
        lambda: _core.plan_from_json(3),
        lambda: _core.hw_detect(None),
    ):
        with pytest.raises(TypeError):
            call()
    for call in (
        lambda: _core.Rates(**{**device.rates.as_dict(), "fp32_gflops": 0}),
        lambda: _core.Device(kind="cpu", name="x", rates=device.rates, n_multiprocessors=1, usable_bytes=1),
        lambda: _core.Device(kind="tpu", name="x", rates=device.rates, n_multiprocessors=1, usable_bytes=1),
        lambda: _core.Request(device=device, techniques=1 << 20),
        lambda: _core.Request(device=device, techniques=0, budget_bytes=-1),
        lambda: _core.Request(device=device, techniques=0, utilization_ppm=0),
        lambda: request.plan(empty, may_change=b"1"),
        lambda: request.pareto(empty, 1),
        lambda: _core.fit_shapes(0, 8),
    ):
        with pytest.raises(ValueError, match="."):
            call()
    with pytest.raises(ValueError, match="differ in length"):
        _core.find_units(b"\0" * 8, b"", b"", b"", b"")
    with pytest.raises(ValueError, match="no modules"):
        _core.find_units(b"", b"", b"", b"", b"")
    with pytest.raises(AttributeError):
        _core.ModuleState(3)
    state = _core.ModuleState(unit.module)
    state.enter()
    with pytest.raises(RuntimeError, match="twice without leave"):
        state.enter()
    state.leave()
