"""The GPUs of this process, made when they are first asked for.

Making them initializes the driver, and a child that is forked afterwards cannot use CUDA. So nothing is made on import
or for a model on the CPU. The kernels are compiled by the NVRTC of the CUDA that torch brought, where there is one: it
knows every device that torch serves.
"""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import torch

from .. import _core

_USUAL = ("libnvrtc.so.13", "libnvrtc.so.12")
_NVRTC = re.compile(
    r"libnvrtc(-[0-9a-f]+)?\.so(\.\d+)*"
)  # torch's own copy has a hash in its name; libnvrtc-builtins is another library

_lock = threading.Lock()
_gpu: _core.Gpu | None = None


def get() -> _core.Gpu:
    """The process-wide object over driver, NVML and NVRTC; it exists even if none of them is installed."""
    global _gpu
    with _lock:
        if _gpu is None:
            _gpu = make()
        return _gpu


def make() -> _core.Gpu:
    """A new object, which the caller closes."""
    return _core.Gpu(nvrtc=nvrtc_candidates())


def fuser(device: torch.device) -> _core.Gpu | None:
    """What computes chains of pointwise functions there as one kernel; None where nothing can compile it."""
    if device.type != "cuda" or torch.version.cuda is None:
        return None
    works = {name for name, works, *_ in get().components() if works}
    return get() if {"driver", "nvrtc"} <= works else None


def nvrtc_candidates() -> list[str]:
    """Where NVRTC may be, best first: loaded already, from torch's packages, in torch's own folder, the system's."""
    folder = Path(torch.__file__).parent
    paths = [*_loaded(), *_of_packages(folder.parent), *_libraries(folder / "lib", "libnvrtc*.so*"), *_USUAL]
    return list(dict.fromkeys(paths))


def _loaded() -> list[str]:
    try:
        lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    paths = dict.fromkeys(line[line.index("/") :] for line in lines if "libnvrtc" in line and "/" in line)
    return [path for path in paths if _NVRTC.fullmatch(os.path.basename(path))]


def _of_packages(site: Path) -> list[str]:
    """Of the packages of NVIDIA that a torch from pip depends on; the name of the folder changed with CUDA 13."""
    cuda = torch.version.cuda
    if cuda is None:
        return []
    major = cuda.split(".")[0]
    pattern = f"libnvrtc.so.{major}*"
    return [
        path
        for name in (f"cu{major}", "cuda_nvrtc", f"cuda_nvrtc_cu{major}")
        for path in _libraries(site / "nvidia" / name / "lib", pattern)
    ]


def _libraries(folder: Path, pattern: str) -> list[str]:
    return [str(path) for path in sorted(folder.glob(pattern)) if _NVRTC.fullmatch(path.name)]


def explain_driver(text: str) -> tuple[str, bool]:
    """Why there is no GPU, from the core's report on the driver, and whether that is normal for a machine."""
    if re.search(r"libcuda\.so\.1: .*No such file", text):
        return "no NVIDIA driver: there is no libcuda.so.1", True
    if "CUDA_ERROR_NO_DEVICE" in text or "error 100" in text or "has no device" in text:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            return f"the driver finds no GPU ({text})", True
        return f"CUDA_VISIBLE_DEVICES={visible!r} leaves no GPU visible ({text})", True
    if text.startswith("the driver is for CUDA"):
        return f"the driver is too old: {text}", True
    return f"the driver does not work: {text}", False


def _forget() -> None:
    """In a forked child: the parent's object is of no use there, and its lock may be held."""
    global _gpu, _lock
    _lock = threading.Lock()
    _gpu = None


os.register_at_fork(after_in_child=_forget)
