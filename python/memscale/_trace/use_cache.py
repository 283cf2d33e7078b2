"""Key-value caches in training forwards: which modules make one, and how to ask them not to."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn


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
