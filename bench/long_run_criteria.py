"""What long_run.py asks of a run, whether it is so, and the table."""

from __future__ import annotations

import dataclasses
from typing import Any

MOST_RESERVED = 1.08  # of what was allocated at most
MOST_RESIDENT = 64 << 20  # bytes that the process may grow by: caches of the system, of Python and of libraries
MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Case:
    model: str
    share: float | None = None  # a budget: of the way from the least to the plain step; None: the mixture
    sizes: str = "random"
    compiled: bool = False


def criteria(row: dict[str, Any], case: Case) -> dict[str, tuple[Any, bool]]:
    """Value and whether the bar is met, by name."""
    warm, end, changed = row["warm"], row["end"], row["pinned_later"]
    found: dict[str, tuple[Any, bool]] = {"steps that ran": (row["steps"], True)}

    def no_more(name: str, key: str, bar: int = 0) -> None:
        more = end[key] - warm[key]
        found[name] = (more, more <= bar)

    if "allocated_bytes" in end:
        no_more("allocated after a step: bytes more", "allocated_bytes", MIB)
        ratio = round(end["reserved_bytes"] / row["peak_bytes"], 4)
        found["reserved, of the allocated peak"] = (ratio, ratio <= MOST_RESERVED)
        if case.sizes != "growing":
            no_more("reserved: bytes more", "reserved_bytes")
        for key in ("retries", "ooms"):
            no_more(f"torch's allocator: {key}", key)
    no_more("objects of Python more", "objects", row["steps"])
    resident, before = (row[at]["outside"]["status"]["VmRSS"] for at in ("end", "warm"))
    resident -= before
    if case.sizes == "growing":
        resident -= end["pool"]["pool_bytes"] - warm["pool"]["pool_bytes"]
    found["resident: bytes more"] = (resident, resident <= MOST_RESIDENT)
    grown = end["pool"].get("n_grows", 0) - warm["pool"].get("n_grows", 0)
    if case.sizes == "growing":
        pool, most = end["pool"]["pool_bytes"], end["pool"]["peak_used_bytes"]
        found["pool, of what was used at most"] = (round(pool / most, 3), pool <= 1.1 * most + 2 * MIB)
    else:
        found["pool grew later"] = (grown, grown == 0)
        found |= {name: (value, value == 0) for name, value in changed.items()}
    found["pool found no memory"] = (end["pool"].get("n_refused", 0), end["pool"].get("n_refused", 0) == 0)
    found |= {f"pool {name}": (value, value == 0) for name, value in row["left"].items()}
    found["mappings left after detach: bytes"] = (row["left_after_detach"], row["left_after_detach"] == 0)
    copied = row["steps_with"].get("copied", 0)
    found["steps in which something was offloaded"] = (copied, copied > 0 or case.share is not None)
    return found


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
            f"| {sum(row['left'].values()) + abs(row['left_after_detach'])} "
            f"| {len(row['criteria']) - len(missed)} of {len(row['criteria'])} |"
        )
    return "\n".join([*lines, "", *(f"* missed: {text}" for text in problems)])
