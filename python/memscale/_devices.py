"""What a step is to run on: this machine's GPU, its CPU, or a GPU of the table that is not here."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from . import _calibrate, _core, _memory
from ._rates import Rates
from .errors import MemScaleError

CONTEXT_BYTES = 512 << 20  # what CUDA takes for itself on a GPU that is not here


@dataclasses.dataclass(frozen=True)
class Device:
    """A device that steps are predicted for.

    Attributes:
        kind: ``"cuda"`` or ``"cpu"``.
        name: as the driver or the table has it.
        usable_bytes: what torch's allocator can have there.
        n_multiprocessors: of a GPU; torch's threads on a CPU.
        rates: how fast it is.
    """

    kind: str
    name: str
    usable_bytes: int
    n_multiprocessors: int
    rates: Rates

    @property
    def capability(self) -> int:
        """10 times the major and the minor compute capability; 0 for a CPU."""
        return self.rates.capability


def find(device: str | torch.device | None, model: nn.Module | None = None) -> Device:
    """A device by its name ("cpu", "cuda:1", "rtx3090"); None: where the model is."""
    if device is None:
        device = _where(model)
    if not isinstance(device, (str, torch.device)):
        raise TypeError(f"device must be a name or a torch.device, not {type(device).__name__}")
    if isinstance(device, str) and device.split(":")[0] not in ("cpu", "cuda"):
        return _of_table(device)
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device={device!r} is not allowed: {error}") from None
    if place.type == "cpu":
        return _this_cpu()
    if place.type != "cuda":
        raise MemScaleError(f"predictions are for CPUs and CUDA GPUs, not for '{place.type}'")
    if not torch.cuda.is_available():
        raise MemScaleError("there is no GPU here; name one that you mean, as device='rtx3090'")
    if place.index is not None and place.index >= torch.cuda.device_count():
        raise ValueError(f"device={str(place)!r} is not allowed: there are {torch.cuda.device_count()} GPUs here")
    return _this_gpu(place)


def _where(model: nn.Module | None) -> torch.device:
    place = torch.device("cpu") if model is None else _memory.main_device(model)
    if place.type != "meta":
        return place
    if torch.cuda.is_available():
        return torch.device("cuda")
    raise MemScaleError(
        "the model is on the meta device and there is no GPU here: say which is meant, device='rtx3090'"
    )


def _of_table(name: str) -> Device:
    model = _core.gpu_model(name)  # ValueError names the closest
    usable = int(model["memory_bytes"]) - CONTEXT_BYTES
    return Device("cuda", str(model["name"]), usable, int(model["n_multiprocessors"]), Rates.of_model(name))


def _this_cpu() -> Device:
    limit = int(_memory.host()["memory_limit_bytes"])
    measured = _calibrate.load("cpu")
    n_threads = int(torch.get_num_threads())
    return Device("cpu", "cpu", limit, n_threads, measured or _guess(0, limit, fp32=100, bandwidth=20_000, launch=0))


def _this_gpu(place: torch.device) -> Device:
    properties = torch.cuda.get_device_properties(place)
    free, _ = torch.cuda.mem_get_info(place)
    usable = int(free) + int(torch.cuda.memory_reserved(place))
    capability = 10 * properties.major + properties.minor
    rates = _calibrate.load(properties.name)
    if rates is None:
        try:
            rates = Rates.of_model(properties.name)
        except ValueError:  # not in the table: something to go by, by the number of its multiprocessors
            n = properties.multi_processor_count
            rates = _guess(capability, int(properties.total_memory), fp32=200 * n, bandwidth=10_000 * n, launch=3000)
    return Device("cuda", properties.name, usable, properties.multi_processor_count, rates)


def _guess(capability: int, memory_bytes: int, *, fp32: int, bandwidth: int, launch: int) -> Rates:
    link = 12_000 if capability else 0
    return Rates(
        source=0,
        capability=capability,
        memory_bytes=memory_bytes,
        fp32_gflops=fp32,
        tf32_gflops=0,
        fp16_gflops=4 * fp32 if capability >= 70 else 0,
        bf16_gflops=4 * fp32 if capability >= 80 else 0,
        memory_mb_per_s=bandwidth,
        to_device_mb_per_s=link,
        from_device_mb_per_s=link,
        both_mb_per_s=2 * link,
        pinning_mb_per_s=0,
        launch_ns=launch,
        dispatch_ns=6000,
    )
