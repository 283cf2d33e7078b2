"""How each action runs a layer's forward."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from .. import _core
from .._base.vocabulary import ACTIONS
from .._trace.model_modules import calls_compiled
from ..plans import Plan
from .hooks import active_hooks
from .messages import Messages
from .offloading import N_LEAVING, Offloading
from .recomputation import Unit
from .watching import Watching


class Parts(NamedTuple):
    """What handlers need of an executor."""

    messages: Messages
    watching: Watching
    offloading: Offloading
    exclude: Callable[[Unit, str, bool], None]  # a layer that cannot be recomputed, why, and whether that is a surprise


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
    output, problem, _ = parts.watching.run_checked(unit, call, args, kwargs)
    if problem is not None:
        parts.exclude(unit, *problem)
    return output


def _recompute_near(parts: Parts, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """It is recomputed, shortly after a layer that is offloaded."""
    parts.offloading.mark(unit)
    return _recompute(parts, unit, args, kwargs)


def _keep_near(parts: Parts, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """It is kept, shortly after a layer that is offloaded."""
    if _is_inside_hooks(parts):
        return unit.plain(*args, **kwargs)
    return parts.offloading.run_kept(unit, args, kwargs)


def _recompute_offload(
    parts: Parts, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any], *, waits: bool = False
) -> Any:
    """It is recomputed in backward, from inputs that are in host memory meanwhile."""
    parts.offloading.take_inputs(unit, waits=waits)
    return _recompute(parts, unit, args, kwargs)


def _offload(parts: Parts, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any], *, waits: bool = False) -> Any:
    """What it saves for backward is in host memory meanwhile."""
    if _is_inside_hooks(parts):
        return unit.plain(*args, **kwargs)
    return parts.offloading.run(unit, args, kwargs, waits=waits)


# By the identifier in the table of C; None: as without MemScale. An action without a handler can be planned, but not
# run by this version.
HANDLERS: dict[str, Handler | None] = {
    "keep": None,
    "recompute": _recompute,
    "offload": _offload,
    "offload_blocking": functools.partial(_offload, waits=True),
    "recompute_offload": _recompute_offload,
    "recompute_offload_blocking": functools.partial(_recompute_offload, waits=True),
}
HANDLERS.update((row.identifier, _recompute) for row in ACTIONS if row.keeps)  # with the results that unit.keeps says

# The same for layers that run shortly after one that is offloaded.
_NEAR: dict[Handler | None, Handler] = {None: _keep_near, _recompute: _recompute_near}


def assign(units: Iterable[Unit], plan: Plan) -> None:
    """Let units run as the plan says, from their next forward on."""
    rows = {entry.name: ACTIONS[entry.action] for entry in plan.entries}
    n_near = 0
    for unit in units:
        row = rows[unit.name]
        _set(unit, row.identifier, row.keeps)
        if n_near > 0:
            unit.handler = _NEAR.get(unit.handler, unit.handler)
        n_near = N_LEAVING if row.needs_link else n_near - 1


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
