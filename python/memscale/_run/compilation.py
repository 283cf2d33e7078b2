"""Layers that are compiled in place (``layer.compile()``), before or after the model is wrapped."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch import nn

from .._base.attachment import COMPILED_CALL, Attachment
from .handlers import look_for_compiled
from .recomputation import Unit

_call_of = operator.attrgetter(COMPILED_CALL)


class Compilation:
    """Lets layers that were compiled in place run as planned: torch calls what it compiled, not their forward."""

    def __init__(self, model: nn.Module, units: list[Unit], attachment: Attachment) -> None:
        self._parts = list(model.modules())
        self._units = units
        self._attachment = attachment
        self._calls: list[Any] = []
        self.forget()

    def forget(self) -> None:
        """Nothing is attached any more."""
        self._calls = [None] * len(self._parts)

    def follow(self, shim_of: Callable[[Unit], Callable[..., Any]]) -> bool:
        """Attach to what was compiled since this was called last. Was there anything?

        Called before each step, since layers may be compiled at any time."""
        calls = list(map(_call_of, self._parts))
        if calls == self._calls:
            return False
        for unit in self._units:
            call = _call_of(unit.module)
            if call is not None and call not in self._calls:
                unit.plain = call
                self._attachment.set_compiled_call(unit.module, shim_of(unit))
        self._calls = list(map(_call_of, self._parts))
        look_for_compiled(self._units)
        return True
