"""Plans that long_run.py gives to ``memscale.wrap``: one that is made and saved as by a user, and one with all actions.

The mixture gets what a plan has that is made within a budget: the spacer with which torch's allocator needs the least,
what it then needs by the simulation of its largest batch, and a budget which that just fits.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from torch import nn

import memscale
import zoo
from long_run_models import Batch
from memscale import _core
from memscale._plan.request import Request
from memscale._trace.model_modules import find_units
from memscale.plans import Plan
from memscale.profiles import Profile
from offload import NUMBERS

ACTIONS_IN_TURN = (
    "offload", "recompute_offload", "recompute", "keep", "recompute_except_attention", "offload_blocking",
    "recompute_except_products", "recompute_offload_blocking",
)  # fmt: skip

_OTHERS = 128 << 20  # bytes that may be occupied besides the step
_SPACER_UNITS, _SPACER_SIZES = 4, 8  # that are tried: the last units, and up to a third of the peak


def saved_plan(model: nn.Module, batch: Batch, config: memscale.Config, **known: Any) -> Plan:
    """The plan for this batch, as it would be in a file."""
    return Plan.from_json(memscale.plan(model, batch, config=config, **known).to_json())


def mixture(
    model: nn.Module, batch: Batch, blocks: tuple[str, ...], config: memscale.Config, *, is_bounded: bool, **known: Any
) -> Plan:
    """All actions in turn, on repeated layers, with copies in time for this batch, within a budget; without one, and
    without such a schedule, where the step cannot be simulated."""
    names = list(find_units(model))
    layers = [name for name in names if name.startswith(blocks)]
    by_name = {name: ACTIONS_IN_TURN[i % len(ACTIONS_IN_TURN)] for i, name in enumerate(layers)}
    actions, schedule, figures = [by_name.get(name, "keep") for name in names], None, {}
    try:
        profile = memscale.profile(model, batch, **known)
        packed = b"".join(NUMBERS[action].to_bytes(4, sys.byteorder) for action in actions)
        found = profile.core.simulate(profile.device, actions=packed, flags=_core.SIMULATE_FUSED)
        schedule = found["schedule"]
        figures = _figures(profile, packed, config) if is_bounded else {}
    except memscale.MemScaleError as error:
        print(f"  not simulated: {error}", flush=True)
    document = json.loads(zoo.plan_of(model, actions, schedule).to_json())
    return Plan.from_json(json.dumps(document | figures))


def _figures(profile: Profile, packed: bytes, config: memscale.Config) -> dict[str, Any]:
    """Of the plan, in JSON: what it needs, the budget which that fits, and its spacer."""
    is_gpu = profile.device.kind == "cuda"
    flags = Request(config, profile.device).core.simulation | (_core.SIMULATE_FUSED if profile.fused else 0)
    flags |= _core.SIMULATE_GROWING if is_gpu else 0

    def needs(spacer: tuple[int, int]) -> tuple[int, int]:
        options = {"flags": flags, "usable_bytes": 1 << 50, "spacer": spacer}
        found = profile.core.predict(profile.device, actions=packed, **options)
        return found["needed_bytes"], found["peak_bytes"]

    without, peak = needs((0, 0))
    best, spacer = without, (0, 0)
    n = len(profile.units)
    for unit in range(max(0, n - _SPACER_UNITS), n) if is_gpu else ():
        for part in range(1, _SPACER_SIZES + 1):
            tried = unit, peak * part // (3 * _SPACER_SIZES) // 512 * 512
            needed, highest = needs(tried)
            if needed < best and highest <= peak:
                best, spacer = needed, tried
    budget = _core.budget_for_peak(best + (_OTHERS if is_gpu else 0))
    found = {"predicted_peak_bytes": peak, "baseline_peak_bytes": max(peak, profile.peak_bytes)}
    found |= {"needed_bytes": best, "reserved_bytes": best, "budget_bytes": budget, "margin_bytes": budget // 64}
    found |= {"grows": int(is_gpu), "flags": ["fastest"], "skipped": 0}
    if spacer[1]:
        found |= {"spacer_unit": spacer[0], "spacer_bytes": spacer[1], "spacer_saved_bytes": without - best}
    return found
