"""The modules of a model: which of them are units, which one a training step calls, which fill a key-value cache, and
their tables of hooks.

Python lists the modules; which of them are units is decided in C (``ms_units_find``).
"""

from __future__ import annotations

import contextlib
import inspect
import threading
import types
import weakref
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from .. import _core
from .._base.attachment import COMPILED_CALL
from .._hw.memory import tensor_bytes

_LISTS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


def _class_name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _own_hash(module: nn.Module) -> int:
    parts = [_class_name(module)]
    parts += [f"{name}:{tuple(p.shape)}:{p.dtype}" for name, p in module._parameters.items() if p is not None]
    return _core.hash64("\n".join(parts).encode())


def _is_wrapped_compiled(module: nn.Module) -> bool:
    """Is it what ``torch.compile(module)`` returned, or was only its forward compiled?"""
    return type(module).__name__ == "OptimizedModule" or hasattr(module.forward, "_torchdynamo_orig_callable")


def compiled_call(module: nn.Module) -> Callable[..., Any] | None:
    """What a call of this module runs if it was compiled in place (``module.compile()``)."""
    call: Callable[..., Any] | None = getattr(module, COMPILED_CALL, None)
    return call


def is_compiled(module: nn.Module) -> bool:
    """Does torch.compile run any of it?"""
    return any(compiled_call(part) is not None or _is_wrapped_compiled(part) for part in module.modules())


def inside_compiled(model: nn.Module) -> set[nn.Module]:
    """The modules whose call is part of compiled code: hooks on them would be compiled, too."""
    found: set[nn.Module] = set()
    for module in model.modules():
        if compiled_call(module) is not None:
            found.update(module.modules())
        elif _is_wrapped_compiled(module):
            found.update(module.modules())
            found.discard(module)
    return found


def calls_compiled(module: nn.Module) -> bool:
    """Does torch.compile run any of it, or functions that it may call?"""
    if is_compiled(module):
        return True
    if any(_uses_flex_attention(part) for part in module.modules()):
        return True
    return any(_names_compiled(kind) for kind in {type(part) for part in module.modules()})


def _uses_flex_attention(module: nn.Module) -> bool:
    """transformers compiles it in a file of its own."""
    return bool(_config_value(module, "_attn_implementation") == "flex_attention")


_MAX_FUNCTIONS = 1000  # that are looked at for one class
_known: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def _names_compiled(kind: type[nn.Module]) -> bool:
    """Do the methods of a class name compiled functions, or other functions that do?"""
    if kind not in _known:
        methods = [value for base in kind.__mro__ if base is not nn.Module for value in vars(base).values()]
        _known[kind] = _reaches_compiled([m for m in methods if isinstance(m, types.FunctionType)])
    return _known[kind]


def _reaches_compiled(functions: list[types.FunctionType]) -> bool:
    todo, seen = list(functions), set[int]()
    while todo:
        function = todo.pop()
        if _is_compiled_function(function):
            return True
        if id(function) not in seen and len(seen) < _MAX_FUNCTIONS:
            seen.add(id(function))
            todo.extend(_named_by(function))
    return False


def _named_by(function: types.FunctionType) -> Iterator[types.FunctionType]:
    """The functions among the globals that its code names, those of modules that it names, and those it closes over."""
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
    yield from (value for value in cells if isinstance(value, types.FunctionType))
    names = set(_names_in(function.__code__))
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, types.FunctionType):
            yield value
        elif isinstance(value, types.ModuleType) and not value.__name__.startswith("torch"):
            found = (vars(value).get(other) for other in names)
            yield from (other for other in found if isinstance(other, types.FunctionType))


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _is_compiled_function(value: types.FunctionType) -> bool:
    return "_torchdynamo_orig_callable" in vars(value)


def _flags(module: nn.Module) -> int:
    if isinstance(module, torch.jit.ScriptModule):
        return _core.MODULE_OPAQUE  # compiled: it takes no shim, and neither does anything below
    flags = _core.MODULE_OPAQUE if _is_wrapped_compiled(module) or compiled_call(module) is not None else 0
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


def _is_lightning(cls: type) -> bool:
    return cls.__name__ == "LightningModule" and cls.__module__.partition(".")[0] in ("lightning", "pytorch_lightning")


def _has_own_forward(module: nn.Module) -> bool:
    """Is there a forward that can be called? Those of the base classes only raise."""
    owner = next(cls for cls in type(module).__mro__ if "forward" in vars(cls))
    return "forward" in vars(module) or not (owner is nn.Module or _is_lightning(owner))


def _is_trainable(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters())


def _step_candidates(model: nn.Module) -> tuple[nn.Module, ...]:
    """The modules of which a training step may call one: the model, and what a LightningModule may call directly.

    A list has no forward, so its members take its place. Losses and metrics, which have no parameters, and frozen
    teachers do not count.
    """
    if not any(_is_lightning(cls) for cls in type(model).__mro__):
        return (model,)
    found = [model]
    children = list(model.children())
    while children:
        child = children.pop(0)
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            children[:0] = child.children()
        elif _is_trainable(child) and child not in found:
            found.append(child)
    return tuple(found)


def step_module(model: nn.Module) -> nn.Module:
    """The module whose forward a training step calls, as far as that is known before a step runs.

    That is the model, unless it is a LightningModule without a forward of its own and has a single module to call.
    """
    candidates = _step_candidates(model)
    return candidates[1] if len(candidates) == 2 and not _has_own_forward(model) else model


class StepModule:
    """Finds the module whose forward a training step calls, while steps run.

    The training step of a LightningModule often calls ``self.model(x)`` and never the forward of the LightningModule
    itself, so that is known only when it happens: of the candidates, it is the first one that is called with gradients
    enabled and not inside of another. For any other model it is the model.

    Every candidate needs a forward pre-hook that calls ``begins`` and a forward hook, always called, that calls
    ``ends``.

    Attributes:
        candidates: the modules that need these hooks; the model comes first.
        module: the module that was found; None before the first training forward of a LightningModule.
        is_whole_step: False once a second candidate was called besides it (an encoder, then a decoder): then no single
            forward is the step.
    """

    def __init__(self, model: nn.Module) -> None:
        self.candidates = _step_candidates(model)
        self.module = model if len(self.candidates) == 1 else None
        self.is_whole_step = True
        self._running = threading.local()  # the outermost candidate that runs on a thread

    @property
    def is_running(self) -> bool:
        """Does a candidate's forward run on this thread?"""
        return getattr(self._running, "module", None) is not None

    def begins(self, module: nn.Module) -> bool:
        """A candidate's forward begins. Is it the forward of the step?"""
        if not torch.is_grad_enabled():
            return False
        # A forward that was left by a KeyboardInterrupt has not ended: the next call of its module begins anew.
        if getattr(self._running, "module", None) not in (None, module):
            return False
        self._running.module = module
        if self.module is None:
            self.module = module
        elif self.module is not module:
            self.is_whole_step = False
        return self.module is module

    def ends(self, module: nn.Module) -> bool:
        """A candidate's forward ends. Was it the forward of the step?"""
        if getattr(self._running, "module", None) is not module:
            return False
        self._running.module = None
        return self.module is module


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


@contextlib.contextmanager
def _emptied(tables: list[Any]) -> Iterator[None]:
    """Empty the tables of hooks."""
    before = [dict(table) for table in tables]
    for table in tables:
        table.clear()
    try:
        yield
    finally:
        for table, hooks in zip(tables, before):
            table.clear()
            table.update(hooks)
