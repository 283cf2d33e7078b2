"""Disables a model's hooks while a step is traced, since it is not one of the user's steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn


def without_hooks(parameters: list[nn.Parameter]) -> contextlib.AbstractContextManager[None]:
    """Disable hooks on gradients: they may run an optimizer."""
    return _emptied([t for p in parameters for t in (p._backward_hooks, p._post_accumulate_grad_hooks) if t])


_OBSERVERS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_backward_hooks",
    "_backward_pre_hooks",
)
# Libraries whose forward pre-hooks make weights or move inputs; other hooks only observe.
_MAKERS = ("torch", "memscale", "transformers", "accelerate", "peft")


def without_observers(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Disable hooks that observe inputs and outputs of modules: it is not one of the user's steps."""
    tables = [vars(m)[name] for m in model.modules() for name in _OBSERVERS if vars(m).get(name)]
    return _emptied(tables, [vars(m)["_forward_pre_hooks"] for m in model.modules()])


def _is_observer(hook: Any) -> bool:
    where = getattr(hook, "__module__", None) or type(hook).__module__
    return str(where).partition(".")[0] not in _MAKERS


@contextlib.contextmanager
def _emptied(tables: list[Any], mixed: list[Any] | None = None) -> Iterator[None]:
    """Empty the tables of hooks; from mixed tables, take the observers out."""
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
