"""A plan: which layer gets which techniques, and what that is expected to cost. Made and kept in C."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _core
from ._chart import duration
from .errors import MemScaleError
from .profiles import PARTS, PHASES

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ParetoPoint", "Plan"]

# Of each action, by number: the techniques that it is made of, and how a sentence says it.
_TECHNIQUES: dict[int, tuple[tuple[str, ...], str]] = {
    _core.ACTION_KEEP: ((), "keep {}"),
    _core.ACTION_RECOMPUTE: (("recompute",), "recompute {}"),
    _core.ACTION_KEEP_BOTH: (
        ("recompute", "keep attention", "keep products"),
        "recompute {} but for attention and matrix products",
    ),
    _core.ACTION_KEEP_PRODUCTS: (("recompute", "keep products"), "recompute {} but for matrix products"),
    _core.ACTION_KEEP_ATTENTION: (("recompute", "keep attention"), "recompute {} but for attention"),
    _core.ACTION_OFFLOAD: (("offload",), "offload {}"),
    _core.ACTION_OFFLOAD_NOW: (("offload", "wait"), "offload {} at once"),
    _core.ACTION_RECOMPUTE_OFFLOAD: (("recompute", "offload inputs"), "recompute {} from offloaded inputs"),
    _core.ACTION_RECOMPUTE_OFFLOAD_NOW: (
        ("recompute", "offload inputs", "wait"),
        "recompute {} from inputs offloaded at once",
    ),
    _core.ACTION_TILE: (("recompute", "tile"), "recompute {} in tiles"),
}
# Of each state: how a sentence says it.
_STATES: dict[int, str] = {
    _core.STATE_HALF: "compute in 16 bits",
    _core.STATE_8BIT: "keep moments in 8 bits",
    _core.STATE_OFFLOAD: "keep optimizer state in host memory",
    _core.STATE_OFFLOAD_GRADIENTS: "keep gradients in host memory",
    _core.STATE_TILE_LOSS: "compute the loss in tiles",
}


class Entry(NamedTuple):
    """A layer of a plan, as the engine has it: actions are numbers, times in nanoseconds."""

    name: str
    action: int
    reason: str
    param_bytes: int
    kept_bytes: int
    held_bytes: int
    host_bytes: int
    extra_ns: int
    other: int
    other_reason: str
    other_bytes: int
    other_ns: int


@dataclasses.dataclass(frozen=True)
class ParetoPoint:
    """One point of the trade between memory and time.

    Attributes:
        peak_bytes: the predicted peak.
        step_seconds: the predicted time of a step.
        host_bytes: host memory that is filled.
        n_changed: layers to which something is done.
        state: what is done to the model as a whole, as in :attr:`Plan.state`.
    """

    peak_bytes: int
    step_seconds: float
    host_bytes: int
    n_changed: int
    state: tuple[str, ...]

    @classmethod
    def of_row(cls, row: tuple[int, int, int, int, int]) -> ParetoPoint:
        """A point as the engine returns it."""
        peak_bytes, step_ns, host_bytes, n_changed, state = row
        return cls(peak_bytes, step_ns / 1e9, host_bytes, n_changed, _state_names(state))


class Plan:
    """What MemScale does to each layer of a model. Immutable.

    The techniques of a layer are ``()`` where all that backward needs is kept, else some of these:

    * ``"recompute"``: only its inputs are kept, it is computed again in backward. With ``"keep attention"``, ``"keep
      products"`` or both: results of attention, of matrix products and convolutions are kept and not computed again.
      With ``"offload inputs"``: its inputs wait in host memory. With ``"tile"``: it is computed again in tiles.
    * ``"offload"``: what backward needs waits in host memory.
    * ``"wait"``, with either kind of offloading: the next layer waits until the copies are done.

    Attributes:
        layers: the techniques of each layer, by name.
        state: what is done to the model as a whole: ``"half"`` (computed in 16 bits), ``"8bit"`` (moments of the
            optimizer), ``"offload"`` (optimizer state in host memory), ``"offload gradients"``, ``"tile loss"``.
        baseline_peak_bytes: the peak when nothing is done.
        predicted_peak_bytes: the peak with this plan.
        parts: what that peak is made of, ``"rest"`` being blocks larger than what was asked for and what the engine
            rounds up; empty where that is not known.
        place: where that peak is: the layer, or None, and the phase; None where that is not known.
        budget_bytes: what the plan may use.
        margin_bytes: of the budget, left free for what a prediction may be wrong by.
        host_limit_bytes: host memory that the plan may fill.
        host_bytes: host memory that it fills.
        baseline_step_seconds: the time of a step when nothing is done; 0 where that is not known.
        step_seconds: the time of a step with this plan; 0 where that is not known.
        predicted_slowdown: extra step time of this plan, as a fraction of the plain step.
        shape: batch and length of the input that it was made for; 0 where there is none.
        fits: is the predicted peak within the budget?
        skipped: was the model left alone because it fits easily?
        provisional: is it the lean start before the first batch was seen?
        fingerprint: a stable hash of what the plan does.
    """

    def __init__(
        self,
        core: _core.Plan,
        *,
        provisional: bool = False,
        trade: Callable[[int], tuple[ParetoPoint, ...]] | None = None,
    ) -> None:
        found = core.summary()
        self._core = core
        self._trade = trade  # the request that it came from, asked for its trade
        self._state: int = found["state"]
        self.entries = tuple(Entry(*row) for row in core.entries())
        self.provisional = provisional
        self.layers: Mapping[str, tuple[str, ...]] = MappingProxyType(
            {entry.name: _TECHNIQUES[entry.action][0] for entry in self.entries}
        )
        self.state = _state_names(found["state"])
        self.baseline_peak_bytes: int = found["baseline_peak_bytes"]
        self.predicted_peak_bytes: int = found["predicted_peak_bytes"]
        self.parts: Mapping[str, int] = MappingProxyType(_parts(found["parts"], self.predicted_peak_bytes))
        self.place = self._place(found["peak_unit"], found["peak_phase"])
        self.budget_bytes: int = found["budget_bytes"]
        self.margin_bytes: int = found["margin_bytes"]
        self.host_limit_bytes: int = found["host_limit_bytes"]
        self.host_bytes: int = found["host_bytes"]
        self.baseline_step_seconds: float = found["baseline_ns"] / 1e9
        self.step_seconds: float = found["step_ns"] / 1e9
        self.predicted_slowdown: float = found["slowdown_ppm"] / 1e6
        self.shape: tuple[int, int] = (found["batch"], found["length"])
        self.skipped: bool = found["skipped"]
        self.fits: bool = self.predicted_peak_bytes <= self.budget_bytes
        self.fingerprint: str = f"{found['fingerprint']:016x}"

    def _place(self, unit: int, phase: int) -> tuple[str | None, str] | None:
        if phase == 0:
            return None
        return (self.entries[unit].name if unit >= 0 else None), PHASES[phase]

    def settled(self) -> Plan:
        """The same plan, to be used as it is."""
        return Plan(self._core, trade=self._trade) if self.provisional else self

    def __reduce__(self) -> Any:
        return _load, (self.to_json(), self.provisional)

    def __deepcopy__(self, memo: Any) -> Plan:
        return self

    def __copy__(self) -> Plan:
        return self

    @property
    def n_recomputed(self) -> int:
        """How many layers are recomputed, whole or in part."""
        return sum("recompute" in techniques for techniques in self.layers.values())

    @property
    def n_changed(self) -> int:
        """To how many layers something is done."""
        return sum(bool(techniques) for techniques in self.layers.values())

    def explain(self) -> str:
        """Why each layer got what it got, in bytes and milliseconds."""
        return self._core.explain()

    def pareto(self, n_points: int = 16) -> tuple[ParetoPoint, ...]:
        """The trade between memory and time that this model has, whatever the budget: from the fastest to the leanest.

        Raises:
            MemScaleError: the plan was read from a file, which does not have the profile that this takes.
        """
        if self._trade is None:
            raise MemScaleError(
                "this plan was read from JSON, which says what is done but not what the model could do: make it anew "
                "with memscale.plan(model, sample_input) to see its trade between memory and time"
            )
        return self._trade(n_points)

    def to_html(self) -> str:
        """The plan as one page of HTML that needs nothing but itself."""
        from ._page import page  # which reads plans

        return page(self)

    def to_json(self) -> str:
        """The plan as JSON text, for :meth:`from_json` and ``wrap(model, plan=...)``."""
        return self._core.to_json()

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that :meth:`to_json` wrote. Raises ``ValueError`` or ``MemScaleError`` on anything else."""
        if not isinstance(text, str):
            raise TypeError(f"Plan.from_json takes the text that to_json wrote, not {type(text).__name__}")
        return cls(_core.plan_from_json(text))

    def check_units(self, units: list[_core.UnitRow]) -> None:
        """Raise ``MemScaleError`` unless the plan is for a model with exactly these units."""
        self._core.check_units(units)

    def groups(self) -> dict[tuple[str, ...], list[Entry]]:
        """The layers by their techniques, the largest group first."""
        found: dict[tuple[str, ...], list[Entry]] = {}
        for entry in sorted(self.entries, key=lambda entry: entry.action):
            found.setdefault(self.layers[entry.name], []).append(entry)
        return dict(sorted(found.items(), key=lambda item: -len(item[1])))

    def _done(self) -> str:
        """What is done, without figures; empty if nothing is."""
        n = len(self.entries)
        groups = [entries for techniques, entries in self.groups().items() if techniques]
        texts = [(_TECHNIQUES[entries[0].action][1], len(entries)) for entries in groups]
        if len(texts) == 1:
            done = [texts[0][0].format(f"{texts[0][1]} of {n} layers")]
        else:
            done = [text.format(count) for text, count in texts]
            done[:1] = [f"of {n} layers {text}" for text in done[:1]]
        return ", ".join(done + [text for flag, text in _STATES.items() if self._state & flag])

    def describe(self) -> str:
        """What the plan does, in one sentence."""
        n = len(self.entries)
        if self.provisional:
            return f"start lean: recompute {self.n_recomputed} of {n} layers until the first batch has been seen"
        budget = f"budget {_gb(self.budget_bytes)}"
        if self.skipped:
            return f"nothing to do: a peak of {_gb(self.baseline_peak_bytes)} is under a quarter of the {budget}"
        facts = [f"peak {_gb(self.baseline_peak_bytes)} -> {_gb(self.predicted_peak_bytes)} predicted", budget]
        if self.host_bytes:
            facts.append(f"{_gb(self.host_bytes)} of host memory")
        done = self._done()
        if done and self.step_seconds:
            facts.append(
                f"step {duration(self.baseline_step_seconds)} -> {duration(self.step_seconds)} "
                f"({self.predicted_slowdown:+.0%}) predicted"
            )
        elif done:
            facts.append(f"step time {self.predicted_slowdown:+.0%} predicted")
        return f"{done or f'keep all {n} layers'}: {', '.join(facts)}"

    def __repr__(self) -> str:
        return f"<memscale.Plan {self.fingerprint}: {self.describe()}>"


def _load(text: str, provisional: bool) -> Plan:
    return Plan(_core.plan_from_json(text), provisional=provisional)


def _state_names(state: int) -> tuple[str, ...]:
    return tuple(_core.state_name(flag) for flag in _STATES if state & flag)


def _parts(sizes: list[int], peak_bytes: int) -> dict[str, int]:
    """By name. The rest: blocks that are larger than what was asked for, and what the engine rounds up."""
    if not any(sizes):
        return {}
    return {**dict(zip(PARTS, sizes)), "rest": max(0, peak_bytes - sum(sizes))}


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.3f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.3f} MB"
