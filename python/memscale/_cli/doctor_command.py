"""``memscale doctor``: tries out what works on this machine.

Each check is *ok*, *skipped* where there is nothing to check, with the reason, or *FAILED*, with what to do about it.
Nothing here raises: what goes wrong inside a check is that check's result. Everything that a check switches (log,
observer, random state, deterministic algorithms) is put back.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import json
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import _core
from .._base.conditions import same_bits
from .._base.log import INFO, WARNING, core_messages
from .._base.require import MINIMUM, parse_version
from .._hw import gpu as gpus
from .._plan.dry_run import plan
from .._show.terminal import DIM, GREEN, PLAIN, RED, Progress, flush, has_colour, lines, write
from .._show.text import bandwidth, cuda_version, size
from ..api import detach, wrap
from ..config import Config
from ..plans import Plan

OK, SKIPPED, FAILED = "ok", "skipped", "FAILED"
_COLOURS = {OK: GREEN, SKIPPED: DIM, FAILED: RED}

_LINK_BYTES = 64 << 20
_N_VALUES = 10_007  # that pointwise programs are tried with
_KERNEL_BYTES = 1 << 20
_RANGES = ((0, _KERNEL_BYTES), (0, 1), (0, _KERNEL_BYTES - 3), (1, 999_999), (7, 13), (3, _KERNEL_BYTES - 8), (5, 0))
_ON_HOST = "checksums are computed on the host: "  # the core's message if it has no kernel
_STEPS = 3

# What it means that a part does not work, where nothing else depends on it.
_WITHOUT = {
    "nvml": "the memory of other processes and the PCIe link stay unknown",
    "nvrtc": "kernels cannot be compiled on this machine",
    "ptx": "only needed where NVRTC is missing",
    "cache": "every process compiles its kernels again; set MEMSCALE_CACHE_DIR to a writable folder",
}


@dataclasses.dataclass(frozen=True)
class Check:
    """One line of the report."""

    name: str
    status: str
    detail: str


class _SkippedError(Exception):
    """There is nothing to check; the text gives the reason."""


class _FailedError(Exception):
    """It does not work; the text names the remedy."""


def run_doctor(arguments: argparse.Namespace) -> int:
    progress = Progress(sys.stderr)
    checks: list[Check] = []
    for check in run(progress):
        progress.clear()
        checks.append(check)
        if not arguments.json:
            _write_check(check)
    failed, skipped = (sum(check.status == status for check in checks) for status in (FAILED, SKIPPED))
    if arguments.json:
        write(json.dumps({"ok": not failed, "checks": [dataclasses.asdict(check) for check in checks]}, indent=2))
    else:
        write(f"\n{len(checks)} checks: {failed or 'none'} failed, {skipped or 'none'} skipped")
    return 1 if failed else 0


def _write_check(check: Check) -> None:
    status = f"{check.status:<8}"
    if has_colour():
        status = f"{_COLOURS[check.status]}{status}{PLAIN}"
    detail = lines(check.detail, indent=25)
    write(f"{status} {check.name:<15} {detail[0]}")
    for line in detail[1:]:
        write(f"{'':<24} {line}")
    flush()


def run(progress: Callable[[str], None]) -> Iterator[Check]:
    """All checks, each as soon as it is done; ``progress`` is called before a check that takes long."""
    yield _attempt("extension", _extension)
    yield _attempt("torch", _torch)
    yield _attempt("host", _host)
    yield from _gpu_checks(progress)
    progress("training on the CPU")
    yield _attempt("cpu training", _training, torch.device("cpu"))


def _attempt(name: str, function: Callable[..., str], *args: Any) -> Check:
    try:
        return Check(name, OK, function(*args))
    except _SkippedError as reason:
        return Check(name, SKIPPED, str(reason))
    except (_FailedError, _core.MemScaleError) as reason:
        return Check(name, FAILED, str(reason))
    except Exception as error:
        return Check(name, FAILED, f"{type(error).__name__}: {error}")


def _extension() -> str:
    """Does the extension belong to the package that was installed?"""
    try:
        installed = metadata.distribution("memscale")
        is_this = Path(str(installed.locate_file("memscale"))).resolve() == Path(__file__).resolve().parents[1]
    except metadata.PackageNotFoundError:
        is_this = False
    if not is_this:
        return f"{_core.version}, from {Path(__file__).parents[1]}"
    if installed.version != _core.version:
        raise _FailedError(
            f"the package is {installed.version} and its extension {_core.version}: reinstall memscale, and remove "
            "other copies of it"
        )
    return _core.version


def _torch() -> str:
    version = str(torch.__version__)
    if parse_version(version) < MINIMUM:
        raise _FailedError(f"{version} is older than {MINIMUM[0]}.{MINIMUM[1]}: pip install --upgrade torch")
    return version + (f", CUDA {torch.version.cuda}" if torch.version.cuda else "")


def _host() -> str:
    host = json.loads(_core.hw_detect(""))
    usable, total = size(host["memory_limit_bytes"]), size(host["memory_total_bytes"])
    return f"{usable} usable of {total}, {host['n_cores']} cores"


# GPUs


def _gpu_checks(progress: Callable[[str], None]) -> Iterator[Check]:
    try:
        gpu = gpus.get()
        parts = gpu.components()
        driver = parts[0]
    except Exception as error:
        yield Check("driver", FAILED, f"{type(error).__name__}: {error}")
        return
    yield _attempt("driver", _driver, *driver[1:])
    kernels_wanted = driver[1] and _why_not_torch() is None
    has_ptx = any(works for name, works, _, _ in parts if name == "ptx")
    for name, works, version, text in parts[1:]:
        needed = name == "nvrtc" and kernels_wanted and not has_ptx
        meaning = _WITHOUT[name] if driver[1] or name == "cache" else ""
        yield _attempt(name, _part, works, version, text, meaning, needed)
    if not driver[1]:
        reason, _ = gpus.explain_driver(driver[3])
        for name in ("kernel", "link", "training"):
            yield Check(f"gpu {name}", SKIPPED, reason)
        return
    yield _attempt("gpus", _devices, gpu)
    usable = _attempt("torch cuda", _torch_cuda, gpu.count)
    yield usable
    for i in range(gpu.count):
        yield from _device_checks(gpu, i, usable, progress)


def _device_checks(gpu: _core.Gpu, device: int, usable: Check, progress: Callable[[str], None]) -> Iterator[Check]:
    progress(f"kernels on GPU {device}")
    yield _attempt(f"gpu {device} kernel", _where_usable, usable, _kernel, device)
    progress(f"pointwise programs on GPU {device}")
    yield _attempt(f"gpu {device} pointwise", _where_usable, usable, _pointwise, torch.device("cuda", device))
    progress(f"link of GPU {device}")
    yield _attempt(f"gpu {device} link", _link, gpu, device)
    progress(f"training on GPU {device}")
    yield _attempt(f"gpu {device} training", _where_usable, usable, _training, torch.device("cuda", device))


def _driver(works: bool, version: int, text: str) -> str:
    if works:
        return f"CUDA {cuda_version(version)}, {text}"
    reason, is_ordinary = gpus.explain_driver(text)
    if is_ordinary:
        raise _SkippedError(reason)
    raise _FailedError(f"{reason}. nvidia-smi should list the GPU; if it does not, reinstall the NVIDIA driver")


def _part(works: bool, version: int, text: str, meaning: str, needed: bool) -> str:
    if works:
        number = cuda_version(version)
        return f"CUDA {number}, {text}" if number else text
    reason = f"{text}: {meaning}" if meaning else text
    if not needed:
        raise _SkippedError(reason)
    cuda = str(torch.version.cuda)
    package = "nvidia-cuda-nvrtc" + ("-cu" + cuda.split(".")[0] if cuda.startswith(("11", "12")) else "")
    raise _FailedError(f"{reason}. Install it with: pip install {package}")


def _devices(gpu: _core.Gpu) -> str:
    with core_messages(WARNING) as messages:
        gpu_records = json.loads(gpu.hw())["gpus"]
    if messages:
        raise _FailedError("; ".join(messages))
    return ", ".join(f"{one['index']}: {one['name']}, {size(one['memory_total_bytes'])}" for one in gpu_records)


def _why_not_torch() -> str | None:
    """Why this torch can use no NVIDIA GPU at all, or None."""
    if torch.version.cuda is not None:
        return None
    if getattr(torch.version, "hip", None):
        return f"torch {torch.__version__} is built for ROCm, and MemScale's GPU code is for CUDA"
    return f"torch {torch.__version__} is a CPU build"


def _torch_cuda(n_devices: int) -> str:
    """Does torch see what the driver sees?"""
    reason = _why_not_torch()
    if reason is not None:
        raise _SkippedError(reason)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exception has the same text
        try:
            torch.cuda.init()
        except Exception as error:
            raise _FailedError(
                f"torch cannot use the GPU, though the driver works: {error}. Install a torch whose CUDA "
                f"({torch.version.cuda}) the driver supports, or update the driver"
            ) from error
        n = torch.cuda.device_count()
    if n != n_devices:
        raise _FailedError(f"torch sees {n} GPUs and the driver {n_devices}")
    return f"{n} GPU{'s' if n > 1 else ''}"


def _where_usable(usable: Check, check: Callable[..., str], *args: Any) -> str:
    if usable.status != OK:
        raise _SkippedError(usable.detail if usable.status == SKIPPED else "torch cannot use the GPUs (see above)")
    return check(*args)


@contextlib.contextmanager
def _device_bytes(device: int, data: bytes) -> Iterator[tuple[int, int]]:
    """These bytes in memory of the device: their address, and the stream that copies them."""
    tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(torch.device("cuda", device))
    yield tensor.data_ptr(), torch.cuda.current_stream(device).cuda_stream


def _kernel(device: int) -> str:
    """A kernel's result against the host's, on whole and odd lengths and unaligned addresses."""
    data = random.Random(0).randbytes(_KERNEL_BYTES)
    gpu = gpus.make()  # not the shared object: a new one logs again why there is no kernel
    try:
        with (
            core_messages(INFO) as messages,
            _device_bytes(device, data) as (address, stream),
        ):
            for offset, n_bytes in _RANGES:
                there = gpu.checksum(device, address + offset, n_bytes, stream)
                if there != _core.checksum(data[offset : offset + n_bytes]):
                    raise _FailedError(
                        f"the checksum of {n_bytes} bytes at offset {offset} differs from the host's: the device "
                        "computes wrongly, or its memory is damaged"
                    )
    finally:
        gpu.close()
    for message in messages:
        if message.startswith(_ON_HOST):
            raise _FailedError(f"no kernel runs on this GPU: {message.removeprefix(_ON_HOST)}")
    return f"{len(_RANGES)} checksums equal the host's"


def _functions(x: torch.Tensor) -> torch.Tensor:
    """Functions whose results a layer drops, in two types."""
    gelu = 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3.0))))
    mixed = nn.functional.silu(x) * torch.sigmoid(gelu) - nn.functional.gelu(gelu)
    return mixed.to(torch.bfloat16) * gelu.to(torch.bfloat16)


def _pointwise(device: torch.device) -> str:
    """Results of chains of functions, made again as one kernel each, against torch's."""
    if gpus.fuser(device) is None:
        raise _SkippedError("there is no NVRTC: single functions are computed again, and more has to be held")
    layer = _core.PointwiseLayer("of doctor", lambda x: _functions(1.5 * x).sum(), least_bytes=1, fuser=gpus.get())
    x = torch.linspace(-8, 8, _N_VALUES, device=device, requires_grad=True)
    layer(x.clone()).backward()
    if not layer.trusts:
        raise _FailedError("no program was tried, which is a bug: please report it")
    if "never" in layer.trusts:
        raise _FailedError(
            f"{layer.trusts.count('never')} of {len(layer.trusts)} results differ from torch's: they are held, and "
            "steps need more memory than predicted. Please report this with the output of memscale env"
        )
    return f"{len(layer.trusts)} results equal torch's"


def _link(gpu: _core.Gpu, device: int) -> str:
    link = gpu.link(device, _LINK_BYTES)
    if not link["intact"]:
        raise _FailedError("bytes were changed on their way to the GPU and back: check its slot, riser and power")
    to, back, both = (bandwidth(link[key] / 1e6) for key in ("to_device_rate", "from_device_rate", "both_rate"))
    return f"{to} to the GPU, {back} from it, {both} both at once"


# Training


class _Block(nn.Module):  # type: ignore[misc]
    """A block of a transformer: attention and an MLP, both with dropout, added to what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        x = x + self.dropout(self.out(self.dropout(scores.softmax(-1)) @ v))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class _Model(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.inlet, self.outlet = nn.Linear(8, width), nn.Linear(width, 8)
        self.blocks = nn.ModuleList(_Block(width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inlet(x)
        for block in self.blocks:
            x = block(x)
        return self.outlet(x)


def _training(device: torch.device) -> str:
    """A few steps of real training, plain and with everything recomputed: equal bit for bit?"""
    names: list[str] = []
    with _repeatable(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.manual_seed(0)
        plain = _Model().to(device).train()
        wrapped = copy.deepcopy(plain)
        x, y = torch.randn(4, 16, 8).to(device), torch.randn(4, 16, 8).to(device)
        expected = _train(plain, x, y)
        layers = _recompute_everything(wrapped, x)
        before = _core.set_observer(lambda unit: names.append(unit.name))
        try:
            actual = _train(wrapped, x, y)
        finally:
            _core.set_observer(before)
            detach(wrapped)
    for step, (a, b) in enumerate(zip(expected, actual), 1):
        _compare(step, a, b)
    if missing := layers - set(names):
        reasons = "; ".join(str(warning.message) for warning in caught)
        raise _FailedError(f"not recomputed: {', '.join(sorted(missing))}. {reasons}".rstrip())
    return f"{_STEPS} steps, {len(layers)} layers recomputed, losses and gradients equal bit for bit"


def _recompute_everything(model: nn.Module, x: torch.Tensor) -> set[str]:
    """Wrap with a plan that recomputes every layer; the names of the layers."""
    document = json.loads(plan(model, x).to_json())
    for unit in document["units"]:
        unit["action"] = "recompute"
    wrap(model, Config(enable_logging=False), plan=Plan.from_json(json.dumps(document)))
    return {unit["name"] for unit in document["units"]}


Step = dict[str, torch.Tensor]


def _train(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[Step]:
    """Loss and gradients of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(7)
    steps: list[Step] = []
    for _ in range(_STEPS):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        gradients = {f"gradient of {n}": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        steps.append({"loss": loss.detach().clone(), **gradients})
        optimizer.step()
    return steps


def _compare(step: int, expected: Step, actual: Step) -> None:
    if expected.keys() != actual.keys():
        raise _FailedError(f"step {step}: other parameters have gradients than in plain training; please report this")
    for name, value in expected.items():
        if not same_bits(value, actual[name]):
            by = (value - actual[name]).abs().max().item()
            raise _FailedError(f"step {step}: the {name} differs from plain training by {by:.3g}; please report this")


@contextlib.contextmanager
def _repeatable() -> Iterator[None]:
    """Deterministic algorithms and a random state of its own; afterwards all is as it was."""
    variable = "CUBLAS_WORKSPACE_CONFIG"
    workspace = os.environ.get(variable)
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # torch seeds them all at once
    with torch.random.fork_rng(devices=devices), torch.enable_grad():
        os.environ[variable] = ":4096:8"  # what torch asks for before cuBLAS may be called
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
            if workspace is None:
                del os.environ[variable]
            else:
                os.environ[variable] = workspace
