"""Plans without a step, where it cannot be analysed: the first forward is measured, with every unit recomputed.

What units save in that forward takes the place of a profile. Only the executor uses this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from .. import _core
from .._base.step_kinds import kind_of
from .._hw.memory import state_storages, storages, tensor_bytes
from .._plan.request import Request
from ..config import Config
from ..errors import MemScaleError
from ..plans import Plan
from .recomputation import Measured, Unit

_ADAMW_BYTES = 8  # two fp32 moments a parameter: assumed until an optimizer is known


def identity(tensor: Any) -> Any:
    """The unpack hook of tensors that were packed as they are."""
    return tensor


def _elements(tensors: Iterable[torch.Tensor]) -> int:
    return sum(int(t.numel()) for t in tensors)


def _optimizer_bytes(optimizer: torch.optim.Optimizer, trainable: list[nn.Parameter]) -> int:
    held = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    if held:
        return sum(storages(held).values())
    kind = kind_of(optimizer)
    if kind is None or kind.n_moments is None:
        return _ADAMW_BYTES * _elements(trainable)
    return kind.n_moments * tensor_bytes(trainable)


def model_state_bytes(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> int:
    """Parameters and buffers, gradients, optimizer state: what every step needs, whatever a plan does."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    gradients = tensor_bytes(trainable)
    moments = _ADAMW_BYTES * _elements(trainable) if optimizer is None else _optimizer_bytes(optimizer, trainable)
    return sum(state_storages(model).values()) + gradients + moments


class MeasuredForward:
    """One forward that is measured, unit by unit."""

    def __init__(self, model: nn.Module, units: list[Unit], outside: list[torch.Tensor] | None = None) -> None:
        self._seen = set(state_storages(model))  # storages that are counted already
        self._outside = outside  # what was saved outside units, where that is known
        self.n_units = 0
        for unit in units:
            unit.measured = Measured()

    def add(self, unit: Unit, inputs: list[torch.Tensor], saved: list[torch.Tensor]) -> None:
        if unit.measured.calls == 0:
            unit.measured.order = self.n_units
            self.n_units += 1
        unit.measured.add(inputs, saved, self._seen)

    def rest_bytes(self, output: Any) -> int:
        """Bytes kept outside units. Where they were not measured: the outputs, and as much again for the loss."""
        if self._outside is None:
            return 2 * sum(storages(_core.tensors_in(output)).values())
        kept = storages([*self._outside, *_core.tensors_in(output)])
        return sum(size for address, size in kept.items() if address not in self._seen)


class Fallback:
    """Plans of one model from what its units did in one forward.

    Attributes:
        measuring: the forward that is being measured, until the plan is settled.
        sampling: inside the forward on a sample input.
    """

    def __init__(
        self,
        model: nn.Module,
        config: Config,
        units: list[Unit],
        request: Request,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        self._model = model
        self._config = config
        self._units = units
        self._request = request
        self._optimizer = optimizer
        self.measuring: MeasuredForward | None = None
        self.sampling = False

    def rows(self) -> list[_core.UnitRow]:
        """What the engine is told about the units, in order of first execution."""
        rows = []
        for unit in sorted(self._units, key=lambda u: (u.measured.calls == 0, u.measured.order)):
            seen = unit.measured
            eligible = self._config.enable_checkpointing and unit.excluded is None
            flags = (_core.UNIT_ELIGIBLE if eligible else 0) | (_core.UNIT_RUN if seen.calls else 0)
            rows.append((unit.name, unit.param_bytes, seen.saved_bytes, seen.boundary_bytes, seen.rows, flags))
        return rows

    def plan(self, rest_bytes: int = 0, *, provisional: bool = False) -> Plan:
        """A plan from what was measured while units ran, or from nothing yet."""
        state = model_state_bytes(self._model, self._optimizer)
        return self._request.create(_core.profile_from_units(self.rows(), state, rest_bytes), provisional=provisional)

    def begin(self, outside: list[torch.Tensor] | None = None) -> None:
        """Measure the forward that begins."""
        self.measuring = MeasuredForward(self._model, self._units, outside)

    def add(self, unit: Unit, inputs: list[torch.Tensor], saved: list[torch.Tensor]) -> None:
        """A unit has run."""
        if self.measuring is None:  # not inside the model's own forward
            self.begin()
        assert self.measuring is not None
        self.measuring.add(unit, inputs, saved)

    def rest_bytes(self, output: Any) -> int | None:
        """The model's forward ended: bytes kept outside units; None if nothing was measured."""
        if self.measuring is None or not self.measuring.n_units or output is None:
            return None
        return self.measuring.rest_bytes(output)

    def run_sample(self, args: tuple[Any, ...], kwargs: dict[str, Any], settle: Callable[[], None]) -> None:
        """Run one forward on the sample, which settles the plan and leaves the model as it was."""
        state = _core.ModuleState(self._model)
        randomness = _core.Randomness({p.device for p in self._model.parameters()})
        outside: list[torch.Tensor] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            outside.append(tensor.detach())
            return outside[-1]

        self.sampling = True
        state.enter()
        try:
            for module in state.modules():
                module._buffers.update({name: b.clone() for name, b in module._buffers.items() if b is not None})
            self.begin(outside)
            with torch.enable_grad(), saved_tensors_hooks(pack, identity):
                self._model(*args, **kwargs)
            settle()
        except MemScaleError:
            raise
        except Exception as error:
            raise MemScaleError(
                f"the model does not run on sample_input ({type(error).__name__}: {error}). Give a tensor, a tuple of "
                "positional inputs or a dict of keyword inputs, on the model's device."
            ) from error
        finally:
            state.leave()
            randomness.restore()
            self.sampling = False
