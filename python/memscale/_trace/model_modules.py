"""The modules of a model: which of them are units, which fill a key-value cache, and their tables of hooks.

Python lists the modules; which of them are units is decided in C (``ms_units_find``).
"""

from __future__ import annotations

import contextlib
import inspect
from array import array
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .. import _core
from .._hw.memory import tensor_bytes

_LISTS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


def _class_name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _own_hash(module: nn.Module) -> int:
    parts = [_class_name(module)]
    parts += [f"{name}:{tuple(p.shape)}:{p.dtype}" for name, p in module._parameters.items() if p is not None]
    return _core.hash64("\n".join(parts).encode())


def _flags(module: nn.Module) -> int:
    if isinstance(module, torch.jit.ScriptModule):
        return _core.MODULE_OPAQUE  # compiled: it takes no shim, and neither does anything below
    flags = 0
    if isinstance(module, _LISTS):
        flags |= _core.MODULE_LIST
    if "forward" in vars(module) or getattr(type(module), "forward", None) is not nn.Module.forward:
        flags |= _core.MODULE_CALLED
    of_torch = type(module).__module__.startswith("torch.nn.")
    has_list = any(isinstance(child, _LISTS) for child in module.modules())
    if "parametrizations" in module._modules or (of_torch and not has_list):
        flags |= _core.MODULE_OPAQUE  # torch's own layers use their children's weights without calling them
    return flags


def find_units(model: nn.Module) -> dict[str, nn.Module]:
    """The units of a model by name, in the order in which they are registered."""
    return {name: module for name, module, _ in find_flagged_units(model)}


def find_flagged_units(model: nn.Module) -> list[tuple[str, nn.Module, int]]:
    """The units of a model with their names, and UNIT_BLOCK for those that are repeated blocks."""
    named = list(model.named_modules())
    index = {name: i for i, (name, _) in enumerate(named)}
    parents, classes, hashes, sizes, flags = array("q"), array("Q"), array("Q"), array("q"), array("I")
    seen: set[int] = set()
    for name, module in named:
        own = [p for p in module._parameters.values() if p is not None and id(p) not in seen]
        seen.update(id(p) for p in own)
        parents.append(index[name.rpartition(".")[0]] if name else -1)
        classes.append(_core.hash64(_class_name(module).encode()))
        hashes.append(_own_hash(module))
        sizes.append(tensor_bytes(own))
        flags.append(_flags(module))
    rows = _core.find_units(*(values.tobytes() for values in (parents, classes, hashes, sizes, flags)))
    return [(*named[i], block) for i, block in rows]


def param_bytes(module: nn.Module) -> int:
    """Bytes of the parameters at and below a module, each counted once."""
    return tensor_bytes(module.parameters())


def takes_use_cache(module: nn.Module) -> bool:
    """Does the module's forward take ``use_cache``, and does its config have such a field?"""
    return _config_value(module, "use_cache") is not None and use_cache_position(module) is not None


def use_cache_position(module: nn.Module) -> int | None:
    """The place of ``use_cache`` among the parameters of a module's forward, or None."""
    try:
        names = list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        return None
    return names.index("use_cache") if "use_cache" in names else None


def would_cache(module: nn.Module, place: int, args: Any, kwargs: dict[str, Any]) -> bool:
    """Would this call fill a cache because of the config, without the caller asking for it?"""
    chosen = kwargs.get("use_cache") is not None or len(args) > place
    return not chosen and bool(_config_value(module, "use_cache"))


def _config_value(module: nn.Module, name: str) -> Any:
    """A field of a module's config, if it has such; configs can be objects of any kind, so nothing here may raise."""
    try:
        return getattr(getattr(module, "config", None), name, None)
    except Exception:
        return None


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
