"""``memscale env``: versions, host, GPUs, which of their software works, and settings that matter.

Optional packages are looked up, never imported, and no context is made on a device.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from importlib import metadata
from typing import Any

import torch

from .. import _core
from .._base.log import WARNING, core_messages
from .._hw import calibration as measured
from .._hw import gpu as gpus
from .._show.terminal import Row, table, write
from .._show.text import cuda_version, size

PACKAGES = ("transformers", "accelerate", "lightning", "bitsandbytes", "liger-kernel")
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_PREFIX = "MEMSCALE_"


def gather() -> dict[str, Any]:
    """Everything as one object that JSON can hold; its keys are documented in the README and stay."""
    with core_messages(WARNING) as messages:
        gpu = gpus.get()
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
    """Versions of what MemScale works with; None for what is not installed."""
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
        for name, works, version, text in gpu.components()
    ]


def calibration() -> dict[str, Any]:
    """Where measured rates are looked for, which devices have some, and why they cannot be used."""
    report: dict[str, Any] = {"path": None, "devices": [], "problem": None}
    try:
        report["path"] = str(measured.default_path())
        report["devices"] = measured.devices()
    except _core.MemScaleError as error:
        report["problem"] = str(error)
    return report


def variables() -> dict[str, str]:
    """Environment variables that are set and change what MemScale or torch's memory do."""
    names = {*_VARIABLES, *(name for name in os.environ if name.startswith(_PREFIX))}
    return {name: os.environ[name] for name in sorted(names) if name in os.environ}


# What a terminal gets


def run_env(arguments: argparse.Namespace) -> int:
    report = gather()
    if arguments.json:
        write(json.dumps(report, indent=2))
        return 0
    table("", _version_rows(report))
    table("host", _host_rows(report["hardware"]))
    for gpu in report["hardware"]["gpus"]:
        table(f"GPU {gpu['index']}", _gpu_rows(gpu))
    if not report["hardware"]["gpus"] and not report["messages"]:
        table("GPU", [("none", gpus.explain_driver(report["parts"][0]["text"])[0])])
    table("components", [(part["name"], _part_text(part)) for part in report["parts"]])
    table("calibration", [_calibration_row(report["calibration"])])
    table("environment", report["environment"].items())
    table("problems", [("", message) for message in report["messages"]])
    return 0


def _version_rows(report: dict[str, Any]) -> list[Row]:
    versions = dict(report["versions"])
    cuda = versions.pop("torch_cuda")
    versions["torch"] += f", CUDA {cuda}" if cuda else ", no CUDA"
    return [("memscale", report["memscale"]), *((name, text or "not installed") for name, text in versions.items())]


def _host_rows(host: dict[str, Any]) -> list[Row]:
    total, limit = host["memory_total_bytes"], host["memory_limit_bytes"]
    container = f"{size(limit)}, control groups v{host['cgroup_version']}" if limit < total else "none"
    return [
        ("memory", f"{size(limit)} usable of {size(total)}, {size(host['memory_available_bytes'])} available now"),
        ("container limit", container),
        ("cores", f"{host['n_cores']} usable of {host['n_cores_online']}"),
        ("NUMA nodes", str(host["n_numa_nodes"])),
    ]


def _gpu_rows(gpu: dict[str, Any]) -> list[Row]:
    free, others = gpu["memory_free_bytes"], gpu["memory_others_bytes"]
    generation, width = gpu["pcie_generation"], gpu["pcie_width"]
    types = [name for name, key in (("bf16", "has_bf16"), ("fp16", "has_fp16")) if gpu[key]]
    kinds = [name for name, key in (("MIG slice", "is_mig"), ("integrated", "is_integrated")) if gpu[key]]
    return [
        ("name", ", ".join([gpu["name"], *kinds])),
        (
            "memory",
            f"{size(gpu['memory_total_bytes'])}, {size(free) if free >= 0 else 'unknown'} free, "
            f"{size(others) if others >= 0 else 'unknown'} taken by others",
        ),
        (
            "capability",
            f"{gpu['capability'] // 10}.{gpu['capability'] % 10}, {' and '.join(types) or 'no 16-bit types'}",
        ),
        ("multiprocessors", str(gpu["n_multiprocessors"])),
        ("PCIe", f"generation {generation}, {width} lanes" if generation and width else "unknown"),
        ("UUID", gpu["uuid"] or "unknown"),
    ]


def _part_text(part: dict[str, Any]) -> str:
    version = f"CUDA {part['version']}, " if part["version"] else ""
    return f"works: {version}{part['text']}" if part["works"] else f"does not work: {part['text']}"


def _calibration_row(report: dict[str, Any]) -> Row:
    if report["problem"]:
        return "broken", report["problem"]
    if not report["devices"]:
        return "none", f"`memscale calibrate` measures this machine into {report['path']}"
    return ", ".join(report["devices"]), report["path"]
