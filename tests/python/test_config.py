"""Config: every field, its defaults by mode, and every way to get it wrong."""

import copy
import dataclasses
import pickle

import pytest

import memscale
import zoo
from memscale import AsyncOffloadConfig, Config, OptimizationMode

DEFAULTS = {
    "mode": OptimizationMode.BALANCED,
    "enable_checkpointing": True,
    "enable_offloading": True,
    "enable_tiling": False,
    "use_mixed_precision": False,
    "use_8bit_optimizer": False,
    "max_cpu_offload_gb": None,
    "target_gpu_utilization": 0.85,
    "memory_budget_gb": None,
    "max_slowdown": None,
    "force_optimize": False,
    "use_static_profiling": True,
    "use_empirical_fallback": True,
    "warmup_steps": 2,
    "enable_logging": True,
    "log_file": None,
    "observability_port": None,
    "verify_correctness": False,
    "async_offload": False,
    "async_config": None,
    "auto_policy": False,
    "step_in_backward": False,
    "offload_dir": None,
    "optimizer_backend": "memscale",
    "loss_backend": "memscale",
}


def test_fields_and_defaults():
    assert {field.name: getattr(Config(), field.name) for field in dataclasses.fields(Config)} == DEFAULTS
    assert dataclasses.asdict(AsyncOffloadConfig()) == {"pool_gb": None, "prefetch_depth": 2, "debug": False}


@pytest.mark.parametrize(
    ("mode", "changes", "slowdown"),
    [
        ("CONSERVATIVE", {"enable_offloading": False}, 0.15),
        ("BALANCED", {}, 0.55),
        ("AGGRESSIVE", {"enable_tiling": True, "use_mixed_precision": True, "use_8bit_optimizer": True}, None),
    ],
)
def test_modes_set_what_is_left_out(mode, changes, slowdown):
    for way in (OptimizationMode[mode], mode, mode.lower()):
        config = Config(way)
        expected = {**DEFAULTS, **changes, "mode": OptimizationMode[mode]}
        assert {name: getattr(config, name) for name in DEFAULTS} == expected
        assert config.slowdown_limit == slowdown


def test_a_given_field_wins_over_the_mode():
    assert Config("aggressive", use_mixed_precision=False).use_mixed_precision is False
    assert Config("conservative", enable_offloading=True).enable_offloading is True
    assert Config("aggressive", max_slowdown=0.2).slowdown_limit == 0.2


def test_immutable_and_a_plain_value():
    config = Config("aggressive", memory_budget_gb=4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.memory_budget_gb = 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        del config.mode
    assert config == copy.deepcopy(config) == pickle.loads(pickle.dumps(config))
    assert hash(config) == hash(copy.deepcopy(config))
    assert pickle.loads(pickle.dumps(config)).given("memory_budget_gb")
    assert repr(config) == "Config(AGGRESSIVE, memory_budget_gb=4)"


def test_replace_follows_a_new_mode():
    config = Config(memory_budget_gb=4).replace(mode="aggressive", force_optimize=True)
    assert config == Config("aggressive", memory_budget_gb=4, force_optimize=True)
    assert config.use_8bit_optimizer


BAD = [
    ("mode", "fast"), ("mode", None), ("mode", 1),
    ("enable_checkpointing", 1), ("enable_checkpointing", "yes"), ("enable_checkpointing", None),
    ("target_gpu_utilization", 0), ("target_gpu_utilization", 1.1), ("target_gpu_utilization", True),
    ("target_gpu_utilization", float("nan")), ("target_gpu_utilization", None), ("target_gpu_utilization", "0.5"),
    ("memory_budget_gb", 0), ("memory_budget_gb", -1), ("memory_budget_gb", float("inf")), ("memory_budget_gb", "4GB"),
    ("max_cpu_offload_gb", -0.1), ("max_slowdown", -0.1), ("max_slowdown", float("nan")),
    ("warmup_steps", 0), ("warmup_steps", 1.5), ("warmup_steps", True), ("warmup_steps", None),
    ("log_file", 3), ("log_file", ""), ("observability_port", 0), ("observability_port", 70000),
    ("async_config", {}), ("optimizer_backend", "adam"), ("optimizer_backend", None), ("loss_backend", "triton"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), BAD)
def test_wrong_values_name_field_value_and_what_is_allowed(field, value):
    with pytest.raises(ValueError, match=field) as error:
        Config(**{field: value})
    assert repr(value) in str(error.value)
    assert "must be" in str(error.value)


@pytest.mark.parametrize(("field", "value"), [("pool_gb", 0), ("prefetch_depth", 0), ("debug", 1)])
def test_wrong_values_of_the_transfer_engine(field, value):
    with pytest.raises(ValueError, match=f"AsyncOffloadConfig: {field}={value!r}"):
        AsyncOffloadConfig(**{field: value})


def test_unknown_fields_suggest_the_right_one():
    with pytest.raises(ValueError, match="no field 'memory_budget'; did you mean 'memory_budget_gb'"):
        Config(memory_budget=4)
    with pytest.raises(ValueError, match="no field 'zzz'.*enable_checkpointing"):
        Config(zzz=1)
    with pytest.raises(ValueError, match="no field 'pool'"):
        AsyncOffloadConfig(pool=1)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"async_offload": True, "enable_offloading": False}, "async_offload=True contradicts enable_offloading=False"),
        ({"mode": "conservative", "async_offload": True}, "default of mode CONSERVATIVE"),
        ({"max_cpu_offload_gb": 4, "enable_offloading": False}, "max_cpu_offload_gb=4 contradicts"),
        ({"offload_dir": "x", "enable_offloading": False}, "offload_dir='x' contradicts"),
        ({"async_config": AsyncOffloadConfig(), "async_offload": False}, "async_config"),
        ({"log_file": "x", "enable_logging": False}, "log_file='x' contradicts enable_logging=False"),
        ({"use_static_profiling": False, "use_empirical_fallback": False}, "could not be profiled"),
    ],
)
def test_contradictions(fields, words):
    with pytest.raises(ValueError, match=words):
        Config(**fields)


NOT_YET = [
    {"enable_offloading": True}, {"enable_tiling": True}, {"use_mixed_precision": True}, {"use_8bit_optimizer": True},
    {"observability_port": 9000}, {"verify_correctness": True}, {"async_offload": True}, {"auto_policy": True},
    {"step_in_backward": True}, {"offload_dir": "x"}, {"optimizer_backend": "bitsandbytes"}, {"loss_backend": "liger"},
]  # fmt: skip


@pytest.mark.parametrize("fields", NOT_YET, ids=lambda f: next(iter(f)))
def test_asking_for_what_is_not_there_yet(fields):
    config, model = Config(enable_logging=False, **fields), zoo.make("mlp")
    with pytest.raises(memscale.MemScaleError, match=f"{next(iter(fields))}.*not in this version"):
        memscale.wrap(model, config)
    assert not hasattr(model, "_memscale_executor")


@pytest.mark.parametrize("mode", ["conservative", "balanced", "aggressive"])
def test_modes_skip_what_is_not_there_yet(mode, no_warnings):
    model = memscale.wrap(zoo.make("mlp"), Config(mode, enable_logging=False))
    memscale.detach(model)


@pytest.mark.parametrize(("text", "asked"), [("1", True), ("true", True), ("0", False), ("", False), ("off", False)])
def test_environment_variable(monkeypatch, text, asked):
    monkeypatch.setenv("MEMSCALE_ASYNC_OFFLOAD", text)
    config = Config(enable_logging=False)
    if asked:
        with pytest.raises(memscale.MemScaleError, match="async_offload=True.*not in this version"):
            memscale.wrap(zoo.make("mlp"), config)
        memscale.wrap(zoo.make("mlp"), config, async_offload=False)  # the argument wins
    else:
        memscale.wrap(zoo.make("mlp"), config)


def test_environment_variable_that_means_nothing(monkeypatch):
    monkeypatch.setenv("MEMSCALE_ASYNC_OFFLOAD", "maybe")
    with pytest.raises(ValueError, match="MEMSCALE_ASYNC_OFFLOAD='maybe'"):
        memscale.wrap(zoo.make("mlp"))
