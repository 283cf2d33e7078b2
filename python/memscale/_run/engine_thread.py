"""Which thread backward runs on.

By default torch's engine runs a GPU's backward on a thread of its own. That thread recomputes layers whose objects are
in another core's cache, and has a cuBLAS handle, with its workspace, of its own. With one GPU this gains nothing,
so while a model is attached backward stays on the thread that calls it.
"""

from __future__ import annotations

import threading
import weakref

import torch
from torch import nn


class _Thread(threading.local):
    """The mode of this thread's engine before MemScale changed it, and the attachments that it was changed for."""

    def __init__(self) -> None:
        self.holders: set[object] = set()
        self.before = True


_this_thread = _Thread()


def _release(holder: object) -> None:
    mine = _this_thread
    if holder not in mine.holders:
        return
    mine.holders.remove(holder)
    if not mine.holders and not torch._C._is_multithreading_enabled():
        torch._C._set_multithreading_enabled(mine.before)


class BackwardOnCallingThread:
    """Keeps backward on the thread that calls it, for each thread that takes it.

    Attributes:
        release: puts this thread's engine back; does nothing a second time, and happens by itself when this dies.
    """

    def __init__(self) -> None:
        self._holder = object()
        self.release = weakref.finalize(self, _release, self._holder)
        self.release.atexit = False

    def take(self) -> None:
        """Keep this thread's backward here. Does nothing a second time: a mode that the user sets in between stays."""
        mine = _this_thread
        if self._holder in mine.holders:
            return
        if not mine.holders:
            mine.before = torch._C._is_multithreading_enabled()
        mine.holders.add(self._holder)
        torch._C._set_multithreading_enabled(False)


def is_on_one_gpu(model: nn.Module) -> bool:
    """Are all parameters on one and the same GPU?"""
    devices = {p.device for p in model.parameters()}
    return len(devices) == 1 and devices.pop().type == "cuda"
