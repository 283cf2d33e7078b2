"""A plan: which layer gets which techniques, and what that is expected to cost. Made and kept in C."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from . import _core

if TYPE_CHECKING:
    from collections.abc import Mapping


class Plan:
    """What MemScale does to each layer of a model. Immutable.

    Attributes:
        layers: the techniques of each layer, by name: ``("recompute",)`` or ``()``.
        baseline_peak_bytes: the peak when nothing is done.
        predicted_peak_bytes: the peak with this plan.
        budget_bytes: what the plan may use.
        predicted_slowdown: extra step time of this plan, as a fraction of the plain step.
        fits: is the predicted peak within the budget?
        skipped: was the model left alone because it fits easily?
        provisional: is it the lean start before the first batch was seen?
        fingerprint: a stable hash of what the plan does.
    """

    def __init__(self, core: _core.Plan, *, provisional: bool = False) -> None:
        summary = core.summary()
        self._core = core
        self._entries = core.entries()
        self.provisional = provisional
        self.layers: Mapping[str, tuple[str, ...]] = MappingProxyType(
            {entry[0]: () if entry[1] == "keep" else (entry[1],) for entry in self._entries}
        )
        self.baseline_peak_bytes: int = summary["baseline_peak_bytes"]
        self.predicted_peak_bytes: int = summary["predicted_peak_bytes"]
        self.budget_bytes: int = summary["budget_bytes"]
        self.predicted_slowdown: float = summary["slowdown_ppm"] / 1e6
        self.skipped: bool = summary["skipped"]
        self.fits: bool = self.predicted_peak_bytes <= self.budget_bytes
        self.fingerprint: str = f"{summary['fingerprint']:016x}"

    def settled(self) -> Plan:
        """The same plan, to be used as it is."""
        return Plan(self._core) if self.provisional else self

    def __reduce__(self) -> Any:
        return _load, (self.to_json(), self.provisional)

    @property
    def n_recomputed(self) -> int:
        """How many layers are recomputed."""
        return sum("recompute" in techniques for techniques in self.layers.values())

    def to_json(self) -> str:
        """The plan as JSON text, for :meth:`from_json` and ``wrap(model, plan=...)``."""
        return self._core.to_json()

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that :meth:`to_json` wrote. Raises ``ValueError`` on anything else."""
        if not isinstance(text, str):
            raise TypeError(f"Plan.from_json takes the text that to_json wrote, not {type(text).__name__}")
        return cls(_core.plan_from_json(text))

    def check_units(self, units: list[_core.UnitRow]) -> None:
        """Raise ``MemScaleError`` unless the plan is for a model with exactly these units."""
        self._core.check_units(units)

    def describe(self) -> str:
        """What the plan does, in one sentence."""
        n = len(self.layers)
        if self.provisional:
            return f"start lean: recompute {self.n_recomputed} of {n} layers until the first batch has been seen"
        peak = f"peak {_gb(self.baseline_peak_bytes)} -> {_gb(self.predicted_peak_bytes)} predicted"
        budget = f"budget {_gb(self.budget_bytes)}"
        if self.skipped:
            return f"nothing to do: a peak of {_gb(self.baseline_peak_bytes)} is under a quarter of the {budget}"
        if self.n_recomputed == 0:
            return f"keep all {n} layers: {peak}, {budget}"
        return (
            f"recompute {self.n_recomputed} of {n} layers: {peak}, {budget}, "
            f"step time +{self.predicted_slowdown:.0%} predicted"
        )

    def __repr__(self) -> str:
        return f"<memscale.Plan {self.fingerprint}: {self.describe()}>"


def _load(text: str, provisional: bool) -> Plan:
    return Plan(_core.plan_from_json(text), provisional=provisional)


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.3f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.3f} MB"
