"""Finding a model's units: what a plan decides about.

Python lists the modules; which of them are units is decided in C (``ms_units_find``).
"""

from __future__ import annotations

from array import array

import torch
from torch import nn

from .. import _core
from .._hw.storages import tensor_bytes

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
