"""Recomputation of one unit: run it in backward exactly as it ran in forward.

The work is done in C (``_core/recompute``): ``_core.Unit.run`` notes what a call depends on (inputs, the state of the
unit's modules, random generators, torch's switches) and recomputes the unit under the same conditions when backward
asks for the tensors that it saved. The first run of a unit is *checked*: everything is kept, as without MemScale, then
the unit is recomputed at once and its outputs are compared bit for bit. Only if they
are equal are the saved tensors of the unit freed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from operator import attrgetter, is_not
from typing import Any

from torch import nn

from .. import _core

POINTWISE: dict[str, Any] = {"least_bytes": _core.OFFLOAD_LEAST_BYTES}  # smaller results are kept


def is_any_set(name: str, things: Iterable[Any]) -> bool:
    """Has any of them an attribute of this name that is not None? Asked every step, so without Python in the loop."""
    return any(map(is_not, map(attrgetter(name), things), repeat(None)))


class Unit(_core.Unit):
    """One unit of a model, and what is done to it."""

    def __init__(self, name: str, module: nn.Module, param_bytes: int, number: int = 0) -> None:
        super().__init__(name, module, module.forward)
        self.param_bytes = param_bytes
        self.number = number  # its place among the units of its model
        self.pointwise = _core.PointwiseLayer(name, module.forward, **POINTWISE)  # what it knows outlasts a plan
        self.handler: Callable[..., Any] | None = None  # how it runs; None: as without MemScale
        self.schedule = (0, 0, False)  # leaves_after, fetched_before (PlanEntry); do copies run alone?
        self.excluded: str | None = None  # why it may never be recomputed
