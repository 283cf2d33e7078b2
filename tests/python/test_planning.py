"""From settings to requests: every setting that decides what a plan may use: techniques, memory and time."""

import pytest
import torch

import memscale
from memscale import Config
from memscale._base.vocabulary import ACTIONS, MODEL_OPTIONS, option_names
from memscale._hw import devices as _devices
from memscale._plan.request import Request
from memscale._run.handlers import HANDLERS
from zoo import device_with, empty_profile

RECOMPUTE = {
    "recompute",
    "recompute_pointwise",
    "recompute_except_both",
    "recompute_except_products",
    "recompute_except_attention",
}
OFFLOAD = {"offload", "offload_blocking"}
BOTH = {"recompute_offload", "recompute_offload_blocking", "offload_pointwise"}
TILE = {"tile"}
OFFLOAD_OPTIONS = {"offload", "offload_gradients"}
FIELDS = (
    "budget_bytes", "margin_bytes", "host_limit_bytes", "slowdown_ppm", "actions", "model_options", "flags",
)  # fmt: skip


def names(request):
    actions = {action.identifier for action in ACTIONS if request.core.actions >> action.number & 1}
    return actions, set(option_names(request.core.model_options))


def values(request):
    return {field: getattr(request.core, field) for field in FIELDS}


@pytest.fixture(scope="module")
def gpu():
    return _devices.find("rtx3090")


def asked(gpu, mode="balanced", unrunnable=True, **fields):
    """A request that also allows what this version cannot run, unless that is switched off."""
    return Request(Config(mode, **fields), gpu, unrunnable=unrunnable)


# Modes and fields: which techniques


@pytest.mark.parametrize(
    ("mode", "actions", "options"),
    [
        ("conservative", RECOMPUTE, set()),
        ("balanced", RECOMPUTE | OFFLOAD | BOTH, OFFLOAD_OPTIONS),
        ("aggressive", RECOMPUTE | OFFLOAD | BOTH | TILE, OFFLOAD_OPTIONS | {"half", "8bit", "tile_loss"}),
    ],
)
def test_modes(gpu, mode, actions, options):
    assert names(asked(gpu, mode)) == (actions, options)


@pytest.mark.parametrize("mode", ["conservative", "balanced", "aggressive"])
def test_fields_win_over_the_mode(gpu, mode):
    """Each field by itself, on and off, in every mode: it alone decides about its techniques."""
    base = {"enable_checkpointing": False, "enable_offloading": False, "enable_tiling": False}
    base |= {"use_mixed_precision": False, "use_8bit_optimizer": False}
    assert names(asked(gpu, mode, **base)) == (set(), set())
    for field, actions, states in (
        ("enable_checkpointing", RECOMPUTE, set()),
        ("enable_offloading", OFFLOAD, OFFLOAD_OPTIONS),
        ("enable_tiling", TILE, {"tile_loss"}),
        ("use_mixed_precision", set(), {"half"}),
        ("use_8bit_optimizer", set(), {"8bit"}),
    ):
        assert names(asked(gpu, mode, **{**base, field: True})) == (actions, states), field
        without = names(asked(gpu, mode, **{field: False}))
        assert not without[0] & actions
        assert not without[1] & states


def test_recomputing_from_offloaded_inputs_needs_both(gpu):
    assert names(asked(gpu, enable_checkpointing=False))[0] == OFFLOAD
    assert names(asked(gpu, "conservative", enable_offloading=True))[0] == RECOMPUTE | OFFLOAD | BOTH


def test_only_what_was_measured(gpu):
    """Plans use what was measured on a kind of device; the executor has a handler for each action that the table in C
    marks, also for those that run only by a plan that is given."""
    runnable = {action.identifier for action in ACTIONS if action.is_runnable}
    assert runnable == set(HANDLERS) == {action.identifier for action in ACTIONS} - {"tile"}
    assert not any(option.is_runnable for option in MODEL_OPTIONS)
    cpu = _devices.find("cpu")
    always = {"recompute", "recompute_pointwise", *(action.identifier for action in ACTIONS if action.keeps)}
    for mode in ("conservative", "balanced", "aggressive"):
        copies = set() if mode == "conservative" else {"offload_blocking", "recompute_offload_blocking"}
        assert names(asked(gpu, mode, unrunnable=False)) == ({*always, *copies}, set())
        assert names(asked(cpu, mode, unrunnable=False)) == (always, set())
    copies = {"offload", "recompute_offload", "offload_pointwise"}
    assert names(asked(gpu, async_offload=True, unrunnable=False)) == ({*always, *copies}, set())
    everything = asked(gpu, "aggressive").core
    assert everything.actions == sum(1 << action.number for action in ACTIONS) - 1
    assert everything.model_options == sum(option.flag for option in MODEL_OPTIONS)


def test_16_bits_by_capability():
    for name, precision in (
        ("rtx3090", "pure-bf16"),
        ("h100", "pure-bf16"),
        ("t4", "pure-fp16"),
        ("v100", "pure-fp16"),
        ("cpu", "pure-bf16"),
    ):
        device = _devices.find(name)
        assert asked(device, "aggressive").half == precision
        assert asked(device, use_mixed_precision=True).half == precision
        assert asked(device).half is None
    old = _devices.find("gtx1080")
    for fields in ({}, {"use_mixed_precision": True}):
        assert asked(old, "aggressive", **fields).half is None


def test_a_cpu_has_nowhere_to_offload_to():
    for mode in ("balanced", "aggressive"):
        request = asked(_devices.find("cpu"), mode, enable_offloading=True)
        actions, states = names(request)
        assert not actions & (OFFLOAD | BOTH)
        assert not states & OFFLOAD_OPTIONS
        assert request.core.host_limit_bytes == 0


# Budget and margin


def test_budgets(gpu):
    share = asked(gpu)
    step = 256 << 20
    assert share.budget_bytes == int(gpu.usable_bytes // step * step * 0.85)
    assert share.core.margin_bytes == share.budget_bytes // 64
    assert asked(gpu, target_gpu_utilization=0.5).budget_bytes == gpu.usable_bytes // step * step // 2
    assert asked(gpu, memory_budget_gb=6).budget_bytes == 6 * 10**9
    assert asked(gpu, memory_budget_gb=6, target_gpu_utilization=0.1).budget_bytes == 6 * 10**9
    assert asked(gpu, memory_budget_gb=1e-12).budget_bytes == 1
    assert asked(gpu, memory_budget_gb=1e300).budget_bytes < 2**60
    few = device_with(gpu, usable_bytes=step - 1)
    assert asked(few).budget_bytes == 1


def test_what_is_volatile_is_rounded(gpu):
    step = 256 << 20
    budget = int(10 * step * 0.85)
    same = {**values(asked(gpu, max_cpu_offload_gb=1)), "budget_bytes": budget, "margin_bytes": budget // 64}
    for usable in range(10 * step, 11 * step, step // 7):
        assert values(asked(device_with(gpu, usable_bytes=usable), max_cpu_offload_gb=1)) == same


# Host memory: the rules are tested in tests/unit/plan/test_settings.c


def test_host_memory(gpu):
    assert asked(gpu).core.host_limit_bytes % (256 << 20) == 0  # what is available here, rounded
    assert asked(gpu, max_cpu_offload_gb=7).core.host_limit_bytes == 7 * 10**9
    assert asked(gpu, max_cpu_offload_gb=0).core.host_limit_bytes == 0
    assert asked(gpu, max_cpu_offload_gb=1e300).core.host_limit_bytes < 2**60


def test_host_memory_does_not_count_where_nothing_goes_there(gpu):
    """Otherwise plans would change from day to day for no reason."""
    assert asked(gpu, "conservative").core.host_limit_bytes == 0
    assert asked(gpu, enable_offloading=False).core.host_limit_bytes == 0
    assert asked(device_with(gpu, is_integrated=True), "aggressive").core.host_limit_bytes == 0


# Time, and what is aimed for


def test_slowdowns(gpu):
    limits = {"conservative": 150_000, "balanced": 550_000, "aggressive": -1}
    for mode, ppm in limits.items():
        assert asked(gpu, mode).core.slowdown_ppm == ppm
        assert asked(gpu, mode, max_slowdown=0.2).core.slowdown_ppm == 200_000
        assert asked(gpu, mode, max_slowdown=0).core.slowdown_ppm == 0
        assert asked(gpu, mode, max_slowdown=1000).core.slowdown_ppm == 10**9


def test_flags(gpu):
    """A budget asks for the fastest plan, force_optimize for no skipping; both are the engine's flags."""
    force, fastest = asked(gpu, force_optimize=True).core.flags, asked(gpu, memory_budget_gb=3).core.flags
    assert asked(gpu).core.flags == 0
    assert 0 < force != fastest > 0
    assert asked(gpu, force_optimize=True, memory_budget_gb=3).core.flags == force | fastest


def test_fields_that_say_nothing_about_plans(gpu):
    same = values(asked(gpu, max_cpu_offload_gb=1))
    for fields in (
        {"use_static_profiling": False}, {"use_empirical_fallback": False}, {"warmup_steps": 5},
        {"enable_logging": False}, {"log_file": "x"}, {"observability_port": 9000}, {"verify_correctness": True},
        {"auto_policy": True}, {"offload_dir": "/tmp"}, {"loss_backend": "torch"},
    ):  # fmt: skip
        assert values(asked(gpu, max_cpu_offload_gb=1, **fields)) == same


# Plans from requests


@pytest.fixture(scope="module")
def known():
    blocks = (torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()) for _ in range(6))
    model = torch.nn.Sequential(*blocks)
    return memscale.profile(model, torch.ones(64, 64, 256), device="rtx3090")


def test_layers_that_may_not_change(gpu, known):
    request = asked(gpu, "aggressive", unrunnable=False, force_optimize=True)
    n = len(known.units)
    free = request.create(known)
    assert free.n_changed > 0
    for may in ([False] * n, bytes(n), [0] * n):
        assert request.create(known, may_change=may).n_changed == 0
    changed = [bool(techniques) for techniques in free.layers.values()]
    first = changed.index(True)
    kept = request.create(known, may_change=[i != first for i in range(n)])
    assert list(kept.layers.values())[first] == ()
    assert request.create(known, may_change=[True] * n).to_json() == free.to_json()
    for wrong in ([True] * (n + 1), []):
        with pytest.raises(ValueError, match="one byte for each unit"):
            request.create(known, may_change=wrong)


def test_a_step_of_nothing(gpu):
    plan = asked(gpu, "aggressive", force_optimize=True).create(empty_profile())
    assert plan.parts == {}
    assert plan.place is None
    assert plan.step_seconds == plan.baseline_step_seconds == 0
    assert plan.shape == (0, 0)
    assert plan.describe().startswith("keep all 0 layers: ")
    assert "<svg" in plan.to_html()


def test_half_is_used_only_where_it_is_wanted(gpu, known):
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(2)))
    other = memscale.profile(model, torch.ones(2, 4), device="rtx3090")
    asked(gpu).create(known, other)  # not of one model, but not looked at
    with pytest.raises(memscale.MemScaleError, match="not of one model"):
        asked(gpu, "aggressive").create(known, other)
