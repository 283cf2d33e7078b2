"""What a layer's forward changes outside of its modules, found by its second, checked run.

A recomputation sees the modules of its first run and leaves no trace in them, but all other objects are shared: a
global counter counts twice, a list gets every item twice. This is found where it can be: in the global variables of the
files that define the layer's classes, in the attributes of these classes, in objects that modules hold, and in
containers and random generators inside of all these. What the second run changed there is put back, and the layer is
not recomputed. What closures, other files and the outside world hold is not seen.
"""

from __future__ import annotations

import collections
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .generators import NotedGenerator, owned_kind

_MOST_ITEMS = 1024  # a longer container holds data, and is not looked into
_MOST_NOTED = 8192  # items of all of them: about a millisecond
_DEEPEST = 3  # an object or container inside of others
_VALUES = (int, float, complex, str, bytes, bool, type(None))  # compared by value: setting one again changes nothing
_CONTAINERS = (
    list,
    set,
    collections.deque,
    dict,
    collections.OrderedDict,
    collections.defaultdict,
    collections.Counter,
)
_COPIED = (list, set, dict)  # a recomputation has copies of those that are attributes of modules (modules.c)
_CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, nn.Module)
_TABLES = frozenset(vars(nn.Module()))  # what every module has


class Elsewhere:
    """What the classes, files and objects of some modules hold, as it is when this is made."""

    def __init__(self, modules: list[nn.Module]) -> None:
        self._noted: list[tuple[str, Any, Any]] = []  # how it is called, the owner, what it held
        self._generators: list[tuple[str, NotedGenerator]] = []
        self._seen: set[int] = {id(module) for module in modules}
        self._n_noted = 0
        for cls in {cls: None for module in modules for cls in _classes_of(module)}:
            self._note_names(sys.modules.get(cls.__module__), "the global variable '{}' of " + cls.__module__)
            self._note_names(cls, "the class attribute '{}' of " + cls.__name__)
        for module in modules:
            for name, value in vars(module).items():
                if name not in _TABLES:
                    self._note_attribute(value, f"what attribute '{name}' of {type(module).__name__} holds")

    def _note_attribute(self, value: Any, where: str) -> None:
        if isinstance(value, _COPIED):
            for item in _items(value):
                self._note(item, where, 1, into_objects=True)
        elif owned_kind(type(value)) == 0:  # a generator of a module is put back as one
            self._note(value, where, 0, into_objects=True)

    def _note_names(self, owner: Any, where: str) -> None:
        if owner is None or id(owner) in self._seen:
            return
        self._seen.add(id(owner))
        held = _variables(owner)
        self._noted.append((where, owner, held))
        for name, value in held.items():
            self._note(value, where.replace("{}", name), 1)

    def _note(self, value: Any, where: str, depth: int, into_objects: bool = False) -> None:
        kind = type(value)
        if kind in _VALUES or isinstance(value, (*_CODE, torch.Tensor)) or depth > _DEEPEST or id(value) in self._seen:
            return
        self._seen.add(id(value))
        if owned_kind(kind) == 1:
            self._generators.append((where, NotedGenerator(value)))
        elif kind in _CONTAINERS and len(value) <= _MOST_ITEMS and self._n_noted < _MOST_NOTED:
            self._n_noted += len(value)
            self._noted.append((where, value, dict(value) if isinstance(value, dict) else list(value)))
            for item in _items(value):
                self._note(item, where, depth + 1, into_objects)
        elif into_objects and isinstance(getattr(value, "__dict__", None), dict) and not _is_known(kind):
            held = _variables(value)
            self._noted.append((where, value, held))
            for item in held.values():
                self._note(item, where, depth + 1, into_objects)

    def undo(self) -> str | None:
        """Put back what changed since. Returns what that was, in words, or None."""
        found: list[str] = []
        for where, owner, held in self._noted:
            if type(owner) not in _CONTAINERS:
                found += [where.replace("{}", name) for name in _undo_names(owner, held)]
            elif _undo_container(owner, held):
                found.append(where)
        for where, noted in self._generators:
            if noted.moved():
                noted.restore()
                found.append(where)
        return found[0] if found else None


def _is_known(cls: type) -> bool:
    """Is it a class whose objects change for reasons of their own?"""
    return cls.__module__.partition(".")[0] in ("torch", "builtins", "memscale")


def _classes_of(module: nn.Module) -> list[type]:
    return [cls for cls in type(module).__mro__ if not _is_known(cls)]


def _variables(owner: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(owner).items() if not str(name).startswith("__")}


def _items(container: Any) -> Iterator[Any]:
    return iter(list(container.values() if isinstance(container, dict) else container))


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and type(a) in _VALUES and bool(a == b))


def _is_renewed(a: Any, b: Any) -> bool:
    """Is it a tensor in place of a tensor? Whoever keeps the last one gets an equal one: no effect that adds up."""
    return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)


def _undo_names(owner: Any, held: dict[str, Any]) -> list[str]:
    """Put back the variables of a file, a class or an object. Returns the names of those that changed."""
    now = _variables(owner)
    changed = [
        name for name in {**held, **now} if name not in held or name not in now or not _same(held[name], now[name])
    ]
    for name in changed:
        if isinstance(owner, type):  # its dict is read-only
            setattr(owner, name, held[name]) if name in held else delattr(owner, name)
        elif name in held:
            vars(owner)[name] = held[name]
        else:
            del vars(owner)[name]
    return [name for name in changed if not _is_renewed(held.get(name), now.get(name))]


def _undo_container(container: Any, held: Any) -> bool:
    """Put back what a container held. Was that an effect that adds up?"""
    before, now = list(_items(held)), list(_items(container))
    if isinstance(container, set):
        resized, replaced = container != set(before), []
    else:
        resized = len(before) != len(now) or (isinstance(container, dict) and list(container) != list(held))
        replaced = [(a, b) for a, b in zip(before, now) if not _same(a, b)]
    if resized or replaced:
        container.clear()
        (container.extend if isinstance(container, (list, collections.deque)) else container.update)(held)
    return resized or not all(_is_renewed(a, b) for a, b in replaced)
