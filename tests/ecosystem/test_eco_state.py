"""Models that keep state of their own: generators, iterators, caches, counters and files.

Wherever such state is touched, training is the plain one. What a layer does outside of itself happens again when it is
recomputed; cases of that kind are in layers with the default plan only, and outside of layers with all.
"""

import collections
import contextvars
import functools
import itertools
import random
import threading
import types

import numpy as np
import torch
from torch import nn

import compare
import zoo

cases = compare.Cases()
BATCH = ((zoo.floats(4, 16),), {})
CACHE: dict[int, torch.Tensor] = {}
KEPT = types.SimpleNamespace(calls=0)


class Outer(nn.Module):
    """Blocks, and between them whatever `touch` does with the model and its input."""

    def __init__(self, touch, block=zoo.Block):
        super().__init__()
        self.blocks = nn.ModuleList([block() for _ in range(3)])
        self.touch = touch

    def forward(self, x):
        for block in self.blocks:
            x = block(self.touch(self, x))
        return x


class Touching(zoo.Block):
    """A block that touches."""

    def __init__(self, touch, prepare):
        super().__init__()
        self.touch = touch
        prepare(self)

    def forward(self, x):
        return super().forward(self.touch(self, x))


def outside(training, touch, prepare):
    """State of the model itself, touched between its layers."""
    model = Outer(touch)
    prepare(model)
    return compare.fit(training, model, BATCH)


def inside(training, touch, prepare):
    """State of each layer, touched by the layer."""
    return compare.fit(training, zoo.Chain(functools.partial(Touching, touch, prepare)), BATCH)


# State that the module owns


def own_generator(module):
    module.random = torch.Generator().manual_seed(5)


def draw(module, x):
    return x + torch.rand(x.shape, generator=module.random)


def own_numpy(module):
    module.random = np.random.default_rng(5)


def draw_numpy(module, x):
    return x * float(module.random.uniform(0.5, 1.0))


def own_old_numpy(module):
    module.random = np.random.RandomState(5)


def own_python(module):
    module.random = random.Random(5)


def draw_python(module, x):
    return x * module.random.uniform(0.5, 1.0)


def own_iterator(module):
    module.values = iter([1.0 + i / 100 for i in range(100)])


def own_count(module):
    module.values = itertools.count(1)


def own_running(module):
    module.values = (1.0 + i / 100 for i in range(100))


def take(module, x):
    return x * next(module.values)


def own_number(module):
    module.n = 0


def count(module, x):
    module.n += 1
    return x * (1 + module.n / 10)


def own_buffer(module):
    module.register_buffer("mean", torch.zeros(16))


def average(module, x):
    module.mean.lerp_(x.detach().mean(0), 0.1)
    return x - module.mean


def own_memory(module):
    module.memory = collections.deque(maxlen=4)


def remember(module, x):
    module.memory.append(x.detach())
    return x + torch.stack(list(module.memory)).mean(0)


OWNED = {
    "torch_generator": (draw, own_generator),
    "numpy_generator": (draw_numpy, own_numpy),
    "old_numpy_generator": (draw_numpy, own_old_numpy),
    "python_generator": (draw_python, own_python),
    "iterator": (take, own_iterator),
    "count": (take, own_count),
    "running_generator": (take, own_running),
    "number": (count, own_number),
    "buffer": (average, own_buffer),
    "deque": (remember, own_memory),
}
for name, (touch, prepare) in OWNED.items():
    cases.add(f"{name}_of_the_model", functools.partial(outside, touch=touch, prepare=prepare))
    cases.add(
        f"{name}_of_a_layer",
        functools.partial(inside, touch=touch, prepare=prepare),
        recomputes=None,
        warns=touch in (take, remember),  # such layers are kept
    )


# Caches of tensors, which hold what a model computed first


def table(x):
    """Something that depends on the shape alone."""
    return torch.linspace(0, 1, x.shape[-1], device=x.device)


def in_a_global(module, x):
    if x.shape[-1] not in CACHE:
        CACHE[x.shape[-1]] = table(x)
    return x + CACHE[x.shape[-1]]


def in_an_object(module, x):
    if not hasattr(module.kept, "table"):
        module.kept.table = table(x)
    return x + module.kept.table


def in_the_class(module, x):
    cls = type(module)
    if getattr(cls, "shared_table", None) is None:
        cls.shared_table = table(x)
    return x + cls.shared_table


def in_a_dict(module, x):
    tables = module.tables["by size"]
    if x.shape[-1] not in tables:
        tables[x.shape[-1]] = table(x)
    return x + tables[x.shape[-1]]


def in_a_deque(module, x):
    if not module.recent:
        module.recent.append(table(x))
    return x + module.recent[-1]


def in_a_closure(module, x):
    return x + module.cached(x.shape[-1])


def nothing(module):
    CACHE.clear()


def keep_object(module):
    module.kept = types.SimpleNamespace()


def keep_class(module):
    """A class of its own, so that nothing is left of other trainings."""
    module.__class__ = type(module.__class__.__name__, (module.__class__,), {"shared_table": None})


def keep_dict(module):
    module.tables = {"by size": {}}


def keep_deque(module):
    module.recent = collections.deque(maxlen=2)


def keep_closure(module):
    layer = module.blocks[0].a if isinstance(module, Outer) else module.a
    module.cached = functools.lru_cache(lambda n: torch.linspace(0, 1, n, device=layer.bias.device))


CACHES = {
    "global": (in_a_global, nothing),
    "object": (in_an_object, keep_object),
    "class": (in_the_class, keep_class),
    "dict": (in_a_dict, keep_dict),
    "deque": (in_a_deque, keep_deque),
    "lru_cache": (in_a_closure, keep_closure),
}


def and_the_global_cache(training, case, **options):
    left = case(training, **options)
    return {**left, "cache": dict(CACHE)}


for name, (touch, prepare) in CACHES.items():
    for where in (outside, inside):
        case = functools.partial(and_the_global_cache, case=where, touch=touch, prepare=prepare)
        cases.add(f"cache_in_{name}_{where.__name__}", case)


# Effects elsewhere


@cases()
def counters_outside_of_the_model(training):
    KEPT.calls = 0
    calls = collections.Counter()

    def touch(module, x):
        KEPT.calls += 1
        calls["touched"] += 1
        return x

    left = compare.fit(training, Outer(touch), BATCH)
    return {**left, "calls": calls, "kept": KEPT.calls}


@cases(modes=("default", "sample"))
def counters_in_layers(training):
    calls = collections.Counter()

    def touch(module, x):
        calls["touched"] += 1
        return x

    left = inside(training, touch, nothing)
    return {**left, "calls": calls}


@cases()
def a_counter_that_changes_the_loss(training):
    counter = itertools.count(1)
    return compare.fit(training, Outer(lambda module, x: x / next(counter)), BATCH)


@cases()
def a_file(training):
    path = training.folder / "log.txt"

    def touch(module, x):
        with path.open("a") as file:
            file.write(f"{float(x.detach().mean()):.9f}\n")
        return x

    left = compare.fit(training, Outer(touch), BATCH)
    return {**left, "written": path.read_text()}


@cases()
def a_file_that_is_replaced(training):
    path = training.folder / "last.pt"

    def touch(module, x):
        if path.exists():
            x = x + 0.1 * torch.load(path)
            path.unlink()
        torch.save(x.detach().clone(), path)
        return x

    left = compare.fit(training, Outer(touch), BATCH)
    return {**left, "last": torch.load(path)}


@cases()
def an_open_file(training):
    with (training.folder / "log.txt").open("w+") as file:
        left = compare.fit(training, Outer(lambda module, x: (file.write("x"), x)[1]), BATCH)
        file.seek(0)
        return {**left, "written": file.read()}


@cases()
def a_context_variable(training):
    depth = contextvars.ContextVar("depth", default=0)

    def touch(module, x):
        depth.set(depth.get() + 1)
        return x * (1 + depth.get() / 100)

    def run():
        left = compare.fit(training, Outer(touch), BATCH)
        return {**left, "depth": depth.get()}

    return contextvars.copy_context().run(run)


@cases()
def default_generators(training):
    def touch(module, x):
        return x * random.uniform(0.5, 1) + float(np.random.rand()) + torch.rand(())

    return compare.fit(training, zoo.Chain(functools.partial(Touching, touch, nothing)), BATCH)


@cases()
def inference_in_another_thread(training):
    """Another thread evaluates the model while the first step is prepared and runs."""
    model = zoo.Chain(zoo.Block)
    expected = {tuple(p.shape) for p in model.parameters()}
    problems, stop, started = [], threading.Event(), threading.Event()

    def evaluate():
        x = zoo.floats(2, 16)
        with torch.no_grad():
            while not stop.is_set():
                try:
                    y = torch.relu(model.blocks[0].a(x))
                    if y.device.type != "cpu" or {tuple(p.shape) for p in model.parameters()} != expected:
                        problems.append(str(y.device))
                except Exception as error:
                    problems.append(repr(error))
                started.set()

    thread = threading.Thread(target=evaluate)
    thread.start()
    started.wait()
    try:
        left = compare.fit(training, model, BATCH)
    finally:
        stop.set()
        thread.join()
    assert problems == []
    return left


@cases(modes=compare.WITH_SAMPLE)
def a_dict_with_attributes(training):
    """A configuration that is a dictionary with attributes."""

    class Frozen(collections.OrderedDict):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            for key, value in self.items():
                setattr(self, key, value)
            self.frozen = True

    def touch(module, x):
        return x * module.config.scale if module.config.frozen else x

    def prepare(module):
        module.config = Frozen(scale=0.5)

    return inside(training, touch, prepare)


@cases.parametrize
def test_state(run, tmp_path):
    run(tmp_path)
