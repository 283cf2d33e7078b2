"""Changing modules in place, and putting everything back.

Only instance attributes and hooks are touched: no wrapper modules, no changed types or keys. While a module is touched,
its ``__reduce_ex__`` leaves our additions out, so that copies and pickles of a wrapped model are plain ones. All of it
is recorded, and undone in reverse order.
"""

from __future__ import annotations

import collections
import functools
import inspect
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

from torch import nn

_HOOK_TABLES = {
    "_forward_pre_hooks": ("_forward_pre_hooks_with_kwargs",),
    "_forward_hooks": ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
}
_MISSING = object()

COMPILED_CALL = "_compiled_call_impl"  # the attribute in which torch keeps what module.compile() made
HANDLE = "_memscale_executor"  # the attribute of a wrapped model that holds its executor

# Modules that an attachment has changed. A second attachment on top could not be undone in any order.
touched_modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class _Touched:
    """What we added to one module."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.before: dict[str, Any] = {}  # instance attributes, as they were; _MISSING if there was none
        self.hooks: list[Any] = []  # handles of those that we registered

    def set(self, name: str, value: Any) -> None:
        attributes = vars(self.module)
        self.before.setdefault(name, attributes.get(name, _MISSING))
        attributes[name] = value

    def plain_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """A module's state without our additions."""
        plain = dict(state)
        for name, value in self.before.items():
            if value is _MISSING:
                plain.pop(name, None)
            elif name in plain:
                plain[name] = value
        ours = {handle.id for handle in self.hooks}
        for table, companions in _HOOK_TABLES.items():
            for name in (table, *companions):
                hooks = plain.get(name)
                if hooks and ours.intersection(hooks):
                    plain[name] = collections.OrderedDict((key, hook) for key, hook in hooks.items() if key not in ours)
        return plain


def _make_reducer(touched: _Touched) -> Callable[..., Any]:
    def reduce_ex(self: nn.Module, protocol: Any) -> Any:
        reduced: Any = type(self).__reduce_ex__(self, protocol)  # type: ignore[call-arg]
        if self is not touched.module or not isinstance(reduced, tuple) or len(reduced) < 3:
            return reduced
        state = reduced[2]
        if isinstance(state, dict):
            state = touched.plain_state(state)
        elif isinstance(state, tuple) and state and isinstance(state[0], dict):  # with __slots__
            state = (touched.plain_state(state[0]), *state[1:])
        return (*reduced[:2], state, *reduced[3:])

    return reduce_ex


def _make_forward(module: nn.Module, plain: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    """A function that looks like the module's forward and calls run(args, kwargs) in its place."""
    bound_to_instance = "forward" in vars(module)
    function = getattr(plain, "__func__", plain)

    @functools.wraps(function)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self is not module:  # a copy that was made without __reduce_ex__
            return type(self).forward(self, *args, **kwargs)
        return run(args, kwargs)

    if bound_to_instance and not isinstance(plain, MethodType):  # such as a functools.partial, which takes no self
        signature = inspect.signature(plain)
        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        parameters = [first, *signature.parameters.values()]
        forward.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return forward


class Handle:
    """What a wrapped model has of its attachment, as an attribute. A copy of the model is a plain one."""

    def __deepcopy__(self, memo: Any) -> None:
        """There is none."""

    def __reduce__(self) -> Any:
        return type(None), ()


class Attachment:
    """Everything that was changed on a model's modules."""

    def __init__(self) -> None:
        self._touched: dict[nn.Module, _Touched] = {}
        self._undo: list[Callable[[], None]] = []

    def _touch(self, module: nn.Module) -> _Touched:
        touched = self._touched.get(module)
        if touched is None:
            touched = self._touched[module] = _Touched(module)
            touched_modules.add(module)
            self._set(touched, "__reduce_ex__", MethodType(_make_reducer(touched), module))
        return touched

    def _set(self, touched: _Touched, name: str, value: Any) -> None:
        attributes = vars(touched.module)
        touched.set(name, value)

        def undo() -> None:
            if attributes.get(name) is not value:
                return  # somebody else replaced our attribute: theirs stays, and ours has no effect any more
            before = touched.before.get(name, value)
            if before is _MISSING:
                del attributes[name]
            else:
                attributes[name] = before

        self._undo.append(undo)

    def set_attribute(self, module: nn.Module, name: str, value: Any) -> None:
        """Set an instance attribute."""
        self._set(self._touch(module), name, value)

    def set_forward(self, module: nn.Module, run: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> None:
        """Let the module's forward call ``run(args, kwargs)``."""
        shim = _make_forward(module, module.forward, run)
        self._set(self._touch(module), "forward", MethodType(shim, module))

    def set_compiled_call(self, module: nn.Module, run: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> None:
        """Let the call of a module that was compiled in place (``module.compile()``) go through ``run(args, kwargs)``.
        Its forward is part of the compiled code, and stays as it was."""

        def call(*args: Any, **kwargs: Any) -> Any:
            return run(args, kwargs)

        self._restore(module, "forward")
        for part in module.modules():
            self._remove_hooks(part)
        touched = self._touch(module)
        touched.before.pop(COMPILED_CALL, None)  # it may have been compiled once more
        self._set(touched, COMPILED_CALL, call)

    def _restore(self, module: nn.Module, name: str) -> None:
        """Put one attribute back."""
        touched, attributes = self._touched.get(module), vars(module)
        if touched is None or name not in touched.before:
            return
        before = touched.before.pop(name)
        if before is _MISSING:
            attributes.pop(name, None)
        else:
            attributes[name] = before

    def _remove_hooks(self, module: nn.Module) -> None:
        touched = self._touched.get(module)
        while touched is not None and touched.hooks:
            touched.hooks.pop().remove()

    def add_pre_hook(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        """A forward pre-hook that runs before all others and sees keyword arguments."""
        handle = module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)
        self._touch(module).hooks.append(handle)
        self._undo.append(handle.remove)

    def add_post_hook(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        """A forward hook that runs even when forward raises."""
        handle = module.register_forward_hook(hook, always_call=True)
        self._touch(module).hooks.append(handle)
        self._undo.append(handle.remove)

    def undo(self) -> None:
        """Put everything back, last change first."""
        while self._undo:
            self._undo.pop()()
        touched_modules.difference_update(self._touched)
        self._touched.clear()
