"""What an attachment says in the log."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from .._base.log import Log
from .._hw.memory import host, main_device
from .._plan.request import Request
from .._show.text import size
from .._trace.sample import Sizes
from ..config import Config
from ..plans import Plan

USE_CACHE_IS_OFF = (
    "use_cache is off in training forwards while layers are recomputed; evaluation and generation keep it"
)

WHAT_TO_DO = (
    "Its activations stay in memory and training goes on. To have it recomputed, let its forward depend on nothing but "
    "its inputs, parameters, buffers and torch's random state."
)

_MOST_SIZES = 32  # plans for other sizes that are told: with sizes at random there may be one for most batches


def when_planned(why_watched: str) -> str:
    """When a plan is made that is not made in ``wrap``; `why_watched`: why the step cannot be analysed, or ""."""
    if not why_watched:
        return "the plan is made in the first training forward"
    how = "which is watched while it runs, with every layer recomputed"
    return f"the plan is made after the first step, {how}: {why_watched}"


class Messages:
    """The messages of one attachment, from ``open`` to ``close``. Outside of that nothing is said."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._log: Log | None = None
        self._said: set[str] = set()
        self._for_sizes: set[str] = set()  # plans that were told, not with which sizes

    def open(self) -> None:
        self._log = Log(self._config)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def warn(self, text: str) -> None:
        if self._log is not None:
            self._log.warning("%s", text)

    def info(self, text: str) -> None:
        if self._log is not None:
            self._log.info("%s", text)

    def once(self, text: str) -> None:
        """Say this, unless it was said before."""
        if text not in self._said:
            self._said.add(text)
            self.info(text)

    def planned(
        self, plan: Plan, planned_for: tuple[Sizes, bool] | None, optimizers: Iterable[torch.optim.Optimizer]
    ) -> None:
        """There is a plan: for inputs of these sizes, and whether gradients are held; None: the first one."""
        if planned_for is None:
            self.first_plan(plan, optimizers)
        else:
            self.other_plan(plan, planned_for[0], held=planned_for[1])

    def first_plan(self, plan: Plan, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """The plan for the inputs that were profiled; with these optimizers, if it was another one before."""
        if f"plan: {plan.describe()}" not in self._said:
            names = ", ".join(type(optimizer).__name__ for optimizer in optimizers)
            self.once(f"plan{f' with {names}' if names else ''}: {plan.describe()}")

    def other_plan(self, plan: Plan, sizes: Sizes, *, held: bool) -> None:
        """The plan for inputs of these sizes, unless it was named before; not more than some of them."""
        text = plan.describe()
        if text in self._for_sizes or len(self._for_sizes) > _MOST_SIZES:
            return
        self._for_sizes.add(text)
        if len(self._for_sizes) > _MOST_SIZES:
            self.info("there are more plans for batches of other sizes, which are not logged")
            return
        shape = " x ".join(str(n) for n in sizes[0]) if sizes else "no tensor"
        self.info(f"for batches like {shape}{', with gradients held' if held else ''}: {text}")

    def start(self, model: nn.Module, n_layers: int, request: Request, when: str) -> None:
        """Two lines: the hardware; the model and its budget, and when it is planned."""
        record, device, where = host(), main_device(model), ""
        usable, total = size(record["memory_limit_bytes"]), size(record["memory_total_bytes"])
        if device.type == "cuda":
            properties = torch.cuda.get_device_properties(device)
            memory = f"{size(request.device.usable_bytes)} usable of {size(properties.total_memory)}"
            where = f"device: {properties.name}, {memory}; "
        self.info(f"{where}host: {usable} usable of {total}, {record['n_cores']} cores")
        budget = f"budget {size(request.budget_bytes)}"
        if self._config.memory_budget_gb is None:
            budget += f", {self._config.target_gpu_utilization * 100:g} % of what is usable"
        name = f"{type(model).__name__}, {n_layers} layers"
        self.info(f"model: {name}, on {device}; {budget}{f'; {when}' if when else ''}")
        self._said.add(when)
