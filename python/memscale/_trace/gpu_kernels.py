"""What convolutions allocate for themselves on a GPU, measured.

cuDNN chooses among kernels by shape, card and version, and each needs memory of its own: no rule gives it. So each kind
of convolution that a step has runs alone, on memory that is returned afterwards, and torch's allocator counts what it
takes. Nothing of the user's runs, and no statistic is reset.
"""

from __future__ import annotations

import contextlib
import functools
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .. import _core

# Is it backward, the layouts of its operands, its options, and in backward which gradients are wanted: numbers and
# texts alone, since it may come from another process.
Convolution = tuple[Any, ...]
_Layout = tuple[tuple[int, ...], tuple[int, ...], str]  # shape, strides, type

_FORWARD = torch.ops.aten.convolution.default
_BACKWARD = torch.ops.aten.convolution_backward.default
_N_TENSORS = 3  # the first arguments of either, and the results of the second
_UNKNOWN = (-1, 0, 0)


def convolution_of(func: Any, args: tuple[Any, ...]) -> Convolution | None:
    """What a convolution's memory depends on; None if it is something else."""
    if func is not _FORWARD and func is not _BACKWARD:
        return None
    layouts = tuple(_layout(tensor) for tensor in args[:_N_TENSORS])
    options = tuple(tuple(value) if isinstance(value, (list, tuple)) else value for value in args[_N_TENSORS:])
    if func is _FORWARD:
        return False, layouts, options, ()
    return True, layouts, options[1:-1], options[-1]  # the sizes of a bias do not matter


def _layout(tensor: Any) -> _Layout | None:
    return None if tensor is None else (tuple(tensor.shape), tensor.stride(), str(tensor.dtype).removeprefix("torch."))


def gpu_of(device: _core.Device, model: torch.nn.Module) -> torch.device | None:
    """The GPU of this process that steps are profiled for; None if they are for another or a CPU."""
    if device.kind != "cuda" or not torch.cuda.is_initialized():
        return None
    places = {p.device for p in model.parameters() if p.device.type == "cuda"}
    place = min(places, key=str) if places else torch.device("cuda", torch.cuda.current_device())
    return place if torch.cuda.get_device_name(place) == device.name else None


def with_seen_memory(
    trace: _core.PackedTrace, convolutions: dict[int, Convolution], place: torch.device
) -> _core.PackedTrace:
    """The trace, with what its convolutions allocate on this GPU.

    Args:
        trace: of a step.
        convolutions: by the number of their name in the trace.
        place: a GPU of this process.
    """
    if not convolutions or not _can_measure():
        return trace
    *arrays, names, _ = trace
    scratch = array("q", _UNKNOWN) * len(names)
    with _apart(place):
        for name, convolution in convolutions.items():
            first = name * _N_TENSORS
            scratch[first : first + _N_TENSORS] = array("q", _bytes_of(convolution, place))
    events, ops, operands, kinds = arrays
    return events, ops, operands, kinds, names, scratch.tobytes()


def _can_measure() -> bool:
    """Does torch's own allocator serve requests, which counts them, and is nothing captured as a graph now?"""
    return torch.cuda.get_allocator_backend() == "native" and not torch.cuda.is_current_stream_capturing()


@contextlib.contextmanager
def _apart(place: torch.device) -> Iterator[None]:
    """Whatever modes are active, and without memory that stays."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.cuda.device(place))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast("cuda", enabled=False))
        stack.enter_context(torch.utils._python_dispatch._disable_current_modes())
        stack.enter_context(torch._C.DisableTorchFunction())
        if hasattr(torch.cuda, "MemPool"):  # its memory is returned when it dies
            stack.enter_context(torch.cuda.use_mem_pool(torch.cuda.MemPool(), place))
        yield


def _bytes_of(convolution: Convolution, place: torch.device) -> tuple[int, int, int]:
    """What it takes for its results, one after the other."""
    cudnn = torch.backends.cudnn
    switches = (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32)
    try:
        taken = _measure(convolution, place, (*switches, torch.are_deterministic_algorithms_enabled()))
    except RuntimeError:  # there is no room for it, or it cannot run: the step itself will tell
        return _UNKNOWN
    first, second, third = [*taken, 0, 0, 0][:_N_TENSORS]
    return first, second, third


@functools.lru_cache(maxsize=1 << 14)
def _measure(convolution: Convolution, place: torch.device, _switches: tuple[bool, ...]) -> list[int]:
    is_backward, layouts, options, wanted = convolution
    first, second, third = (_empty(layout, place) for layout in layouts)
    if not is_backward:
        return [_taken_by(lambda: torch.ops.aten.convolution(first, second, third, *options), place)]
    taken = []
    for index in range(_N_TENSORS):  # torch computes one gradient after the other
        if wanted[index]:
            alone = [index == i for i in range(_N_TENSORS)]
            operands = (first, second, third, [first.shape[1]])
            backward = functools.partial(torch.ops.aten.convolution_backward, *operands, *options, alone)
            taken.append(_taken_by(backward, place))
    return taken


def _empty(layout: _Layout | None, place: torch.device) -> Any:
    if layout is None:
        return None
    shape, strides, dtype = layout
    return torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), device=place)


def _taken_by(work: Callable[[], Any], place: torch.device) -> int:
    """Bytes that come and go in there. The first run may try kernels out; what other threads allocate meanwhile only
    adds."""
    work()
    runs = []
    for _ in range(2):
        requested, current = _counters(place)
        results = work()
        requested_now, current_now = _counters(place)
        del results
        runs.append(requested_now - requested - (current_now - current))
    return min(runs)


def _counters(place: torch.device) -> tuple[int, int]:
    """Bytes that were ever asked for, and those of them that are allocated now."""
    counts = torch.cuda.memory_stats_as_nested_dict(place)["requested_bytes"]["all"]
    return counts["allocated"], counts["current"]
