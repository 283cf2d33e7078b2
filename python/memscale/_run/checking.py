"""The plan checked by use: what a step allocates and how long it takes, layer by layer, next to its simulation.

Two steps of a plan are measured, one for memory and one for time, once the plan has settled: in its first step layers
are checked, in its second kept results are compared, and before that the memory of a step is taken. Only steps count
that the plan was simulated for. What was measured is compared in C (``src/sim/compare.c``); here it is said, once.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence

from torch import nn

from .. import _core
from .._base.vocabulary import ACTIONS
from .._hw.memory import main_device
from .._plan.by_shape import Planner
from .._show.text import size
from .._trace.sample import Sizes
from ..errors import MemScaleError
from ..plans import Plan
from .measuring import GpuSource, Measurement, Source
from .messages import Messages
from .recomputation import Unit
from .torch_state import is_on_one_gpu

_FIRST = 3  # of the steps with a plan, that may be measured
_MAX_TRIES = 4  # steps that are measured for one plan
_MAX_WAITS = 16  # steps that begin until the times of a measured one are there
_MAX_PLANS = 4  # of one model that are checked

BOUNDARIES = {
    _core.BOUNDARY_FORWARD_BEGINS: "forward begins",
    _core.BOUNDARY_FORWARD_ENDS: "forward ends",
    _core.BOUNDARY_BACKWARD_BEGINS: "backward begins",
    _core.BOUNDARY_PEAK: "peak",
}


@dataclasses.dataclass(frozen=True)
class Reading:
    """What was read where a layer began or ended, next to what was predicted.

    Attributes:
        layer: its name; None for the peak.
        boundary: ``"forward begins"``, ``"forward ends"``, ``"backward begins"`` or ``"peak"``.
        measured_bytes: allocated beyond what was allocated when the forward of the model began.
        predicted_bytes: the same in the simulation; None if this layer runs in another way there.
        measured_ns: time of the device since the forward of the model began; None if it was not measured.
        predicted_ns: the same in the simulation.
    """

    layer: str | None
    boundary: str
    measured_bytes: int
    predicted_bytes: int | None
    measured_ns: int | None
    predicted_ns: int | None


@dataclasses.dataclass(frozen=True)
class Measured:
    """A step that was measured, next to its simulation.

    Attributes:
        readings: in the order of the step.
        start_bytes: what was allocated on the device when its forward began.
        margin_bytes: what the plan keeps free for errors.
        difference_bytes: measured less predicted, where they differ most: at :attr:`worst`.
    """

    readings: tuple[Reading, ...] = dataclasses.field(repr=False)
    start_bytes: int
    margin_bytes: int
    difference_bytes: int
    _worst: int = dataclasses.field(repr=False)
    _first: int = dataclasses.field(repr=False)

    @property
    def worst(self) -> Reading | None:
        """Where measured and predicted bytes differ most; None if nothing could be compared. If more was allocated
        than predicted, by more than the margin, that counts before what was allocated less."""
        return self.readings[self._worst] if self._worst >= 0 else None

    @property
    def first(self) -> Reading | None:
        """The first reading that differs by more than the margin, in the direction of the worst; None: none does."""
        return self.readings[self._first] if self._first >= 0 else None


def source_of(model: nn.Module) -> Source | None:
    """Where to read what the model's steps allocate; None where nothing can be read."""
    return GpuSource(main_device(model)) if is_on_one_gpu(model) else None


class _State:
    """How far the check of one plan is."""

    def __init__(self) -> None:
        self.n_steps = 0
        self.n_tries = 0
        self.n_waits = 0
        self.measured: Measured | None = None
        self.bytes: Measurement | None = None
        self.times: Measurement | None = None  # whose moments may still have to come
        self.is_over = False


@dataclasses.dataclass
class _Running:
    """The measurement of the step that runs."""

    plan: Plan
    state: _State
    measurement: Measurement
    peak_bytes: int  # when it began


class Checking:
    """Checks the plans of one wrapped model by their use.

    Attributes:
        measured: the step that was measured last.
    """

    def __init__(self, model: nn.Module, units: Sequence[Unit], planner: Planner, messages: Messages) -> None:
        self.measured: Measured | None = None
        self._units = units
        self._planner = planner
        self._messages = messages
        self._source = source_of(model)
        self._states: weakref.WeakKeyDictionary[Plan, _State] = weakref.WeakKeyDictionary()
        self._n_plans = 0
        self._running: _Running | None = None

    def begin_step(self, plan: Plan | None, planned_for: tuple[Sizes, bool] | None) -> None:
        """The forward of a step begins.

        Args:
            plan: that it runs with.
            planned_for: the sizes of its inputs, and whether gradients are held; None if the plan is not ours.
        """
        if self._source is None:
            return
        self.end_step(plan)
        state = None if plan is None or planned_for is None or plan.n_changed == 0 else self._state_of(plan)
        if plan is None or state is None or state.is_over:
            return
        if state.times is not None:
            self._read_times(state, state.times)
        elif planned_for == (self._planner.first_sizes, False):
            state.n_steps += 1
            if state.n_steps >= _FIRST and self._source.is_ready():
                self._measure(self._source, plan, state)

    def _state_of(self, plan: Plan) -> _State | None:
        state = self._states.get(plan)
        if state is None and self._n_plans < _MAX_PLANS:
            self._n_plans += 1
            state = self._states[plan] = _State()
        return state

    def _measure(self, source: Source, plan: Plan, state: _State) -> None:
        state.n_tries += 1
        state.is_over = state.n_tries > _MAX_TRIES
        if state.is_over:
            return
        read = source.allocated_bytes if state.bytes is None else source.moment
        try:
            self._running = _Running(plan, state, Measurement(self._units, read), source.peak_bytes())
        except Exception:  # it cannot be read
            state.is_over = True

    def end_step(self, plan: Plan | None, *, has_stepped: bool = False) -> None:
        """Backward is over: an optimizer steps, or the next forward begins. `plan`: the one that is in force now."""
        running, self._running = self._running, None
        if running is None:
            return
        running.measurement.close()
        if running.plan is not plan or not running.measurement.is_whole:
            return
        if running.state.bytes is None:
            self._take_bytes(running, has_stepped)
        else:
            running.state.times = running.measurement

    def drop(self) -> None:
        """The step that runs is no step: it raised, or MemScale is detached."""
        running, self._running = self._running, None
        if running is not None:
            running.measurement.close()

    # Memory

    def _take_bytes(self, running: _Running, has_stepped: bool) -> None:
        start, margin = running.measurement.start, running.plan.margin_bytes
        rows = [(row.unit, row.boundary, row.value - start) for row in running.measurement.rows]
        peak = self._peak_of(running) if has_stepped else 0
        if peak > 0:
            rows.append((-1, _core.BOUNDARY_PEAK, peak - start))
        try:
            found = self._planner.compare(running.plan, [unit.name for unit in self._units], rows)
        except (MemScaleError, ValueError):
            running.state.is_over = True
            return
        readings = tuple(
            Reading(
                layer=None if number < 0 else self._units[number].name,
                boundary=BOUNDARIES[boundary],
                measured_bytes=n_bytes,
                predicted_bytes=None if predicted is None else predicted[0],
                measured_ns=None,
                predicted_ns=None if predicted is None or boundary == _core.BOUNDARY_PEAK else predicted[1],
            )
            for (number, boundary, n_bytes), predicted in zip(rows, found["predicted"])
        )
        measured = Measured(readings, start, margin, found["difference_bytes"], found["worst"], found["first"])
        running.state.bytes, running.state.measured = running.measurement, measured
        self.measured = measured
        if not any(ACTIONS[entry.action].needs_link for entry in running.plan.entries):  # else it depends on the link
            self._say(measured)

    def _peak_of(self, running: _Running) -> int:
        """The peak of the step, if no other was as high; else 0."""
        assert self._source is not None
        try:
            peak = self._source.peak_bytes()
        except Exception:
            return 0
        return peak if peak > running.peak_bytes else 0

    # Time

    def _read_times(self, state: _State, times: Measurement) -> None:
        """The times of the step before, if the device is done with it."""
        state.n_waits += 1
        state.is_over = state.n_waits > _MAX_WAITS
        assert state.bytes is not None
        assert state.measured is not None
        keys = [[row[:2] for row in measurement.rows] for measurement in (state.bytes, times)]
        if keys[0] != keys[1]:  # it was another step
            state.times = None
            return
        try:
            if not times.rows[-1].value.query():
                return
            ns = [round(1e6 * times.start.elapsed_time(row.value)) for row in times.rows]
        except Exception:
            state.is_over = True
            return
        readings = state.measured.readings
        timed = [dataclasses.replace(reading, measured_ns=n) for reading, n in zip(readings, ns)]
        self.measured = dataclasses.replace(state.measured, readings=(*timed, *readings[len(timed) :]))
        state.is_over, state.bytes, state.times, state.measured = True, None, None, None

    # What is said

    def _say(self, measured: Measured) -> None:
        if measured.first is None:  # by less than the plan keeps free
            return
        if measured.difference_bytes > 0:
            self._messages.warn(f"{_found(measured)}. {_why(measured)}{self._what_to_do()}")
        else:
            self._messages.once(f"{_found(measured)}. The plan may do more than it has to")

    def _what_to_do(self) -> str:
        profile = self._planner.profile
        if profile is not None and profile.source == "static":
            advice = "Config(use_static_profiling=False) plans from a step that is watched while it runs"
        else:
            advice = "A lower memory_budget_gb leaves more room"
        return f"Steps may run out of memory. {advice}; please report it, with the code of that layer"


def _found(measured: Measured) -> str:
    """What differs, and where."""
    worst, first = measured.worst, measured.first
    assert worst is not None
    assert worst.predicted_bytes is not None
    than = "more" if measured.difference_bytes > 0 else "less"
    found, expected = (size(measured.start_bytes + n) for n in (worst.measured_bytes, worst.predicted_bytes))
    share = abs(measured.difference_bytes) / max(measured.start_bytes + worst.predicted_bytes, 1)
    text = f"{found} were allocated {_place(worst)} where {expected} were predicted ({share:.1%} {than}, "
    text += f"{size(abs(measured.difference_bytes))}); the plan keeps {size(measured.margin_bytes)} free for errors"
    return text if first is None or first is worst else f"{text}. The difference begins {_place(first)}"


def _why(measured: Measured) -> str:
    """Is it what happens between the model's forward and its backward?"""
    backward = (r for r in measured.readings if r.boundary == BOUNDARIES[_core.BOUNDARY_BACKWARD_BEGINS])
    is_between = measured.first is next(backward, None)
    return "A loss outside of the model is predicted as the sum of its outputs. " if is_between else ""


def _place(reading: Reading) -> str:
    if reading.layer is None:
        return "at the peak"
    phase = "forward" if reading.boundary == BOUNDARIES[_core.BOUNDARY_FORWARD_BEGINS] else "backward"
    return f"before the {phase} of layer '{reading.layer}'"
