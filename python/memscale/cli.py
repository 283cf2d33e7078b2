"""The command line: ``memscale env``, ``doctor``, ``calibrate``, ``estimate`` and ``plan``, or ``python -m memscale``.

Exit codes: 0 done, 1 error (for ``doctor``: something that must work does not), 2 usage, 3 it does not fit.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

from . import _calibrate, _core, _doctor, _environment, _estimate, _plan_command, _subjects, profiles
from ._terminal import DIM, GREEN, PLAIN, RED, Progress, Row, drop_output, flush, has_colour, lines, table, write
from .config import OptimizationMode

__all__ = ["main"]

_COLOURS = {_doctor.OK: GREEN, _doctor.SKIPPED: DIM, _doctor.FAILED: RED}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code. Usage errors exit with 2, as argparse does."""
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        flush()
        return code
    except BrokenPipeError:  # the reader has had enough
        drop_output()
        return 1
    except KeyboardInterrupt:
        return 130
    except (_core.MemScaleError, OSError, ValueError, MemoryError) as error:
        print(f"memscale: error: {error}", file=sys.stderr)
        try:
            flush()
        except OSError:  # it was the output that failed
            drop_output()
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
        ("estimate", _predict, "say what a training step takes on a GPU that need not be here, and whether it fits"),
        ("plan", _decide, "say what MemScale would do to a model on a GPU that need not be here, layer by layer"),
    ):
        command = parsers[name] = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        command.add_argument("--json", action="store_true", help="write one JSON object")
        command.set_defaults(run=run)
    parsers["calibrate"].add_argument("--device", help="as torch names it, such as cuda:1 (default: the GPU, else cpu)")
    parsers["calibrate"].add_argument("--output", metavar="FILE", help="the file (default: the one that plans use)")
    _add_estimate(parsers["estimate"])
    _add_plan(parsers["plan"])
    return parser


def _add_estimate(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "examples:\n"
        "  memscale estimate --model gpt2-medium --batch 4 --seq 512 --gpu rtx3090\n"
        "  memscale estimate --model ./config.json --gpu t4 --recompute blocks\n"
        "  memscale estimate --model train:build --json\n\n"
        "Exit status: 0 it fits, 3 it does not, 1 error, 2 usage."
    )
    _add_step(parser)
    add = parser.add_argument
    add("--recompute", choices=_estimate.RECOMPUTE, default="none", help="what is recomputed in backward")
    add("--budget-gb", type=_positive_float, metavar="X", help="memory that may be used (default: all that is usable)")


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "examples:\n"
        "  memscale plan --model gpt2-medium --batch 4 --seq 512 --gpu rtx3090 --budget 8\n"
        "  memscale plan --model ./config.json --gpu t4 --mode aggressive --all --explain\n"
        "  memscale plan --model train:build --json > plan.json\n\n"
        "Exit status: 0 there is a plan, 3 none fits, 1 error, 2 usage."
    )
    _add_step(parser)
    add = parser.add_argument
    add("--budget", type=_positive_float, metavar="GB", help="the fastest plan within so much (default: by --mode)")
    add("--mode", choices=[mode.value for mode in OptimizationMode], default="balanced", help="default: balanced")
    add("--all", action="store_true", help="plan with techniques that this version cannot run yet, too")
    add("--explain", action="store_true", help="say why each layer got what it got")
    add("--pareto", nargs="?", const="", metavar="FILE.svg", help="show memory against time; draw it into a file")


def _add_step(parser: argparse.ArgumentParser) -> None:
    """What says which step is meant, and on which GPU."""
    add = parser.add_argument
    add("--model", help="a name (see --list-models), a config.json of transformers or its folder, or module:function")
    add("--batch", type=_positive_int, metavar="N", help="samples in a batch (default: 1)")
    add("--seq", type=_positive_int, metavar="N", help="tokens in a sequence (default: by the model)")
    add("--gpu", metavar="NAME", help="its name (see --gpu list), or cuda:1, or cpu (default: this machine's GPU)")
    add("--optimizer", choices=_subjects.OPTIMIZERS, help="default: adamw")
    add("--precision", choices=profiles._PRECISIONS, help="default: the best that the GPU has; pure: not by autocast")
    add("--list-models", action="store_true", help="show the models that are known by name")
    add("--list-gpus", action="store_true", help="show the GPUs that are known, as --gpu list does")
    parser.set_defaults(usage_error=parser.error)


def _positive_int(text: str) -> int:
    value = int(text)
    if not 0 < value < 2**31:
        raise ValueError
    return value


def _positive_float(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError
    return value


_positive_int.__name__, _positive_float.__name__ = "positive number", "positive number"  # in argparse's messages


# env


def _env(arguments: argparse.Namespace) -> int:
    report = _environment.gather()
    if arguments.json:
        write(json.dumps(report, indent=2))
        return 0
    table("", _version_rows(report))
    table("host", _host_rows(report["hardware"]))
    for gpu in report["hardware"]["gpus"]:
        table(f"GPU {gpu['index']}", _gpu_rows(gpu))
    if not report["hardware"]["gpus"] and not report["messages"]:
        table("GPU", [("none", _doctor.explain_driver(report["parts"][0]["text"])[0])])
    table("parts", [(part["name"], _part_text(part)) for part in report["parts"]])
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
    progress = Progress(sys.stderr)
    done: list[_doctor.Check] = []
    for check in _doctor.run(progress):
        progress.clear()
        done.append(check)
        if not arguments.json:
            _write_check(check)
    failed, skipped = (sum(check.status == status for check in done) for status in (_doctor.FAILED, _doctor.SKIPPED))
    if arguments.json:
        write(json.dumps({"ok": not failed, "checks": [dataclasses.asdict(check) for check in done]}, indent=2))
    else:
        write(f"\n{len(done)} checks: {failed or 'none'} failed, {skipped or 'none'} skipped")
    return 1 if failed else 0


def _write_check(check: _doctor.Check) -> None:
    status = f"{check.status:<8}"
    if has_colour():
        status = f"{_COLOURS[check.status]}{status}{PLAIN}"
    detail = lines(check.detail, indent=25)
    write(f"{status} {check.name:<15} {detail[0]}")
    for line in detail[1:]:
        write(f"{'':<24} {line}")
    flush()


# calibrate


def _measure(arguments: argparse.Namespace) -> int:
    progress = Progress(sys.stderr)
    try:
        result = _calibrate.run(arguments.device, arguments.output, progress=progress)
    finally:
        progress.clear()
    rates = dataclasses.asdict(result.rates)
    if arguments.json:
        write(json.dumps({"device": result.device, "path": str(result.path), "rates": rates}, indent=2))
        return 0
    table("", [("device", result.device), ("file", str(result.path))])
    table("rates", [(text, unit(rates[name])) for text, name, unit in _RATES if rates[name]])
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


# estimate


def _predict(arguments: argparse.Namespace) -> int:
    if _lists(arguments):
        return 0
    fields = {field.name: getattr(arguments, field.name) for field in dataclasses.fields(_estimate.Request)}
    progress = Progress(sys.stderr, delay=1.0)
    try:
        found = _estimate.run(_estimate.Request(**fields), progress)
    finally:
        progress.close()
    if arguments.json:
        write(json.dumps(found.to_dict(), indent=2))
    else:
        _estimate.show(found)
    return 0 if found.prediction.fits else 3


def _lists(arguments: argparse.Namespace) -> bool:
    """Show what is known, if that was asked for. Else a model is needed."""
    if arguments.list_gpus or arguments.gpu == "list":
        _list(arguments, "gpus", _estimate.gpu_rows(), _gpu_line)
    elif arguments.list_models:
        _list(arguments, "models", _estimate.model_rows(), _model_line)
    elif arguments.model is None:
        arguments.usage_error("--model is missing: a name (see --list-models), a config.json, or module:function")
    else:
        return False
    return True


def _list(
    arguments: argparse.Namespace, key: str, rows: list[dict[str, Any]], line: Callable[[dict[str, Any]], str]
) -> None:
    if arguments.json:
        write(json.dumps({key: rows}, indent=2))
    for row in [] if arguments.json else rows:
        write(line(row))


def _gpu_line(row: dict[str, Any]) -> str:
    return f"{row['key']:<15} {row['memory_bytes'] / 1e9:6.1f} GB  {row['precision']}  {row['name']}"


def _model_line(row: dict[str, Any]) -> str:
    return f"{row['name']:<14} {row['seq'] or '-':>5}  {row['class']}"


# plan


def _decide(arguments: argparse.Namespace) -> int:
    if _lists(arguments):
        return 0
    fields = {field.name: getattr(arguments, field.name) for field in dataclasses.fields(_plan_command.Asked)}
    asked = _plan_command.Asked(**{**fields, "pareto": arguments.pareto is not None})
    progress = Progress(sys.stderr, delay=1.0)
    try:
        found = _plan_command.run(asked, progress)
    finally:
        progress.close()
    if arguments.pareto:
        _plan_command.write_svg(found, arguments.pareto)
    if arguments.json:
        write(found.to_json())
    else:
        _plan_command.show(found, explain=arguments.explain)
    return 3 if found.plan is None else 0
