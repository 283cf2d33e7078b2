"""What the extension needs of torch and Python to recompute a layer.

Random generators and torch's switches are noted and put back in C (``_core/recompute/conditions.c``). This module has
the functions that it calls: those that read and write a switch, and those that read the whole state of Python's and
numpy's generators, if their memory cannot be compared or a layer is known to draw from them.
"""

from __future__ import annotations

import contextvars
import copy
import inspect
import os
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from .. import _core
from . import storages
from .elsewhere import Elsewhere
from .generators import NotedGenerator, owned_kind

# Switches that a user may set around forward only. Autocast by device type; the others as (read, write).
_DEVICE_TYPES = ("cpu", "cuda")
_SWITCHES: list[tuple[Callable[[], Any], Callable[[Any], None]]] = [
    (torch._C._get_flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch._C._get_mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch._C._get_math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    (torch.get_default_dtype, torch.set_default_dtype),
]
if hasattr(torch.backends.cuda, "enable_cudnn_sdp") and hasattr(torch._C, "_get_cudnn_sdp_enabled"):
    _SWITCHES.append((torch._C._get_cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp))

# All of them as (read, write, argument), in this order (conditions.c relies on it): whether autocast is on for any
# device; for each type whether it is on, and its dtype; its cache; then the others.
_TABLE: tuple[tuple[Callable[..., Any], Callable[..., Any] | None, Any], ...] = (
    (getattr(torch._C, "_is_any_autocast_enabled", lambda: True), None, None),
    *(
        (read, write, kind)
        for kind in _DEVICE_TYPES
        for read, write in (
            (torch.is_autocast_enabled, torch.set_autocast_enabled),
            (torch.get_autocast_dtype, torch.set_autocast_dtype),
        )
    ),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled, None),
    *((read, write, None) for read, write in _SWITCHES),
)


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


_TENSOR_ATTRIBUTES = (
    "shape",
    "dtype",
    "device",
    "_version",
    "requires_grad",
    "is_leaf",
    "is_nested",
    "layout",
    "nbytes",
    "_base",
    "grad_fn",
)


def _renew_lock() -> None:
    _core.set_random_lock(threading.RLock())


def bind() -> None:
    """Give the extension what it needs of torch and Python (``_core/core.h``)."""
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
            "switches": _TABLE,
            "enter_autocast": torch.autocast_increment_nesting,
            "leave_autocast": torch.autocast_decrement_nesting,
            "clear_autocast_cache": torch.clear_autocast_cache,
            "same_bits": same_bits,
            "recurrent_type": torch.nn.RNNBase,
            "context": contextvars.Context,
            "generator": torch.default_generator,
            "cuda": torch.cuda,
            "python_random": random._inst,  # type: ignore[attr-defined]
            "note_python": _Python,
            "note_numpy": _Numpy,
            "note_owned": NotedGenerator,
            "owned_kind": owned_kind,
            "note_elsewhere": Elsewhere,
            **storages.BINDINGS,
            **{f"get_{name}": inspect.getattr_static(torch.Tensor, name) for name in _TENSOR_ATTRIBUTES},
        }
    )
    _renew_lock()
    os.register_at_fork(after_in_child=_renew_lock)  # another thread of the parent may have held it


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit for bit, NaN included. Tensors without plain memory are compared by torch."""
    if a.is_nested or b.is_nested:
        return False
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device or a.layout != b.layout:
        return False
    if a.numel() == 0 or a.is_meta:
        return True
    if a.layout != torch.strided or a.is_quantized:
        return bool(torch.equal(a, b))
    flat = [t.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return bool(torch.equal(flat[0], flat[1]))
