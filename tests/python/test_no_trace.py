"""The analysis of a step leaves no trace in the user's process.

A model whose forward touches all it can is trained plainly and wrapped. Afterwards everything that it touched is the
same, object by object, and its forward ran exactly as often: everywhere with a plan that does nothing, and outside of
recomputed layers with one that does.
"""

import collections
import contextvars
import functools
import itertools
import logging
import os
import random
import signal
import sys
import threading
import types
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules import module as torch_modules
from torch.optim.optimizer import register_optimizer_step_post_hook

import compare
import fixtures  # noqa: F401  (the settings of all tests, in the processes of the ranks too)
import ranks
import zoo

TOUCHED = types.SimpleNamespace()  # a global; each training begins with an empty one
DEPTH = contextvars.ContextVar("DEPTH", default=0)
NAME = "MEMSCALE_TEST_FORWARDS"  # of an environment variable that forward counts in


class Everything:
    """Does something to all kinds of state, and makes of it a number that the loss depends on."""

    n_made = 0  # of this class, below counted in a subclass of each training

    def __init__(self):
        self.torch_random = torch.Generator().manual_seed(1)
        self.numpy_random = np.random.default_rng(2)
        self.old_numpy_random = np.random.RandomState(3)
        self.python_random = random.Random(4)
        self.iterator = iter(range(1000))
        self.count = itertools.count()
        self.cycle = itertools.cycle([1.0, 2.0, 3.0])
        self.running = (i / 7 for i in range(1000))
        self.nested = {"tables": {"by size": {}}}
        self.recent = collections.deque(maxlen=3)
        self.log = []
        self.local = threading.local()
        self.cached = functools.lru_cache(self._table)
        self.logger = logging.Logger("touched")
        self.logger.addHandler(logging.NullHandler())
        self.logger.handlers[0].handle = self.log.append

    def _table(self, n):
        return torch.linspace(0, 1, n, device=self.device)

    def numbers(self):
        """One from each generator and iterator."""
        yield float(torch.rand((), generator=self.torch_random))
        yield self.numpy_random.random()
        yield self.old_numpy_random.rand()
        yield self.python_random.random()
        yield from (next(self.iterator), next(self.count), next(self.cycle), next(self.running))
        yield from (float(np.random.rand()), random.random())

    def caches(self, x):
        """A table from each cache, made where it is needed first."""
        n = x.shape[-1]
        self.device = x.device
        tables = self.nested["tables"]["by size"]
        if n not in tables:
            tables[n] = torch.linspace(0, 1, n, device=x.device)
        if not hasattr(TOUCHED, "table"):
            TOUCHED.table = tables[n] + 1
        if getattr(type(self), "table", None) is None:
            type(self).table = tables[n] + 2
        if not hasattr(self.local, "table"):
            self.local.table = tables[n] + 3
        self.recent.append(tables[n].clone())
        return [tables[n], TOUCHED.table, type(self).table, self.local.table, self.cached(n), *self.recent]

    def count_calls(self):
        type(self).n_made += 1
        TOUCHED.calls = getattr(TOUCHED, "calls", 0) + 1
        DEPTH.set(DEPTH.get() + 1)
        os.environ[NAME] = str(int(os.environ.get(NAME, 0)) + 1)
        self.logger.warning("called")
        return type(self).n_made + TOUCHED.calls + DEPTH.get() + int(os.environ[NAME]) + len(self.log)

    def __call__(self, x):
        number = sum(self.numbers()) + self.count_calls()
        return x + sum(self.caches(x)) + number / 1000 + torch.rand(())


class Files:
    """Appends to a file, replaces another, and writes to one that stays open."""

    def __init__(self, folder):
        self.folder = folder
        self.open = (folder / "open.txt").open("w+")

    def __call__(self, x):
        with (self.folder / "appended.txt").open("a") as file:
            file.write("called\n")
        number = self.folder / "number.txt"
        n = int(number.read_text()) if number.exists() else 0
        number.unlink(missing_ok=True)
        number.write_text(str(n + 1))
        self.open.write("called\n")
        self.open.flush()
        return x + n / 10

    def contents(self):
        self.open.close()
        return {path.name: path.read_text() for path in sorted(self.folder.iterdir())}


class Collectives:
    """Ranks add up, and tell each other how large their batches are."""

    def __call__(self, x):
        total = torch.zeros(1, device=x.device) + len(x)
        dist.all_reduce(total)
        sizes = [0, 0]
        dist.all_gather_object(sizes, len(x))
        return x + total / 100 + sum(sizes) / 100


class TouchingBlock(zoo.Block):
    def __init__(self, touches):
        super().__init__()
        self.touches, self.n_calls = touches, 0

    def forward(self, x):
        self.n_calls += 1
        for touch in self.touches:
            x = touch(x)
        return super().forward(x)


class Model(nn.Module):
    """Touches before each of its blocks; where `inside`, the blocks touch."""

    def __init__(self, touches, inside):
        super().__init__()
        block = functools.partial(TouchingBlock, touches) if inside else zoo.Block
        self.blocks = nn.ModuleList([block() for _ in range(3)])
        self.touches = () if inside else touches
        self.outside = [0]

    def forward(self, x):
        self.outside[0] += 1
        for block in self.blocks:
            for touch in self.touches:
                x = touch(x)
            x = block(x)
        return x


def process():
    """State of the process that nothing here should change."""
    return {
        "environment": {name: value for name, value in os.environ.items() if name != NAME},
        "folder": os.getcwd(),
        "threads": threading.active_count(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "children": [path.read_text() for path in _children()],
        "handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "filters": list(warnings.filters),
        "loggers": logging.root.handlers + logging.getLogger("memscale").handlers,
        "output": (sys.stdout, sys.stderr, sys.gettrace(), sys.getprofile(), sys.excepthook),
        "torch": (
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_num_threads(),
            torch.autograd.is_multithreading_enabled(),
            torch._C._len_torch_dispatch_stack(),
            torch._C._len_torch_function_stack(),
            torch._C._autograd._top_saved_tensors_default_hooks(True),
        ),
        "tables": [list(getattr(torch_modules, name).values()) for name in _TABLES],
    }


_TABLES = ("_global_forward_pre_hooks", "_global_forward_hooks", "_global_backward_hooks")


def _children():
    return sorted(Path("/proc/self/task").glob("*/children"))


def train(training, inside=False, files=False, collectives=False, sizes=(4, 4, 4)):
    """Three steps of a model that touches; everything that it could reach, and the process."""
    vars(TOUCHED).clear()
    os.environ.pop(NAME, None)
    before = process()
    touches = [type("Everything", (Everything,), {})()]
    if files:
        touches.append(Files(training.folder))
    if collectives:
        touches.append(Collectives())
    left = contextvars.copy_context().run(_train, training, touches, inside, sizes)
    left["files"] = [touch.contents() for touch in touches if isinstance(touch, Files)]
    compare.same(before, process(), "process")
    return left


def _train(training, touches, inside, sizes):
    model = Model(touches, inside)
    seen = []
    hooks = [
        torch_modules.register_module_forward_pre_hook(
            lambda module, args: seen.append("forward") if module is model else None
        ),
        register_optimizer_step_post_hook(lambda optimizer, args, kwargs: seen.append(type(optimizer).__name__)),
    ]
    model.register_forward_hook(lambda module, args, output: seen.append("hook"))
    training.wrap(model, zoo.floats(sizes[0], 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for i, n in enumerate(sizes):
        loss = zoo.loss_of(model(zoo.floats(n, 16, seed=i)))
        loss.backward()
        training.see(loss)
        optimizer.step()
        optimizer.zero_grad()
    for hook in hooks:
        hook.remove()
    counts = {"depth": DEPTH.get(), "touches": os.environ[NAME], "hooks": seen}
    return {"model": model, "optimizer": optimizer, "global": dict(vars(TOUCHED)), "counts": counts}


def test_everything_with_a_plan_that_does_nothing(tmp_path):
    """The layers touch everything themselves; nothing is recomputed."""
    training = compare.check(functools.partial(train, inside=True), "default", tmp_path)
    assert training.recomputed == []


def test_everything_with_a_sample_and_a_plan_that_does_nothing(tmp_path):
    training = compare.check(functools.partial(train, inside=True), "sample", tmp_path)
    assert training.recomputed == []


@pytest.mark.parametrize("mode", compare.WITH_SAMPLE)
def test_everything_outside_of_layers(mode, tmp_path):
    compare.check(train, mode, tmp_path)


@pytest.mark.parametrize("mode", compare.WITH_SAMPLE)
def test_files_outside_of_layers(mode, tmp_path):
    compare.check(functools.partial(train, files=True), mode, tmp_path)


@pytest.mark.parametrize("mode", compare.MODES)
def test_batches_that_grow(mode, tmp_path):
    """Larger batches are analysed when they come."""
    compare.check(functools.partial(train, sizes=(4, 16, 64)), mode, tmp_path)


def check_rank(folder, mode):
    sizes = (4, 16, 64) if dist.get_rank() else (4, 4, 4)
    compare.check(functools.partial(train, collectives=True, sizes=sizes), mode, folder)


@pytest.mark.parametrize("mode", compare.MODES)
def test_collectives_with_other_sizes_on_each_rank(mode, tmp_path):
    ranks.run_on_two(check_rank, tmp_path, mode)
