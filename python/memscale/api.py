"""The calls that change a model: :func:`wrap`, :func:`optimize`, :func:`detach`; :func:`executor_of`, the handle."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from ._base.arguments import check_model, check_parts, make_settings, model_of, split_sample, type_name
from ._base.attachment import HANDLE
from ._run.executor import Executor
from .config import AsyncOffloadConfig, Config
from .errors import MemScaleError, MemScaleWarning
from .plans import Plan

__all__ = ["detach", "executor_of", "optimize", "wrap"]

Target = TypeVar("Target")


def wrap(
    target: Target,
    config: Config | None = None,
    sample_input: Any = None,
    async_offload: bool | None = None,
    async_config: AsyncOffloadConfig | None = None,
    plan: Plan | str | os.PathLike[str] | None = None,
) -> Target:
    """Attach MemScale to a model in place and return it; the training loop stays as it is.

    Args:
        target: a ``torch.nn.Module``, or a Hugging Face ``Trainer``, whose model is then wrapped.
        config: settings; ``Config()`` if left out.
        sample_input: one batch, to settle the plan now: a tensor, a tuple of positional inputs or a dict of keyword
            inputs. Without it the plan is settled by the first training forward.
        async_offload: use the asynchronous transfer engine; ``None`` asks the environment variable
            ``MEMSCALE_ASYNC_OFFLOAD``, then the config.
        async_config: settings of that engine.
        plan: a saved plan, or the path of a file with one, used as it is. It must belong to this model. If it was made
            within a budget and ``config`` has none, its budget holds.

    Raises:
        TypeError: ``target``, ``config``, ``sample_input`` or ``plan`` is of the wrong type.
        BudgetError: no plan fits the budget (from the first forward, if there was no sample input).
        MemScaleError: the model cannot be wrapped, the plan cannot be read or belongs to another model, or something
            was asked for that is not in this version.
    """
    model = model_of(target)
    settings, given = make_settings(config, async_offload, async_config), _read_plan(plan)
    if given is not None and given.has_budget and settings.memory_budget_gb is None:
        settings = settings.replace(memory_budget_gb=given.budget_bytes / 1e9)
    _attach(model, settings, sample_input, plan=given)
    return target


@contextlib.contextmanager
def optimize(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    config: Config | None = None,
    sample_input: Any = None,
) -> Iterator[Executor]:
    """Attach MemScale for a ``with`` block: yields the executor, and always detaches at the end.

    It is given the optimizer, so the optimizer's state is part of the plan.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"memscale.optimize takes a torch.nn.Module, not {type_name(model)}")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"memscale.optimize takes a torch.optim.Optimizer as optimizer, not {type_name(optimizer)}")
    executor = _attach(model, make_settings(config), sample_input, optimizer=optimizer)
    executor.in_context = True
    try:
        yield executor
    finally:
        executor.detach()


def detach(model: Any) -> None:
    """Detach MemScale from a model (or from a Trainer's model): everything is as it was before ``wrap``."""
    executor = executor_of(model)
    if executor is None:
        warnings.warn(f"memscale.detach: {type_name(model)} is not wrapped", MemScaleWarning, stacklevel=2)
        return
    if executor.in_context:
        raise MemScaleError(
            "this model is inside an active memscale.optimize block, which detaches it when the block ends"
        )
    executor.detach()


def executor_of(model: Any) -> Executor | None:
    """The executor of a wrapped model (or of a Trainer's model); ``None`` if it is not wrapped.

    Its ``plan`` is what is done to each layer.
    """
    executor = vars(model_of(model)).get(HANDLE)
    return executor if isinstance(executor, Executor) else None


def _attach(
    model: nn.Module,
    config: Config,
    sample_input: Any,
    *,
    plan: Plan | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Executor:
    check_model(model)
    sample = None if sample_input is None else split_sample(sample_input)
    old = executor_of(model)
    if old is not None:
        if old.in_context:
            raise MemScaleError(
                "this model is inside an active memscale.optimize block; leave the block before you wrap it again, or "
                "give the settings to optimize()"
            )
        warnings.warn(
            "this model is wrapped already; its plan is replaced (call memscale.detach first to avoid this warning)",
            MemScaleWarning,
            stacklevel=4,
        )
        old.detach()
    try:
        check_parts(model)
        executor = Executor(model, config, optimizer)
        executor.attach(sample, plan)
    except BaseException:
        if old is not None:
            old.reattach()  # a failed attempt leaves things as they were
        raise
    return executor


def _read_plan(plan: Any) -> Plan | None:
    """The plan that was given, or that is in the file of this name."""
    if plan is None or isinstance(plan, Plan):
        return plan
    if not isinstance(plan, (str, os.PathLike)):
        raise TypeError(
            "plan must be a memscale.Plan or the path of a file that plan.to_json() was written to, "
            f"not {type_name(plan)}"
        )
    if isinstance(plan, str) and plan.lstrip().startswith("{"):
        raise ValueError("plan is the text of a plan, not the path of a file; memscale.Plan.from_json(text) reads it")
    try:
        return Plan.from_json(Path(plan).read_text(encoding="utf-8"))
    except OSError as error:
        raise MemScaleError(f"the plan {os.fspath(plan)!r} cannot be read: {error.strerror or error}") from error
    except (ValueError, MemScaleError) as error:
        raise MemScaleError(f"{os.fspath(plan)!r} is not a saved plan: {error}") from error
