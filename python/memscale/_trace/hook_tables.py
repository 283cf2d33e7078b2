"""A model's hooks, out of the way while a step is traced: it is not the user's step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn


def without_hooks(parameters: list[nn.Parameter]) -> contextlib.AbstractContextManager[None]:
    """No hooks on gradients: they may be somebody's optimizer."""
    return _emptied([t for p in parameters for t in (p._backward_hooks, p._post_accumulate_grad_hooks) if t])


_OBSERVERS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_backward_hooks",
    "_backward_pre_hooks",
)
# Whose forward pre-hooks make weights or move inputs; anybody else's only look.
_MAKERS = ("torch", "memscale", "transformers", "accelerate", "peft")


def without_observers(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """No hooks that look at what modules are given and return: it is not the user's step."""
    tables = [vars(m)[name] for m in model.modules() for name in _OBSERVERS if vars(m).get(name)]
    return _emptied(tables, [vars(m)["_forward_pre_hooks"] for m in model.modules()])


def _is_observer(hook: Any) -> bool:
    where = getattr(hook, "__module__", None) or type(hook).__module__
    return str(where).partition(".")[0] not in _MAKERS


@contextlib.contextmanager
def _emptied(tables: list[Any], mixed: list[Any] | None = None) -> Iterator[None]:
    """Tables of hooks without what is in them; mixed ones without observers."""
    every = [*tables, *(mixed or [])]
    before = [dict(table) for table in every]
    for table in tables:
        table.clear()
    for table in mixed or []:
        for key in [key for key, hook in table.items() if _is_observer(hook)]:
            del table[key]
    try:
        yield
    finally:
        for table, hooks in zip(every, before):
            table.clear()
            table.update(hooks)
