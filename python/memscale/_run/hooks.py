"""Hooks that the executor puts on modules, and whether hooks may be used at all."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._device import DeviceContext

from .._base.optimizer_hooks import remove_hooks, remove_left_hooks
from .._trace.model_modules import use_cache_position, would_cache
from .._trace.watch import dispatch_modes, is_watching
from ..errors import MemScaleError

if TYPE_CHECKING:
    from .executor import Executor

_is_tracing = getattr(torch._C, "_is_tracing", torch.jit.is_tracing)
# False inside torch.func transforms, which do not support saved-tensor hooks.
_hooks_allowed = getattr(torch._C._autograd, "_saved_tensors_hooks_is_enabled", lambda: True)
# The saved-tensor hooks that are active, if any (the argument: also while tracing).
active_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda ignore: None)


def nothing(*args: Any, **kwargs: Any) -> None:
    """What a hook of ours becomes in a copy that was made without ``__reduce_ex__``."""


class Hook:
    """A hook of ours on a module. A copy of it does nothing: copies of a wrapped model are plain."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor

    def __deepcopy__(self, memo: Any) -> Any:
        return nothing

    def __reduce__(self) -> str:
        return "nothing"


class ForwardBegins(Hook):
    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.executor.begin_forward(module, args, kwargs)


class ForwardEnds(Hook):
    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        self.executor.end_forward(module, has_output=output is not None)


class UseCacheOff(Hook):
    """Training needs no key-value cache, and a recomputation would fill a cache a second time."""

    def __init__(self, executor: Executor, module: nn.Module) -> None:
        super().__init__(executor)
        self.position = use_cache_position(module) or 0

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        executor = self.executor
        if not torch.is_grad_enabled() or not executor.recomputes():
            return None
        if not would_cache(module, self.position, args, kwargs):
            return None
        executor.log_use_cache()
        return args, {**kwargs, "use_cache": False}


class StepHook:
    """Tells the executor of every optimizer's step, before and after it, until removed. Keeps no executor alive."""

    def __init__(self, executor: Executor) -> None:
        remove_left_hooks()
        this = weakref.ref(executor)
        hooks = [
            register_optimizer_step_pre_hook(functools.partial(_tell, this, "see_step")),
            register_optimizer_step_post_hook(functools.partial(_tell, this, "end_step")),
        ]
        self.remove = weakref.finalize(executor, remove_hooks, hooks)
        self.remove.atexit = False


def _tell(this: weakref.ref[Executor], method: str, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    executor = this()
    if executor is not None:
        getattr(executor, method)(optimizer)


def refuse_data_parallel() -> None:
    raise MemScaleError(
        "nn.DataParallel copies modules in a way that MemScale cannot follow; use DistributedDataParallel, or "
        "detach first"
    )


def may_hook() -> bool:
    """False inside a compiler, a transform, or a dispatch mode of others: backward would run outside of it."""
    if torch.compiler.is_compiling() or _is_tracing() or not _hooks_allowed():
        return False
    if not all(is_watching(mode) for mode in dispatch_modes()):
        return False
    n_modes = torch._C._len_torch_function_stack()
    if n_modes == 0:
        return True
    return all(isinstance(torch._C._get_function_stack_at(i), DeviceContext) for i in range(n_modes))
