"""Options of the commands, and the checks that are made before torch is loaded."""

from __future__ import annotations

import argparse
import dataclasses
import math
from typing import Any, TypeVar

from .._base.step_kinds import DEFAULT_OPTIMIZER, OPTIMIZERS, PRECISIONS
from ..config import OptimizationMode

RECOMPUTE = ("none", "blocks", "all")
EXIT_STATUS = "Exit status: 0 {}, 3 {}, 1 error, 2 usage."


@dataclasses.dataclass(frozen=True)
class StepOptions:
    """The chosen step and GPU; None: not given."""

    model: str
    batch: int | None = None
    seq: int | None = None
    gpu: str | None = None
    optimizer: str | None = None
    precision: str | None = None
    budget: float | None = None  # in GB


@dataclasses.dataclass(frozen=True)
class EstimateOptions(StepOptions):
    """Options of ``memscale estimate``."""

    recompute: str = "none"


@dataclasses.dataclass(frozen=True)
class PlanOptions(StepOptions):
    """Options of ``memscale plan``."""

    mode: str = "balanced"
    all: bool = False
    pareto: bool = False


Options = TypeVar("Options", bound=StepOptions)


def read_options(kind: type[Options], arguments: argparse.Namespace, **changes: Any) -> Options:
    """The options of a command from its arguments, which have the same names."""
    values = {field.name: getattr(arguments, field.name) for field in dataclasses.fields(kind)}
    return kind(**{**values, **changes})


def positive_int(text: str) -> int:
    value = int(text)
    if not 0 < value < 2**31:
        raise ValueError
    return value


def positive_float(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError
    return value


positive_int.__name__, positive_float.__name__ = "positive number", "positive number"  # in argparse's messages


def add_calibrate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", help="as torch names it, such as cuda:1 (default: the GPU, else cpu)")
    parser.add_argument("--output", metavar="FILE", help="the file (default: the one that plans use)")
    parser.add_argument("--force", action="store_true", help="write the figures even if the machine was too busy")


def add_estimate(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "examples:\n"
        "  memscale estimate --model gpt2-medium --batch 4 --seq 512 --gpu rtx3090\n"
        "  memscale estimate --model ./config.json --gpu t4 --recompute blocks\n"
        "  memscale estimate --model train:build --json\n\n" + EXIT_STATUS.format("it fits", "it does not")
    )
    _add_step(parser, budget="memory that may be used (default: all that is usable)")
    parser.add_argument("--recompute", choices=RECOMPUTE, default="none", help="what is recomputed in backward")


def add_plan(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "examples:\n"
        "  memscale plan --model gpt2-medium --batch 4 --seq 512 --gpu rtx3090 --budget 8\n"
        "  memscale plan --model ./config.json --gpu t4 --mode aggressive --all --explain\n"
        "  memscale plan --model train:build --json > plan.json\n\n"
        + EXIT_STATUS.format("there is a plan", "none fits")
    )
    _add_step(parser, budget="make the fastest plan within this budget (default: decided by --mode)")
    add = parser.add_argument
    add("--mode", choices=[mode.value for mode in OptimizationMode], default="balanced", help="default: balanced")
    add("--all", action="store_true", help="also plan with techniques that this version cannot run yet")
    add("--explain", action="store_true", help="show why each layer got its action")
    add("--pareto", nargs="?", const="", metavar="FILE.svg", help="show memory against time; draw it into a file")


def _add_step(parser: argparse.ArgumentParser, *, budget: str) -> None:
    """The options that choose the step and the GPU."""
    add = parser.add_argument
    add("--model", help="a name (see --list-models), a config.json of transformers or its folder, or module:function")
    add("--batch", type=positive_int, metavar="N", help="samples in a batch (default: 1)")
    add("--seq", type=positive_int, metavar="N", help="tokens in a sequence (default: the model's own)")
    add("--gpu", metavar="NAME", help="its name (see --gpu list), or cuda:1, or cpu (default: this machine's GPU)")
    add("--optimizer", choices=OPTIMIZERS, help=f"default: {DEFAULT_OPTIMIZER}")
    add("--precision", choices=PRECISIONS, help="default: the best that the GPU supports; pure: no autocast")
    add("--budget", type=positive_float, metavar="GB", help=budget)
    add("--list-models", action="store_true", help="show the models that are known by name")
    add("--list-gpus", action="store_true", help="show the GPUs that are known, as --gpu list does")
    parser.set_defaults(check=lambda arguments: _check_step(parser, arguments))


def wants_list(arguments: argparse.Namespace) -> str | None:
    """Should a command only list what is known? Which: "gpus" or "models"."""
    if arguments.list_gpus or arguments.gpu == "list":
        return "gpus"
    return "models" if arguments.list_models else None


def _check_step(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if arguments.model is None and wants_list(arguments) is None:
        parser.error("--model is missing: a name (see --list-models), a config.json, or module:function")
