"""What a model may ask about its device, answered for a target that is not there.

A step that is analysed for a GPU runs on a machine without one, or in a process that must not call CUDA. While
:func:`enter_target` is active, ``torch.cuda`` answers as it would on the target, and does nothing where it would act.
Nothing here allocates; tensors that torch returns (random states) are ordinary ones on the CPU.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import checkpoint

if TYPE_CHECKING:
    from .target import Target

_GIB = 1 << 30
_CHECKS = "_allowed_determinism_checks_to_fns"


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _zero(*_: Any, **__: Any) -> int:
    return 0


def _yes(*_: Any, **__: Any) -> bool:
    return True


def _no(*_: Any, **__: Any) -> bool:
    return False


class _Queue:
    """A stream or an event: everything in it is done, and waiting for it takes no time."""

    device = torch.device("cuda", 0)
    device_index = stream_id = cuda_stream = cuda_event = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> _Queue:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    synchronize = wait_event = wait_stream = wait = record = staticmethod(_nothing)
    query = staticmethod(_yes)
    is_capturing = staticmethod(_no)

    def record_event(self, event: Any = None) -> Any:
        return event or _Queue()

    def elapsed_time(self, _: Any) -> float:
        return 0.0


class _DeviceContext(contextlib.AbstractContextManager[None]):
    """``torch.cuda.device`` and ``torch.cuda.stream``: there is one device with one stream."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.idx, self.prev_idx = 0, 0

    def __exit__(self, *_: Any) -> None:
        pass


def _random_state(*_: Any, **__: Any) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        return torch.zeros(16, dtype=torch.uint8)  # a GPU's generator: seed and offset


def _cuda_answers(target: Target) -> dict[str, Any]:
    memory = target.memory_bytes or 80 * _GIB
    major, minor = divmod(target.capability, 10)
    properties = types.SimpleNamespace(
        name=target.name,
        major=major,
        minor=minor,
        total_memory=memory,
        multi_processor_count=target.n_multiprocessors or 108,
        warp_size=32,
        is_integrated=False,
        is_multi_gpu_board=False,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        L2_cache_size=40 << 20,
        gcnArchName="",
    )
    answers: dict[str, Any] = {
        "device_count": lambda: 1,
        "get_device_capability": lambda *_: (major, minor),
        "get_device_name": lambda *_: target.name,
        "get_device_properties": lambda *_: properties,
        "get_arch_list": lambda: [f"sm_{target.capability}"],
        "mem_get_info": lambda *_: (memory, memory),
        "memory_stats": lambda *_: defaultdict(int),
        "memory_snapshot": lambda *_: [],
        "memory_summary": lambda *_, **__: "",
        "get_rng_state_all": lambda: [_random_state()],
        "initial_seed": _zero,
        "can_device_access_peer": _no,
        "get_rng_state": _random_state,
        "current_stream": _Queue,
        "default_stream": _Queue,
        "Stream": _Queue,
        "ExternalStream": _Queue,
        "Event": _Queue,
        "device": _DeviceContext,
        "device_of": _DeviceContext,
        "stream": _DeviceContext,
    }
    does_nothing = (
        "set_device set_stream synchronize empty_cache ipc_collect init _lazy_init set_rng_state set_rng_state_all "
        "manual_seed manual_seed_all seed seed_all reset_peak_memory_stats reset_max_memory_allocated "
        "reset_accumulated_memory_stats set_per_process_memory_fraction _sleep"
    )
    is_zero = (
        "current_device memory_allocated max_memory_allocated memory_reserved max_memory_reserved utilization "
        "temperature power_draw clock_rate"
    )
    answers.update(dict.fromkeys(does_nothing.split(), _nothing))
    answers.update(dict.fromkeys(is_zero.split(), _zero))
    answers.update(dict.fromkeys(("is_available", "is_bf16_supported", "is_tf32_supported", "is_initialized"), _yes))
    answers["is_current_stream_capturing"] = _no
    return answers


def _without_modes(check: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    """A checkpoint compares what was saved inside an operation with what it recomputed, seen from outside of one."""

    def checked(tensor: torch.Tensor) -> Any:
        with torch._C.DisableTorchFunction():
            return check(tensor)

    return checked


class _Dequantized(torch.autograd.Function):  # type: ignore[misc]
    """A product with a weight of 4 bits, which is unpacked to a temporary tensor in forward and in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
        ctx.shape = shape
        return x @ x.new_empty(shape).t()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0] @ gradients[0].new_empty(ctx.shape), None


def _four_bit_forward(module: Any, x: torch.Tensor) -> torch.Tensor:
    """The forward of a 4-bit layer of bitsandbytes, whose kernels take no meta tensors."""
    dtype = getattr(module, "compute_dtype", None) or x.dtype
    output = _Dequantized.apply(x.to(dtype), (module.out_features, module.in_features))
    if module.bias is not None:
        output = output + module.bias.to(dtype)
    return output.to(x.dtype)  # type: ignore[no-any-return]


def _patches(target: Target, clear_casts: Callable[[], None]) -> list[tuple[Any, str, Any]]:
    clear = torch.clear_autocast_cache

    def clear_both() -> None:
        clear()
        clear_casts()

    checks = getattr(checkpoint, _CHECKS, {})
    patches: list[tuple[Any, str, Any]] = [
        (torch, "clear_autocast_cache", clear_both),
        (checkpoint, _CHECKS, {name: _without_modes(check) for name, check in checks.items()}),
    ]
    four_bit = getattr(sys.modules.get("bitsandbytes.nn"), "Linear4bit", None)
    if four_bit is not None:
        patches.append((four_bit, "forward", _four_bit_forward))
    if target.kind != "cuda":
        return patches
    patches += [(torch.cuda, name, answer) for name, answer in _cuda_answers(target).items()]
    patches += [(torch.cuda.nvtx, name, _nothing) for name in ("range_push", "range_pop", "mark")]
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None:
        answers = {
            "is_available": _yes,
            "device_count": lambda: 1,
            "current_accelerator": lambda *_, **__: torch.device("cuda"),
            "current_device_index": _zero,
            "current_device_idx": _zero,
            "current_stream": _Queue,
            "synchronize": _nothing,
            "set_device_index": _nothing,
            "empty_cache": _nothing,
        }
        patches += [(accelerator, name, answer) for name, answer in answers.items()]
    return patches


@contextlib.contextmanager
def _outside_autocast() -> Iterator[None]:
    """As before the first autocast block: a step that is analysed inside of one has its own."""
    before = [(kind, torch.is_autocast_enabled(kind)) for kind in ("cpu", "cuda")]
    depth = torch.autocast_increment_nesting()
    for _ in range(depth):
        torch.autocast_decrement_nesting()
    for kind, _ in before:
        torch.set_autocast_enabled(kind, False)
    try:
        yield
    finally:
        for kind, enabled in before:
            torch.set_autocast_enabled(kind, enabled)
        for _ in range(depth - 1):
            torch.autocast_increment_nesting()


@contextlib.contextmanager
def enter_target(target: Target, clear_casts: Callable[[], None]) -> Iterator[None]:
    """Let torch answer as on the target, outside of autocast. ``clear_casts`` is called when torch forgets the weights
    that autocast has cast, which is at the end of the outermost autocast block."""
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)  # meta kernels refuse what the target would do
    patches = [patch for patch in _patches(target, clear_casts) if hasattr(patch[0], patch[1])]
    before = [(place, name, getattr(place, name)) for place, name, _ in patches]
    for place, name, answer in patches:
        setattr(place, name, answer)
    try:
        with _outside_autocast():
            yield
    finally:
        torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])
        for place, name, answer in before:
            setattr(place, name, answer)
