"""Work in throw-away copies of this process (``_core.run_in_children``): whatever the user's Python does there, it
leaves no trace here.

What a child does costs this process nothing but time: it may crash, hang, print, run out of memory or call CUDA, and is
ended then. It has one thread, no files and no process group. What it returns are numbers, bytes and texts.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import importlib
import logging
import marshal
import os
import random
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch

from .. import _core
from .._hw.memory import host
from ..errors import MemScaleError
from .collectives import leave_process_group
from .meta_values import UnknownValueError

_QUIET_SECONDS = 5.0  # a child that does not use the processor for so long hangs
_LIMIT_SECONDS = 120.0
_REAL_LIMIT_SECONDS = 1800.0  # of a real step on a CPU
_MEMORY_SHARE = 0.5  # of what is free

# What torch imports when an operation first runs on the meta device. Imported here, each child has it already.
_IMPORTS = (
    "torch._dynamo",
    "torch._refs",
    "torch._refs.nn.functional",
    "torch._subclasses.schema_check_mode",
    "torch.distributed",
)


class ChildError(RuntimeError):
    """There was no child, or it gave no answer."""


class ForeignError(RuntimeError):
    """An exception of the user's code in the child: its type and its text."""


class ConfinedError(ForeignError):
    """One that may come from what a child cannot do: files, other processes, as much memory."""


_ERRORS = {kind.__name__: kind for kind in (MemScaleError, UnknownValueError, ConfinedError, ForeignError)}
_OF_CHILDREN = (OSError, MemoryError)  # raised by what a child cannot do


def run_in_children(*works: Callable[[], Any], is_real: bool = False) -> list[Any]:
    """What each of these functions returns in a child of its own: numbers, bytes, texts, and tuples, lists and dicts of
    them. All start from the same state, and run at the same time.

    Args:
        works: called in the children.
        is_real: they compute real steps, which take their time.

    Raises:
        ChildError: no child can be had here, or one crashed, hung, or ran out of memory.
        MemScaleError, UnknownValueError: what was raised in one.
        ForeignError, ConfinedError: any other error was raised in one.
    """
    for name in _IMPORTS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    _start_engine()
    randomness = random.getstate()  # Python seeds it anew in a child
    answers = _core.run_in_children(
        tuple(functools.partial(_answer, work, randomness) for work in works),
        quiet_seconds=_QUIET_SECONDS,
        limit_seconds=_REAL_LIMIT_SECONDS if is_real else _LIMIT_SECONDS,
        memory_bytes=int(host()["memory_available_bytes"] * _MEMORY_SHARE / len(works)),
    )
    return [_value_of(answer) for answer in answers]


def _answer(work: Callable[[], Any], randomness: Any) -> bytes:
    """Everything that a child does."""
    try:
        _settle_in(randomness)
        return marshal.dumps((None, work()))
    except MemScaleError as error:
        return marshal.dumps((MemScaleError.__name__, str(error)))
    except UnknownValueError as error:
        return marshal.dumps((UnknownValueError.__name__, f"{error}{_place_of(error)}"))
    except BaseException as error:
        foreign = ConfinedError if isinstance(error, _OF_CHILDREN) else ForeignError
        return marshal.dumps((foreign.__name__, f"{type(error).__name__}: {error}{_place_of(error)}"))


def _place_of(error: BaseException) -> str:
    """Where in the model's code it was raised."""
    ours = tuple(os.path.dirname(path) for path in (os.path.dirname(__file__), torch.__file__, os.__file__))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if os.path.isfile(f.filename)]
    frames = [f for f in frames if not f.filename.startswith(ours) or "-packages" in f.filename]
    frames = [f for f in frames if not f.filename.startswith(ours[:2])]
    return f" ({os.path.relpath(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""


def _value_of(answer: bytes | Exception) -> Any:
    if not isinstance(answer, bytes):
        raise ChildError(str(answer)) from None
    kind, value = marshal.loads(answer)
    if kind is not None:
        raise _ERRORS[kind](value)
    return value


def _start_engine() -> None:
    """With a GPU, torch's engine starts its threads at the first backward. They must exist before a child is made: in a
    child they would call CUDA."""
    if torch.cuda.is_initialized():
        with torch.enable_grad(), torch.utils._python_dispatch._disable_current_modes():
            torch.zeros((), requires_grad=True).clone().backward()


def _settle_in(randomness: Any) -> None:
    """The first thing that a child does."""
    gc.disable()  # collecting would touch, and so copy, all objects of the parent, and free tensors on its GPU
    faulthandler.disable()
    torch.set_num_threads(1)  # the threads of the pool are not in the child, and work for them would wait for ever
    sys.stdout = sys.stderr = os.fdopen(1, "w")  # the null device; a notebook's streams would talk to its kernel
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    random.setstate(randomness)
    leave_process_group()
    if tempfile.tempdir is None:  # Python finds it by writing a file
        tempfile.tempdir = os.environ.get("TMPDIR", "/tmp")
