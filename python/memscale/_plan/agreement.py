"""One plan for all ranks: that of the rank whose step needs the most of its budget.

What the ranks do to their layers need not be the same for gradients to be right, but then they wait for each other in
every step. So before the first step with a plan, and before the first one with held gradients, each rank tells the
others what it has planned, through the store that torch's process group was made with, and all take the same plan.
Nothing is sent to a device and no collective runs: a rank that does not answer in time costs a warning and no hang.
Plans that are made later, for larger batches or after a step that ran out of memory, are each rank's own.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Callable
from typing import Any

from torch import distributed, nn

from ..errors import BudgetError
from ..plans import Plan

_SECONDS = 60.0  # that a rank waits for the others

_n_agreed: dict[str, int] = {}  # how often ranks of a model have agreed: each time has keys of its own


def ranks_of(model: nn.Module) -> tuple[int, ...]:
    """The ranks that run this step together: of the DistributedDataParallel that runs, or of a mesh that has the
    parameters' shards. Empty: this one alone."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return ()
    ddp = nn.parallel.DistributedDataParallel
    active: Any = model if isinstance(model, ddp) else getattr(ddp, "_active_ddp_module", None)
    if active is not None and any(module is model for module in active.modules()):
        found = distributed.get_process_group_ranks(active.process_group)
    else:
        meshes = (getattr(p, "device_mesh", None) for p in model.parameters())
        mesh = next((mesh for mesh in meshes if mesh is not None), None)
        found = [] if mesh is None else mesh.mesh.flatten().tolist()
    return tuple(sorted(found)) if len(found) > 1 else ()


def _store() -> Any:
    find: Any = getattr(distributed.distributed_c10d, "_get_default_store", None)
    return None if find is None else find()


def _key(ranks: tuple[int, ...], units: list[tuple[str, int]]) -> str:
    """The same on all ranks, and no other agreement's."""
    name = hashlib.sha256(json.dumps([ranks, units]).encode()).hexdigest()[:16]
    _n_agreed[name] = _n_agreed.get(name, 0) + 1
    return f"memscale/{name}/{_n_agreed[name]}"


def _pressure(plan: Plan) -> float:
    return plan.baseline_peak_bytes / max(plan.budget_bytes - plan.margin_bytes - plan.occupied_bytes, 1)


def _exchange(key: str, ranks: tuple[int, ...], mine: dict[str, Any]) -> list[dict[str, Any]]:
    """What all of them say, in the order of ranks. Raises RuntimeError if one does not answer."""
    store = _store()
    if store is None:
        raise RuntimeError("this torch does not say which store its process group was made with")
    store.set(f"{key}/{distributed.get_rank()}", json.dumps(mine))
    keys = [f"{key}/{rank}" for rank in ranks]
    store.wait(keys, datetime.timedelta(seconds=_SECONDS))
    return [json.loads(store.get(name)) for name in keys]


def agree(
    ranks: tuple[int, ...],
    units: list[tuple[str, int]],
    make: Callable[[], Plan],
    fits: Callable[[Plan], bool],
    warn: Callable[[str], object],
) -> Plan:
    """The plan of the rank with the highest pressure; of several, of the first one.

    Args:
        ranks: that have to agree, this one among them.
        units: of the model, with their bytes of parameters.
        make: the plan of this rank.
        fits: can this rank run the plan of another one within its own budget?
        warn: says what went wrong.

    Raises:
        BudgetError: no plan fits here, or on another rank.
    """
    plan, error = None, None
    try:
        plan = make()
    except BudgetError as refused:
        error = refused
    mine = {"error": str(error)} if plan is None else {"pressure": _pressure(plan), "plan": plan.to_json()}
    try:
        answers = _exchange(_key(ranks, units), ranks, mine)
    except (RuntimeError, ValueError) as problem:  # torch's own errors of stores are RuntimeErrors
        answers = [mine]
        warn(f"the ranks could not agree on a plan, and each uses its own ({str(problem).splitlines()[0]})")
    if error is not None:
        raise error
    assert plan is not None
    for rank, answer in zip(ranks, answers):
        if "error" in answer:
            raise BudgetError(f"rank {rank}: {answer['error']}")
    chosen = max(answers, key=lambda answer: float(answer["pressure"]))
    theirs = plan if chosen["plan"] == mine["plan"] else Plan.from_json(chosen["plan"])
    if theirs is plan or fits(theirs):
        return theirs
    warn("the plan of the rank that needs the most does not fit on this one, which uses its own")
    return plan
