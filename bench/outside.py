"""Memory of this process as the system, torch and the driver see it. Nothing here asks MemScale.

* ``/proc/self/smaps``: memory without a file that forked children do not get (flag ``dc``), which is how MemScale maps
  host memory to offload to; what the driver maps (``/dev/nvidia*``), where memory is that it pinned itself; and what is
  locked (flag ``lo``). ``/proc/self/status``: resident, locked and pinned memory.
* ``resident``: what of each kind of mapping is resident, and ``malloc``: what the C library has handed out. They tell
  growth of MemScale's host memory from growth of libraries' memory, of code that is loaded, and of the driver.
* ``torch.cuda.host_memory_stats``: torch's own pinned memory.
* ``Pins``: every call of the driver that pins memory, whoever makes it, by a callback of CUPTI.

Each of them is tried on something known before it is believed (``blind``), since a reader that sees nothing always says
that nothing has changed.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import mmap
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

_HEADER = re.compile(r"^([0-9a-f]+-[0-9a-f]+) (\S{4}) \S+ \S+ (\d+)\s*(.*)$")
_TRIED_BYTES = 37 * mmap.PAGESIZE  # of a mapping that is made to see whether smaps shows it


class Mapping(NamedTuple):
    """A row of smaps."""

    address: str
    inode: str
    path: str
    n_bytes: int
    resident_bytes: int
    flags: tuple[str, ...]

    @property
    def is_not_forked(self) -> bool:
        return "dc" in self.flags and self.inode == "0" and not self.path.startswith("/dev/")


def _smaps() -> Iterator[Mapping]:
    address, inode, path, sizes = "", "", "", dict[str, int]()
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as file:
        for line in file:
            if header := _HEADER.match(line):
                address, _, inode, path = header.groups()
            elif line.startswith(("Size:", "Rss:")):
                sizes[line[: line.index(":")]] = int(line.split()[1]) * 1024
            elif line.startswith("VmFlags:"):
                yield Mapping(address, inode, path, sizes["Size"], sizes["Rss"], tuple(line.split()[1:]))


def mappings() -> dict[str, dict[str, int]]:
    """Bytes of mappings by address, for those of each kind: "not forked", "driver", "locked"."""
    found: dict[str, dict[str, int]] = {"not forked": {}, "driver": {}, "locked": {}}
    for row in _smaps():
        if row.is_not_forked:
            found["not forked"][row.address] = row.n_bytes
        if row.path.startswith("/dev/nvidia"):
            found["driver"][row.address] = row.n_bytes
        if "lo" in row.flags:
            found["locked"][row.address] = row.n_bytes
    return found


_SHARED = ("/dev/shm", "/dev/zero", "/memfd", "/SYSV")


def _kind(row: Mapping) -> str:
    """One of RESIDENT_KINDS."""
    if row.path.startswith("/dev/nvidia"):
        return "driver"
    if "lo" in row.flags:
        return "locked"
    if row.is_not_forked:
        return "not forked"
    if row.path == "[heap]":
        return "heap"
    if row.path.startswith(_SHARED) or "sh" in row.flags:
        return "shared"
    return "anonymous" if row.inode == "0" else "files"


RESIDENT_KINDS = ("heap", "anonymous", "not forked", "locked", "shared", "files", "driver")


def resident() -> dict[str, Any]:
    """Resident bytes of all mappings of each kind. "not forked" is MemScale's host memory, pinned or not, "shared"
    memory that the driver has pinned for others, "files" code and data of libraries."""
    found = dict.fromkeys(RESIDENT_KINDS, 0)
    for row in _smaps():
        found[_kind(row)] += row.resident_bytes
    return found


def resident_bytes() -> int:
    """Of the process; cheap enough to be asked around every step."""
    with open("/proc/self/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


class _Mallinfo(ctypes.Structure):
    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names)


def malloc() -> dict[str, int]:
    """Bytes that the C library has handed out, and bytes that it keeps; empty if it cannot tell."""
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return {}
    ask.restype = _Mallinfo
    found = ask()
    return {"used": found.uordblks + found.hblkhd, "free": found.fordblks}


def status() -> dict[str, int]:
    """Bytes by the names of the kernel: VmRSS, VmLck, VmPin."""
    found = {}
    with open("/proc/self/status", encoding="utf-8") as file:
        for line in file:
            name, _, rest = line.partition(":")
            if name in ("VmRSS", "VmLck", "VmPin"):
                found[name] = int(rest.split()[0]) * 1024
    return found


def _torch_pinned() -> dict[str, int] | None:
    """Of torch's allocator of pinned memory: how often it asked the driver, and for how much. None: unknown."""
    stats = getattr(torch.cuda, "host_memory_stats", None)
    if stats is None or not torch.cuda.is_initialized():
        return None
    with contextlib.suppress(RuntimeError, AttributeError):
        found = stats()
        return {
            key: int(found[key])
            for key in ("num_host_alloc", "num_host_free", "reserved_bytes.current")
            if key in found
        }
    return None


class Pins:
    """Calls of the driver and the runtime that pin memory, counted from now on; a call may count in both. Without CUPTI
    `problem` says why nothing is counted."""

    _DRIVER, _RUNTIME = 1, 2
    _ENTER = 0
    _NAMES = re.compile(r"(cuMem|cuda)(HostRegister|HostAlloc|AllocHost|MallocHost)(_|$)")

    def __init__(self, wanted: bool = True) -> None:
        self.calls: dict[str, int] = {}
        self.problem = "" if wanted else "not wanted"
        try:
            if wanted:
                self._start()
        except (OSError, RuntimeError, AttributeError) as error:
            self.problem = str(error)

    def _start(self) -> None:
        torch.cuda.init()
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            paths = {line.split()[-1] for line in file if "/libcupti.so" in line}
        if not paths:
            raise RuntimeError("torch has not loaded CUPTI")
        self._cupti = ctypes.CDLL(min(paths))
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(ctypes.c_int))
        self._callback = kind(self._count)
        self._names = self._find_names()
        if not self._names:
            raise RuntimeError("CUPTI names no call that pins")
        self._subscriber = ctypes.c_void_p()
        self._check("cuptiSubscribe", ctypes.byref(self._subscriber), self._callback, None)
        atexit.register(self._cupti.cuptiUnsubscribe, self._subscriber)
        for domain, number in self._names:
            self._check("cuptiEnableCallback", ctypes.c_uint32(1), self._subscriber, domain, ctypes.c_uint32(number))

    def _check(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cupti, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: error {code}")

    def _find_names(self) -> dict[tuple[int, int], str]:
        """By the domains and numbers that this version gives them."""
        found, text = {}, ctypes.c_char_p()
        for domain in (self._DRIVER, self._RUNTIME):
            for number in range(1, 1200):
                code = self._cupti.cuptiGetCallbackName(domain, ctypes.c_uint32(number), ctypes.byref(text))
                if code == 0 and text.value is not None and self._NAMES.match(text.value.decode()):
                    found[domain, number] = text.value.decode()
        return found

    def _count(self, _user: int, domain: int, number: int, site: Any) -> None:
        if site[0] == self._ENTER:
            name = self._names.get((domain, number), "unknown")
            self.calls[name] = self.calls.get(name, 0) + 1

    @property
    def n_calls(self) -> int:
        return sum(self.calls.values())


def blind(pins: Pins) -> dict[str, str]:
    """What cannot be believed here, and why: pin or map something, and see who notices."""
    problems = {}
    before = sum(mappings()["not forked"].values())
    tried = mmap.mmap(-1, _TRIED_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    tried.madvise(mmap.MADV_DONTFORK)
    if sum(mappings()["not forked"].values()) - before != _TRIED_BYTES:
        problems["smaps"] = "it does not show a mapping that is not forked"
    tried.close()
    if not torch.cuda.is_available():
        return problems | {"cupti": "no GPU", "torch": "no GPU"}
    torch.cuda.init()
    seen, stats = pins.n_calls, _torch_pinned()
    pinned = torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True)
    now = _torch_pinned()
    del pinned
    if pins.problem or pins.n_calls == seen:
        problems["cupti"] = pins.problem or "it did not see torch pin memory"
    if stats is None or now is None or now == stats:
        problems["torch"] = "host_memory_stats did not see torch pin memory"
    return problems


def snapshot(pins: Pins) -> dict[str, Any]:
    """Everything, at one time."""
    gc.collect()
    return {
        "status": status(),
        "mappings": mappings(),
        "torch_pinned": _torch_pinned(),
        "pinning_calls": dict(pins.calls),
        "n_threads": len(os.listdir("/proc/self/task")),
    }


def pinned_bytes(shot: dict[str, Any]) -> dict[str, int]:
    """Of a snapshot: bytes of each kind of mapping."""
    return {kind: sum(found.values()) for kind, found in shot["mappings"].items()}


def new_mappings(before: dict[str, Any], after: dict[str, Any]) -> dict[str, list[int]]:
    """Their bytes, by kind."""
    kinds = before["mappings"]
    return {kind: [n for at, n in after["mappings"][kind].items() if kinds[kind].get(at) != n] for kind in kinds}


def changes(before: dict[str, Any], after: dict[str, Any], problems: dict[str, str]) -> dict[str, Any]:
    """What was pinned between two snapshots, by who saw it; who is blind has no entry."""
    found: dict[str, Any] = {}
    if "smaps" not in problems:
        for kind in ("not forked", "locked"):
            old, new = before["mappings"][kind], after["mappings"][kind]
            found[f"smaps, {kind}: mappings that are new or gone"] = len(set(old.items()) ^ set(new.items()))
    for name in ("VmLck", "VmPin"):
        if name in before["status"]:
            found[f"{name}: bytes more"] = after["status"][name] - before["status"][name]
    if "torch" not in problems:
        key = "num_host_alloc"
        found["torch's pinned memory: calls"] = after["torch_pinned"].get(key, 0) - before["torch_pinned"].get(key, 0)
    if "cupti" not in problems:
        n_calls = [sum(shot["pinning_calls"].values()) for shot in (before, after)]
        found["calls of the driver that pin, by CUPTI"] = n_calls[1] - n_calls[0]
    return found
