"""What ``memscale env`` reports: versions, host, GPUs, what works of their software, and settings that matter.

Optional packages are looked up, never imported, and no context is made on a device.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import torch

from . import _calibrate, _core, _gpu

PACKAGES = ("transformers", "accelerate", "lightning", "bitsandbytes", "liger-kernel")
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_PREFIX = "MEMSCALE_"
INFO, WARNING = 1, 2  # levels of the core's messages


def gather() -> dict[str, Any]:
    """Everything as one object that JSON can hold; its keys are documented in the README and stay."""
    with core_messages(WARNING) as messages:
        gpu = _gpu.get()
        hardware = json.loads(gpu.hw())
    return {
        "memscale": _core.version,
        "versions": versions(),
        "hardware": hardware,
        "parts": parts(gpu),
        "calibration": calibration(),
        "environment": variables(),
        "messages": messages,
    }


def versions() -> dict[str, str | None]:
    """Versions of what MemScale works with; None for what is not there."""
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "torch_cuda": torch.version.cuda,
        "platform": platform.platform(),
        **{name: package_version(name) for name in PACKAGES},
    }


def package_version(name: str) -> str | None:
    """The version of an installed package, without importing it."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def parts(gpu: _core.Gpu) -> list[dict[str, Any]]:
    """Driver, NVML, NVRTC, PTX and cache: do they work, or why not?"""
    return [
        {"name": name, "works": works, "version": cuda_version(version), "text": text}
        for name, works, version, text in gpu.parts()
    ]


def calibration() -> dict[str, Any]:
    """Where measured rates are looked for, of which devices there are some, and why they cannot be used."""
    report: dict[str, Any] = {"path": None, "devices": [], "problem": None}
    try:
        report["path"] = str(_calibrate.default_path())
        report["devices"] = _calibrate.devices()
    except _core.MemScaleError as error:
        report["problem"] = str(error)
    return report


def cuda_version(number: int) -> str | None:
    """CUDA's way to write 12.4 is 12040."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


def variables() -> dict[str, str]:
    """Environment variables that are set and change what MemScale or torch's memory do."""
    names = {*_VARIABLES, *(name for name in os.environ if name.startswith(_PREFIX))}
    return {name: os.environ[name] for name in sorted(names) if name in os.environ}


@contextlib.contextmanager
def core_messages(level: int) -> Iterator[list[str]]:
    """The core's messages of at least this level, while the block runs."""
    messages: list[str] = []

    def keep(its_level: int, text: str) -> None:
        if its_level >= level:
            messages.append(text)

    before = _core.set_log(keep)
    try:
        yield messages
    finally:
        _core.set_log(before)
