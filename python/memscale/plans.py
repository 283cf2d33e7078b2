"""A plan: which layer gets which techniques, and what that is expected to cost. Made and kept in C."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _core
from ._base.vocabulary import ACTIONS, CATEGORIES, KEEP, PHASES, SETUP, option_names
from ._show.plan_page import plan_page
from ._show.text import describe
from .errors import MemScaleError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ParetoPoint", "Plan"]


class Entry(NamedTuple):
    """A layer of a plan, as the engine has it: actions and reasons are numbers, times in nanoseconds."""

    name: str
    param_bytes: int
    plain_bytes: int
    held_bytes: int
    host_bytes: int
    extra_ns: int
    action: int
    reason: int
    other: int
    other_reason: int
    other_bytes: int
    other_ns: int
    leaves_after: int  # of what is offloaded: gone when so many more layers have run,
    fetched_before: int  # and fetched when backward begins with the layer that ran so many later


@dataclasses.dataclass(frozen=True)
class ParetoPoint:
    """One point of the trade-off between memory and time.

    Attributes:
        peak_bytes: the predicted peak.
        step_seconds: the predicted time of a step.
        host_bytes: host memory that is used.
        n_changed: layers to which something is done.
        model_options: what is done to the model as a whole, as in :attr:`Plan.model_options`.
    """

    peak_bytes: int
    step_seconds: float
    host_bytes: int
    n_changed: int
    model_options: tuple[str, ...]

    @classmethod
    def of_row(cls, row: tuple[int, int, int, int, int]) -> ParetoPoint:
        """A point as the engine returns it."""
        peak_bytes, step_ns, host_bytes, n_changed, flags = row
        return cls(peak_bytes, step_ns / 1e9, host_bytes, n_changed, option_names(flags))


class Plan:
    """What MemScale does to each layer of a model. Immutable.

    The techniques of a layer are ``()`` where all that backward needs is kept, else one of these:

    * ``"recompute"``: only its inputs are kept, and it is recomputed in backward. ``"recompute except products"``,
      ``"recompute except attention"`` and ``"recompute except attention and products"`` also keep results of matrix
      products and convolutions, of attention, or of both. ``"recompute with offloaded inputs"`` keeps its inputs in
      host memory.
    * ``"recompute pointwise results"``: it is kept, but for results of pointwise functions (``mul``, ``silu``, casts)
      that other kept tensors give again. ``"offload except pointwise results"``: the same, and what is left waits in
      host memory.
    * ``"offload"``: what backward needs waits in host memory.
    * ``"blocking offload"``, ``"recompute with blocking offload of inputs"``: the next layer waits for the copies.
    * ``"tile"``: it is recomputed in tiles.

    Attributes:
        layers: the techniques of each layer, by name.
        model_options: what is done to the model as a whole: ``"half"`` (computed in 16 bits), ``"8bit"`` (moments of
            the optimizer), ``"offload"`` (optimizer state in host memory), ``"offload_gradients"``, ``"tile_loss"``.
        baseline_peak_bytes: the peak when nothing is done, as :func:`memscale.predict` has it.
        predicted_peak_bytes: the peak with this plan.
        parts: what that peak is made of, by category; ``"rest"`` is by how much blocks are larger than their tensors,
            and what the engine rounds up. Empty if the step allocates nothing.
        place: where that peak is: the layer (or None) and the phase; None if the step is empty.
        budget_bytes: what the plan may use.
        has_budget: was that set? Else it follows from the device, and is an aim.
        margin_bytes: the part of the budget that is left free, for errors of the prediction.
        aim_bytes: what the plan should have used, where only one above that fits the device; else 0.
        full_speed_bytes: a budget with which nothing would be done to the step, where it fits as it is and this plan
            trades time for memory; else 0.
        host_limit_bytes: host memory that the plan may use.
        host_bytes: host memory that it uses.
        baseline_step_seconds: the time of a step when nothing is done.
        step_seconds: the time of a step with this plan.
        predicted_slowdown: extra step time of this plan, as a fraction of the plain step.
        shape: batch and length of the input that it was made for; 0 for one that the input does not have.
        reserved_bytes: what torch's allocator reserves for the step; on a CPU the predicted peak.
        needed_bytes: what it must be allowed to reserve; on a CPU the predicted peak.
        occupied_bytes: the part of the budget that torch's allocator held for other things when the plan was made.
        grows: do segments of torch's allocator have to grow (``expandable_segments``)?
        is_cramped: does it only fit because torch's allocator returns memory in every step? That takes time.
        spacer_bytes: of the spacer, a block that is on the device while one layer runs forward, so that torch's
            allocator needs less; 0: there is none.
        spacer_layer: that layer; None: there is none.
        spacer_saved_bytes: how much more the allocator would need without it.
        fits: is what is needed within the budget?
        skipped: was the model left alone because it fits easily?
        fingerprint: a stable hash of what the plan does.
        core: the plan as the extension has it.
    """

    def __init__(
        self,
        core: _core.Plan,
        *,
        trade: Callable[[int], tuple[ParetoPoint, ...]] | None = None,
    ) -> None:
        summary = core.summary()
        self.core = core
        self._trade = trade  # the request that it came from, asked for its trade
        self.entries = tuple(Entry(**row) for row in core.entries())
        self.layers: Mapping[str, tuple[str, ...]] = MappingProxyType(
            {entry.name: _techniques(entry.action) for entry in self.entries}
        )
        self.option_flags: int = summary["model_options"]
        self.model_options = option_names(self.option_flags)
        self.baseline_peak_bytes: int = summary["baseline_peak_bytes"]
        self.predicted_peak_bytes: int = summary["predicted_peak_bytes"]
        self.parts: Mapping[str, int] = MappingProxyType(_parts(summary["parts"], self.predicted_peak_bytes))
        self.place = self._place(summary["peak_unit"], summary["peak_phase"])
        self.budget_bytes: int = summary["budget_bytes"]
        self.has_budget = bool(summary["flags"] & _core.PLAN_FASTEST)
        self.margin_bytes: int = summary["margin_bytes"]
        self.aim_bytes: int = summary["aim_bytes"]
        self.full_speed_bytes: int = summary["full_speed_bytes"]
        self.host_limit_bytes: int = summary["host_limit_bytes"]
        self.host_bytes: int = summary["host_bytes"]
        self.baseline_step_seconds: float = summary["baseline_ns"] / 1e9
        self.step_seconds: float = summary["step_ns"] / 1e9
        self.predicted_slowdown: float = summary["slowdown_ppm"] / 1e6
        self.shape: tuple[int, int] = (summary["batch"], summary["length"])
        self.skipped: bool = summary["skipped"]
        self.needed_bytes: int = summary["needed_bytes"]
        self.reserved_bytes: int = summary["reserved_bytes"]
        self.occupied_bytes: int = summary["occupied_bytes"]
        self.grows: bool = summary["grows"]
        self.is_cramped: bool = summary["is_cramped"]
        self.spacer_bytes: int = summary["spacer_bytes"]
        self.spacer_layer: str | None = self.entries[summary["spacer_unit"]].name if self.spacer_bytes else None
        self.spacer_saved_bytes: int = summary["spacer_saved_bytes"]
        self.fits: bool = self.needed_bytes <= self.budget_bytes - self.occupied_bytes
        self.fingerprint: str = f"{summary['fingerprint']:016x}"

    def _place(self, unit: int, phase: int) -> tuple[str | None, str] | None:
        if phase == SETUP:
            return None
        return (self.entries[unit].name if unit >= 0 else None), PHASES[phase]

    def __reduce__(self) -> Any:
        return _load, (self.to_json(),)

    def __deepcopy__(self, memo: Any) -> Plan:
        return self

    def __copy__(self) -> Plan:
        return self

    @property
    def n_recomputed(self) -> int:
        """How many layers are recomputed, whole or in part."""
        return sum(entry.action != KEEP and ACTIONS[entry.action].recomputes for entry in self.entries)

    @property
    def n_changed(self) -> int:
        """To how many layers something is done."""
        return sum(entry.action != KEEP for entry in self.entries)

    def explain(self) -> str:
        """Why each layer got what it got, in bytes and milliseconds."""
        return self.core.explain()

    def pareto(self, n_points: int = 16) -> tuple[ParetoPoint, ...]:
        """The trade-off between memory and time at any budget: from the fastest plan to the smallest peak.

        Raises:
            MemScaleError: the plan was read from a file, which does not have the profile that this takes.
        """
        if self._trade is None:
            raise MemScaleError(
                "this plan was read from JSON, which has no profile of the model: make it anew with "
                "memscale.plan(model, sample_input) to see its trade between memory and time"
            )
        return self._trade(n_points)

    def to_html(self) -> str:
        """The plan as one page of HTML that needs nothing but itself."""
        return plan_page(self)

    def to_json(self) -> str:
        """The plan as JSON text, for :meth:`from_json` and ``wrap(model, plan=...)``."""
        return self.core.to_json()

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that :meth:`to_json` wrote. Raises ``ValueError`` or ``MemScaleError`` on anything else."""
        if not isinstance(text, str):
            raise TypeError(f"Plan.from_json takes the text that to_json wrote, not {type(text).__name__}")
        return cls(_core.plan_from_json(text))

    def check_units(self, units: list[tuple[str, int]]) -> None:
        """Raise ``MemScaleError`` unless the plan is for a model with exactly these units (name, parameter bytes)."""
        self.core.check_units(units)

    def groups(self) -> dict[tuple[str, ...], list[Entry]]:
        """The layers by their techniques, the largest group first."""
        groups: dict[tuple[str, ...], list[Entry]] = {}
        for entry in sorted(self.entries, key=lambda entry: entry.action):
            groups.setdefault(self.layers[entry.name], []).append(entry)
        return dict(sorted(groups.items(), key=lambda item: -len(item[1])))

    @property
    def actions(self) -> Mapping[str, str]:
        """What is done to each layer, by its name: ``"keep"``, ``"recompute"`` or another action of the engine."""
        return MappingProxyType({entry.name: ACTIONS[entry.action].identifier for entry in self.entries})

    def describe(self) -> str:
        """What the plan does, in one sentence."""
        return describe(self)

    def __repr__(self) -> str:
        return f"<memscale.Plan {self.fingerprint}: {self.describe()}>"


def _techniques(action: int) -> tuple[str, ...]:
    return () if action == KEEP else (ACTIONS[action].name,)


def _load(text: str) -> Plan:
    return Plan(_core.plan_from_json(text))


def _parts(sizes: list[int], peak_bytes: int) -> dict[str, int]:
    """By name. The rest: what blocks are larger than their tensors, and what the engine rounds up."""
    if not any(sizes):
        return {}
    return {**dict(zip(CATEGORIES, sizes)), "rest": max(0, peak_bytes - sum(sizes))}
