"""What a user may set: :class:`Config`, :class:`OptimizationMode` and :class:`AsyncOffloadConfig`.

A mode sets the defaults of the fields that the caller left out; a field given explicitly always wins. Everything is
checked when a config is made, and a config never changes afterwards.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import math
import os
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["AsyncOffloadConfig", "Config", "OptimizationMode"]


class OptimizationMode(enum.Enum):
    """How far MemScale may go: which techniques it may use and how much time it may spend."""

    CONSERVATIVE = "conservative"
    BALANCED = "balanced"
    AGGRESSIVE = "aggressive"


Check = Callable[[Any], "str | None"]  # what is wrong with a value, or None


def _boolean(value: Any) -> str | None:
    return None if isinstance(value, bool) else "True or False"


def _number(low: float, high: float = math.inf, *, optional: bool, low_open: bool = False) -> Check:
    text = f"a number {'above' if low_open else 'of at least'} {low:g}" + (
        f" and at most {high:g}" if high < math.inf else ""
    )

    def check(value: Any) -> str | None:
        if value is None and optional:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            return text + (" or None" if optional else "")
        inside = low <= value <= high and not (low_open and value == low)
        return None if inside else text + (" or None" if optional else "")

    return check


def _integer(low: int, high: int, *, optional: bool) -> Check:
    def check(value: Any) -> str | None:
        if value is None and optional:
            return None
        good = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return None if good else f"a whole number from {low} to {high}" + (" or None" if optional else "")

    return check


def _path(value: Any) -> str | None:
    return None if value is None or (isinstance(value, (str, os.PathLike)) and str(value)) else "a path or None"


def _one_of(*names: str) -> Check:
    text = "one of " + ", ".join(repr(name) for name in names)
    return lambda value: None if isinstance(value, str) and value in names else text


def _async_config(value: Any) -> str | None:
    return None if value is None or isinstance(value, AsyncOffloadConfig) else "an AsyncOffloadConfig or None"


def _fail(owner: str, field: str, value: Any, allowed: str) -> None:
    raise ValueError(f"{owner}: {field}={value!r} is not allowed; it must be {allowed}")


def _reject_unknown(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    names = list(known)
    for name in given:
        if name in names:
            continue
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"{owner}: there is no field {name!r}; {hint}Allowed are: {', '.join(sorted(names))}")


@dataclasses.dataclass(frozen=True, init=False)
class AsyncOffloadConfig:
    """The asynchronous transfer engine.

    Attributes:
        pool_gb: size of the pinned pool in GB (1e9 bytes); ``None`` = as much as the plan needs.
        prefetch_depth: how many transfers run ahead of their use.
        debug: check every transfer.
    """

    pool_gb: float | None = None
    prefetch_depth: int = 2
    debug: bool = False

    def __init__(self, **fields: Any) -> None:
        checks: dict[str, Check] = {
            "pool_gb": _number(0, optional=True, low_open=True),
            "prefetch_depth": _integer(1, 64, optional=False),
            "debug": _boolean,
        }
        _reject_unknown("AsyncOffloadConfig", fields, checks)
        for field in dataclasses.fields(self):
            value = fields.get(field.name, field.default)
            if allowed := checks[field.name](value):
                _fail("AsyncOffloadConfig", field.name, value, allowed)
            object.__setattr__(self, field.name, value)


_CHECKS: dict[str, Check] = {
    "enable_checkpointing": _boolean,
    "enable_offloading": _boolean,
    "enable_tiling": _boolean,
    "use_mixed_precision": _boolean,
    "use_8bit_optimizer": _boolean,
    "max_cpu_offload_gb": _number(0, optional=True),
    "target_gpu_utilization": _number(0, 1, optional=False, low_open=True),
    "memory_budget_gb": _number(0, optional=True, low_open=True),
    "max_slowdown": _number(0, 1000, optional=True),
    "force_optimize": _boolean,
    "use_static_profiling": _boolean,
    "use_empirical_fallback": _boolean,
    "warmup_steps": _integer(1, 1000, optional=False),
    "enable_logging": _boolean,
    "log_file": _path,
    "observability_port": _integer(1, 65535, optional=True),
    "verify_correctness": _boolean,
    "async_offload": _boolean,
    "async_config": _async_config,
    "auto_policy": _boolean,
    "step_in_backward": _boolean,
    "offload_dir": _path,
    "optimizer_backend": _one_of("memscale", "bitsandbytes", "torch"),
    "loss_backend": _one_of("memscale", "liger", "torch"),
}

_MODE_DEFAULTS: dict[OptimizationMode, dict[str, Any]] = {
    OptimizationMode.CONSERVATIVE: {"enable_offloading": False},
    OptimizationMode.BALANCED: {},
    OptimizationMode.AGGRESSIVE: {"enable_tiling": True, "use_mixed_precision": True, "use_8bit_optimizer": True},
}

_MODE_SLOWDOWN: dict[OptimizationMode, float | None] = {
    OptimizationMode.CONSERVATIVE: 0.15,
    OptimizationMode.BALANCED: 0.55,
    OptimizationMode.AGGRESSIVE: None,
}

# Pairs that contradict each other when both are given: (field, value is set) needs (other field to be true).
_NEEDS: list[tuple[str, str]] = [
    ("async_offload", "enable_offloading"),
    ("max_cpu_offload_gb", "enable_offloading"),
    ("offload_dir", "enable_offloading"),
    ("async_config", "async_offload"),
    ("log_file", "enable_logging"),
]


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Config:
    """Settings of MemScale, immutable. ``Config()`` is what ``wrap(model)`` uses.

    The mode sets the defaults of the fields left out; a field given always wins. GB means 1e9 bytes. Wrong names,
    types, values and contradictions raise ``ValueError``. To change a config, make a new one: :meth:`replace` keeps in
    mind which fields were left out.
    """

    mode: OptimizationMode = OptimizationMode.BALANCED
    enable_checkpointing: bool = True
    enable_offloading: bool = True
    enable_tiling: bool = False
    use_mixed_precision: bool = False
    use_8bit_optimizer: bool = False
    max_cpu_offload_gb: float | None = None
    target_gpu_utilization: float = 0.85
    memory_budget_gb: float | None = None
    max_slowdown: float | None = None
    force_optimize: bool = False
    use_static_profiling: bool = True
    use_empirical_fallback: bool = True
    warmup_steps: int = 2
    enable_logging: bool = True
    log_file: str | os.PathLike[str] | None = None
    observability_port: int | None = None
    verify_correctness: bool = False
    async_offload: bool = False
    async_config: AsyncOffloadConfig | None = None
    auto_policy: bool = False
    step_in_backward: bool = False
    offload_dir: str | os.PathLike[str] | None = None
    optimizer_backend: str = "memscale"
    loss_backend: str = "memscale"

    def __init__(self, mode: OptimizationMode | str = OptimizationMode.BALANCED, **fields: Any) -> None:
        _reject_unknown("Config", fields, ["mode", *_CHECKS])
        resolved = _read_mode(mode)
        object.__setattr__(self, "mode", resolved)
        object.__setattr__(self, "_given", frozenset(fields))
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        values = {**defaults, **_MODE_DEFAULTS[resolved], **fields}
        for name, check in _CHECKS.items():
            if allowed := check(values[name]):
                _fail("Config", name, values[name], allowed)
            object.__setattr__(self, name, values[name])
        self._check_contradictions()

    def _check_contradictions(self) -> None:
        for field, needed in _NEEDS:
            if not self.given(field) or not getattr(self, field) or getattr(self, needed):
                continue
            origin = "" if self.given(needed) else f" (the default of mode {self.mode.name})"
            raise ValueError(
                f"Config: {field}={getattr(self, field)!r} contradicts {needed}=False{origin}; "
                f"set {needed}=True or leave {field} out"
            )
        if not self.use_static_profiling and not self.use_empirical_fallback:
            raise ValueError(
                "Config: use_static_profiling=False contradicts use_empirical_fallback=False: "
                "the model could not be profiled at all; leave one of them True"
            )

    def given(self, field: str) -> bool:
        """Was this field set by the caller, rather than by a default?"""
        return field in self._given  # type: ignore[attr-defined]

    def replace(self, **fields: Any) -> Config:
        """A copy with some fields changed. Fields that were left out stay so, and follow a new mode."""
        kept = {name: getattr(self, name) for name in self._given}  # type: ignore[attr-defined]
        return Config(**{"mode": self.mode, **kept, **fields})

    @property
    def slowdown_limit(self) -> float | None:
        """The extra step time that a plan may cost, as a fraction; ``None`` is unbounded."""
        return self.max_slowdown if self.max_slowdown is not None else _MODE_SLOWDOWN[self.mode]

    def __repr__(self) -> str:
        given = "".join(f", {name}={getattr(self, name)!r}" for name in _CHECKS if self.given(name))
        return f"Config({self.mode.name}{given})"


def _read_mode(mode: Any) -> OptimizationMode:
    if isinstance(mode, OptimizationMode):
        return mode
    names = {member.value: member for member in OptimizationMode}
    if isinstance(mode, str) and mode.lower() in names:
        return names[mode.lower()]
    allowed = ", ".join(member.name for member in OptimizationMode)
    raise ValueError(f"Config: mode={mode!r} is not allowed; it must be an OptimizationMode: {allowed}")
