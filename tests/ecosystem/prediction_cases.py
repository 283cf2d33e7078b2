"""What is predicted for an architecture on the CPU, and what the meter measures: for several ways to train it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import memscale
import zoo
from architectures import ARCHITECTURES, loss_of
from meter import Meter

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "sgd": functools.partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
    "adafactor": torch.optim.Adafactor,
}


class _AutocastInside:
    """The forward as accelerate makes it: under autocast, outputs in fp32."""

    def __init__(self, model: nn.Module) -> None:
        self.plain = model.forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return self.plain(*args, **kwargs)


def _autocast_inside(model: nn.Module) -> None:
    model.forward = _AutocastInside(model)  # type: ignore[method-assign]


def _hooks(model: nn.Module) -> None:
    """An adapter on every linear layer of some width, which adds to the output."""

    def adapt(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        return output + output.detach().tanh() * 0.1

    for module in list(model.modules()):
        if isinstance(module, nn.Linear) and module.out_features >= 64:
            module.register_forward_hook(adapt)


WAYS: dict[str, Callable[[nn.Module], None]] = {
    "plain": lambda model: None,
    "autocast inside": _autocast_inside,
    "hooks": _hooks,
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A way to train one architecture."""

    name: str
    way: str = "plain"
    optimizer: str = "adamw"

    def build(self) -> nn.Module:
        model = ARCHITECTURES[self.name].build()
        WAYS[self.way](model)
        return model

    def updater(self, model: nn.Module) -> torch.optim.Optimizer:
        return OPTIMIZERS[self.optimizer]([p for p in model.parameters() if p.requires_grad])


@dataclasses.dataclass(frozen=True)
class Row:
    """A prediction and what was measured."""

    case: Case
    recomputed: bool
    step: str
    predicted: int
    measured: int
    source: str

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def rows_of(case: Case, ways: tuple[bool, ...] = (False, True)) -> list[Row]:
    """Predict, then train three steps under the meter: plain, and with everything recomputed."""
    model = case.build()
    args, kwargs = ARCHITECTURES[case.name].batch_of()
    known = memscale.profile(model, args or kwargs, optimizer=case.updater(model), loss=loss_of)
    del model
    rows = []
    for recomputed in ways:
        simulated = known.simulate("all" if recomputed else ())
        meter = _train(case, recomputed)
        for step, predicted in (("first", simulated.first_peak_bytes), ("steady", simulated.steady_peak_bytes)):
            rows.append(Row(case, recomputed, step, predicted, meter[step].peak, known.source))
    return rows


def _train(case: Case, recomputed: bool) -> Meter:
    with Meter() as meter:
        model = case.build()
        args, kwargs = ARCHITECTURES[case.name].batch_of()
        if recomputed:  # units are checked in their first run; that is not every step's
            zoo.everything_recomputed(model)
            loss_of(model(*args, **kwargs)).backward()
            model.zero_grad()
        updater = case.updater(model)
        for step in ("first", "second", "steady"):
            with meter.mark(step):
                loss_of(model(*args, **kwargs)).backward()
                updater.step()
                updater.zero_grad()
        if recomputed:
            memscale.detach(model)
    return meter
