"""Config: every field, its defaults by mode, and every way to get it wrong."""

import ast
import copy
import dataclasses
import importlib.util
import inspect
import os
import pickle
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import memscale
import zoo
from memscale import AsyncOffloadConfig, Config, OptimizationMode
from memscale._base.arguments import make_settings
from memscale._settings import BOOLEAN, Settings, field_docs, number, setting
from memscale.config import TECHNIQUE_FIELDS, async_settings, engine_settings

ROOT = Path(__file__).parents[2]
PACKAGE = Path(memscale.__file__).parent

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
    "on_oom": "replan",
    "use_static_profiling": True,
    "use_empirical_fallback": True,
    "warmup_steps": 1,
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
    ("on_oom", "retry"), ("on_oom", None),
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
    {"enable_tiling": True}, {"use_mixed_precision": True}, {"use_8bit_optimizer": True},
    {"observability_port": 9000}, {"verify_correctness": True}, {"auto_policy": True},
    {"step_in_backward": True}, {"offload_dir": "x"}, {"optimizer_backend": "bitsandbytes"}, {"loss_backend": "liger"},
]  # fmt: skip


def asked(fields):
    return "-".join(f"{name}={value}" for name, value in fields.items())


@pytest.mark.parametrize("fields", NOT_YET, ids=asked)
def test_asking_for_what_is_not_there_yet(fields):
    config, model = Config(enable_logging=False, **fields), zoo.make("mlp")
    names = "|".join(fields)
    with pytest.raises(memscale.MemScaleError, match=f"({names})=.* asks for .*, which is not in this version; leave"):
        memscale.wrap(model, config)
    assert not hasattr(model, "_memscale_executor")


def test_every_field_that_is_not_there_yet_is_tested():
    missing = {doc.name for doc in field_docs(Config) if doc.available.startswith(("no", "only"))}
    assert missing == {name for fields in NOT_YET for name in fields}


@pytest.mark.parametrize(
    "fields",
    [
        {"enable_offloading": False}, {"enable_offloading": True}, {"async_offload": True},
        {"enable_tiling": False}, {"use_mixed_precision": False}, {"warmup_steps": 1},
        {"observability_port": None}, {"async_offload": False}, {"async_config": None}, {"offload_dir": None},
        {"optimizer_backend": "memscale"}, {"optimizer_backend": "torch"}, {"loss_backend": "torch"},
        {"max_cpu_offload_gb": 1},
    ],
    ids=asked,
)  # fmt: skip
def test_values_that_ask_for_nothing_missing(fields, no_warnings):
    memscale.detach(memscale.wrap(zoo.make("mlp"), Config(enable_logging=False, **fields)))


@pytest.mark.parametrize("mode", ["conservative", "balanced", "aggressive"])
def test_modes_skip_what_is_not_there_yet(mode, no_warnings):
    model = memscale.wrap(zoo.make("mlp"), Config(mode, enable_logging=False))
    memscale.detach(model)


@pytest.mark.parametrize(("text", "asked"), [("1", True), ("true", True), ("0", False), ("", False), ("off", False)])
def test_environment_variable(monkeypatch, text, asked):
    monkeypatch.setenv("MEMSCALE_ASYNC_OFFLOAD", text)
    assert make_settings(Config()).async_offload is asked
    assert make_settings(Config(), async_offload=False).async_offload is False  # the argument wins
    model = memscale.wrap(zoo.make("mlp"), Config(enable_logging=False))
    assert memscale.executor_of(model).config.async_offload is asked


def test_environment_variable_that_means_nothing(monkeypatch):
    monkeypatch.setenv("MEMSCALE_ASYNC_OFFLOAD", "maybe")
    with pytest.raises(ValueError, match="MEMSCALE_ASYNC_OFFLOAD='maybe'"):
        memscale.wrap(zoo.make("mlp"))


# Every field is known to tools and people


@pytest.mark.parametrize("settings", [Config, AsyncOffloadConfig])
def test_the_constructor_has_a_typed_signature(settings):
    parameters, hints = inspect.signature(settings).parameters, typing.get_type_hints(settings)
    defaults = {field.name: field.default for field in dataclasses.fields(settings)}
    assert {name: parameter.default for name, parameter in parameters.items()} == defaults
    assert list(hints) == list(parameters) == list(defaults)
    for name, parameter in parameters.items():
        assert parameter.annotation == (OptimizationMode | str if name == "mode" else hints[name])
        assert (parameter.kind is parameter.KEYWORD_ONLY) == (name != "mode")


def test_only_the_mode_is_positional():
    with pytest.raises(TypeError, match="too many positional"):
        Config("aggressive", False)
    with pytest.raises(TypeError, match="multiple values"):
        Config("aggressive", mode="balanced")
    assert Config("aggressive").given("mode")
    assert not Config().given("mode")


@pytest.mark.parametrize("settings", [Config, AsyncOffloadConfig])
def test_help_shows_every_field(settings):
    text = " ".join(settings.__doc__.split())
    for doc in field_docs(settings):
        assert f"{doc.name}: {doc.meaning} Default: {doc.default}. Allowed: {doc.allowed}." in text
        assert doc.meaning.endswith(".")
    assert ("In this version: only 'memscale'" in text) == (settings is Config)


def test_documented_defaults_are_those_of_the_modes():
    docs = {doc.name: doc for doc in field_docs(Config)}
    assert docs["enable_offloading"].default == "True, but False in CONSERVATIVE"
    assert docs["use_8bit_optimizer"].default == "False, but True in AGGRESSIVE"
    assert "0.15 in CONSERVATIVE, 0.55 in BALANCED, unbounded in AGGRESSIVE" in docs["max_slowdown"].meaning


def test_the_page_of_all_fields_is_current():
    tool = ROOT / "tools" / "config_docs.py"
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    result = subprocess.run(
        [sys.executable, str(tool), "--check"], env=environment, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_an_outdated_page_is_noticed(tmp_path, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("config_docs", ROOT / "tools" / "config_docs.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    monkeypatch.setattr(tool, "PAGE", tmp_path / "CONFIG.md")
    monkeypatch.setattr(sys, "argv", ["config_docs.py", "--check"])
    assert tool.main() == 1
    assert "out of date" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["config_docs.py"])
    assert tool.main() == 0
    assert (tmp_path / "CONFIG.md").read_text() == (ROOT / "docs" / "CONFIG.md").read_text()


TYPED = """
from memscale import AsyncOffloadConfig, Config, OptimizationMode
Config(memory_budget_gb=6)
Config("aggressive", log_file="x", on_oom="raise", async_config=AsyncOffloadConfig(pool_gb=1))
Config(OptimizationMode.BALANCED, max_slowdown=None).replace(mode="aggressive").mode.name
Config(memory_budget=6)                 # call-arg
Config(memory_budget_gb="6")            # arg-type
Config(3)                               # arg-type
Config(on_oom="retry")                  # arg-type
Config("balanced", True)                # call-arg
Config().memory_budget_gb = 6           # misc
AsyncOffloadConfig(pool=1)              # call-arg
"""


def test_type_checkers_know_the_fields(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed (requirements-check.txt)")
    snippet = tmp_path / "snippet.py"
    snippet.write_text(TYPED)
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(snippet)],
        cwd=ROOT, env={**os.environ, "MYPYPATH": str(ROOT / "python")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = re.findall(r"snippet\.py:(\d+): error: .*\[([a-z-]+)\]", result.stdout)
    lines = enumerate(TYPED.splitlines(), 1)
    expected = [(str(number), line.split("# ")[1]) for number, line in lines if "# " in line]
    assert found == expected, result.stdout + result.stderr


# Every field is read


def config_reads(tree):
    """Names that code reads from something called a config or settings, or asks for by ``given("name")``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            if owner.lstrip("_") in ("config", "settings"):
                yield node.attr
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "given":
            yield from (argument.value for argument in node.args if isinstance(argument, ast.Constant))


def properties_of(settings):
    """The names that each property of a class reads."""
    members = inspect.getmembers(settings, lambda member: isinstance(member, property))
    return {name: set(member.fget.__code__.co_names) for name, member in members}


def unread_fields(settings, folder=PACKAGE):
    """Fields that this version claims to have and that no module of the package reads, nor gives to the engine in C."""
    sources = [path for path in folder.rglob("*.py") if path not in (folder / "config.py", folder / "_settings.py")]
    texts = [path.read_text() for path in sources] + [inspect.getsource(f) for f in (engine_settings, async_settings)]
    read = set(TECHNIQUE_FIELDS) | {name for text in texts for name in config_reads(ast.parse(text))}
    for name, fields in properties_of(settings).items():
        read |= fields if name in read else set()
    available = {doc.name for doc in field_docs(settings) if doc.available == "yes"}
    return available - read


@pytest.mark.parametrize("settings", [Config, AsyncOffloadConfig])
def test_every_field_is_read(settings):
    assert unread_fields(settings) == set()


def test_an_unread_field_is_noticed():
    class Planted(Config):
        """A config with fields that nothing reads."""

        ignored: bool = setting("Read by nothing.", default=False, check=BOOLEAN)
        promised: bool = setting("Read by nothing yet.", default=False, check=BOOLEAN, missing="an engine")

    assert unread_fields(Planted) == {"ignored"}


def test_reads_are_recognized():
    code = """
    config.a; self.config.b; self._config.c; settings.d; executor.config.e; settings.given("f")
    config.written = 1; other.g; "config.h"; config
    """
    tree = ast.parse(inspect.cleandoc(code))
    assert set(config_reads(tree)) == {"a", "b", "c", "d", "e", "f", "given"}


def test_a_new_field_is_one_declaration():
    class Extended(Settings):
        """Settings with one more field."""

        share: float = setting("A share of something.", default=0.5, check=number(0, 1))

    assert (Extended().share, Extended(share=1).share) == (0.5, 1)
    assert (
        "share: A share of something. Default: 0.5. Allowed: a number of at least 0 and at most 1." in Extended.__doc__
    )
    with pytest.raises(ValueError, match="Extended: share=2 is not allowed; it must be a number of at least 0"):
        Extended(share=2)
    with pytest.raises(ValueError, match="did you mean 'share'"):
        Extended(shares=1)
