"""Measures how fast a device is: each figure as the median of several repeats, with their spread.

A figure is *steady* if its repeats agree and, on a CPU, if the process got the processors that it could use. Figures
that are not are measured again; what is still not steady then is of a machine that is busy with something else.
Nothing is left changed: switches are put back, and random numbers come from a generator of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch.nn import functional

from .. import _core
from .._base.step_kinds import has_precision
from . import gpu
from .host_costs import HostBench
from .memory import host

Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is measured."""

    sizes: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)  # rows of matrices: tokens of a batch
    copy_bytes: int = 256 << 20  # blocks of memory are shares of this
    link_bytes: int = 128 << 20
    n_operators: int = 200  # queued at once: less than what a stream holds, or the host would wait
    repeats: int = 7
    batch_ns: int = 10_000_000  # calls are timed in batches of this length
    item_ns: int = 1_500_000_000  # the most that one figure may take
    n_rounds: int = 40  # of what the host does
    n_retries: int = 4  # of figures that are not steady, all together
    max_spread: float = 0.25  # between the quartiles of repeats, as a share of their median
    min_share: float = 0.75  # of the processors that the process could use


@dataclasses.dataclass(frozen=True)
class Figure:
    """Something that was measured.

    Attributes:
        value: the median.
        low, high: the quartiles of the repeats.
        spread: how far the repeats are apart, as a share of the median; of a computed figure, those that it is made of.
        share: of the processors that the process could use, what it got; 1 where that does not matter.
    """

    value: int
    low: int
    high: int
    spread: float = 0.0
    share: float = 1.0

    @classmethod
    def of(cls, samples: Sequence[float], share: float = 1.0) -> Figure:
        low, middle, high = quartiles(samples)
        return cls(max(1, round(middle)), max(1, round(low)), max(1, round(high)), (high - low) / middle, share)

    def is_steady(self, effort: Effort) -> bool:
        return self.spread <= effort.max_spread and self.share >= effort.min_share


Figures = dict[str, Figure]
NONE = Figure(0, 0, 0)


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    ordered = sorted(samples)
    n = len(ordered)
    return ordered[n // 4], statistics.median(ordered), ordered[n - 1 - n // 4]


def _layer(n: int) -> tuple[int, int, int]:
    """Rows, width and columns of a product: n tokens in the first layer of an MLP."""
    return n, min(n, 1024), min(4 * n, 4096)


class CpuBench:
    """Measures a CPU; the class below overrides what differs on a GPU."""

    name = "cpu"
    capability = 0
    types: tuple[str, ...] = ("fp32", "bf16")
    memory_share = 1.0

    def __init__(self, effort: Effort, device: str = "cpu") -> None:
        self.effort = effort
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device).manual_seed(0)
        machine = host()
        self.memory_bytes = int(machine["memory_limit_bytes"])
        self.activation_bytes = effort.copy_bytes // 16  # less than what is mapped anew each time (fresh)
        self.n_processors = min(int(machine["n_cores"]), torch.get_num_threads())

    def synchronize(self) -> None:
        """Wait until everything that was queued is done."""

    def close(self) -> None:
        """Give memory back."""

    def link(self) -> Figures:
        """Copies between host and device, and pinning, in MB/s."""
        return dict.fromkeys(_LINK, NONE)

    def launch(self, dispatch_ns: int) -> Figure:
        """The least time of a kernel on the device."""
        return NONE

    def matrix(self, kind: str) -> Figure:
        """Products in GFLOP/s: the best of several sizes, of matrices as layers have them."""
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(kind, torch.float32)
        best, deadline = NONE, time.perf_counter_ns() + self.effort.item_ns
        with tf32(kind == "tf32"):
            for n in self.effort.sizes:
                samples, share = self.sample(self.product(n, dtype))
                figure = Figure.of([2 * math.prod(_layer(n)) / ns for ns in samples], share)
                best = max(best, figure, key=lambda figure: figure.value)
                if time.perf_counter_ns() + 8 * max(samples) * (self.effort.repeats + 2) > deadline:
                    break  # the next size would take too long, as on CPUs in types without hardware support
        return best

    def memory(self) -> Figure:
        """Bytes read and written by pointwise operators on activations, in MB/s. They are slower than a large copy, and
        most of a training step's traffic is theirs. Kernels of models reach a share of that."""
        x = torch.ones(self.activation_bytes // 4096, 1024, dtype=torch.float32, device=self.device)
        weight, width = torch.ones(1024, dtype=torch.float32, device=self.device), (1024,)

        def call() -> None:
            functional.gelu(functional.layer_norm(x + x, width, weight, weight)).to(torch.bfloat16)

        samples, _ = self.sample(call)
        moved = (3 + 2 + 2 + 1.5) * x.nbytes  # by the sum, the norm, the activation and the cast
        return Figure.of([1000 * self.memory_share * moved / ns for ns in samples])

    def random(self) -> Figure:
        """Bytes read and written by an operator that draws, in MB/s."""
        mask = torch.ones(self.effort.copy_bytes // 64, dtype=torch.float32)
        samples, _ = self.sample(lambda: mask.bernoulli_(0.9, generator=self.generator))
        return Figure.of([2000 * mask.nbytes / ns for ns in samples])

    def fresh(self) -> Figure:
        """Large blocks that are made and written, beyond what writing takes, in MB/s."""
        block = torch.zeros(self.effort.copy_bytes // 8, dtype=torch.float32)
        made, _ = self.sample(lambda: torch.ones_like(block))
        written, _ = self.sample(lambda: block.fill_(1.0))
        extra = max(1.0, statistics.median(made) - statistics.median(written))
        return dataclasses.replace(Figure.of([1000 * block.nbytes / extra]), spread=Figure.of(made).spread)

    def host_costs(self) -> Figures:
        """What the host does for operators, by their kinds. Other work can only add to a time, so costs are computed
        from lower quartiles over all rounds; their spread is that of costs from every fifth round."""
        with torch.random.fork_rng([] if self.device.index is None else [self.device.index]):  # for dropout
            bench = HostBench(self.device, self.synchronize)
            start, used = time.perf_counter_ns(), time.process_time_ns()
            rounds = [bench.round() for _ in range(self.effort.n_rounds)]
            share = (time.process_time_ns() - used) / (time.perf_counter_ns() - start)
        names = list(rounds[0])
        costs, *groups = (
            bench.costs({name: quartiles([r[name] for r in some])[0] for name in names})
            for some in (rounds, *(rounds[i::5] for i in range(5)))
        )
        spread = statistics.median(Figure.of([r[name] for r in rounds]).spread for name in names)
        return {
            name: Figure(value, min(g[name] for g in groups), max(g[name] for g in groups), spread, min(1.0, share))
            for name, value in costs.items()
        }

    def sample(self, call: Callable[[], object]) -> tuple[list[int], float]:
        """The time of a call, from batches long enough that starting and ending them does not count; and the share of
        the processors that the process got meanwhile."""
        self.time(call, 1)  # the first one loads libraries and chooses algorithms
        n = min(1000, 1 + self.effort.batch_ns // self.time(call, 1))
        start, used = time.perf_counter_ns(), time.process_time_ns()
        samples = [self.time(call, n) for _ in range(self.effort.repeats)]
        share = (time.process_time_ns() - used) / (time.perf_counter_ns() - start) / self.n_processors
        return samples, min(1.0, share) if self.device.type == "cpu" else 1.0

    def time(self, call: Callable[[], object], n: int) -> int:
        self.synchronize()
        start = time.perf_counter_ns()
        for _ in range(n):
            call()
        self.synchronize()
        return max(1, (time.perf_counter_ns() - start) // n)

    def product(self, n: int, dtype: torch.dtype) -> Callable[[], object]:
        """Random matrices: a GPU that multiplies zeros draws less power and runs faster than in training."""
        rows, width, columns = _layer(n)
        shapes = ((rows, width), (width, columns), (rows, columns))
        a, b, out = (torch.empty(shape, dtype=dtype, device=self.device) for shape in shapes)
        for matrix in (a, b):
            matrix.normal_(generator=self.generator)
        return functools.partial(torch.mm, a, b, out=out)


class CudaBench(CpuBench):
    """Measures a GPU of NVIDIA."""

    # Of what these operators reach: in kernel times of seven models on an H200, with tensors of all sizes and layouts.
    memory_share = 0.85

    def __init__(self, effort: Effort, index: int) -> None:
        super().__init__(effort, f"cuda:{index}")
        self.index = index
        properties = torch.cuda.get_device_properties(index)
        self.name = str(properties.name)
        self.capability = 10 * properties.major + properties.minor
        self.memory_bytes = int(properties.total_memory)
        self.activation_bytes = effort.copy_bytes // 4  # more than what its caches hold
        self.types = ("fp32", "tf32", "fp16", "bf16") if has_precision(self.capability, "bf16") else ("fp32", "fp16")

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.index)

    def random(self) -> Figure:
        return NONE  # as fast as memory

    def fresh(self) -> Figure:
        return NONE  # torch's allocator keeps what it has

    def link(self) -> Figures:
        link = gpu.get().link(self.index, self.effort.link_bytes)
        if not link["intact"]:
            raise _core.MemScaleError(f"bytes were changed on their way to {self.name} and back: see `memscale doctor`")
        rates = (link["to_device_rate"], link["from_device_rate"], link["both_rate"], link["pinning_rate"])
        return {name: Figure.of([rate / 10**6]) for name, rate in zip(_LINK, rates)}

    def launch(self, dispatch_ns: int) -> Figure:
        """Tiny kernels after long ones: all of them are queued before the first runs, so the host does not count."""
        n, x = self.effort.n_operators, torch.ones(16, dtype=torch.float32, device=self.device)
        long_call = self.product(self.effort.sizes[len(self.effort.sizes) // 2], torch.float32)
        long_ns = min(self.sample(long_call)[0])
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
                samples.append(start.elapsed_time(end) * 1e6 / n)
        return Figure.of(samples)

    def close(self) -> None:
        torch.cuda.empty_cache()


_LINK = ("to_device_mb_per_s", "from_device_mb_per_s", "both_mb_per_s", "pinning_mb_per_s")


def measure(bench: CpuBench, progress: Progress) -> Figures:
    """Everything that can be measured of the device, by the names of its rates."""
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(bench.device.type, enabled=False):
            return _measure_all(bench, progress)
    except (torch.cuda.OutOfMemoryError, _core.MemScaleError) as error:
        if isinstance(error, _core.MemScaleError) and "OUT_OF_MEMORY" not in str(error):
            raise
        raise _core.MemScaleError(f"{bench.name} has too little free memory to be measured: {error}") from error
    finally:
        bench.close()


def _measure_all(bench: CpuBench, progress: Progress) -> Figures:
    retries = iter(range(bench.effort.n_retries))

    def steady(text: str, call: Callable[[], Figures]) -> Figures:
        """The steadiest of a few tries."""
        progress(f"{bench.name}: {text}")
        best = call()
        while not all(figure.is_steady(bench.effort) for figure in best.values()) and next(retries, None) is not None:
            progress(f"{bench.name}: {text}, again: the machine is busy")
            best = min(best, call(), key=_unsteadiness)
        return best

    found: Figures = dict.fromkeys(("tf32_gflops", "fp16_gflops", "bf16_gflops"), NONE)
    for kind in bench.types:
        found |= steady(f"matrix products in {kind}", functools.partial(_matrix, bench, kind))
    found |= steady("memory", lambda: {"memory_mb_per_s": bench.memory()})
    found |= steady("random numbers", lambda: {"random_mb_per_s": bench.random()})
    found |= steady("new memory", lambda: {"fresh_mb_per_s": bench.fresh()})
    found |= steady("operators", bench.host_costs)
    found |= steady("kernels", lambda: {"launch_ns": bench.launch(found["dispatch_ns"].value)})
    return found | steady("link", bench.link)


def _matrix(bench: CpuBench, kind: str) -> Figures:
    return {f"{kind}_gflops": bench.matrix(kind)}


def _unsteadiness(figures: Figures) -> float:
    return max((figure.spread - figure.share for figure in figures.values()), default=0.0)


@contextlib.contextmanager
def tf32(allowed: bool) -> Iterator[None]:
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
