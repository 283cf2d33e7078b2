"""How each action runs a layer's forward."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from .. import _core
from .._base.vocabulary import ACTIONS
from .._hw import gpu
from .._trace.model_modules import calls_compiled
from ..plans import Plan
from .hooks import active_hooks
from .messages import Messages
from .offloading import Offloading
from .recomputation import Unit
from .spacer import Spacer
from .watching import Watching


class Parts(NamedTuple):
    """What handlers need of an executor."""

    messages: Messages
    watching: Watching
    offloading: Offloading
    spacer: Spacer
    exclude: Callable[[Unit, str, bool], None]  # a layer that cannot be recomputed, why, and whether that is a surprise


_LEAVING = _core.OFFLOAD_LEAVING  # where a plan has no schedule

Handler = Callable[[Parts, Unit, tuple[Any, ...], dict[str, Any]], Any]


def _is_inside_hooks(parts: Parts) -> bool:
    """Are saved tensors somebody else's business here?"""
    if active_hooks(True) is None:
        return False
    parts.messages.once(
        "saved-tensor hooks (checkpointing or offloading) are active around the model; its layers run as without "
        "MemScale"
    )
    return True


def _recompute(parts: Parts, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """It is recomputed in backward."""
    if _is_inside_hooks(parts):
        return unit.plain(*args, **kwargs)
    result = _core.Call(unit, args, kwargs) if parts.watching.is_recording else unit.run(args, kwargs)
    return _check(parts, unit, result, args, kwargs) if type(result) is _core.Call else result


def _check(parts: Parts, unit: Unit, call: _core.Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """It runs for the first time: find out whether it can be recomputed."""
    if call.opaque is not None:
        kind = call.opaque.__name__
        parts.messages.once(
            f"layer '{unit.name}' was called with a {kind}, which MemScale cannot copy; it is not recomputed"
        )
        return unit.plain(*args, **kwargs)
    parts.spacer.give_back()
    output, problem, _ = parts.watching.run_checked(unit, call, args, kwargs)
    if problem is not None:
        parts.exclude(unit, *problem)
    return output


def _recompute_beside(parts: Parts, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """It is recomputed, and others are offloaded."""
    parts.offloading.mark(unit)
    return _recompute(parts, unit, args, kwargs)


def _keep_beside(parts: Parts, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """It is kept, and others are offloaded."""
    if _is_inside_hooks(parts):
        return unit.plain(*args, **kwargs)
    return parts.offloading.run_kept(unit.plain, args, kwargs)


def _is_capturing() -> bool:
    """Is a CUDA graph captured? Nothing can be compared meanwhile."""
    return torch.backends.cuda.is_built() and bool(torch.cuda.is_current_stream_capturing())


def _recompute_pointwise(parts: Parts, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """It is kept, but for results of pointwise functions, which are computed again in backward."""
    if unit.has_compiled or _is_inside_hooks(parts) or _is_capturing():
        return unit.plain(*args, **kwargs)
    return unit.pointwise(*args, **kwargs)


def _recompute_pointwise_beside(parts: Parts, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same, and others are offloaded."""
    if _is_inside_hooks(parts):
        return unit.plain(*args, **kwargs)
    plain = unit.plain if unit.has_compiled or _is_capturing() else unit.pointwise
    return parts.offloading.run_kept(plain, args, kwargs)


def _recompute_offload(parts: Parts, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """It is recomputed in backward, from inputs that are in host memory meanwhile."""
    parts.offloading.take_inputs(unit)
    return _recompute(parts, unit, args, kwargs)


def _offload(parts: Parts, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What it saves for backward is in host memory meanwhile."""
    if _is_inside_hooks(parts):
        return unit.plain(*args, **kwargs)
    return parts.offloading.run(unit, unit.plain, args, kwargs)


def _offload_pointwise(parts: Parts, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same, but for results of pointwise functions, which are computed again in backward."""
    if _is_inside_hooks(parts):
        return unit.plain(*args, **kwargs)
    plain = unit.plain if unit.has_compiled or _is_capturing() else unit.pointwise
    return parts.offloading.run(unit, plain, args, kwargs)


def _run_above_spacer(
    handler: Handler | None, parts: Parts, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """It runs as its action says, with the spacer below it."""
    parts.spacer.take()
    try:
        return unit.plain(*args, **kwargs) if handler is None else handler(parts, unit, args, kwargs)
    finally:
        parts.spacer.give_back()


# By the identifier in the table of C; None: as without MemScale. An action without a handler can be planned, but not
# run by this version.
HANDLERS: dict[str, Handler | None] = {
    "keep": None,
    "recompute": _recompute,
    "recompute_pointwise": _recompute_pointwise,
    "offload": _offload,
    "offload_blocking": _offload,
    "offload_pointwise": _offload_pointwise,
    "recompute_offload": _recompute_offload,
    "recompute_offload_blocking": _recompute_offload,
}
HANDLERS.update((row.identifier, _recompute) for row in ACTIONS if row.keeps)  # with the results that unit.keeps says

# The same where other layers are offloaded, whose tensors leave and are fetched while these run.
_BESIDE: dict[Handler | None, Handler] = {
    None: _keep_beside,
    _recompute: _recompute_beside,
    _recompute_pointwise: _recompute_pointwise_beside,
}


def assign(units: Iterable[Unit], plan: Plan, device: torch.device) -> None:
    """Let units run as the plan says, from their next forward on."""
    entries = {entry.name: entry for entry in plan.entries}
    offloads = any(ACTIONS[entry.action].needs_link for entry in plan.entries)
    handlers = {HANDLERS[ACTIONS[entry.action].identifier] for entry in plan.entries}
    fuser = gpu.fuser(device) if handlers & {_recompute_pointwise, _offload_pointwise} else None
    for unit in units:
        entry = entries[unit.name]
        row = ACTIONS[entry.action]
        times = (entry.leaves_after, entry.fetched_before)
        unit.schedule = (*(times if any(times) else (_LEAVING, _LEAVING)), row.waits)
        _set(unit, row.identifier, row.keeps)
        if fuser is not None:
            unit.pointwise.fuser = fuser
        if offloads:
            unit.handler = _BESIDE.get(unit.handler, unit.handler)
        if unit.name == plan.spacer_layer:
            unit.handler = functools.partial(_run_above_spacer, unit.handler)


def assign_one(units: Iterable[Unit], identifier: str) -> None:
    """Let all of them run by one action, from their next forward on."""
    for unit in units:
        _set(unit, identifier)


def _set(unit: Unit, identifier: str, keeps: int = 0) -> None:
    unit.handler = HANDLERS[identifier] if unit.excluded is None else None
    unit.put_inputs = None
    unit.keeps = keeps
    look_for_compiled((unit,))


def look_for_compiled(units: Iterable[Unit]) -> None:
    """Layers that call compiled code are recomputed as a whole: a function mode would become part of that code."""
    for unit in units:
        unit.has_compiled = unit.handler is not None and calls_compiled(unit.module)
        unit.keeps = 0 if unit.has_compiled else unit.keeps
        unit.pointwise.plain = unit.plain
