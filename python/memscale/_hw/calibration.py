"""Measures how fast this machine is and keeps the result in a file: ``memscale calibrate``.

Every figure is the median of several repeats, and a matrix rate the best of several sizes. Nothing is left
changed: switches are put back, and random numbers come from a generator of its own. The file holds any number of
devices by their names and is replaced as a whole, so that a reader sees the old one or the new one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import secrets
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from .. import _core
from .._base.step_kinds import has_precision
from .._core import Rates
from . import gpu
from .memory import host

VARIABLE = "MEMSCALE_CALIBRATION"
_VERSION_KEY, _VERSION = "memscale_calibration", 1

Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is measured."""

    sizes: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)  # of matrices
    copy_bytes: int = 256 << 20
    link_bytes: int = 128 << 20
    n_operators: int = 200  # queued at once: less than what a stream holds, or the host would wait
    repeats: int = 5
    batch_ns: int = 10_000_000  # calls are timed in batches of this length
    item_ns: int = 1_500_000_000  # the most that one figure may take


FULL = Effort()


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What was measured, of which device, and where it was written."""

    device: str
    path: Path
    rates: Rates


def calibrate(device: torch.device | str | int | None = None, path: str | os.PathLike[str] | None = None) -> Rates:
    """Measure this machine's rates and keep them in a file, from which later plans take them.

    Takes some seconds, in which nothing else should run. On a GPU: matrix products in each type, memory, the link to
    the host, pinning, and what an operator costs on the device and on the host. Without one, the CPU.

    Args:
        device: what to measure; ``None``: the current GPU, or the CPU where torch can use none.
        path: the file; ``None``: ``$MEMSCALE_CALIBRATION``, else ``memscale/calibration.json`` in ``$XDG_CONFIG_HOME``
            or ``~/.config``. Other devices in it stay.

    Returns:
        The rates that were written.

    Raises:
        ValueError: there is no such device.
        MemScaleError: it cannot be measured, or the file cannot be written.
    """
    return run(device, path).rates


def run(
    device: torch.device | str | int | None = None,
    path: str | os.PathLike[str] | None = None,
    effort: Effort | None = None,
    progress: Progress = lambda text: None,
) -> Calibration:
    """Measure, and return everything that is known about the device; ``progress`` is called before each part."""
    bench = _bench(device, effort or FULL)
    target = default_path() if path is None else Path(path)
    with _writing_to(target):  # before measuring, not after it
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        if not os.access(target.parent, os.W_OK):
            raise PermissionError(None, "its folder cannot be written")
    rates = _measure(bench, progress)
    records: dict[str, Any] = {}
    with contextlib.suppress(_core.MemScaleError):  # a broken file is replaced: that is the remedy for it
        records = _read(target)
    records[bench.name] = json.loads(rates.to_json())
    document = {_VERSION_KEY: _VERSION, "devices": dict(sorted(records.items()))}
    with _writing_to(target):
        _replace(target, json.dumps(document, indent=2) + "\n")
    return Calibration(bench.name, target, rates)


# The file


def default_path() -> Path:
    """Where the calibration is unless another file is given."""
    named, config = os.environ.get(VARIABLE), os.environ.get("XDG_CONFIG_HOME", "")
    if named:
        return Path(named)
    try:
        folder = Path(config) if os.path.isabs(config) else Path.home() / ".config"
    except RuntimeError as error:
        raise _core.MemScaleError(f"there is no home folder for the calibration: set {VARIABLE} to a file") from error
    return folder / "memscale" / "calibration.json"


def load(device_name: str, path: str | os.PathLike[str] | None = None) -> Rates | None:
    """The rates that were measured of this device ("cpu", or torch's name of the GPU); None if none were.

    Raises:
        MemScaleError: the file is broken.
    """
    target = default_path() if path is None else Path(path)
    record = _read(target).get(device_name)
    if record is None:
        return None
    try:
        return Rates.from_json(json.dumps(record))
    except (ValueError, _core.MemScaleError) as error:
        raise _broken(target, f"{device_name}: {error}") from error


def devices(path: str | os.PathLike[str] | None = None) -> list[str]:
    """Names of the devices in the file; none where there is no file. Raises ``MemScaleError`` if it is broken."""
    return list(_read(default_path() if path is None else Path(path)))


def _read(path: Path) -> dict[str, Any]:
    """The records by device; none where there is no file."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise _broken(path, error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise _broken(path, f"it is not JSON: {error}") from error
    version = document.get(_VERSION_KEY) if isinstance(document, dict) else None
    if type(version) is not int:
        raise _broken(path, f"it has no {_VERSION_KEY!r}")
    if version != _VERSION:
        raise _broken(path, f"it is of version {version}, and this MemScale reads {_VERSION}")
    records = document.get("devices")
    if not isinstance(records, dict):
        raise _broken(path, "it has no 'devices'")
    return records


def _broken(path: Path, reason: str) -> _core.MemScaleError:
    return _core.MemScaleError(
        f"the calibration {path} cannot be used: {reason}. Run `memscale calibrate` to replace it, or delete it"
    )


@contextlib.contextmanager
def _writing_to(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _core.MemScaleError(
            f"the calibration {path} cannot be written: {error.strerror or error}. "
            f"Name another file with path=, --output or {VARIABLE}"
        ) from error


def _replace(path: Path, text: str) -> None:
    """Put the file in place whole or not at all; a link stays one."""
    target = os.path.realpath(path)
    temporary = f"{target}.{secrets.token_hex(4)}.tmp"
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


# What is measured


def _bench(device: torch.device | str | int | None, effort: Effort) -> _CpuBench:
    """What measures this device. Raises if there is none."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"calibrate: device={device!r} is not a device such as 'cpu', 'cuda' or 'cuda:1'") from error
    if place.type == "cpu":
        return _CpuBench(effort)
    if place.type != "cuda":
        raise ValueError(f"calibrate: device={device!r} cannot be measured, only CPUs and CUDA devices can")
    if not torch.cuda.is_available():
        raise _core.MemScaleError(
            f"calibrate: torch cannot use a GPU here, so {device!r} cannot be measured; `memscale doctor` shows why"
        )
    index = torch.cuda.current_device() if place.index is None else place.index
    if index >= torch.cuda.device_count():
        raise ValueError(f"calibrate: device={device!r} does not exist: torch sees {torch.cuda.device_count()} GPUs")
    return _CudaBench(effort, index)


class _CpuBench:
    """Measures a CPU; the class below overrides what differs on a GPU."""

    name = "cpu"
    capability = 0
    types: tuple[str, ...] = ("fp32", "bf16")

    def __init__(self, effort: Effort, device: str = "cpu") -> None:
        self.effort = effort
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device).manual_seed(0)
        self.memory_bytes = int(host()["memory_limit_bytes"])

    def synchronize(self) -> None:
        """Wait until everything that was queued is done."""

    def link(self) -> dict[str, int]:
        """Rates of copies between host and device, and of pinning, in MB/s."""
        return dict.fromkeys(("to_device", "from_device", "both", "pinning"), 0)

    def launch_ns(self, dispatch_ns: int) -> int:
        """The least time of a kernel on the device."""
        return 0

    def close(self) -> None:
        """Give memory back."""

    def matrix_gflops(self, kind: str) -> int:
        """The best rate of products of several sizes."""
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(kind, torch.float32)
        best, deadline = 1, time.perf_counter_ns() + self.effort.item_ns
        with _tf32(kind == "tf32"):
            for n in self.effort.sizes:
                ns = self.median_ns(self._product(n, dtype))
                best = max(best, 2 * n**3 // ns)
                if time.perf_counter_ns() + 8 * ns * (self.effort.repeats + 2) > deadline:
                    break  # the next size would take too long, as on CPUs in types without hardware support
        return best

    def memory_mb_per_s(self) -> int:
        """Bytes read and written by a copy that no cache holds."""
        source = torch.ones(self.effort.copy_bytes // 4, dtype=torch.float32, device=self.device)
        target = torch.zeros_like(source)
        ns = self.median_ns(lambda: target.copy_(source))
        return max(1, 2 * self.effort.copy_bytes * 1000 // ns)

    def dispatch_ns(self) -> int:
        """What the host takes for an operator of a training step: called from Python, with a node in the graph."""
        n, x = self.effort.n_operators, self._vector().requires_grad_()
        samples = []
        for _ in range(self.effort.repeats + 1):
            self.synchronize()
            start = time.perf_counter_ns()
            for _ in range(n):
                torch.add(x, 1)
            samples.append((time.perf_counter_ns() - start) // n)
        return _median(samples[1:])

    def median_ns(self, call: Callable[[], object]) -> int:
        """The median time of a call, from batches long enough that starting and ending them does not count."""
        self._time(call, 1)  # the first one loads libraries and chooses algorithms
        n = min(1000, 1 + self.effort.batch_ns // self._time(call, 1))
        return _median([self._time(call, n) for _ in range(self.effort.repeats)])

    def _time(self, call: Callable[[], object], n: int) -> int:
        self.synchronize()
        start = time.perf_counter_ns()
        for _ in range(n):
            call()
        self.synchronize()
        return max(1, (time.perf_counter_ns() - start) // n)

    def _vector(self) -> torch.Tensor:
        return torch.ones(16, dtype=torch.float32, device=self.device)

    def _product(self, n: int, dtype: torch.dtype) -> Callable[[], object]:
        """Random matrices: a GPU that multiplies zeros draws less power and runs faster than in training."""
        a, b, out = (torch.empty(n, n, dtype=dtype, device=self.device) for _ in range(3))
        for matrix in (a, b):
            matrix.normal_(generator=self.generator)
        return functools.partial(torch.mm, a, b, out=out)


class _CudaBench(_CpuBench):
    """Measures a GPU of NVIDIA."""

    def __init__(self, effort: Effort, index: int) -> None:
        super().__init__(effort, f"cuda:{index}")
        self.index = index
        properties = torch.cuda.get_device_properties(index)
        self.name = str(properties.name)
        self.capability = 10 * properties.major + properties.minor
        self.memory_bytes = int(properties.total_memory)
        self.types = ("fp32", "tf32", "fp16", "bf16") if has_precision(self.capability, "bf16") else ("fp32", "fp16")

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.index)

    def link(self) -> dict[str, int]:
        link = gpu.get().link(self.index, self.effort.link_bytes)
        if not link["intact"]:
            raise _core.MemScaleError(f"bytes were changed on their way to {self.name} and back: see `memscale doctor`")
        return {
            "to_device": max(1, link["to_device_rate"] // 10**6),
            "from_device": max(1, link["from_device_rate"] // 10**6),
            "both": max(1, link["both_rate"] // 10**6),
            "pinning": max(1, link["pinning_rate"] // 10**6),
        }

    def launch_ns(self, dispatch_ns: int) -> int:
        """Tiny kernels after long ones: all of them are queued before the first runs, so the host does not count."""
        n, x = self.effort.n_operators, self._vector()
        long_call = self._product(self.effort.sizes[len(self.effort.sizes) // 2], torch.float32)
        long_ns = self.median_ns(long_call)
        samples = []
        with torch.cuda.device(self.index):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for _ in range(self.effort.repeats):
                for _ in range(1 + 2 * n * dispatch_ns // long_ns):
                    long_call()
                start.record()
                for _ in range(n):
                    x.add_(1)
                end.record()
                end.synchronize()
                samples.append(int(start.elapsed_time(end) * 1e6 / n))
        return _median(samples)

    def close(self) -> None:
        torch.cuda.empty_cache()


def _measure(bench: _CpuBench, progress: Progress) -> Rates:
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(bench.device.type, enabled=False):
            return _measure_all(bench, progress)
    except torch.cuda.OutOfMemoryError as error:
        raise _core.MemScaleError(f"{bench.name} has too little free memory to be measured: {error}") from error
    finally:
        bench.close()


def _measure_all(bench: _CpuBench, progress: Progress) -> Rates:
    products = dict.fromkeys(("fp32", "tf32", "fp16", "bf16"), 0)
    for kind in bench.types:
        progress(f"{bench.name}: matrix products in {kind}")
        products[kind] = bench.matrix_gflops(kind)
    progress(f"{bench.name}: memory")
    memory_mb_per_s = bench.memory_mb_per_s()
    progress(f"{bench.name}: operators")
    dispatch_ns = bench.dispatch_ns()
    launch_ns = bench.launch_ns(dispatch_ns)
    progress(f"{bench.name}: link")
    return Rates(
        source=_core.RATES_MEASURED,
        capability=bench.capability,
        memory_bytes=bench.memory_bytes,
        memory_mb_per_s=memory_mb_per_s,
        launch_ns=launch_ns,
        dispatch_ns=dispatch_ns,
        **{f"{kind}_gflops": rate for kind, rate in products.items()},
        **{f"{way}_mb_per_s": rate for way, rate in bench.link().items()},
    )


def _median(samples: list[int]) -> int:
    return max(1, statistics.median_low(samples))


@contextlib.contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """Products of fp32 on a GPU in TF32, or not. Newer versions of torch refuse the older of the two switches where
    somebody used the newer one."""
    matmul = torch.backends.cuda.matmul
    name: str = "fp32_precision" if hasattr(matmul, "fp32_precision") else "allow_tf32"
    value: str | bool = allowed if name == "allow_tf32" else "tf32" if allowed else "ieee"
    before = getattr(matmul, name)
    setattr(matmul, name, value)
    try:
        yield
    finally:
        setattr(matmul, name, before)
