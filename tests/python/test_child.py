"""The throw-away process that analyses a step: whatever happens in it, this process goes on, and is as it was."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import memscale
import zoo
from memscale import _core
from memscale._trace import child
from memscale._trace.child import ChildError, ForeignError, run_in_children


def run(function, **options):
    [value] = run_in_children(function, **options)
    return value


def crash():
    os.kill(os.getpid(), signal.SIGSEGV)


def leave():
    os._exit(3)


def spin():
    while True:
        pass


def eat_memory():
    blocks = []
    while True:
        blocks.append(bytearray(1 << 26))


TROUBLE = {
    "crash": (crash, ChildError, "signal 11"),
    "abort": (os.abort, ChildError, "signal 6"),
    "leave": (leave, ChildError, "status 3"),
    "hang": (lambda: time.sleep(1000), ChildError, "waited for something"),
    "spin": (spin, ChildError, "took longer"),
    "memory": (eat_memory, ForeignError, "MemoryError"),
    "raise": (lambda: 1 / 0, ForeignError, "ZeroDivisionError: division by zero"),
    "exit": (sys.exit, ForeignError, "SystemExit"),
    "interrupt": (lambda: signal.raise_signal(signal.SIGINT), None, ""),
    "print": (lambda: print("never seen", flush=True), None, ""),
    "deep": (lambda: exec("f = lambda: f()\nf()"), ForeignError, "RecursionError|NameError"),
}


# Only what the limit is for has a short one: on a busy machine all else takes its time.
LIMITS = {"hang": ("_QUIET_SECONDS", 0.5), "spin": ("_LIMIT_SECONDS", 2.0), "memory": ("_MEMORY_SHARE", 0.01)}


def check_trouble(name):
    function, error, text = TROUBLE[name]
    if error is None:
        assert run(function) is None
        return
    with pytest.raises(error, match=text):
        run(function)


@pytest.mark.parametrize("name", TROUBLE)
def test_the_parent_survives(name, monkeypatch, capfd):
    if name in LIMITS:
        monkeypatch.setattr(child, *LIMITS[name])
    start = time.monotonic()
    check_trouble(name)
    assert time.monotonic() - start < 20
    assert capfd.readouterr() == ("", "")
    monkeypatch.undo()
    assert run(lambda: 7) == 7


def test_values_come_back():
    value = {"a": [1, 2.5, "text", b"bytes", None, True], "b": (1, (2,))}
    assert run(lambda: value) == value
    assert run_in_children(*(lambda i=i: i * i for i in range(4))) == [0, 1, 4, 9]


def test_children_start_from_the_same_state():
    numbers = iter(range(100))
    assert run_in_children(*[lambda: next(numbers)] * 3) == [0, 0, 0]
    assert next(numbers) == 0


def test_random_numbers_are_those_of_the_parent():
    expected = random.getstate()
    drawn = run(lambda: [random.random(), float(torch.rand(()))])
    assert random.getstate() == expected
    assert drawn == [random.random(), float(torch.rand(()))]


def test_files_stay_as_they_are(tmp_path):
    old = tmp_path / "old"
    old.write_text("before")
    handle = old.open("a")
    attempts = {
        "create": lambda: (tmp_path / "new").write_text("x"),
        "truncate": lambda: old.write_text("x"),
        "change": lambda: os.write(os.open(old, os.O_WRONLY), b"x"),
        "remove": old.unlink,
        "rename": lambda: old.rename(tmp_path / "other"),
        "mkdir": lambda: (tmp_path / "folder").mkdir(),
        "open handle": lambda: (handle.write("x"), handle.flush()),
        "temporary": lambda: tempfile.NamedTemporaryFile(),  # noqa: SIM115
        "chmod": lambda: old.chmod(0o777),
    }
    before = old.stat()
    for name, attempt in attempts.items():
        with pytest.raises(ForeignError, match="Error"):
            run(attempt)
        assert [p.name for p in tmp_path.iterdir()] == ["old"], name
        assert old.read_text() == "before", name
    assert old.stat().st_mode == before.st_mode
    handle.close()


def test_the_user_never_sees_it():
    """No signal, nothing to wait for, no descriptor, no thread is left; and no warning about forks."""
    seen = []
    before = signal.signal(signal.SIGCHLD, lambda *args: seen.append(args))
    files = len(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    try:
        assert run(lambda: 1) == 1
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert not seen
    assert len(os.listdir("/proc/self/fd")) == files
    assert threading.active_count() == threads


def test_an_interrupt_ends_the_wait():
    """Ctrl-C while a child is at work, also where the shell that started the tests ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    timer.start()
    start = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            run(spin)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - start < 10
    assert run(lambda: 1) == 1


def test_it_ends_with_its_parent(tmp_path):
    """A parent that is killed leaves no child behind."""
    code = """
import os, sys, time
from memscale._trace.child import run_in_children
import memscale
def work():
    while True: pass
print(os.getpid(), flush=True)
run_in_children(work)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    process.stdout.readline()

    def children():
        path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        return path.read_text().split() if path.exists() else []

    deadline = time.monotonic() + 60
    while not children() and time.monotonic() < deadline:
        time.sleep(0.05)
    found = children()
    assert found
    process.kill()
    process.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in found) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in found)


def test_without_children(monkeypatch):
    monkeypatch.setenv("MEMSCALE_NO_FORK", "1")
    with pytest.raises(ChildError, match="MEMSCALE_NO_FORK"):
        run(lambda: 1)


def test_arguments_are_checked():
    with pytest.raises(TypeError):
        _core.run_in_children([lambda: b""], quiet_seconds=1, limit_seconds=1)
    with pytest.raises(ValueError, match="above 0"):
        _core.run_in_children((lambda: b"",), quiet_seconds=0, limit_seconds=1)
    [answer] = _core.run_in_children((lambda: "no bytes",), quiet_seconds=1, limit_seconds=5)
    assert isinstance(answer, OSError)
    assert _core.run_in_children((), quiet_seconds=1, limit_seconds=5) == []


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return torch.full((16,), float(i))


def test_between_workers_of_a_loader():
    """Workers that were started before the analysis go on after it."""
    loader = torch.utils.data.DataLoader(Squares(), batch_size=4, num_workers=2, persistent_workers=True)
    batches = iter(loader)
    first = next(batches)
    model = zoo.Chain(zoo.Block, 3)
    known = memscale.profile(model, first)
    assert known.source == "static"
    memscale.wrap(model, memscale.Config(force_optimize=True, enable_logging=False))
    for x in batches:
        model(x).sum().backward()
    assert sum(len(x) for x in loader) == 64
    del batches, loader


def busy_threads(n, stop):
    def allocate():
        while not stop.is_set():
            torch.empty(1000).fill_(1.0).sum()

    threads = [threading.Thread(target=allocate, daemon=True) for _ in range(n)]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.parametrize(("n_threads", "n_times"), [(32, 3), pytest.param(8, 200, marks=pytest.mark.long)])
def test_with_many_threads(n_threads, n_times):
    """A child has one thread; what the others held at that moment must not stop it, or is found out in time. Threads
    that wait for Python's lock hold no other, so many times need fewer threads: every one takes its turn before the
    analysis goes on."""
    stop = threading.Event()
    threads = busy_threads(n_threads, stop)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)), zoo.floats(2, 8)
    try:
        for _ in range(n_times):
            start = time.monotonic()
            assert memscale.profile(model, x).source == "static"
            assert time.monotonic() - start < 60
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.long
def test_two_hundred_troubles():
    names = [name for name in TROUBLE if name not in LIMITS]
    for i in range(200):
        check_trouble(names[i % len(names)])
    assert run(lambda: 1) == 1
