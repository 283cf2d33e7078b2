"""``memscale.plan``: the plan for a model without attaching anything, and, where none fits, what would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .._base.arguments import check_arguments, check_model, check_options
from .._base.step_kinds import DEFAULT_OPTIMIZER, name_of
from .._core import Device
from .._hw import devices
from .._trace.sample import resized, shape_of
from .._trace.twin_optimizer import make_optimizer
from ..config import Config
from ..errors import BudgetError, MemScaleError
from ..plans import Plan
from ..profiles import Profile, profile_step
from .advice import CALL, Adviser, Phrasing, with_advice
from .judges import PlanJudge
from .request import Request
from .steps import StepChange, Steps, autocast_now, is_whole


def plan(
    model: nn.Module,
    sample_input: Any = None,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    config: Config | None = None,
    device: str | torch.device | None = None,
    precision: str | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
) -> Plan:
    """The plan that ``wrap`` would make, as a dry run: nothing is attached.

    Nothing runs either, if the step can be analysed without running it; else one real step is traced, as by
    :func:`memscale.profile`.

    Args:
        model: on the CPU, a GPU or the meta device; it is left as it was.
        sample_input: one batch: a tensor, a tuple of positional inputs or a dict of keyword inputs. It may be on the
            meta device: only its shape matters.
        optimizer: the one that will be used; without it, AdamW.
        config: settings; ``Config()`` if left out.
        device: ``"cuda"``, ``"cpu"``, or the name of a GPU (``"rtx3090"``) which need not be in this machine; None:
            where the model is.
        precision: as for :func:`memscale.profile`.
        loss: the loss from the model's output. Without it: the output's ``loss``, or the sum of its tensors.

    Raises:
        BudgetError: no plan fits; the message names what needs the memory and what would fit.
        MemScaleError: there is no ``sample_input``, the step cannot be traced, or something was asked for that is not
            in this version.
        TypeError, ValueError: an argument is of the wrong type or out of range.
    """
    if sample_input is None:
        raise MemScaleError(
            "memscale.plan needs sample_input, one batch: a tensor, a tuple of positional inputs or a dict of keyword "
            "inputs. Only its shapes matter; it may be on the meta device"
        )
    settings, args, kwargs = check_arguments(model, sample_input, optimizer, config)
    check_model(model)
    check_options(loss)
    where = devices.find(device, model)
    shape = shape_of(args, kwargs)
    only_static = settings.replace(use_static_profiling=True, use_empirical_fallback=False)

    def trace(change: StepChange) -> Profile:
        new = shape if change.batch is None else (change.batch, shape[1])
        xs, named = (args, kwargs) if change.batch is None else resized((args, kwargs), shape, new)
        how = settings if change == StepChange() else only_static
        chosen = change.precision or precision
        used = optimizer if change.optimizer is None else make_optimizer(change.optimizer, model)
        optimizers = () if used is None else (used,)
        return profile_step(model, xs, named, optimizers, how, loss=loss, precision=chosen, device=device)

    steps = Steps(trace, shape[0], can_be_half=is_whole(model, precision))
    kind = DEFAULT_OPTIMIZER if optimizer is None else name_of(optimizer)
    return make_plan(steps, settings, where, precision=precision or autocast_now(where.kind), optimizer=kind)


def make_plan(
    steps: Steps,
    config: Config,
    device: Device,
    phrasing: Phrasing = CALL,
    *,
    precision: str | None = None,
    optimizer: str | None = None,
    unrunnable: bool = False,
) -> Plan:
    """The plan for these steps, whose precision and optimizer have these names. Raises BudgetError, with advice, where
    there is none."""
    request = Request(config, device, unrunnable=unrunnable)
    try:
        return request.create(steps.profile, steps.half(request))
    except BudgetError as error:
        judge = PlanJudge(steps, config, request, unrunnable=unrunnable)
        adviser = Adviser(steps, judge, phrasing, precision=precision, optimizer=optimizer)
        raise with_advice(error, adviser) from None
