"""The command line: ``memscale env``, ``doctor`` and ``calibrate``, also as ``python -m memscale``.

Exit codes: 0 done, 1 error (for ``doctor``: something that must work does not), 2 usage.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO

from . import _calibrate, _core, _doctor, _environment

__all__ = ["main"]

_GREEN, _RED, _DIM, _PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[2m", "\x1b[0m"
_COLOURS = {_doctor.OK: _GREEN, _doctor.SKIPPED: _DIM, _doctor.FAILED: _RED}

Row = tuple[str, str]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code. Usage errors exit with 2, as argparse does."""
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        _flush()
        return code
    except BrokenPipeError:  # the reader has had enough
        _drop_output()
        return 1
    except KeyboardInterrupt:
        return 130
    except (_core.MemScaleError, OSError, ValueError, MemoryError) as error:
        print(f"memscale: error: {error}", file=sys.stderr)
        try:
            _flush()
        except OSError:  # it was the output that failed
            _drop_output()
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="memscale", description="MemScale: train larger models on the GPU you have.")
    parser.add_argument("--version", action="version", version=f"memscale {_core.version}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    parsers = {}
    for name, run, text in (
        ("env", _env, "show versions, host, GPUs and what works of their software"),
        ("doctor", _diagnose, "check by trying: kernels, copies, and training against plain PyTorch"),
        ("calibrate", _measure, "measure how fast this machine is, once, into a file that plans use"),
    ):
        command = parsers[name] = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        command.add_argument("--json", action="store_true", help="write one JSON object")
        command.set_defaults(run=run)
    parsers["calibrate"].add_argument("--device", help="as torch names it, such as cuda:1 (default: the GPU, else cpu)")
    parsers["calibrate"].add_argument("--output", metavar="FILE", help="the file (default: the one that plans use)")
    return parser


# env


def _env(arguments: argparse.Namespace) -> int:
    report = _environment.gather()
    if arguments.json:
        _write(json.dumps(report, indent=2))
        return 0
    _table("", _version_rows(report))
    _table("host", _host_rows(report["hardware"]))
    for gpu in report["hardware"]["gpus"]:
        _table(f"GPU {gpu['index']}", _gpu_rows(gpu))
    if not report["hardware"]["gpus"] and not report["messages"]:
        _table("GPU", [("none", _doctor.explain_driver(report["parts"][0]["text"])[0])])
    _table("parts", [(part["name"], _part_text(part)) for part in report["parts"]])
    _table("calibration", [_calibration_row(report["calibration"])])
    _table("environment", report["environment"].items())
    _table("problems", [("", message) for message in report["messages"]])
    return 0


def _version_rows(report: dict[str, Any]) -> list[Row]:
    versions = dict(report["versions"])
    cuda = versions.pop("torch_cuda")
    versions["torch"] += f", CUDA {cuda}" if cuda else ", no CUDA"
    return [("memscale", report["memscale"]), *((name, text or "not installed") for name, text in versions.items())]


def _host_rows(host: dict[str, Any]) -> list[Row]:
    total, limit = host["memory_total_bytes"], host["memory_limit_bytes"]
    container = f"{_gb(limit)}, control groups v{host['cgroup_version']}" if limit < total else "none"
    return [
        ("memory", f"{_gb(limit)} usable of {_gb(total)}, {_gb(host['memory_available_bytes'])} available now"),
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
            f"{_gb(gpu['memory_total_bytes'])}, {_gb(free) if free >= 0 else 'unknown'} free, "
            f"{_gb(others) if others >= 0 else 'unknown'} taken by others",
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


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB"


# doctor


def _diagnose(arguments: argparse.Namespace) -> int:
    progress = _Progress(sys.stderr)
    done: list[_doctor.Check] = []
    for check in _doctor.run(progress):
        progress.clear()
        done.append(check)
        if not arguments.json:
            _write_check(check)
    failed, skipped = (sum(check.status == status for check in done) for status in (_doctor.FAILED, _doctor.SKIPPED))
    if arguments.json:
        _write(json.dumps({"ok": not failed, "checks": [dataclasses.asdict(check) for check in done]}, indent=2))
    else:
        _write(f"\n{len(done)} checks: {failed or 'none'} failed, {skipped or 'none'} skipped")
    return 1 if failed else 0


def _write_check(check: _doctor.Check) -> None:
    status = f"{check.status:<8}"
    if _has_colour():
        status = f"{_COLOURS[check.status]}{status}{_PLAIN}"
    lines = _lines(check.detail, indent=25)
    _write(f"{status} {check.name:<15} {lines[0]}")
    for line in lines[1:]:
        _write(f"{'':<24} {line}")
    _flush()


# calibrate


def _measure(arguments: argparse.Namespace) -> int:
    progress = _Progress(sys.stderr)
    try:
        result = _calibrate.run(arguments.device, arguments.output, progress=progress)
    finally:
        progress.clear()
    rates = dataclasses.asdict(result.rates)
    if arguments.json:
        _write(json.dumps({"device": result.device, "path": str(result.path), "rates": rates}, indent=2))
        return 0
    _table("", [("device", result.device), ("file", str(result.path))])
    _table("rates", [(text, unit(rates[name])) for text, name, unit in _RATES if rates[name]])
    return 0


def _tflops(rate: int) -> str:
    return f"{rate / 1000:.1f} TFLOP/s" if rate >= 10_000 else f"{rate} GFLOP/s"


def _gb_per_s(rate: int) -> str:
    return f"{rate / 1000:.1f} GB/s"


def _us(ns: int) -> str:
    return f"{ns / 1000:.1f} us"


_RATES: tuple[tuple[str, str, Callable[[int], str]], ...] = (
    ("matrix products, fp32", "fp32_gflops", _tflops),
    ("matrix products, tf32", "tf32_gflops", _tflops),
    ("matrix products, fp16", "fp16_gflops", _tflops),
    ("matrix products, bf16", "bf16_gflops", _tflops),
    ("memory, read and written", "memory_mb_per_s", _gb_per_s),
    ("link, to the GPU", "to_device_mb_per_s", _gb_per_s),
    ("link, from the GPU", "from_device_mb_per_s", _gb_per_s),
    ("link, both at once", "both_mb_per_s", _gb_per_s),
    ("pinning of host memory", "pinning_mb_per_s", _gb_per_s),
    ("least time of a kernel", "launch_ns", _us),
    ("operator, on the host", "dispatch_ns", _us),
)


class _Progress:
    """One line on a terminal that says what is being done, and goes when it is done."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream if _is_terminal(stream) else None
        self._width = 0

    def __call__(self, text: str) -> None:
        self.clear()
        if self._stream is not None:
            self._width = len(text) + 3
            self._stream.write(f"{text}...")
            self._stream.flush()

    def clear(self) -> None:
        if self._stream is not None and self._width:
            self._stream.write(f"\r{'':<{self._width}}\r")
            self._stream.flush()
        self._width = 0


# What is written


def _table(title: str, rows: Iterable[Row]) -> None:
    """Rows of a name and a text under a title; nothing at all without rows."""
    found = list(rows)
    if not found:
        return
    if title:
        _write(f"\n{title}")
    margin = "  " if title else ""
    width = max(len(name) for name, _ in found)
    for name, text in found:
        lines = _lines(text, indent=len(margin) + width + 2)
        _write(f"{margin}{name:<{width}}  {lines[0]}")
        for line in lines[1:]:
            _write(f"{margin}{'':<{width}}  {line}")


def _lines(text: str, indent: int) -> list[str]:
    """A text as it fits a terminal beside an indent; one line where the output goes elsewhere, to be searched."""
    flat = " ".join(text.split())
    if not _is_terminal(sys.stdout):
        return [flat]
    width = max(shutil.get_terminal_size().columns - indent, 30)
    return textwrap.wrap(flat, width, break_long_words=False, break_on_hyphens=False) or [""]


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()  # None: the process was started with that stream closed


def _has_colour() -> bool:
    return _is_terminal(sys.stdout) and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def _write(text: str) -> None:
    """A line on standard output; what its encoding cannot hold is written as an escape."""
    if sys.stdout is not None:
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _drop_output() -> None:
    """What is left in the buffer goes nowhere: Python would try to write it again at exit, and complain."""
    with contextlib.suppress(AttributeError, OSError):  # not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
