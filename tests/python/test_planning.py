"""From settings to requests: every row of the table of settings that says what a plan may do, and with how much."""

import dataclasses

import pytest
import torch

import memscale
from memscale import Config, _core, _devices, _memory, _planning
from memscale._planning import EVERYTHING, EXECUTOR, Capabilities, Request

RECOMPUTE = {"recompute", "keep attention and products", "keep products", "keep attention"}
OFFLOAD = {"offload", "offload now"}
BOTH = {"recompute and offload", "recompute and offload now"}
TILE = {"tile"}
OFFLOAD_STATES = {"offload", "offload gradients"}


def names(request):
    actions = {_core.action_name(i) for i in range(32) if request.actions >> i & 1}
    states = {_core.state_name(1 << i) for i in range(32) if request.states >> i & 1}
    return actions, states


@pytest.fixture(scope="module")
def gpu():
    return _devices.find("rtx3090")


def asked(gpu, mode="balanced", capabilities=EVERYTHING, **fields):
    return Request.of(Config(mode, **fields), gpu, capabilities)


# Modes and fields: which techniques


@pytest.mark.parametrize(
    ("mode", "actions", "states"),
    [
        ("conservative", RECOMPUTE, set()),
        ("balanced", RECOMPUTE | OFFLOAD | BOTH, OFFLOAD_STATES),
        ("aggressive", RECOMPUTE | OFFLOAD | BOTH | TILE, OFFLOAD_STATES | {"half", "8bit", "tile loss"}),
    ],
)
def test_modes(gpu, mode, actions, states):
    assert names(asked(gpu, mode)) == (actions, states)


@pytest.mark.parametrize("mode", ["conservative", "balanced", "aggressive"])
def test_fields_win_over_the_mode(gpu, mode):
    """Each field by itself, on and off, in every mode: it says all that there is to say about its techniques."""
    base = {"enable_checkpointing": False, "enable_offloading": False, "enable_tiling": False}
    base |= {"use_mixed_precision": False, "use_8bit_optimizer": False}
    assert names(asked(gpu, mode, **base)) == (set(), set())
    for field, actions, states in (
        ("enable_checkpointing", RECOMPUTE, set()),
        ("enable_offloading", OFFLOAD, OFFLOAD_STATES),
        ("enable_tiling", TILE, {"tile loss"}),
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


def test_capabilities_bound_it_all(gpu):
    for mode in ("conservative", "balanced", "aggressive"):
        assert names(asked(gpu, mode, EXECUTOR)) == ({"recompute"}, set())
        assert names(asked(gpu, mode, Capabilities(0, 0))) == (set(), set())
    assert names(asked(gpu, "aggressive", Capabilities(EVERYTHING.actions, _core.STATE_8BIT)))[1] == {"8bit"}
    every = {i for i in range(32) if _core.action_name(i) != "?"} - {_core.ACTION_KEEP}
    assert EVERYTHING.actions == sum(1 << i for i in every)
    assert EVERYTHING.states == sum(1 << i for i in range(32) if _core.state_name(1 << i) != "?")


def test_16_bits_by_capability():
    for name, precision in (
        ("rtx3090", "pure-bf16"),
        ("h100", "pure-bf16"),
        ("t4", "pure-fp16"),
        ("v100", "pure-fp16"),
    ):
        device = _devices.find(name)
        assert _planning.half_of(device) == precision
        assert asked(device, "aggressive").wants_half
        assert asked(device, use_mixed_precision=True).wants_half
        assert not asked(device).wants_half
    old = _devices.find("gtx1080")
    assert _planning.half_of(old) is None
    for fields in ({}, {"use_mixed_precision": True}):
        assert not asked(old, "aggressive", **fields).wants_half
    here = _devices.find("cpu")
    assert _planning.half_of(here) == "pure-bf16"
    assert asked(here, "aggressive").wants_half


def test_a_cpu_has_nowhere_to_offload_to():
    for mode in ("balanced", "aggressive"):
        request = asked(_devices.find("cpu"), mode, enable_offloading=True)
        actions, states = names(request)
        assert not actions & (OFFLOAD | BOTH)
        assert not states & OFFLOAD_STATES
        assert request.host_limit_bytes == 0


# Budget and margin


def test_budgets(gpu):
    share = asked(gpu)
    step = 256 << 20
    assert share.budget_bytes == int(gpu.usable_bytes // step * step * 0.85)
    assert share.margin_bytes == share.budget_bytes // 64
    assert asked(gpu, target_gpu_utilization=0.5).budget_bytes == gpu.usable_bytes // step * step // 2
    assert asked(gpu, memory_budget_gb=6).budget_bytes == 6 * 10**9
    assert asked(gpu, memory_budget_gb=6, target_gpu_utilization=0.1).budget_bytes == 6 * 10**9
    assert asked(gpu, memory_budget_gb=1e-12).budget_bytes == 1
    assert asked(gpu, memory_budget_gb=1e300).budget_bytes < 2**60
    assert Request.of(Config(), gpu, EXECUTOR, budget_bytes=123).budget_bytes == 123
    few = dataclasses.replace(gpu, usable_bytes=step - 1)
    assert asked(few).budget_bytes == 1


def test_the_same_budget_as_the_executor():
    here = _devices.find("cpu")
    for config in (Config(), Config(target_gpu_utilization=0.3), Config(memory_budget_gb=2)):
        assert Request.of(config, here).budget_bytes == _memory.budget_bytes(config, torch.device("cpu"))


def test_what_is_volatile_is_rounded(gpu):
    step = 256 << 20
    for usable in range(10 * step, 11 * step, step // 7):
        other = dataclasses.replace(gpu, usable_bytes=usable)
        assert asked(other) == dataclasses.replace(asked(gpu), device=other, budget_bytes=int(10 * step * 0.85),
                                                   margin_bytes=int(10 * step * 0.85) // 64)  # fmt: skip


# Host memory


def test_host_memory(gpu, monkeypatch):
    step, available = 256 << 20, 40 << 30
    record = {"memory_limit_bytes": 64 << 30, "memory_available_bytes": available}
    monkeypatch.setattr(_memory, "host", lambda: record)
    assert asked(gpu).host_limit_bytes == (40 - 4) << 30  # a sixteenth of all is left
    record["memory_available_bytes"] = available + step - 1
    assert asked(gpu).host_limit_bytes == (40 - 4) << 30
    record["memory_available_bytes"] = available - 1
    assert asked(gpu).host_limit_bytes == ((40 - 4) << 30) - step
    record["memory_limit_bytes"] = 16 << 30
    record["memory_available_bytes"] = 12 << 30
    assert asked(gpu).host_limit_bytes == 10 << 30  # but 2 GiB at least
    record["memory_available_bytes"] = 1 << 30
    assert asked(gpu).host_limit_bytes == 0
    assert asked(gpu, max_cpu_offload_gb=7).host_limit_bytes == 7 * 10**9
    assert asked(gpu, max_cpu_offload_gb=0).host_limit_bytes == 0
    assert asked(gpu, max_cpu_offload_gb=1e300).host_limit_bytes < 2**60


def test_host_memory_does_not_count_where_nothing_goes_there(gpu, monkeypatch):
    """Else plans would change from day to day for no reason."""

    def fail():
        raise AssertionError

    monkeypatch.setattr(_memory, "host", fail)
    assert asked(gpu, "conservative").host_limit_bytes == 0
    assert asked(gpu, "aggressive", EXECUTOR).host_limit_bytes == 0
    assert asked(gpu, enable_offloading=False).host_limit_bytes == 0


# Time, and what is aimed for


def test_slowdowns(gpu):
    limits = {"conservative": 150_000, "balanced": 550_000, "aggressive": -1}
    for mode, ppm in limits.items():
        assert asked(gpu, mode).slowdown_ppm == ppm
        assert asked(gpu, mode, max_slowdown=0.2).slowdown_ppm == 200_000
        assert asked(gpu, mode, max_slowdown=0).slowdown_ppm == 0
        assert asked(gpu, mode, max_slowdown=1000).slowdown_ppm == 10**9


def test_flags(gpu):
    assert asked(gpu).flags == 0
    assert asked(gpu, memory_budget_gb=3).flags == _core.PLAN_FASTEST
    assert asked(gpu, force_optimize=True).flags == _core.PLAN_FORCE
    assert asked(gpu, force_optimize=True, memory_budget_gb=3).flags == _core.PLAN_FORCE | _core.PLAN_FASTEST


def test_fields_that_say_nothing_about_plans(gpu):
    same = asked(gpu, max_cpu_offload_gb=1)
    for fields in (
        {"use_static_profiling": False}, {"use_empirical_fallback": False}, {"warmup_steps": 5},
        {"enable_logging": False}, {"log_file": "x"}, {"observability_port": 9000}, {"verify_correctness": True},
        {"async_offload": True}, {"auto_policy": True}, {"offload_dir": "/tmp"}, {"loss_backend": "torch"},
    ):  # fmt: skip
        assert asked(gpu, max_cpu_offload_gb=1, **fields) == same


# Plans from requests


@pytest.fixture(scope="module")
def known():
    blocks = (torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()) for _ in range(6))
    model = torch.nn.Sequential(*blocks)
    return memscale.profile(model, torch.ones(64, 64, 256), device="rtx3090")


def test_layers_that_may_not_change(gpu, known):
    request = asked(gpu, "aggressive", EXECUTOR, force_optimize=True)
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


def test_the_lean_start(gpu):
    rows = [(f"h.{i}", 100, 1000, 10, 5, _core.UNIT_ELIGIBLE) for i in range(3)]
    request = asked(gpu, memory_budget_gb=1e-9)
    plan = request.create(_core.profile_from_units(rows, 10**9, 0), provisional=True)
    assert plan.provisional
    assert plan.n_recomputed == 3
    assert "start lean: recompute 3 of 3 layers" in repr(plan)
    assert not plan.settled().provisional
    assert plan.settled().layers == plan.layers


def test_a_profile_without_a_step(gpu):
    rows = [(f"h.{i}", 100, 10**6, 10, 5, _core.UNIT_ELIGIBLE | _core.UNIT_RUN) for i in range(4)]
    plan = asked(gpu, "aggressive", force_optimize=True).create(_core.profile_from_units(rows, 1000, 0))
    assert plan.parts == {}
    assert plan.place is None
    assert plan.step_seconds == plan.baseline_step_seconds == 0
    assert plan.shape == (0, 0)
    assert plan.n_recomputed > 0
    assert "step time +" in plan.describe()
    assert "<svg" in plan.to_html()


def test_half_is_used_only_where_it_is_wanted(gpu, known):
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(2)))
    other = memscale.profile(model, torch.ones(2, 4), device="rtx3090")
    asked(gpu).create(known, other)  # not of one model, but not looked at
    with pytest.raises(memscale.MemScaleError, match="not of one model"):
        asked(gpu, "aggressive").create(known, other)
