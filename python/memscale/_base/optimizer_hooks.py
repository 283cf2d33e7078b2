"""Removing hooks on all optimizers: not while an optimizer steps, since torch iterates over them then."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

_FILE = register_optimizer_step_pre_hook.__code__.co_filename  # where steps call their hooks
_left: list[Any] = []  # to be removed once no optimizer steps


def remove_hooks(hooks: Iterable[Any]) -> None:
    """Remove these hooks now or, if this thread is inside of an optimizer's step, when others are removed or added.
    Until then they must do nothing. A garbage collection may get here at any time."""
    _left.extend(hooks)
    remove_left_hooks()


def remove_left_hooks() -> None:
    """Remove hooks that are left, unless this thread is inside of an optimizer's step."""
    if _left and not _is_stepping():
        while _left:
            _left.pop().remove()


def _is_stepping() -> bool:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == _FILE:
            return True
        frame = frame.f_back
    return False
