"""What long_run.py asks of a run, whether it is so, and the table."""

from __future__ import annotations

import dataclasses
from typing import Any

MOST_RESERVED = 1.08  # of what was allocated at most
MOST_OVER_SIMULATED = 1.02  # of that, where a simulation says how much it has to be
MOST_RESIDENT = 64 << 20  # bytes that the process may grow by: caches of the system, of Python and of libraries
MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Case:
    model: str
    share: float | None = None  # a budget: of the way from the least to the plain step
    sizes: str = "random"
    compiled: bool = False
    given: bool = False  # a plan: a saved one within the budget, or the mixture if there is none
    plain: bool = False  # not wrapped
    cudnn: bool = True  # may attention be cuDNN's?


CASES = {
    "gpt2, plain": Case("gpt2", plain=True),
    "gpt2, budget": Case("gpt2", 0.3),
    "gpt2, tight budget": Case("gpt2", 0.08),
    "gpt2, saved plan": Case("gpt2", 0.3, given=True),
    "gpt2, mixture": Case("gpt2", given=True),
    "gpt2 compiled, plain": Case("gpt2", plain=True, compiled=True),
    "gpt2 compiled, budget": Case("gpt2", 0.3, compiled=True),
    "gpt2 compiled, mixture": Case("gpt2", given=True, compiled=True),
    "llava, plain": Case("llava", plain=True),
    "llava, budget": Case("llava", 0.3),
    "llava, mixture": Case("llava", given=True),
    "qwen2.5-vl, plain": Case("qwen2.5-vl", plain=True),
    "qwen2.5-vl, budget": Case("qwen2.5-vl", 0.3),
    "qwen2.5-vl, mixture": Case("qwen2.5-vl", given=True),
    "gpt2, mixture, one size": Case("gpt2", given=True, sizes="fixed"),
    "gpt2, mixture, growing": Case("gpt2", given=True, sizes="growing"),
    "gpt2 without cuDNN's attention, plain": Case("gpt2", plain=True, cudnn=False),
    "gpt2 without cuDNN's attention, budget": Case("gpt2", 0.3, cudnn=False),
}

SLICES = {
    "eager": ("gpt2, budget", "gpt2, plain"),
    "compiled": ("gpt2 compiled, budget", "gpt2 compiled, plain"),
    "vision": ("llava, budget", "llava, plain"),
    "given": ("gpt2, mixture", "gpt2, saved plan"),
    "attention": ("gpt2 without cuDNN's attention, budget", "gpt2 without cuDNN's attention, plain"),
}


def criteria(row: dict[str, Any], case: Case) -> dict[str, tuple[Any, bool]]:
    """Value and whether the bar is met, by name. Of a plain run the values count, and no bar."""
    found: dict[str, tuple[Any, bool]] = {"steps that ran": (row["steps"], row["steps"] == row["wanted_steps"])}
    found |= _allocator(row, case) | _process(row, case)
    if case.plain:
        return {name: (value, True) for name, (value, _) in found.items()}
    return found | _pool(row, case)


def simulated(row: dict[str, Any]) -> float:
    """What the plan needs, of its predicted peak; 0: that is not known."""
    return row["needed_bytes"] / row["predicted_peak_bytes"] if "needed_bytes" in row else 0.0


def _more(row: dict[str, Any], key: str) -> int:
    return row["end"][key] - row["warm"][key]


def _allocator(row: dict[str, Any], case: Case) -> dict[str, tuple[Any, bool]]:
    """What torch's allocator holds. A mixture may need more than others by its simulation."""
    if "allocated_bytes" not in row["end"]:
        return {}
    more = _more(row, "allocated_bytes")
    ratio = round(row["end"]["reserved_bytes"] / row["peak_bytes"], 4)
    bar = MOST_RESERVED if case.share is not None else max(MOST_RESERVED, simulated(row) * MOST_OVER_SIMULATED)
    found = {"allocated after a step: bytes more": (more, more <= MIB)}
    found["reserved, of the allocated peak"] = (ratio, ratio <= bar)
    if case.sizes != "growing":
        more = _more(row, "reserved_bytes")
        found["reserved: bytes more"] = (more, more <= 0)
    for key in ("retries", "ooms"):
        found[f"torch's allocator: {key}"] = (_more(row, key), _more(row, key) <= 0)
    return found


def _process(row: dict[str, Any], case: Case) -> dict[str, tuple[Any, bool]]:
    objects = _more(row, "objects")
    resident, before = (row[at]["outside"]["status"]["VmRSS"] for at in ("end", "warm"))
    resident -= before
    if case.sizes == "growing":
        resident -= row["end"]["pool"]["pool_bytes"] - row["warm"]["pool"]["pool_bytes"]
    return {
        "objects of Python more": (objects, objects <= row["steps"]),
        "resident: bytes more": (resident, resident <= MOST_RESIDENT),
    }


def _pool(row: dict[str, Any], case: Case) -> dict[str, tuple[Any, bool]]:
    """What is offloaded, and what is left of it."""
    warm, end = row["warm"]["pool"], row["end"]["pool"]
    grown, refused = end.get("n_grows", 0) - warm.get("n_grows", 0), end.get("n_refused", 0)
    found: dict[str, tuple[Any, bool]] = {}
    if case.sizes == "growing":
        most = end["peak_used_bytes"]
        fits = end["pool_bytes"] <= 1.1 * most + 2 * MIB
        found["pool, of what was used at most"] = (round(end["pool_bytes"] / most, 3), fits)
    else:
        found["pool grew later"] = (grown, grown == 0)
        found |= {name: (value, value == 0) for name, value in row["pinned_later"].items()}
    found["pool found no memory"] = (refused, refused == 0)
    found |= {f"pool {name}": (value, value == 0) for name, value in row["left"].items()}
    found["mappings left after detach: bytes"] = (row["left_after_detach"], row["left_after_detach"] == 0)
    copied = row["steps_with"].get("copied", 0)
    found["steps in which something was offloaded"] = (copied, copied > 0 or case.share is not None)
    return found


def beside_plain(rows: list[dict[str, Any]], cases: dict[str, Case]) -> None:
    """Judge what happens without MemScale, too, by the plain run of the same training, if it is there."""
    found = {cases[row["name"]]: row for row in rows if "criteria" in row}
    for case, row in found.items():
        plain = found.get(Case(case.model, sizes=case.sizes, compiled=case.compiled, plain=True, cudnn=case.cudnn))
        if case.plain or plain is None:
            continue
        row["beside"] = plain["name"]
        theirs = {key: value for key, (value, _) in plain["criteria"].items()}
        name = "resident: bytes more"
        value = row["criteria"][name][0]
        row["criteria"][name] = [value, value <= max(theirs[name], 0) + MOST_RESIDENT]
        name = "reserved, of the allocated peak"
        if "budget_bytes" not in row and name in theirs:
            value = row["criteria"][name][0]
            row["criteria"][name] = [value, value <= max(MOST_RESERVED, theirs[name])]


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each run, and below them one for each criterion that is not met."""
    heads = ("run", "steps, s", "step ms, longest", "plans", "copied in", "allocated more", "reserved of peak")
    heads += ("resident more", "pool MB, used", "grew later", "pinned later", "left", "met")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    problems = []
    for row in rows:
        if "criteria" not in row:
            lines.append(f"| {row['name']} | {row['error']} |" + " |" * 11)
            continue
        found, pool = {key: value for key, (value, _) in row["criteria"].items()}, row["end"]["pool"]
        missed = [f"{row['name']}: {key} {value}" for key, (value, ok) in row["criteria"].items() if not ok]
        problems += missed
        lines.append(
            f"| {row['name']} | {row['steps']}, {row['seconds']:.0f} | {row['median_ms']}, {row['longest_ms']} "
            f"| {row['n_plans']} | {row['steps_with'].get('copied', 0)} "
            f"| {found.get('allocated after a step: bytes more', '')} "
            f"| {found.get('reserved, of the allocated peak', '')} | {found['resident: bytes more'] / 1e6:.1f} MB "
            f"| {pool.get('pool_bytes', 0) / 1e6:.1f}, {pool.get('peak_used_bytes', 0) / 1e6:.1f} "
            f"| {found.get('pool grew later', '')} | {sum(map(abs, row['pinned_later'].values()))} "
            f"| {sum(row.get('left', {}).values()) + abs(row.get('left_after_detach', 0))} "
            f"| {len(row['criteria']) - len(missed)} of {len(row['criteria'])} |"
        )
    return "\n".join([*lines, "", *(f"* missed: {text}" for text in problems)])


def growth_table(rows: list[dict[str, Any]]) -> str:
    """A line for each run: torch's allocator, and by how much resident memory grew after the warm-up: in steps with new
    sizes and in others, and from the second mark to the last, by kind of mapping."""
    heads = ("run", "reserved of peak", "as simulated", "retries", "resident MB more", "in steps with new sizes")
    heads += ("with sizes seen before", "of it: heap", "anonymous", "not forked", "locked", "shared", "files", "driver")
    heads += ("malloc, used",)
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        if "growth" not in row:
            continue
        found = {key: value for key, (value, _) in row["criteria"].items()}
        ratio = simulated(row)
        cells = [row["name"], str(found.get("reserved, of the allocated peak", "")), f"{ratio:.3f}" if ratio else ""]
        cells += [str(found.get("torch's allocator: retries", "")), f"{found['resident: bytes more'] / 1e6:.1f}"]
        cells += [f"{group['bytes'] / 1e6:.1f} in {group['steps']}" for group in row["growth"].values()]
        marks = list(row["resident"].values())
        for name in ("heap", "anonymous", "not forked", "locked", "shared", "files", "driver", "malloc, used"):
            more = marks[-1].get(name, 0) - marks[min(1, len(marks) - 1)].get(name, 0) if marks else 0
            cells.append(f"{more / 1e6:.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
