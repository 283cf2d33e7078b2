"""What a user may set: :class:`Config`, :class:`OptimizationMode` and :class:`AsyncOffloadConfig`.

Everything about a field is in its declaration here; only what a mode changes is in a table of its own. After a change,
``python tools/config_docs.py`` writes docs/CONFIG.md.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from . import _core
from ._settings import (
    BOOLEAN,
    PATH,
    Check,
    Needs,
    Settings,
    fields_of,
    instance,
    integer,
    number,
    one_of,
    or_none,
    setting,
)

__all__ = ["AsyncOffloadConfig", "Config", "OptimizationMode"]

_GB = 1e9
_MAX_BYTES = 1 << 50  # more than any device has: a larger limit is no limit
_PPM = 1_000_000


class OptimizationMode(enum.Enum):
    """How far MemScale may go: which techniques it may use and how much time it may spend."""

    CONSERVATIVE = "conservative"
    BALANCED = "balanced"
    AGGRESSIVE = "aggressive"


class _Mode(NamedTuple):
    defaults: Mapping[str, Any]  # of the fields whose default differs in this mode
    max_slowdown: float | None


# The fields that allow a technique (enum ms_technique of memscale.h); modes are a table in C.
TECHNIQUE_FIELDS = {
    "enable_checkpointing": _core.TECHNIQUE_RECOMPUTE,
    "enable_offloading": _core.TECHNIQUE_OFFLOAD,
    "enable_tiling": _core.TECHNIQUE_TILE,
    "use_mixed_precision": _core.TECHNIQUE_HALF,
    "use_8bit_optimizer": _core.TECHNIQUE_8BIT,
}
_MODES = {
    OptimizationMode(name): _Mode(
        {field: bool(techniques & technique) for field, technique in TECHNIQUE_FIELDS.items()},
        max_slowdown=None if slowdown_ppm < 0 else slowdown_ppm / 1_000_000,
    )
    for _, name, techniques, slowdown_ppm in _core.MODES
}


class AsyncOffloadConfig(Settings):
    """Settings of the asynchronous transfer engine, immutable."""

    pool_gb: float | None = setting(
        "How much host memory is pinned, in GB, instead of as much as the plan needs; the rest is pageable, and its "
        "copies are slow.",
        default=None,
        check=or_none(number(0, low_open=True)),
    )
    prefetch_depth: int = setting(
        "The least number of layers that a copy back to the device begins before it is needed.",
        default=2,
        check=integer(1, 64),
    )
    debug: bool = setting("Log what was copied, and what was late, on detach.", default=False, check=BOOLEAN)


def _read_mode(value: OptimizationMode | str) -> Any:
    """A mode by its name; anything else is returned as it is, and the check refuses it."""
    names = {mode.value: mode for mode in OptimizationMode}
    return names.get(value.lower(), value) if isinstance(value, str) else value


_MODE: Check[Any] = Check(
    "an OptimizationMode or its name: " + ", ".join(mode.name for mode in OptimizationMode),
    lambda value: isinstance(value, OptimizationMode),
)

if TYPE_CHECKING:

    class _ModeField:
        """For type checkers: the attribute is an ``OptimizationMode``, and the constructor takes its name, too."""

        def __get__(self, config: object, owner: type | None = None) -> OptimizationMode: ...
        def __set__(self, config: object, value: OptimizationMode | str) -> None: ...

else:
    _ModeField = OptimizationMode


_Outcome = Literal["replan", "raise"]
_OptimizerBackend = Literal["memscale", "bitsandbytes", "torch"]
_LossBackend = Literal["memscale", "liger", "torch"]

_SLOWDOWNS = ", ".join(
    f"{'unbounded' if mode.max_slowdown is None else mode.max_slowdown} in {name.name}" for name, mode in _MODES.items()
)


class Config(Settings):
    """Settings of MemScale, immutable. ``Config()`` is what ``wrap(model)`` uses.

    The mode sets the defaults of the fields left out; a field given always wins. GB means 1e9 bytes. Unknown names,
    wrong types, values out of range and contradictions raise ``ValueError``. A field that asks for something that is
    not in this version raises ``MemScaleError`` when the config is used. To change a config, make a new one with
    :meth:`replace`, which remembers the fields that were left out.
    """

    mode: _ModeField = setting(
        "How far MemScale may go: CONSERVATIVE may only recompute, BALANCED may also offload, AGGRESSIVE may use "
        "everything.",
        default=OptimizationMode.BALANCED,
        check=_MODE,
        kw_only=False,
        convert=_read_mode,
    )
    enable_checkpointing: bool = setting(
        "Recompute layers in the backward pass instead of keeping their activations.", default=True, check=BOOLEAN
    )
    enable_offloading: bool = setting(
        "Move activations to host memory until backward needs them, on a GPU.", default=True, check=BOOLEAN
    )
    enable_tiling: bool = setting(
        "Compute attention, MLP and loss head in tiles.", default=False, check=BOOLEAN, missing="tiling"
    )
    use_mixed_precision: bool = setting(
        "Compute in bf16, or in fp16 with loss scaling on a GPU without bf16; a GPU that has neither computes as "
        "before.",
        default=False,
        check=BOOLEAN,
        missing="16-bit compute",
    )
    use_8bit_optimizer: bool = setting(
        "Keep Adam's moments in 8 bits.", default=False, check=BOOLEAN, missing="8-bit moments"
    )
    max_cpu_offload_gb: float | None = setting(
        "Most host memory that a plan may use, in GB; None means what is available (within the container's limit) less "
        "a reserve.",
        default=None,
        check=or_none(number(0)),
        needs="enable_offloading",
    )
    target_gpu_utilization: float = setting(
        "Fraction of the GPU's memory that a plan aims for; all that is usable is the limit.",
        default=0.85,
        check=number(0, 1, low_open=True),
    )
    memory_budget_gb: float | None = setting(
        "Memory budget in GB, instead of the fraction; torch's allocator is capped at it.",
        default=None,
        check=or_none(number(0, low_open=True)),
    )
    max_slowdown: float | None = setting(
        "Extra step time that may be spent on saving memory, as a fraction of the plain step; "
        f"None means {_SLOWDOWNS}.",
        default=None,
        check=or_none(number(0, 1000)),
    )
    force_optimize: bool = setting(
        "Optimize even where the step needs so little memory that MemScale would do nothing.",
        default=False,
        check=BOOLEAN,
    )
    on_oom: _Outcome = setting(
        "After a step that ran out of memory, what was planned and what was there is logged; 'replan' also makes a "
        "plan that needs less memory, for the next forward, 'raise' does not.",
        default="replan",
        check=one_of(_Outcome),
    )
    use_static_profiling: bool = setting(
        "Analyse the step in a throw-away process before it runs.",
        default=True,
        check=BOOLEAN,
        needs=Needs("use_empirical_fallback", when=False, because="the model could not be profiled at all"),
    )
    use_empirical_fallback: bool = setting(
        "Where the step cannot be analysed (or use_static_profiling is off), watch your own first steps; without it, "
        "a step that cannot be analysed is an error.",
        default=True,
        check=BOOLEAN,
    )
    warmup_steps: int = setting(
        "How many of your first steps are watched where the step cannot be analysed.",
        default=1,
        check=integer(1, 1000),
    )
    enable_logging: bool = setting(
        "Log hardware, plan and changes of the plan at level info on the logger 'memscale'; to standard output, if "
        "neither that logger nor the root logger has a handler.",
        default=True,
        check=BOOLEAN,
    )
    log_file: str | os.PathLike[str] | None = setting(
        "A file that the log is also written to.", default=None, check=or_none(PATH), needs="enable_logging"
    )
    observability_port: int | None = setting(
        "Serve Prometheus metrics on this port of 127.0.0.1.",
        default=None,
        check=or_none(integer(1, 65535)),
        missing="Prometheus metrics",
    )
    verify_correctness: bool = setting(
        "Compare loss and gradients with those of an unwrapped step, and report how far apart they are.",
        default=False,
        check=BOOLEAN,
        missing="a comparison with an unwrapped step",
    )
    async_offload: bool = setting(
        "Copy to host memory and back while the step goes on; without it the step waits for every copy.",
        default=False,
        check=BOOLEAN,
        needs="enable_offloading",
    )
    async_config: AsyncOffloadConfig | None = setting(
        "Settings of the asynchronous engine; None means AsyncOffloadConfig().",
        default=None,
        check=or_none(instance(AsyncOffloadConfig)),
        needs="async_offload",
    )
    auto_policy: bool = setting(
        "Let a small trained model choose mode and techniques before the plan is made.",
        default=False,
        check=BOOLEAN,
        missing="the learned policy",
    )
    step_in_backward: bool = setting(
        "Update each parameter as soon as its gradient is complete; you promise one backward pass per step and no "
        "gradient clipping.",
        default=False,
        check=BOOLEAN,
        missing="updates during the backward pass",
    )
    offload_dir: str | os.PathLike[str] | None = setting(
        "A folder to offload to when host memory is full; None means that nothing goes to disk.",
        default=None,
        check=or_none(PATH),
        needs="enable_offloading",
        missing="offloading to disk",
    )
    optimizer_backend: _OptimizerBackend = setting(
        "Whose kernels update the parameters, where they are installed.",
        default="memscale",
        check=one_of(_OptimizerBackend),
        missing="a third-party optimizer",
        harmless=("memscale", "torch"),
    )
    loss_backend: _LossBackend = setting(
        "Whose kernels compute the loss head, where they are installed.",
        default="memscale",
        check=one_of(_LossBackend),
        missing="a third-party loss",
        harmless=("memscale", "torch"),
    )

    @classmethod
    def _mode_defaults(cls, field: str) -> dict[str, Any]:
        return {name.name: mode.defaults[field] for name, mode in _MODES.items() if field in mode.defaults}

    def _mode_name(self) -> str:
        return self.mode.name  # the first field, so it is set before the other defaults are looked up

    @property
    def slowdown_limit(self) -> float | None:
        """The extra step time that a plan may cost, as a fraction; ``None`` is unbounded."""
        return self.max_slowdown if self.max_slowdown is not None else _MODES[self.mode].max_slowdown

    def __repr__(self) -> str:
        given = [field.name for field in fields_of(self) if field.name != "mode" and self.given(field.name)]
        return f"Config({self.mode.name}{''.join(f', {name}={getattr(self, name)!r}' for name in given)})"


def async_settings(config: Config) -> AsyncOffloadConfig:
    """Those of the asynchronous engine."""
    return AsyncOffloadConfig() if config.async_config is None else config.async_config


def engine_settings(config: Config) -> dict[str, Any]:
    """The settings that the engine in C decides by, as ``_core.Request`` takes them."""
    slowdown, settings = config.slowdown_limit, async_settings(config)
    return {
        "techniques": sum(flag for field, flag in TECHNIQUE_FIELDS.items() if getattr(config, field)),
        "budget_bytes": _bytes_of(config.memory_budget_gb, least=1, none=0),
        "utilization_ppm": max(1, round(config.target_gpu_utilization * _PPM)),
        "slowdown_ppm": -1 if slowdown is None else round(slowdown * _PPM),
        "offload_limit_bytes": _bytes_of(config.max_cpu_offload_gb, least=0, none=-1),
        "force": config.force_optimize,
        "overlaps": config.async_offload,
        "prefetch_depth": settings.prefetch_depth if config.async_offload else 0,
    }


def _bytes_of(gigabytes: float | None, *, least: int, none: int) -> int:
    return none if gigabytes is None else max(least, round(min(gigabytes * _GB, _MAX_BYTES)))
