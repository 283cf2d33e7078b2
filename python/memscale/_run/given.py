"""Plans that the user has given."""

from __future__ import annotations

from collections.abc import Container, Iterable

from .._base.vocabulary import ACTIONS, MODEL_OPTIONS
from ..errors import MemScaleError
from ..plans import Plan
from .recomputation import Unit


def check_given(plan: Plan, units: Iterable[Unit], runnable: Container[str]) -> None:
    """Is the plan one for these units, and does it use actions alone that can be run?"""
    plan.check_units([(unit.name, unit.param_bytes) for unit in units])
    actions = {ACTIONS[entry.action] for entry in plan.entries}
    more = {action.name for action in actions if action.identifier not in runnable}
    more |= {option.name for option in MODEL_OPTIONS if option.identifier in plan.model_options}
    if more:
        raise MemScaleError(
            f"the plan uses techniques that this version cannot run ({', '.join(sorted(more))}); make one with "
            "memscale.plan(model, sample_input)"
        )
