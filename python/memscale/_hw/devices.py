"""The device that a step will run on: this machine's GPU, its CPU, or a GPU of the table that is not here."""

from __future__ import annotations

import torch
from torch import nn

from .._core import Device, Rates
from ..errors import MemScaleError
from . import calibration, torch_allocator
from .memory import host, main_device

_STEP_BYTES = 256 << 20  # free memory varies: rounded down to this, as in settings.c, answers repeat


def find(device: str | torch.device | None, model: nn.Module | None = None) -> Device:
    """A device by its name ("cpu", "cuda:1", "rtx3090"); None: where the model is."""
    if device is None:
        device = _where(model)
    if not isinstance(device, (str, torch.device)):
        raise TypeError(f"device must be a name or a torch.device, not {type(device).__name__}")
    if isinstance(device, str) and device.split(":")[0] not in ("cpu", "cuda"):
        return Device.of_model(device)  # ValueError names the closest
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device={device!r} is not allowed: {error}") from None
    if place.type == "cpu":
        return _this_cpu()
    if place.type != "cuda":
        raise MemScaleError(f"predictions are for CPUs and CUDA GPUs, not for '{place.type}'")
    if not torch.cuda.is_available():
        raise MemScaleError("there is no GPU here; name the one that you mean, such as device='rtx3090'")
    if place.index is not None and place.index >= torch.cuda.device_count():
        raise ValueError(f"device={str(place)!r} is not allowed: there are {torch.cuda.device_count()} GPUs here")
    return _this_gpu(place)


def _where(model: nn.Module | None) -> torch.device:
    place = torch.device("cpu") if model is None else main_device(model)
    if place.type != "meta":
        return place
    if torch.cuda.is_available():
        return torch.device("cuda")
    raise MemScaleError(
        "the model is on the meta device and there is no GPU here: name the one that you mean, such as device='rtx3090'"
    )


def _this_cpu() -> Device:
    limit = int(host()["memory_limit_bytes"])
    n_threads = int(torch.get_num_threads())
    rates = calibration.load("cpu") or Rates.guess(0, limit, n_threads)
    return Device(kind="cpu", name="cpu", rates=rates, n_multiprocessors=n_threads, usable_bytes=limit)


def _this_gpu(place: torch.device) -> Device:
    properties = torch.cuda.get_device_properties(place)
    free, _ = torch.cuda.mem_get_info(place)
    usable = (int(free) + int(torch.cuda.memory_reserved(place))) // _STEP_BYTES * _STEP_BYTES
    capability = 10 * properties.major + properties.minor
    rates = calibration.load(properties.name)
    if rates is None:
        try:
            rates = Rates.of_model(properties.name)
        except ValueError:  # not in the table: a guess from the number of its multiprocessors
            rates = Rates.guess(capability, int(properties.total_memory), properties.multi_processor_count)
    return Device(
        kind="cuda",
        name=properties.name,
        rates=rates,
        n_multiprocessors=properties.multi_processor_count,
        usable_bytes=usable,
        is_integrated=bool(properties.is_integrated),
    )


def segments_of(device: Device) -> dict[str, bool]:
    """What is known about segments of torch's allocator on a device, as ``_core.Request`` takes it.

    They may be ``fixed``, so that they cannot be made to grow, or ``grown`` already. A device that is not here is taken
    to be one where they can.
    """
    if device.kind != "cuda" or not torch.cuda.is_initialized():
        return {}
    place = torch.device("cuda", torch.cuda.current_device())
    if torch.cuda.get_device_name(place) != device.name:
        return {}
    return {"fixed": not torch_allocator.can_grow(place), "grown": torch_allocator.is_growing_without_us()}
