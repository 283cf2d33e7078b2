"""One answer: estimate, plan, predict and wrap have the same peak for the same step and plan, to the byte, and agree on
whether it fits.

The walk over all models is long; `make test` walks a few of them on all cards.
"""

import functools

import pytest
import torch
from torch import nn

import memscale
import zoo
from memscale import Config
from memscale._cli import estimate_command, plan_command, subjects
from memscale._cli.model_registry import REGISTRY
from memscale._cli.options import EstimateOptions, PlanOptions
from memscale._hw import devices
from memscale._plan.by_shape import Planner
from memscale._plan.request import Request

CARDS = ("rtx4060", "t4", "rtx3090", "a100-80gb", "h100")  # 8 to 85 GB, four generations
SOME = ("gpt2", "t5-small", "vit-base")
MODELS = [name if name in SOME else pytest.param(name, marks=pytest.mark.long) for name in REGISTRY]
BATCH, LENGTH = 2, 32


@pytest.fixture(scope="module")
def shared():
    """One trace for each step, which both commands get: they ask for the same ones."""
    traces = {}
    traced = subjects.trace

    def trace(options, step, precision, optimizer=None, *, plans=False):
        batch = next(iter(step.sample.values())).shape[0]
        key = options.model, options.gpu, batch, precision, optimizer or options.optimizer
        if key not in traces:
            traces[key] = traced(options, step, precision, optimizer, plans=True)
        return traces[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimate_command, "trace", trace)
        patch.setattr(plan_command, "trace", trace)
        patch.setattr(estimate_command, "_SECONDS", 0)  # advice has tests of its own
        patch.setattr("memscale._plan.advice._SECONDS", 0)
        yield


def fields_of(model, card):
    return {"gpu": card, "batch": BATCH, "seq": None if REGISTRY[model].length == 0 else LENGTH}


def estimated(model, card, **changes):
    return estimate_command.run(EstimateOptions(model, **fields_of(model, card), **changes)).prediction


def planned(model, card, **changes):
    return plan_command.run(PlanOptions(model, **fields_of(model, card), **changes))


def changed(plan):
    return [name for name, techniques in plan.layers.items() if techniques]


def check_plan(plan, profile, budget_bytes=0):
    """A plan has the figures of predictions."""
    plain = profile.predict(usable_bytes=budget_bytes)
    with_plan = profile.predict(plan.actions, usable_bytes=budget_bytes)
    assert plan.baseline_peak_bytes == plain.peak_bytes
    if changed(plan) or not plan.grows:  # else the step only needs less because segments grow
        assert plan.predicted_peak_bytes == with_plan.peak_bytes
        if plan.spacer_layer is None:  # predictions know actions alone
            assert with_plan.fits != plan.is_cramped
        assert plan.needed_bytes + plan.spacer_saved_bytes == with_plan.needed_bytes or plan.is_cramped
    if plan.full_speed_bytes:
        assert profile.predict(usable_bytes=plan.full_speed_bytes).fits
        assert not changed(
            Request(Config(memory_budget_gb=plan.full_speed_bytes / 1e9), profile.device).create(profile)
        )


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("model", MODELS)
def test_commands(shared, model, card):
    plain, report = estimated(model, card), planned(model, card)
    profile = report.steps.profile
    request = Request(Config(), profile.device)
    assert plain.usable_bytes == profile.device.usable_bytes == request.core.limit_bytes
    assert plain.peak_bytes == profile.peak_bytes == profile.predict().peak_bytes
    assert request.usable_bytes == plain.usable_bytes - plain.margin_bytes
    if report.plan is None:
        assert not plain.fits
        assert report.error.smallest_peak_bytes > request.usable_bytes
        for recompute in ("blocks", "all"):
            found = estimated(model, card, recompute=recompute)
            assert not found.fits
        return
    assert report.plan.budget_bytes in (request.budget_bytes, request.core.limit_bytes)
    assert plain.peak_bytes == report.plan.baseline_peak_bytes
    check_plan(report.plan, profile)


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("model", MODELS)
def test_a_budget(shared, model, card):
    """The least budget for the plain step keeps it as it is; a little less does not, in every answer."""
    plain = estimated(model, card)
    device = devices.find(card)
    enough = memscale._core.budget_for_peak(plain.needed_bytes)
    if enough > device.usable_bytes:
        pytest.skip("the plain step does not fit this card")
    budget = enough / 1e9
    assert estimated(model, card, budget=budget).fits
    report = planned(model, card, budget=budget)
    assert not changed(report.plan)
    check_plan(report.plan, report.steps.profile, enough)
    less = plain.needed_bytes / 1e9
    assert not estimated(model, card, budget=less).fits
    leaner = planned(model, card, budget=less).plan
    assert leaner is None or changed(leaner) or leaner.grows


SHAPES = {"gpt2": (16, 128), "vit-base": (16, None)}


def test_mixed_plans_under_a_budget():
    """Some layers recomputed, some kept."""
    for model, (batch, length) in SHAPES.items():
        options = EstimateOptions(model, batch=batch, seq=length, gpu="rtx3090")
        profile = subjects.trace(options, subjects.find_subject(options, print).step(batch), "bf16")
        plain = profile.predict()
        grown = profile.device.usable_bytes  # what the step with all layers kept needs where segments grow
        for part in range(16, 0, -1):
            budget = memscale._core.budget_for_peak(
                plain.peak_bytes + (plain.needed_bytes - plain.peak_bytes) * part // 16
            )
            plan = Request(Config(memory_budget_gb=budget / 1e9), profile.device).create(profile)
            if not changed(plan):
                grown = plan.needed_bytes
        low, high = profile.predict("all").needed_bytes, grown
        assert low < high <= plain.needed_bytes
        for part in range(1, 5):
            budget = memscale._core.budget_for_peak(low + (high - low) * part // 5)
            plan = Request(Config(memory_budget_gb=budget / 1e9), profile.device).create(profile)
            assert 0 < len(changed(plan)) < len(plan.layers)
            check_plan(plan, profile, budget)


def test_mixed_plans_by_mode():
    for model, (batch, length) in SHAPES.items():
        options = EstimateOptions(model, batch=batch, seq=length, gpu="rtx3090")
        profile = subjects.trace(options, subjects.find_subject(options, print).step(batch), "bf16")
        for slowdown in (0.02, 0.05, 0.1, 0.2):
            plan = Request(Config(max_slowdown=slowdown, force_optimize=True), profile.device).create(profile)
            assert 0 < len(changed(plan)) < len(plan.layers)
            check_plan(plan, profile)


@functools.cache
def small_model():
    blocks = (nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(6))
    return nn.Sequential(*blocks)


@pytest.mark.parametrize("card", ["rtx4060", "h100", None])
@pytest.mark.parametrize("config", [Config(), Config(force_optimize=True), Config(memory_budget_gb=0.5)])
def test_calls(monkeypatch, card, config):
    """`memscale.plan`, `memscale.predict` and the planner of `wrap`, each with a trace of its own."""
    model, x = small_model(), zoo.floats(64, 32, 256)
    plan = memscale.plan(model, x, config=config, device=card)
    find = devices.find
    monkeypatch.setattr(devices, "find", lambda name, at=None: find(card if name is None else name, at))
    planner = Planner(model, config, ())
    planner.analyse(model, (x,), {})
    wrapped = planner.at((x,), {})
    assert wrapped.fingerprint == plan.fingerprint
    figures = ("baseline_peak_bytes", "predicted_peak_bytes", "budget_bytes", "margin_bytes", "full_speed_bytes")
    assert [getattr(wrapped, name) for name in figures] == [getattr(plan, name) for name in figures]
    plain = memscale.predict(model, x, config=config, device=card)
    leaner = memscale.predict(model, x, config=config, device=card, recompute=changed(plan))
    assert plain.peak_bytes == plan.baseline_peak_bytes == planner.profile.peak_bytes
    assert leaner.fits
    assert leaner.peak_bytes == plan.predicted_peak_bytes


@pytest.mark.parametrize("card", ["cpu", "rtx3090"])
def test_a_key_value_cache(card):
    """The step as it is fills a cache, which a recomputed one does not: what is said of the plain step includes it."""
    model, ids = zoo.llama().train(), torch.ones(64, 64, dtype=torch.int64)
    model.config.use_cache = True
    sample = {"input_ids": ids, "labels": ids}
    plan = memscale.plan(model, sample, device=card, config=Config(force_optimize=True))
    profile = memscale.profile(model, sample, device=card)
    assert profile.plain_core is not profile.core
    check_plan(plan, profile)
    model.config.use_cache = False
    assert memscale.predict(model, sample, device=card).peak_bytes < plan.baseline_peak_bytes


def test_wrap_has_the_plan_of_plan():
    """On the CPU, where it can run."""
    model, x = small_model(), zoo.floats(64, 32, 256)
    config = Config(force_optimize=True)
    plan = memscale.plan(model, x, config=config)
    memscale.wrap(model, config, sample_input=x)
    try:
        wrapped = memscale.executor_of(model).plan
        assert wrapped.fingerprint == plan.fingerprint
        assert wrapped.predicted_peak_bytes == plan.predicted_peak_bytes
    finally:
        memscale.detach(model)
    assert changed(plan)
    assert memscale.predict(model, x, recompute=changed(plan)).peak_bytes == plan.predicted_peak_bytes


def test_eight_gigabytes():
    """A step that fits 8 GB with layers recomputed: every answer says so, and none asks for a budget."""
    options = EstimateOptions("gpt2-medium", batch=4, seq=512, gpu="rtx4060")
    subject = subjects.find_subject(options, print)
    profile = subjects.trace(options, subject.step(4), "bf16")
    assert not profile.predict().fits
    assert profile.predict("blocks").fits
    plan = Request(Config(), profile.device).create(profile)
    assert plan.aim_bytes < plan.predicted_peak_bytes <= plan.budget_bytes - plan.margin_bytes
    assert plan.budget_bytes == profile.device.usable_bytes
    assert "no plan fits the aim of 6.39 GB, this one the usable 7.64 GB" in plan.describe()
    check_plan(plan, profile)


@pytest.mark.long
def test_what_an_owner_of_eight_gigabytes_is_told(monkeypatch):
    """A model of 1.2 B parameters: other types, another optimizer and recomputation, not another card."""
    monkeypatch.setattr(estimate_command, "_SECONDS", 1e6)
    options = EstimateOptions("llama-1b", batch=1, seq=1024, gpu="rtx4060")
    ways = estimate_command.run(options).alternatives
    sentence = "--precision pure-bf16 --optimizer adafactor --recompute blocks"
    assert [way.options for way in ways if way.fits] == [sentence]
    named = EstimateOptions("llama-1b", 1, 1024, "rtx4060", "adafactor", "pure-bf16", recompute="blocks")
    assert estimate_command.run(named).prediction.fits


def test_wrap_without_a_budget_takes_what_fits(caplog):
    """A share of the device is an aim: where no plan fits it, `wrap` runs the leanest that fits the device."""
    model, x = small_model(), zoo.floats(64, 32, 256)
    usable = devices.find("cpu").usable_bytes
    least = memscale.plan(model, x, config=Config(force_optimize=True, max_slowdown=1000)).predicted_peak_bytes
    config = Config(target_gpu_utilization=least / 2 / usable, force_optimize=True)
    plan = memscale.plan(model, x, config=config)
    assert plan.aim_bytes == pytest.approx(least / 2, rel=0.01)
    assert (plan.budget_bytes, plan.predicted_peak_bytes) == (usable, least)
    assert "no plan fits the aim of" in plan.describe()
    assert memscale.Plan.from_json(plan.to_json()).describe() == plan.describe()
    with memscale.optimize(model, torch.optim.AdamW(model.parameters()), config, x) as executor:
        assert executor.plan.fingerprint == plan.fingerprint


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(8)
        )

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x.square().mean()


def wide(batch):
    with torch.device("meta"):
        return Wide(), torch.zeros(batch, 512)


def test_a_budget_is_not_more_than_the_device_has():
    """Whoever sets 100 GB for a card of 12 GB gets the answer for the card."""
    model, x = wide(200_000)
    config = memscale.Config(memory_budget_gb=100)
    alone, asked = (memscale.predict(model, x, device="rtx3060", config=c) for c in (None, config))
    assert alone.peak_bytes > 12e9
    assert not asked.fits
    assert asked.usable_bytes == alone.usable_bytes
    plan = memscale.plan(model, x, device="rtx3060", config=config)
    assert plan.n_recomputed > 0
    assert plan.budget_bytes <= alone.usable_bytes
    assert plan.needed_bytes <= plan.budget_bytes


def test_the_trade_begins_with_the_plain_step():
    """Where nothing is done, torch's allocator is left alone, too."""
    model, x = wide(50_000)
    plan = memscale.plan(model, x, device="rtx3060", config=memscale.Config(memory_budget_gb=11))
    assert plan.n_changed == 0
    first = plan.pareto()[0]
    assert first.n_changed == 0
    assert first.peak_bytes == plan.predicted_peak_bytes == memscale.predict(model, x, device="rtx3060").peak_bytes
