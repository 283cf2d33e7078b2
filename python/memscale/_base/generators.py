"""Random generators as objects: those of torch, Python and numpy that a module, a class or a file owns."""

from __future__ import annotations

import multiprocessing.queues
import queue
import random
import sys
from typing import Any

import torch

# Objects with a position, or with numbers of their own, that nobody can put back.
_UNRESTORABLE = (
    queue.Queue,
    queue.SimpleQueue,
    multiprocessing.queues.Queue,
    multiprocessing.queues.SimpleQueue,
    random.SystemRandom,
)


def owned_kind(kind: type) -> int:
    """What somebody owns with an object of this type: 0 nothing of interest, 1 a random generator, 2 something with a
    position that cannot be put back, such as an iterator or a file (``_core/recompute/owned.c``)."""
    if hasattr(kind, "__next__") or issubclass(kind, _UNRESTORABLE):
        return 2
    numpy = sys.modules.get("numpy.random")
    of_numpy = () if numpy is None else (numpy.RandomState, numpy.Generator, numpy.BitGenerator)
    return 1 if issubclass(kind, (torch.Generator, random.Random, *of_numpy)) else 0


class NotedGenerator:
    """A generator and where it is when this is made."""

    __slots__ = ("generator", "state")

    def __init__(self, generator: Any) -> None:
        self.generator = generator
        self.state = _state_of(generator)

    def moved(self) -> bool:
        return not _same_state(_state_of(self.generator), self.state)

    def restore(self) -> None:
        generator = self.generator
        if isinstance(generator, random.Random):
            generator.setstate(self.state)
        elif hasattr(generator, "set_state"):
            generator.set_state(self.state)
        else:
            getattr(generator, "bit_generator", generator).state = self.state


def _state_of(generator: Any) -> Any:
    """The whole state: of torch's a tensor, of random.Random a tuple, of numpy's a dict."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if hasattr(generator, "get_state"):
        return generator.get_state(legacy=False)
    return getattr(generator, "bit_generator", generator).state


def _same_state(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same_state(value, b[key]) for key, value in a.items())
    if isinstance(a, torch.Tensor):
        return bool(torch.equal(a, b))
    if hasattr(a, "tobytes"):  # an array
        return bool(a.tobytes() == b.tobytes())
    return bool(a == b)
