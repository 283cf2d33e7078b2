"""Collectives in a child process, which is in no process group: nothing is sent, and outputs keep their shapes.

The values that other ranks would send are unknown, as all values are in an analysis. Messages between two ranks cannot
be stood in for, since nothing is known of their sizes: they raise, and the step is watched.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed

from .meta_values import UnknownValueError

# They fill tensors that the caller has made, or do nothing but wait.
_IN_PLACE = (
    *("all_gather", "all_gather_coalesced", "all_gather_into_tensor", "_all_gather_base", "all_reduce"),
    *("all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "broadcast", "broadcast_object_list"),
    *("gather", "monitored_barrier", "reduce", "reduce_scatter", "reduce_scatter_tensor", "_reduce_scatter_base"),
    *("scatter", "scatter_object_list", "_broadcast_coalesced"),
)
_BETWEEN_TWO = ("batch_isend_irecv", "irecv", "isend", "recv", "recv_object_list", "send", "send_object_list")


class _Done:
    """The handle of a collective that is over."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True


def _do_nothing(*args: Any, async_op: bool = False, **kwargs: Any) -> _Done | None:
    return _Done() if async_op or True in args[2:] else None


def _gather_objects(object_list: list[Any], obj: Any, *args: Any, **kwargs: Any) -> None:
    object_list[:] = [obj] * len(object_list)


def _refuse(name: str, *args: Any, **kwargs: Any) -> None:
    raise UnknownValueError(f"torch.distributed.{name} depends on another process")


def leave_process_group() -> None:
    """Replace the collectives of torch, for the rest of this process's life."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    functions: dict[str, Callable[..., Any]] = dict.fromkeys(_IN_PLACE, _do_nothing)
    functions["all_gather_object"] = _gather_objects
    functions.update({name: functools.partial(_refuse, name) for name in _BETWEEN_TWO})
    for module in (distributed, sys.modules[distributed.distributed_c10d.__name__]):
        for name, function in functions.items():
            if hasattr(module, name):
                setattr(module, name, function)
    torch.nn.parallel.DistributedDataParallel.forward = _forward_of_module  # type: ignore[method-assign]


def _forward_of_module(self: Any, *args: Any, **kwargs: Any) -> Any:
    """The forward of DistributedDataParallel without its collectives."""
    return self.module(*args, **kwargs)
