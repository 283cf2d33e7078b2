"""Generators that modules own: a recomputed layer draws the numbers of its first run, and leaves every generator where
plain training leaves it. A layer that owns something whose position cannot be put back runs once, as without MemScale.
"""

import itertools
import logging
import pickle
import queue
import random

import numpy as np
import pytest
import torch
from torch import nn

import memscale
import zoo
from zoo import Chain

WIDTH = 16


def draw(generator):
    """One number between 0 and 1."""
    if isinstance(generator, torch.Generator):
        return torch.rand((), generator=generator).item()
    if isinstance(generator, np.random.BitGenerator):
        return (int(generator.random_raw()) >> 11) / 2**53
    return float(generator.random())


def position(generator):
    """Where a generator is, as bytes."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, random.Random):
        return pickle.dumps(generator.getstate())
    if isinstance(generator, np.random.RandomState):
        return pickle.dumps(generator.get_state(legacy=False))
    return pickle.dumps(getattr(generator, "bit_generator", generator).state)


KINDS = {
    "torch": lambda: torch.Generator().manual_seed(3),
    "python": lambda: random.Random(3),
    "numpy": lambda: np.random.default_rng(3),
    "numpy-mt19937": lambda: np.random.Generator(np.random.MT19937(3)),
    "numpy-state": lambda: np.random.RandomState(3),
    "numpy-bits": lambda: np.random.PCG64(3),
}

PLACES = {
    "attribute": (lambda g: g, lambda held: held),
    "list": (lambda g: [1, g], lambda held: held[1]),
    "tuple": (lambda g: (g, None), lambda held: held[0]),
    "dict": (lambda g: {"noise": g}, lambda held: held["noise"]),
}


class Owner(nn.Module):
    """A part of a layer that owns a generator."""

    def __init__(self, held, get, use):
        super().__init__()
        self.held, self.get, self.use = held, get, use
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return USES[self.use](self, x, self.get(self.held))


def drop(module, x, generator):
    mask = [[draw(generator) > 0.3 for _ in range(x.shape[1])] for _ in range(x.shape[0])]
    return module.one(x) * torch.tensor(mask, dtype=x.dtype)


def add_noise(module, x, generator):
    return module.two(module.one(x).tanh() + draw(generator))


def choose(module, x, generator):
    return (module.one if draw(generator) < 0.5 else module.two)(x).tanh()


def add_gauss(module, x, generator):
    """Such numbers are made in pairs: the second one is kept in the generator."""
    if isinstance(generator, random.Random):
        number = generator.gauss(0, 1)
    elif isinstance(generator, np.random.RandomState):
        number = float(generator.randn())
    else:
        number = draw(generator)
    return module.one(x) * number


USES = {"dropout": drop, "noise": add_noise, "branch": choose, "gauss": add_gauss}


class Layer(nn.Module):
    """A unit: the owner is below it, and dropout draws from torch's own generator."""

    def __init__(self, part):
        super().__init__()
        self.norm, self.part, self.dropout = nn.LayerNorm(WIDTH), part, nn.Dropout(0.2)

    def forward(self, x):
        return x + self.dropout(self.part(self.norm(x)))


def make(part, n=3):
    torch.manual_seed(0)
    return Chain(lambda: Layer(part()), n).train()


def owners(model):
    return [module for module in model.modules() if isinstance(module, Owner)]


def positions(model):
    return [position(owner.get(owner.held)) for owner in owners(model)]


def train(model, steps=3):
    return zoo.train(model, ((zoo.floats(4, WIDTH),), {}), steps)


def count(recomputed):
    """How many layers were recomputed; the plan that zoo starts from has another name for its own."""
    return sum(name.startswith("blocks.") for name in recomputed)


def check(part, recomputed):
    """Three steps with all layers recomputed equal three plain ones, generators included."""
    plain, wrapped = make(part), zoo.everything_recomputed(make(part))
    zoo.assert_same(train(plain), train(wrapped))
    assert positions(plain) == positions(wrapped)
    assert count(recomputed) == 9


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_generator_is_put_back(kind, use, recomputed, no_warnings):
    check(lambda: Owner(KINDS[kind](), lambda held: held, use), recomputed)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_generator_in_a_container_is_put_back(kind, place, recomputed, no_warnings):
    put, get = PLACES[place]
    check(lambda: Owner(put(KINDS[kind]()), get, "noise"), recomputed)


@pytest.mark.parametrize("kind", KINDS)
def test_layers_may_share_a_generator(kind, recomputed, no_warnings):
    def part():
        return Owner(shared, lambda held: held, "noise")

    records = []
    for wrap in (lambda model: model, zoo.everything_recomputed):
        shared = KINDS[kind]()
        records.append((train(wrap(make(part))), position(shared)))
    zoo.assert_same(records[0][0], records[1][0])
    assert records[0][1] == records[1][1]
    assert count(recomputed) == 9


def test_torchs_own_generator_as_an_attribute(recomputed, no_warnings):
    check(lambda: Owner(torch.default_generator, lambda held: held, "noise"), recomputed)


def test_a_generator_that_a_forward_makes(recomputed, no_warnings):
    """It is there only after the first run, and a recomputation makes one of its own."""

    class Late(Owner):
        def forward(self, x):
            if self.held is None:
                self.held = torch.Generator().manual_seed(5)
            return super().forward(x)

    check(lambda: Late(None, lambda held: held, "noise"), recomputed)


def test_a_generator_that_a_forward_seeds(recomputed, no_warnings):
    class Seeded(Owner):
        def forward(self, x):
            self.held.manual_seed(11)
            return super().forward(x)

    check(lambda: Seeded(torch.Generator(), lambda held: held, "noise"), recomputed)


def test_a_generator_that_is_replaced_between_steps(recomputed, no_warnings):
    records = []
    for wrap in (lambda model: model, zoo.everything_recomputed):
        model = wrap(make(lambda: Owner(torch.Generator().manual_seed(1), lambda held: held, "noise")))
        record = [train(model, 1)]
        for i, owner in enumerate(owners(model)):
            owner.held = random.Random(i)
        records.append((*record, train(model, 2), positions(model)))
    zoo.assert_same(records[0][:2], records[1][:2])
    assert records[0][2] == records[1][2]


def test_two_forwards_before_a_backward(recomputed, no_warnings):
    """Each call is recomputed from where its own first run began."""
    records = []
    for wrap in (lambda model: model, zoo.everything_recomputed):
        model = wrap(make(lambda: Owner(np.random.default_rng(3), lambda held: held, "noise")))
        for _ in range(2):
            torch.manual_seed(7)
            a, b = model(zoo.floats(4, WIDTH)), model(zoo.floats(4, WIDTH) + 1)
            (b.pow(2).mean() + a.pow(2).mean()).backward()
        records.append(({n: p.grad for n, p in model.named_parameters()}, positions(model)))
    zoo.assert_same(records[0][0], records[1][0])
    assert records[0][1] == records[1][1]


def test_a_recomputation_that_raises_leaves_generators_alone(recomputed):
    fails = []

    class Failing(Owner):
        def forward(self, x):
            x = super().forward(x)
            if fails:
                raise ArithmeticError
            return x

    model = zoo.everything_recomputed(make(lambda: Failing(random.Random(3), lambda held: held, "noise")))
    train(model, 1)
    loss = model(zoo.floats(4, WIDTH)).sum()
    before = positions(model)
    fails.append(True)
    with pytest.raises(ArithmeticError):
        loss.backward()
    assert positions(model) == before


# What cannot be put back


class Reader(nn.Module):
    """A part of a layer that takes its next number from something that has a position."""

    def __init__(self, source, read=next):
        super().__init__()
        self.source, self.read = source, read
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.linear(x) * self.read(self.source)


def numbers():
    yield from itertools.cycle([0.5, 1.5, 2.5, 3.5])


def filled():
    source = queue.Queue()
    for i in range(100):
        source.put(0.1 * i)
    return source


def lines(tmp_path):
    path = tmp_path / "numbers.txt"
    path.write_text("".join(f"{i / 7}\n" for i in range(100)))
    return path.open()


SOURCES = {
    "list_iterator": (lambda tmp: iter([0.1 * i for i in range(100)]), next),
    "generator": (lambda tmp: numbers(), next),
    "count": (lambda tmp: itertools.count(1), next),
    "in a list": (lambda tmp: [itertools.count(1)], lambda source: next(source[0])),
    "in a dict": (lambda tmp: {"a": itertools.count(1)}, lambda source: next(source["a"])),
    "TextIOWrapper": (lines, lambda source: float(source.readline())),
    "Queue": (lambda tmp: filled(), lambda source: source.get()),
    "SystemRandom": (lambda tmp: random.SystemRandom(), lambda source: source.random() * 0 + 1),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_what_cannot_be_put_back_is_read_once(kind, tmp_path, recomputed, no_warnings, caplog):
    source, read = SOURCES[kind]
    names = []

    def part():
        names.append(None)
        return Reader(source(tmp_path), read) if len(names) % 3 == 2 else Owner(random.Random(1), lambda h: h, "noise")

    plain = make(part)
    names.clear()
    model = make(part)
    reads = []
    model.blocks[1].part.read = lambda source: reads.append(read(source)) or reads[-1]
    settings = memscale.Config(enable_logging=True)
    with caplog.at_level(logging.INFO, logger="memscale"):
        wrapped = memscale.wrap(model, settings, plan=zoo.recompute_plan(model))
        zoo.assert_same(train(plain), train(wrapped))
    memscale.detach(wrapped)
    for finished in (plain, wrapped):
        getattr(finished.blocks[1].part.source, "close", lambda: None)()
    assert len(reads) == 3
    assert count(recomputed) == 6
    assert "blocks.1" not in recomputed
    said = [record.message for record in caplog.records if "is not recomputed" in record.message]
    assert len(said) == 1
    assert "attribute 'source' of its Reader holds a " in said[0]


def test_an_iterator_that_comes_later(recomputed, no_warnings):
    """A layer that was recomputed gets an iterator: it is not recomputed from then on."""

    class Both(Owner):
        source = None

        def forward(self, x):
            x = super().forward(x)
            return x if self.source is None else x * next(self.source)

    records = []
    for wrap in (lambda model: model, zoo.everything_recomputed):
        model = wrap(make(lambda: Both(random.Random(3), lambda held: held, "noise")))
        record = [train(model, 1)]
        model.blocks[1].part.source = iter([0.5, 0.25, 0.125, 1.0])
        records.append((*record, train(model, 3)))
        assert next(model.blocks[1].part.source) == 1.0
    zoo.assert_same(records[0], records[1])
    assert count(recomputed) == 3 + 3 * 2
