"""What crosses the boundary to C as numbers: actions, model options, techniques, categories, phases, modes.

Their tables are in C, with names, sentences and what this version can run; this module only gives the fields of a row
names. Nothing else in this package lists them.
"""

from __future__ import annotations

from typing import NamedTuple

from .. import _core


class Action(NamedTuple):
    """What can be done to a layer."""

    number: int
    name: str  # for people
    identifier: str  # for files and programs
    sentence: str  # with %s for the layers
    letter: str
    techniques: int  # that must be allowed
    keeps: int  # kinds of results that a recomputation need not compute
    recomputes: bool  # runs as recomputed, else as plain
    needs_link: bool
    is_runnable: bool  # this version can run it
    waits: bool  # nothing else runs during its copies


class ModelOption(NamedTuple):
    """What can be done to the model as a whole."""

    flag: int
    name: str
    identifier: str
    sentence: str
    techniques: int
    is_runnable: bool


ACTIONS = tuple(Action(*row) for row in _core.ACTIONS)
KEEP = _core.ACTION_KEEP  # the one action that changes nothing
MODEL_OPTIONS = tuple(ModelOption(*row) for row in _core.MODEL_OPTIONS)

REASONS = tuple(name for _, name, _ in _core.REASONS)  # why a layer got its action, for people

# Parts of a peak, in the order of C: identifiers, and names for people by identifier.
CATEGORIES = tuple(identifier for _, _, identifier in _core.CATEGORIES)
CATEGORY_NAMES = {identifier: name for _, name, identifier in _core.CATEGORIES}
_CATEGORY = {identifier: number for number, _, identifier in _core.CATEGORIES}
ACTIVATION, PARAMETER = _CATEGORY["activations"], _CATEGORY["parameters"]
BUFFER, INPUT = _CATEGORY["buffers"], _CATEGORY["inputs"]
GRADIENT, OPTIMIZER_STATE = _core.CATEGORY_GRADIENT, _core.CATEGORY_OPTIMIZER

# Phases of a step: identifiers in the order of C, and their numbers.
PHASES = tuple(identifier for _, _, identifier, _ in _core.PHASES)
_PHASE = {identifier: number for number, _, identifier, _ in _core.PHASES}
SETUP, FORWARD, LOSS, BACKWARD = (_PHASE[phase] for phase in ("setup", "forward", "loss", "backward"))
OPTIMIZER_FIRST, OPTIMIZER, END = (_PHASE[phase] for phase in ("optimizer_step_first", "optimizer_step", "end"))


def option_names(flags: int) -> tuple[str, ...]:
    """The identifiers of model options."""
    return tuple(option.identifier for option in MODEL_OPTIONS if flags & option.flag)
