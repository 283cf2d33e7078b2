"""The executor: attaches a plan to a model, runs it, and takes it off again.

Life of an attachment: the plan is made from a static profile of the step, in ``wrap`` if there is a sample input, else
when the first training forward begins. Where a step cannot be analysed without running it, ``fallback.py`` takes over:
every unit is recomputed until the first forward has been measured. All state of a step is in the autograd graph and
dies with it.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .. import _core
from .._base.attachment import Attachment
from .._base.log import Log
from .._base.vocabulary import ACTIONS, MODEL_OPTIONS
from .._hw.memory import host, main_device
from .._plan.by_shape import Planner, can_profile
from .._show.text import size
from .._trace.model_modules import find_units, param_bytes, takes_use_cache
from .._trace.sample import Sizes, sizes_of
from ..config import Config
from ..errors import BudgetError, MemScaleError, MemScaleWarning
from ..plans import Plan
from .fallback import Fallback
from .hooks import ForwardBegins, ForwardEnds, UseCacheOff, active_hooks, may_hook, refuse_data_parallel
from .recomputation import Unit
from .torch_state import AllocatorCap, BackwardOnCallingThread, is_on_one_gpu

HANDLE = "_memscale_executor"


class Executor:
    """The handle on a wrapped model: ``memscale.executor_of(model)``.

    Attributes:
        model: the model it is attached to.
        config: the settings.
        plan: what is done to each layer.
        attached: is it still attached?
    """

    def __init__(self, model: nn.Module, config: Config, optimizer: torch.optim.Optimizer | None = None) -> None:
        self.model = model
        self.config = config
        self.attached = False
        self.in_context = False  # inside an optimize() block
        self._attachment = Attachment()
        self._units = [Unit(name, module, param_bytes(module)) for name, module in find_units(model).items()]
        self._device = main_device(model)
        self._cap: AllocatorCap | None = None
        self._backward = BackwardOnCallingThread() if is_on_one_gpu(model) else None
        self._log: Log | None = None
        self._logged: set[str] = set()
        self._planner = Planner(model, config, optimizer)
        self._can_profile = can_profile(model, config)
        self._analysing = False  # while a step is analysed, units run as without MemScale
        self._fallback = Fallback(model, config, self._units, self._planner.request, optimizer)
        self.plan = self._fallback.plan(provisional=True)

    # Attaching and detaching

    def attach(self, sample: tuple[tuple[Any, ...], dict[str, Any]] | None = None, plan: Plan | None = None) -> None:
        """Attach to the model. With a sample (positional and keyword inputs) the plan is settled at once."""
        if plan is not None:
            plan.check_units(self._fallback.rows())
            _check_techniques(plan)
        self._log = Log(self.config)
        try:
            self._attach_modules()
            self._log_hardware()
            if self.config.memory_budget_gb is not None and self._device.type == "cuda":
                self._cap = AllocatorCap(self._device, self._planner.request.budget_bytes)
            self._apply(self.plan if plan is None else plan.settled())
            if plan is None and sample is not None:
                if not self._settle_statically(*sample):
                    self._fallback.run_sample(*sample, self._settle_if_provisional)
            else:
                self._info("plan: %s", self.plan.describe())
        except BaseException:
            self._undo()
            raise

    def _attach_modules(self) -> None:
        self.attached = True
        for unit in self._units:
            self._attachment.set_forward(unit.module, functools.partial(self.run_unit, unit))
        for module in self.model.modules():
            if takes_use_cache(module):
                self._attachment.add_pre_hook(module, UseCacheOff(self, module))
        self._attachment.set_attribute(self.model, "_replicate_for_data_parallel", refuse_data_parallel)
        self._attachment.add_pre_hook(self.model, ForwardBegins(self))
        self._attachment.add_post_hook(self.model, ForwardEnds(self))
        self._attachment.set_attribute(self.model, HANDLE, self)

    def detach(self) -> None:
        """Put the model back as it was. Does nothing a second time."""
        if self.attached:
            self._info("detached from %s", type(self.model).__name__)
            self._undo()

    def _undo(self) -> None:
        self.attached = False
        if self._cap is not None:
            self._cap.release()
        if self._backward is not None:
            self._backward.release()
        self._attachment.undo()
        if self._log is not None:
            self._log.close()

    # The plan

    def _apply(self, plan: Plan) -> None:
        self.plan = plan
        self._fallback.measuring = None
        actions = {entry.name: ACTIONS[entry.action].identifier for entry in plan.entries}
        for unit in self._units:
            unit.on_backward = self._settle if plan.provisional else None
            unit.handler = HANDLERS[actions[unit.name]] if unit.excluded is None else None

    def _settle_statically(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Make the plan without running anything. False if the step cannot be analysed so."""
        if not self._can_profile:
            return False
        self._analysing = True
        try:
            plan = self._planner.settle(args, kwargs, self._excluded())
        except BudgetError:
            raise
        except (MemScaleError, ValueError) as error:
            self._can_profile = False
            self._log_once(f"the first forward is measured as it runs, since the step cannot be analysed: {error}")
            return False
        finally:
            self._analysing = False
        self._apply(plan)
        self._info("plan: %s", plan.describe())
        return True

    def _settle(self, rest_bytes: int = 0) -> None:
        """A forward has been measured: make the plan from that."""
        self._apply(self._fallback.plan(rest_bytes))
        self._info("plan: %s", self.plan.describe())

    def _settle_if_provisional(self) -> None:
        """The forward on a sample is over; it settles nothing if the root has no output, or hides it from hooks."""
        if self.plan.provisional:
            self._settle()

    def _change_sizes(self, sizes: Sizes, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A batch of other sizes: take the plan for it, or raise if none fits."""
        self._analysing = True
        try:
            plan = self._planner.at(args, kwargs)
        finally:
            self._analysing = False
        self._planner.sizes = sizes
        if plan is not self.plan:
            self._apply(plan)
            first = " x ".join(str(n) for n in sizes[0])
            self._log_once(f"for batches like {first}: {plan.describe()}")

    def _excluded(self) -> set[str]:
        return {unit.name for unit in self._units if unit.excluded is not None}

    # The forward of the model

    def begin_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The model's forward begins."""
        if self._analysing or not torch.is_grad_enabled():
            return
        if self._backward is not None:
            self._backward.take()
        if self._fallback.sampling:
            return
        if self.plan.provisional:
            if not (may_hook() and self._settle_statically(args, kwargs)):
                self._fallback.begin()
        elif self._planner.profile is not None:
            sizes = sizes_of(args, kwargs)
            if sizes != self._planner.sizes:
                self._change_sizes(sizes, args, kwargs)

    def end_forward(self, output: Any) -> None:
        """The model's forward ends; the output is None if it raised."""
        if self._analysing:
            return
        rest_bytes = self._fallback.rest_bytes(output)
        if rest_bytes is not None:
            self._settle(rest_bytes)

    # The forward of a unit

    def recomputes(self) -> bool:
        """Is any layer recomputed in the forward that runs?"""
        return not self._analysing and any(unit.handler is not None for unit in self._units)

    def run_unit(self, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a unit's forward as planned."""
        handler = unit.handler
        if handler is None or self._analysing or not (self.attached and torch.is_grad_enabled() and may_hook()):
            return unit.plain(*args, **kwargs)
        return handler(self, unit, args, kwargs)

    def recompute(self, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a unit so that it is recomputed in backward."""
        if not self._fallback.sampling and active_hooks(True) is not None:
            self._log_once(
                "saved-tensor hooks (checkpointing or offloading) are active around the model; its layers run without "
                "recomputation"
            )
            return unit.plain(*args, **kwargs)
        result = _core.Call(unit, args, kwargs) if self.plan.provisional else unit.run(args, kwargs)
        return self._run_checked(unit, result, args, kwargs) if type(result) is _core.Call else result

    def _run_checked(self, unit: Unit, call: _core.Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a unit for the first time: find out whether it can be recomputed."""
        if call.opaque is not None:
            kind = call.opaque.__name__
            self._log_once(
                f"layer '{unit.name}' was called with a {kind}, which MemScale cannot copy; it is not recomputed"
            )
            return unit.plain(*args, **kwargs)
        output, problem, saved = call.run_checked(args, kwargs)
        if problem is not None:
            self._exclude(unit, *problem)
        if self.plan.provisional:
            self._fallback.add(unit, _core.tensors_in((args, kwargs)), saved)
        return output

    def _exclude(self, unit: Unit, reason: str, is_surprise: bool) -> None:
        unit.excluded = reason
        unit.handler = None
        self._plan_around()
        text = f"layer '{unit.name}' ({type(unit.module).__name__}) is not recomputed: {reason}"
        if not is_surprise:
            self._info("%s", text)
            return
        warnings.warn(
            f"{text}. Its activations stay in memory and training goes on. To have it recomputed, let its forward "
            "depend on nothing but its inputs, parameters, buffers and torch's random state.",
            MemScaleWarning,
            stacklevel=2,
        )

    def _plan_around(self) -> None:
        """A layer turned out not to be recomputable: make a new plan, in which other layers make up for it."""
        if self._planner.profile is None or self.plan.provisional:
            return
        try:
            self._apply(self._planner.plan_again(self._excluded()))
        except BudgetError as error:
            self._log_once(f"no plan fits without recomputing that layer: {error}")

    # Logging

    def log_use_cache(self) -> None:
        """A module was asked not to fill its key-value cache."""
        self._log_once(
            "use_cache is off in training forwards while layers are recomputed; evaluation and generation keep it"
        )

    def _log_once(self, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            self._info("%s", text)

    def _info(self, message: str, *args: object) -> None:
        if self._log is not None:
            self._log.info(message, *args)

    def _log_hardware(self) -> None:
        record = host()
        usable, total = size(record["memory_limit_bytes"]), size(record["memory_total_bytes"])
        self._info("host: %s usable of %s, %d cores", usable, total, record["n_cores"])
        if self._device.type == "cuda":
            properties = torch.cuda.get_device_properties(self._device)
            self._info("device: %s, %s", properties.name, size(properties.total_memory))
        self._info("model: %s, %d layers, on %s", type(self.model).__name__, len(self._units), self._device)

    def __deepcopy__(self, memo: Any) -> None:
        """A copy of a wrapped model is a plain one."""

    def __reduce__(self) -> Any:
        return type(None), ()

    def __repr__(self) -> str:
        state = "attached to" if self.attached else "detached from"
        return f"<memscale executor {state} {type(self.model).__name__}: {self.plan.describe()}>"


# How each action runs, by its identifier in the table of C; None: as without MemScale. An action
# without a handler can be planned, but not run by this version.
HANDLERS: dict[str, Callable[[Executor, Unit, tuple[Any, ...], dict[str, Any]], Any] | None] = {
    "keep": None,
    "recompute": Executor.recompute,
}


def _check_techniques(plan: Plan) -> None:
    """A plan may use more techniques than this version can run."""
    actions = {ACTIONS[entry.action] for entry in plan.entries}
    more = {action.name for action in actions if action.identifier not in HANDLERS}
    more |= {option.name for option in MODEL_OPTIONS if option.identifier in plan.model_options}
    if more:
        raise MemScaleError(
            f"the plan uses techniques that this version cannot run ({', '.join(sorted(more))}); make one with "
            "memscale.plan(model, sample_input)"
        )
