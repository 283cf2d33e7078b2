"""What a forward depends on beside its inputs and its modules: what the extension needs of torch and Python for it.

The generators and switches themselves are noted and put back in C (``_core/conditions.c``). Here is what it calls: how
a switch is read and set, and how Python's and numpy's generators are asked for their whole state where their memory
cannot be compared, or where a unit is known to draw from them.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import os
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from . import _core

# Switches that a user may set around forward only. Autocast by device type; the others as (get, set).
_DEVICE_TYPES = ("cpu", "cuda")
_SWITCHES: list[tuple[Callable[[], Any], Callable[[Any], None]]] = [
    (torch._C._get_flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch._C._get_mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch._C._get_math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    (torch.get_default_dtype, torch.set_default_dtype),
]
if hasattr(torch.backends.cuda, "enable_cudnn_sdp") and hasattr(torch._C, "_get_cudnn_sdp_enabled"):
    _SWITCHES.append((torch._C._get_cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp))

# How they are read, in this order (conditions.c counts on it): is autocast on for any device; for each type whether it
# is on, and its dtype; its cache; then the others. While autocast is off for all, what it consists of reads False.
_READ: tuple[tuple[Callable[..., Any], Any], ...] = (
    (getattr(torch._C, "_is_any_autocast_enabled", lambda: True), None),
    *((read, kind) for kind in _DEVICE_TYPES for read in (torch.is_autocast_enabled, torch.get_autocast_dtype)),
    (torch.is_autocast_cache_enabled, None),
    *((get, None) for get, _ in _SWITCHES),
)
_N_AUTOCAST = 2 * len(_DEVICE_TYPES)


def _autocast_of(values: tuple[Any, ...], i: int) -> tuple[bool, Any, bool]:
    """Autocast of the i-th device type in what was read: is it on, its dtype, its cache."""
    return values[1 + 2 * i], values[2 + 2 * i], values[1 + _N_AUTOCAST]


def _put_switches(wanted: tuple[Any, ...], now: tuple[Any, ...]) -> Callable[[], None]:
    """Set the switches as wanted; returns what sets them as they are now."""
    stack = contextlib.ExitStack()
    for i, kind in enumerate(_DEVICE_TYPES):
        then, current = _autocast_of(wanted, i), _autocast_of(now, i)
        if then[0] and then != current:
            stack.enter_context(torch.autocast(kind, then[1], True, then[2]))
        elif current[0] and not then[0]:
            stack.enter_context(torch.autocast(kind, current[1], False))
    others = slice(_N_AUTOCAST + 2, None)
    for (_, switch), value, current_value in zip(_SWITCHES, wanted[others], now[others]):
        if value != current_value:
            stack.callback(switch, current_value)
            switch(value)
    return stack.close


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
    """The global generator of numpy."""

    __slots__ = ("numpy", "state")

    def __init__(self) -> None:
        self.numpy = sys.modules["numpy"]
        self.state = self.numpy.random.get_state()

    def moved(self) -> bool:
        now = self.numpy.random.get_state()
        return now[2:] != self.state[2:] or not self.numpy.array_equal(now[1], self.state[1])

    def restore(self) -> None:
        self.numpy.random.set_state(self.state)


_TENSOR_ATTRIBUTES = ("shape", "dtype", "device", "_version", "requires_grad", "is_leaf", "is_nested")


def _renew_lock() -> None:
    _core.set_random_lock(threading.RLock())


def bind() -> None:
    """Hand the extension what it needs of torch and Python (``_core/core.h``)."""
    _core.bind(
        {
            "tensor_type": torch.Tensor,
            "parameter_type": torch.nn.Parameter,
            "mask_type": torch.bool,
            "detach": torch.Tensor.detach,
            "clone": torch.Tensor.clone,
            "graph_task_id": torch._C._current_graph_task_id,
            "push_hooks": torch._C._autograd._push_saved_tensors_default_hooks,
            "pop_hooks": torch._C._autograd._pop_saved_tensors_default_hooks,
            "grad_enabled": torch.is_grad_enabled,
            "set_grad_enabled": torch._C._set_grad_enabled,
            "copy": copy.copy,
            "switches": _READ,
            "put_switches": _put_switches,
            "generator": torch.default_generator,
            "cuda": torch.cuda,
            "python_random": random._inst,  # type: ignore[attr-defined]
            "note_python": _Python,
            "note_numpy": _Numpy,
            **{f"get_{name}": inspect.getattr_static(torch.Tensor, name) for name in _TENSOR_ATTRIBUTES},
        }
    )
    _renew_lock()
    os.register_at_fork(after_in_child=_renew_lock)  # another thread of the parent may have held it
