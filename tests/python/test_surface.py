"""The public surface is frozen: a change here is a decision, not an accident."""

import importlib
import inspect
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import memscale
import zoo

SURFACE = {
    "AsyncOffloadConfig": None,  # the fields are frozen in test_config.py
    "BudgetError": None,
    "Config": None,  # likewise
    "MemScaleError": None,
    "MemScaleWarning": None,
    "Measurement": None,
    "OptimizationMode": None,
    "ParetoPoint": None,
    "Plan": None,
    "Prediction": None,
    "Profile": None,
    "__version__": None,
    "calibrate": "(device: 'torch.device | str | int | None' = None, path: 'str | os.PathLike[str] | None' = None, *, "
    "force: 'bool' = False) "
    "-> 'Rates'",
    "detach": "(model: 'Any') -> 'None'",
    "executor_of": "(model: 'Any') -> 'Executor | None'",
    "optimize": "(model: 'nn.Module', optimizer: 'torch.optim.Optimizer | None' = None, "
    "config: 'Config | None' = None, sample_input: 'Any' = None) -> 'Iterator[Executor]'",
    "measure_peak": "(fn: 'Callable[[], Any]', device: 'str | torch.device | None' = None) -> 'Measurement'",
    "plan": "(model: 'nn.Module', sample_input: 'Any' = None, *, optimizer: 'torch.optim.Optimizer | None' = None, "
    "config: 'Config | None' = None, device: 'str | torch.device | None' = None, precision: 'str | None' = None, "
    "loss: 'Callable[[Any], torch.Tensor] | None' = None) -> 'Plan'",
    "predict": "(model: 'nn.Module', sample_input: 'Any', *, optimizer: 'torch.optim.Optimizer | None' = None, "
    "config: 'Config | None' = None, loss: 'Callable[[Any], torch.Tensor] | None' = None, "
    "precision: 'str | None' = None, device: 'str | torch.device | None' = None, "
    "evaluation: 'bool' = False, recompute: 'Collection[str] | str' = ()) -> 'Prediction'",
    "profile": "(model: 'nn.Module', sample_input: 'Any', *, optimizer: 'torch.optim.Optimizer | None' = None, "
    "config: 'Config | None' = None, loss: 'Callable[[Any], torch.Tensor] | None' = None, "
    "precision: 'str | None' = None, device: 'str | torch.device | None' = None, "
    "evaluation: 'bool' = False, shapes: 'bool' = False) -> 'Profile'",
    "wrap": "(target: 'Target', config: 'Config | None' = None, sample_input: 'Any' = None, "
    "async_offload: 'bool | None' = None, async_config: 'AsyncOffloadConfig | None' = None, "
    "plan: 'Plan | str | os.PathLike[str] | None' = None) -> 'Target'",
}


def test_public_names_and_signatures():
    assert sorted(memscale.__all__) == sorted(SURFACE)
    for name, signature in SURFACE.items():
        value = getattr(memscale, name)
        if signature is not None:
            assert str(inspect.signature(value)) == signature, name
            assert value.__doc__


def test_dir_shows_what_is_public():
    for name in ("api", "cli", "profiles"):
        importlib.import_module(f"memscale.{name}")
    assert [name for name in dir(memscale) if not name.startswith("__")] == sorted(set(SURFACE) - {"__version__"})
    assert {"__version__", "__doc__", "__name__"} <= set(dir(memscale))
    assert not hasattr(memscale, "nothing_of_this_name")


def test_everything_after_the_sample_is_by_keyword():
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 4)), torch.ones(2, 4)
    for call in (memscale.plan, memscale.profile, memscale.predict):
        with pytest.raises(TypeError, match="positional"):
            call(model, x, torch.optim.SGD(model.parameters(), lr=0.1))


def test_neither_the_package_nor_help_waits_for_torch():
    result = run_python(
        """
        import sys
        import memscale
        from memscale import BudgetError, Config, Plan
        from memscale.cli import main
        assert memscale.errors.BudgetError is BudgetError
        for arguments in (["--help"], ["--version"], ["plan", "--help"], ["plan"], ["estimate", "--batch", "none"], []):
            try:
                main(arguments)
            except SystemExit:
                pass
        assert "torch" not in sys.modules
        assert Config().mode is memscale.OptimizationMode.BALANCED
        from memscale import *
        assert all(name in globals() for name in memscale.__all__)
        assert "torch" in sys.modules
        """
    )
    assert (result.returncode, result.stderr.count("error:")) == (0, 3), result.stderr


def test_public_names_of_plan_and_executor():
    from memscale._run.executor import Executor
    from memscale.plans import Plan

    assert [n for n in vars(Plan) if not n.startswith("_")] == [
        "n_recomputed", "n_changed", "explain", "pareto", "to_html", "to_json", "from_json", "check_units",
        "groups", "actions", "describe",
    ]  # fmt: skip
    assert [n for n in vars(Executor) if not n.startswith("_")] == [
        "measured", "attach", "reattach", "detach", "leave_modules", "see_step", "end_step", "begin_forward",
        "end_forward", "recomputes", "run_unit", "log_use_cache",
    ]  # fmt: skip
    attributes = vars(Executor(zoo.make("mlp"), memscale.Config()))
    assert [n for n in attributes if not n.startswith("_")] == ["model", "config", "plan", "attached", "in_context"]


def test_commands():
    from memscale._cli.commands import make_parser

    names = re.findall(r"^ {4}(\w+)", make_parser().format_help(), re.MULTILINE)
    assert names == ["env", "doctor", "calibrate", "estimate", "plan"]
    assert 'memscale = "memscale.cli:main"' in (Path(__file__).parents[2] / "pyproject.toml").read_text()


def test_version():
    header = (Path(__file__).parents[2] / "include/memscale/memscale.h").read_text()
    assert re.search(r'MS_VERSION_STRING "(.*)"', header).group(1) == memscale.__version__


def run_python(code, **environment):
    environment = {**os.environ, **environment}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(Path(memscale.__file__).parents[1]), environment.get("PYTHONPATH", "")]
    )
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def test_import_is_silent_and_leaves_logging_alone():
    result = run_python(
        """
        import logging
        before = logging.getLogger().handlers[:], logging.getLogger().level
        import memscale
        assert (logging.getLogger().handlers[:], logging.getLogger().level) == before
        logger = logging.getLogger("memscale")
        assert logger.level == logging.NOTSET
        assert [type(h) for h in logger.handlers] == [logging.NullHandler]
        """
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_default_run_warns_of_nothing():
    result = run_python(
        """
        import torch, memscale
        model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()) for _ in range(3)])
        memscale.wrap(model)
        for _ in range(2):
            model(torch.ones(2, 8)).sum().backward()
        memscale.detach(model)
        """
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "nothing to do" in result.stdout


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        ("sys.modules['torch'] = None", "needs PyTorch 2.4 or newer and does not install it"),
        ("import types; t = types.ModuleType('torch'); t.__version__ = '2.3.1+cu118'; sys.modules['torch'] = t",
         "this is 2.3.1"),
    ],
)  # fmt: skip
def test_missing_and_old_torch(prepare, words):
    result = run_python(f"import sys\n{prepare}\nimport memscale\nmemscale.Config()\nmemscale.wrap")
    assert result.returncode == 1
    assert "ImportError" in result.stderr
    assert words in result.stderr
    assert "pip install" in result.stderr
    assert "During handling" not in result.stderr
    assert "direct cause" not in result.stderr
    command = run_python(f"import sys\n{prepare}\nfrom memscale.cli import main\nsys.exit(main(['env']))")
    assert (command.returncode, command.stdout) == (1, "")
    assert command.stderr.startswith("memscale: error: memscale needs PyTorch 2.4 or newer")
    assert words in command.stderr
    assert len(command.stderr.splitlines()) == 1


def test_the_extension_is_one_stable_binary():
    from memscale import _core

    assert _core.__file__.endswith("_core.abi3.so")
    libraries = subprocess.run(["readelf", "-d", _core.__file__], capture_output=True, text=True, check=False).stdout
    assert not re.search(r"NEEDED.*(torch|cuda|python)", libraries)


def test_type_hints_are_shipped():
    folder = Path(memscale.__file__).parent
    assert (folder / "py.typed").exists()
    assert (folder / "_core.pyi").exists()
    assert torch.nn.Module in inspect.signature(memscale.optimize, eval_str=True).parameters["model"].annotation.__mro__
