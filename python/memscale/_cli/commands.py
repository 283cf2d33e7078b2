"""The commands: ``memscale env``, ``doctor``, ``calibrate``, ``estimate`` and ``plan``, or ``python -m memscale``.

Exit status: 0 success, 1 an error (for ``doctor``: a check failed), 2 wrong usage, 3 the step does not fit. A command's
module is loaded when the command is chosen: help and usage errors do not wait for torch.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .. import _core
from .._show.terminal import drop_output, flush
from .options import add_calibrate, add_estimate, add_plan


def _add_nothing(parser: argparse.ArgumentParser) -> None:
    """The command has no options of its own."""


class Command(NamedTuple):
    """A command: ``run_NAME(arguments)`` of the module ``NAME_command`` runs it and returns the exit code."""

    name: str
    help: str
    add_options: Callable[[argparse.ArgumentParser], None] = _add_nothing

    def run(self, arguments: argparse.Namespace) -> int:
        importlib.import_module(".._base.require", __package__)  # explains what to do if torch is missing
        module = importlib.import_module(f".{self.name}_command", __package__)
        code: int = getattr(module, f"run_{self.name}")(arguments)
        return code


COMMANDS = (
    Command("env", "show versions, host, GPUs and what works of their software"),
    Command("doctor", "try out kernels, copies, and training against plain PyTorch"),
    Command("calibrate", "measure how fast this machine is, once, into a file that plans use", add_calibrate),
    Command("estimate", "predict what a training step needs on any GPU, and whether it fits", add_estimate),
    Command("plan", "show what MemScale would do to each layer of a model on any GPU", add_plan),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code. Usage errors exit with 2, as argparse does."""
    arguments = make_parser().parse_args(argv)
    arguments.check(arguments)
    try:
        code: int = arguments.run(arguments)
        flush()
        return code
    except BrokenPipeError:  # the reader closed its end
        drop_output()
        return 1
    except KeyboardInterrupt:
        return 130
    except ImportError as error:
        if error.name != "torch":
            raise
        return _fail(error)
    except (_core.MemScaleError, OSError, ValueError, MemoryError) as error:
        return _fail(error)


def _fail(error: Exception) -> int:
    print(f"memscale: error: {error}", file=sys.stderr)
    try:
        flush()
    except OSError:  # standard output itself failed
        drop_output()
    return 1


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(prog="memscale", description="MemScale: train larger models on the GPU you have.")
    parser.add_argument("--version", action="version", version=f"memscale {_core.version}")
    parsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        text = f"{command.help[0].upper()}{command.help[1:]}."
        sub = parsers.add_parser(command.name, help=command.help, description=text)
        sub.add_argument("--json", action="store_true", help="write one JSON object")
        sub.set_defaults(run=command.run, check=lambda arguments: None)
        command.add_options(sub)
    return parser
