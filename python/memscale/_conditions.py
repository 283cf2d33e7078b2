"""What a forward depends on beside its inputs and its modules: random generators and torch's switches."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

# Global switches that a user may set around forward only; each as (get, set).
_SWITCHES: list[tuple[Callable[[], Any], Callable[[Any], None]]] = [
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    (torch.get_default_dtype, torch.set_default_dtype),
]
if hasattr(torch.backends.cuda, "cudnn_sdp_enabled"):
    _SWITCHES.append((torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp))

# The CPU's generators are one for all threads: a run that draws from them, or runs again on old ones, has them alone.
# Not taken for units on a GPU, whose backward runs on a thread of its own that must not wait for the one that waits.
_random_lock = threading.RLock()


def _renew_lock() -> None:
    global _random_lock
    _random_lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)  # another thread of the parent may have held it


def alone(devices: set[torch.device]) -> contextlib.AbstractContextManager[Any]:
    """Keep other threads from drawing meanwhile."""
    return contextlib.nullcontext() if any(d.type == "cuda" for d in devices) else _random_lock


class _Torch:
    """One of torch's default generators."""

    __slots__ = ("generator", "state")

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self.state = generator.get_state()

    def moved(self) -> bool:
        return not torch.equal(self.generator.get_state(), self.state)

    def restore(self) -> None:
        if self.moved():  # on a GPU, setting a generator starts cuDNN's own dropout anew
            self.generator.set_state(self.state)


class _Python:
    """The generator of Python's random module."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = random.getstate()

    def moved(self) -> bool:
        return random.getstate() != self.state

    def restore(self) -> None:
        random.setstate(self.state)


class _Numpy:
    """The global generator of numpy, if the program uses numpy."""

    __slots__ = ("numpy", "state")

    def __init__(self) -> None:
        self.numpy = sys.modules["numpy"]
        self.state = self.numpy.random.get_state()

    def moved(self) -> bool:
        now = self.numpy.random.get_state()
        return now[2] != self.state[2] or not self.numpy.array_equal(now[1], self.state[1])

    def restore(self) -> None:
        self.numpy.random.set_state(self.state)


class Randomness:
    """The random generators, as they are when it is made."""

    __slots__ = ("states",)

    def __init__(self, devices: set[torch.device]) -> None:
        self.states: list[_Torch | _Python | _Numpy] = [_Torch(torch.default_generator)]
        if torch.cuda.is_initialized():
            indices = sorted({d.index or 0 for d in devices if d.type == "cuda"})
            self.states += [_Torch(torch.cuda.default_generators[i]) for i in indices]
        self.states.append(_Python())
        if "numpy.random" in sys.modules:
            self.states.append(_Numpy())

    def keep_moved(self) -> None:
        """Forget generators that nobody drew from since: they need not be put back."""
        self.states = [state for state in self.states if state.moved()]

    def moved(self) -> bool:
        return any(state.moved() for state in self.states)

    def restore(self) -> None:
        for state in self.states:
            state.restore()

    @contextlib.contextmanager
    def put_back(self) -> Iterator[None]:
        """As they were; afterwards as they are now."""
        now = [_Torch(s.generator) if isinstance(s, _Torch) else type(s)() for s in self.states]
        try:
            self.restore()
            yield
        finally:
            for state in now:
                state.restore()


class Switches:
    """Autocast, attention kernels, default dtype, as they are when it is made."""

    __slots__ = ("autocast", "cache", "values")

    def __init__(self, devices: set[torch.device]) -> None:
        types = {"cpu", *(device.type for device in devices if device.type == "cuda")}
        self.autocast = [(t, torch.is_autocast_enabled(t), torch.get_autocast_dtype(t)) for t in sorted(types)]
        self.cache = torch.is_autocast_cache_enabled()
        self.values = [get() for get, _ in _SWITCHES]

    @contextlib.contextmanager
    def put_back(self) -> Iterator[None]:
        """As they were; afterwards as they are now."""
        now = [get() for get, _ in _SWITCHES]
        with contextlib.ExitStack() as stack:
            for device_type, enabled, dtype in self.autocast:
                current = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
                if current != (enabled, dtype) or (enabled and torch.is_autocast_cache_enabled() != self.cache):
                    stack.enter_context(torch.autocast(device_type, dtype, enabled, self.cache))
            try:
                _set_switches(self.values, now)
                yield
            finally:
                _set_switches(now, self.values)


def _set_switches(wanted: list[Any], current: list[Any]) -> None:
    if wanted != current:
        for (_, switch), value in zip(_SWITCHES, wanted):
            switch(value)
