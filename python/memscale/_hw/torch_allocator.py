"""Torch's caching allocator for CUDA: its settings, and what it holds.

Torch parses a string of settings as a whole: some fields that a string does not name fall back to their defaults. So
one field is changed by writing all that can fall back, with the values in force.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterable
from typing import Any

import torch

from .memory import tensor_bytes

_LAST = "PYTORCH_CUDA_ALLOC_CONF"  # in the values in force: the string that was parsed last
_SETTERS = ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings")
_MIB = 1 << 20
_OCCUPIED_STEP = 32 * _MIB  # what is occupied varies a little from run to run; rounded up to this, plans repeat

Settings = dict[str, Any]


def read_settings() -> Settings | None:
    """The values in force; None if this allocator cannot tell."""
    if torch.cuda.get_allocator_backend() != "native":
        return None
    try:
        return dict(torch.cuda.memory._snapshot()["allocator_settings"])
    except (KeyError, RuntimeError, TypeError):
        return None


def is_growing() -> bool | None:
    """Do segments grow (``expandable_segments``)? None if this allocator cannot tell."""
    settings = read_settings()
    return None if settings is None else bool(settings.get("expandable_segments"))


def write_growing(settings: Settings, wanted: bool) -> bool:
    """Let segments grow, or not, with all other settings as given. Did that work?"""
    return _write(_text_of(settings, wanted)) and is_growing() is wanted


class _Ours:
    """Do segments grow because MemScale lets them?"""

    is_growing = False


def start_growing(before: Settings) -> bool:
    """Let segments grow, with all other settings as they are. Did that work?"""
    _Ours.is_growing = write_growing(before, True)
    return _Ours.is_growing


def is_growing_without_us() -> bool:
    """Would segments grow if no model was attached?"""
    return is_growing() is True and not _Ours.is_growing


def stop_growing(before: Settings) -> None:
    """Let segments grow no more; all settings are then what they were before, and what the user has set since stays."""
    now, _Ours.is_growing = read_settings(), False
    if now is None or not now.get("expandable_segments"):
        return
    if _others(now) != _others(before):
        write_growing(now, False)
        return
    write_growing(before, False)
    last = before.get(_LAST)
    if last is not None and (not _write(str(last)) or _others(read_settings() or {}) != _others(before)):
        write_growing(before, False)  # the string alone does not give what was in force


def _others(settings: Settings) -> Settings:
    """All values but the one that is changed here and the string that they came from."""
    return {key: value for key, value in settings.items() if key not in (_LAST, "expandable_segments")}


def _write(text: str) -> bool:
    setter = next((getattr(torch._C, name) for name in _SETTERS if hasattr(torch._C, name)), None)
    if setter is None:
        return False
    try:
        setter(text)
    except (RuntimeError, ValueError):  # the platform has no such segments
        return False
    return True


def _text_of(settings: Settings, grows: bool) -> str:
    """The settings that fall back if a string does not name them, as a string."""
    fields = [f"expandable_segments:{grows}"]
    split_bytes = int(settings.get("max_split_size", -1))
    if split_bytes > 0:  # -1 is no limit
        fields.append(f"max_split_size_mb:{split_bytes // _MIB}")
    threshold = float(settings.get("garbage_collection_threshold", 0))
    if threshold > 0:
        fields.append(f"garbage_collection_threshold:{threshold!r}")
    divisions = {key: int(n) for key, n in dict(settings.get("roundup_power2_divisions", {})).items()}
    if any(divisions.values()):
        rows = sorted(divisions.items(), key=lambda row: int(row[0]))
        fields.append(f"roundup_power2_divisions:[{','.join(f'{mib}:{n}' for mib, n in rows)}]")
    return ",".join(fields)


def can_grow(device: torch.device) -> bool:
    """Can segments be made to grow here, at run time?

    Not with another allocator than torch's own, under WSL2, and on GPUs whose memory is the host's: there such segments
    fail with errors of the driver.
    """
    if not any(hasattr(torch._C, name) for name in _SETTERS) or is_growing() is None:
        return False
    if platform.system() != "Linux" or "microsoft" in platform.uname().release.lower():
        return False
    return not torch.cuda.get_device_properties(device).is_integrated


def return_cache(device: torch.device) -> None:
    """Return all memory of the device that is cached and not in use, workspaces of cuBLAS included."""
    with torch.cuda.device(device), contextlib.suppress(AttributeError):
        torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def occupied_bytes(device: torch.device, known_bytes: int, present: Iterable[torch.Tensor]) -> int:
    """What torch's allocator holds on a device besides a step, rounded up; what is cached is returned first.

    That is memory of other tensors, and free memory in segments that are partly in use.

    Args:
        device: the GPU.
        known_bytes: what the step itself takes from the beginning.
        present: tensors that the step makes, and that exist already.
    """
    return_cache(device)
    mine = known_bytes + tensor_bytes(t for t in present if t.device == device)
    more = int(torch.cuda.memory_reserved(device)) - mine
    return max(0, -(-more // _OCCUPIED_STEP) * _OCCUPIED_STEP)
