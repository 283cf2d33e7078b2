"""Saved tensors in host memory: the offload engine of one wrapped model's device.

The work is done in C: the copies by the library's engine (``src/offload``), the hooks on saved tensors by the extension
(``_core/offload``). Here the engine is made when a plan first needs it, and what went wrong is said.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

from .. import _core
from .._base.vocabulary import ACTIONS
from .._hw import gpu
from .._show.text import size
from ..config import Config, async_settings, engine_settings
from ..errors import MemScaleError
from ..plans import Plan
from .messages import Messages
from .recomputation import Unit

_LARGE = 4 << 30  # pinning so much takes seconds
OPTIONS: dict[str, Any] = {"least_bytes": _core.OFFLOAD_LEAST_BYTES}  # smaller tensors stay where they are


class Offloading:
    """The offload engine of one wrapped model's device, if a plan needs one."""

    def __init__(self, device: torch.device, config: Config, messages: Messages) -> None:
        self._device = device
        self._config = config
        self._messages = messages
        self._engine: _core.OffloadEngine | None = None
        self._pid = 0  # of the process that made it: a forked child has none
        self._n_refused = 0
        settings = async_settings(config)
        self._pinned_bytes = None if settings.pool_gb is None else round(settings.pool_gb * 1e9)

    def use(self, plan: Plan) -> None:
        """Steps run with this plan from now on: have the host memory that it needs."""
        if not any(ACTIONS[entry.action].needs_link for entry in plan.entries):
            return
        if self._engine is None:
            self._engine, self._pid = self._make(), os.getpid()
        if plan.host_bytes > _LARGE:
            self._messages.once(f"taking {size(plan.host_bytes)} of host memory to offload to")
        self._engine.forget()
        try:
            if self._pinned_bytes is not None:  # the pool is pinned or not as it grows, so that part comes first
                self._engine.reserve(min(plan.host_bytes, self._pinned_bytes))
            self._engine.reserve(plan.host_bytes)
        except MemoryError as error:
            self._messages.warn(f"offloading lacks host memory ({error}); what does not fit stays on the device")

    def _make(self) -> _core.OffloadEngine:
        nothing, options = torch.empty(0, device=self._device), dict(OPTIONS)
        if self._pinned_bytes is not None:
            options["pinned_bytes"] = self._pinned_bytes
        limit = _core.host_limit(engine_settings(self._config)["offload_limit_bytes"])
        if self._device.type == "cpu":
            return _core.OffloadEngine(nothing.device, nothing, limit_bytes=limit, **options)
        if self._device.type != "cuda":
            raise MemScaleError(f"offloading from a device of type '{self._device.type}' is not supported")
        index = nothing.device.index
        return _core.OffloadEngine(nothing.device, nothing, index=index, gpu=gpu.get(), limit_bytes=limit, **options)

    def run(self, unit: Unit, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a unit's forward, as `plain` does it, and copy what it saves to the host."""
        if self._engine is None or self._cannot_copy():
            return plain(*args, **kwargs)
        return self._engine.run(unit, plain, args, kwargs, unit.number, unit.schedule)

    def run_kept(self, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the forward of a unit that keeps what it saves, or most of it."""
        if self._engine is None or self._cannot_copy():
            return plain(*args, **kwargs)
        return self._engine.run_kept(plain, args, kwargs)

    def take_inputs(self, unit: Unit) -> None:
        """Copy the inputs of a unit, which is recomputed, to the host after its next forwards."""
        if self._engine is None or self._cannot_copy():
            unit.put_inputs = None
        elif unit.put_inputs is None:
            unit.put_inputs = functools.partial(self._engine.put_inputs, unit.number, unit.schedule)

    def mark(self, unit: Unit) -> None:
        """Let a unit that is recomputed tell when backward comes to it."""
        if self._engine is None or self._cannot_copy():
            unit.put_inputs = None
        elif unit.put_inputs is None:
            unit.put_inputs = self._engine.mark

    def _cannot_copy(self) -> bool:
        """Is this a forked child, or is a graph captured?"""
        if self._pid != os.getpid():
            return True
        return self._device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())

    def look(self) -> None:
        """Before a step: was there always host memory in the last one?"""
        if self._engine is None or self._pid != os.getpid():
            return
        stats = self._engine.stats()
        if stats["n_refused"] > self._n_refused == 0:
            self._messages.warn(
                f"{size(stats['pool_bytes'])} of host memory were not enough to offload to; what does not fit stays on "
                "the device (config.max_cpu_offload_gb is the limit)"
            )
        self._n_refused = stats["n_refused"]

    def stats(self) -> dict[str, int]:
        """What the engine has done so far; empty if there is none."""
        return {} if self._engine is None else self._engine.stats()

    def release(self) -> None:
        """Let go of the engine: its host memory goes with the last graph that needs it."""
        engine, self._engine, settings = self._engine, None, async_settings(self._config)
        if engine is not None and settings.debug and self._pid == os.getpid():
            stats = engine.stats()
            self._messages.info(
                f"offloading copied {size(stats['put_bytes'])} to {size(stats['pool_bytes'])} of host memory in "
                f"{stats['n_puts']} transfers, and {size(stats['fetched_bytes'])} back in {stats['n_fetches']}; "
                f"{stats['n_late']} of these began when they were needed. Host memory was taken {stats['n_grows']} "
                f"times, and {stats['n_refused']} transfers found none"
            )
        self._n_refused = 0
