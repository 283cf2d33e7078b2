"""Measures how fast this machine is and keeps the result in a file: ``memscale calibrate``.

What is measured, and how, is in ``rate_bench`` and ``host_costs``. The file holds any number of devices by their names
and is replaced as a whole, so that a reader sees the old one or the new one. Next to the rates of a device it has the
spread of the measurements, which nothing but people read; files without it are read as well.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from .. import _core
from .._core import Rates
from .rate_bench import CpuBench, CudaBench, Effort, Figure, Figures, Progress, measure

VARIABLE = "MEMSCALE_CALIBRATION"
FULL = Effort()
_VERSION_KEY, _VERSION = "memscale_calibration", 1
_MEASURED = "measurements"


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What was measured, of which device, and where it was written.

    Attributes:
        figures: each measured rate with its spread, by name.
        busy: what of it was not steady, in words; empty if all was.
    """

    device: str
    path: Path
    rates: Rates
    figures: Figures
    busy: str


def calibrate(
    device: torch.device | str | int | None = None, path: str | os.PathLike[str] | None = None, *, force: bool = False
) -> Rates:
    """Measure this machine's rates and keep them in a file, from which later plans take them.

    Takes some seconds, in which nothing else should run. On a GPU: matrix products in each type, memory, the link to
    the host, pinning, and what operators of each kind cost on the device and on the host. Without one, the CPU.

    Args:
        device: what to measure; ``None``: the current GPU, or the CPU where torch can use none.
        path: the file; ``None``: ``$MEMSCALE_CALIBRATION``, else ``memscale/calibration.json`` in ``$XDG_CONFIG_HOME``
            or ``~/.config``. Other devices in it stay.
        force: write what was measured even if the machine was too busy for it.

    Returns:
        The rates that were written.

    Raises:
        ValueError: there is no such device.
        MemScaleError: it cannot be measured, other work kept the machine busy, or the file cannot be written.
    """
    return run(device, path, force=force).rates


def run(
    device: torch.device | str | int | None = None,
    path: str | os.PathLike[str] | None = None,
    effort: Effort | None = None,
    progress: Progress = lambda text: None,
    *,
    force: bool = False,
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
    figures = measure(bench, progress)
    busy = _busy(figures, bench.effort)
    if busy and not force:
        raise _core.MemScaleError(
            f"{bench.name} is too busy to be measured: {busy}. Nothing was written. Stop other work and try again, or "
            "write these figures all the same with --force (force=True)"
        )
    rates = _rates(bench, figures)
    _write(target, bench.name, rates, figures, busy)
    return Calibration(bench.name, target, rates, figures, busy)


def _rates(bench: CpuBench, figures: Figures) -> Rates:
    return Rates(
        source=_core.RATES_MEASURED,
        capability=bench.capability,
        memory_bytes=bench.memory_bytes,
        **{name: figure.value for name, figure in figures.items()},
    )


def _busy(figures: Figures, effort: Effort) -> str:
    """Which figures are not steady, worst first and at most three, in words."""
    unsteady = {  # of those that were measured together, one
        (figure.spread, figure.share): name for name, figure in figures.items() if not figure.is_steady(effort)
    }
    worst = sorted(unsteady.values(), key=lambda name: figures[name].share - figures[name].spread)
    return "; ".join(_describe(name, figures[name], effort) for name in worst[:3])


def _describe(name: str, figure: Figure, effort: Effort) -> str:
    if figure.share < effort.min_share:
        return f"{name} was {figure.value} while the process got {figure.share:.0%} of its processors"
    return f"repeats of {name} were {figure.spread:.0%} apart ({figure.low} to {figure.high})"


def _write(target: Path, name: str, rates: Rates, figures: Figures, busy: str) -> None:
    """Put the device into the file; a broken file is replaced, since that is the remedy for it."""
    records: dict[str, Any] = {}
    measured: dict[str, Any] = {}
    with contextlib.suppress(_core.MemScaleError):
        records, measured = _read(target), _read_document(target).get(_MEASURED, {})
    spread = {name: [figure.low, figure.high] for name, figure in figures.items() if figure.value}
    records[name] = json.loads(rates.to_json())
    measured = {**(measured if isinstance(measured, dict) else {}), name: {"spread": spread, "busy": busy}}
    document = {
        _VERSION_KEY: _VERSION,
        "devices": dict(sorted(records.items())),
        _MEASURED: dict(sorted(measured.items())),
    }
    with _writing_to(target):
        _replace(target, json.dumps(document, indent=2) + "\n")


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
    document = _read_document(path)
    records = document.get("devices", {} if not document else None)
    if not isinstance(records, dict):
        raise _broken(path, "it has no 'devices'")
    return records


def _read_document(path: Path) -> dict[str, Any]:
    """The file, empty where there is none."""
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
    return dict(document)


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


# The device


def _bench(device: torch.device | str | int | None, effort: Effort) -> CpuBench:
    """What measures this device. Raises if there is none."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"calibrate: device={device!r} is not a device such as 'cpu', 'cuda' or 'cuda:1'") from error
    if place.type == "cpu":
        return CpuBench(effort)
    if place.type != "cuda":
        raise ValueError(f"calibrate: device={device!r} cannot be measured, only CPUs and CUDA devices can")
    if not torch.cuda.is_available():
        raise _core.MemScaleError(
            f"calibrate: torch cannot use a GPU here, so {device!r} cannot be measured; `memscale doctor` shows why"
        )
    index = torch.cuda.current_device() if place.index is None else place.index
    if index >= torch.cuda.device_count():
        raise ValueError(f"calibrate: device={device!r} does not exist: torch sees {torch.cuda.device_count()} GPUs")
    return CudaBench(effort, index)
