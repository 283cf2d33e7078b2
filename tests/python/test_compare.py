"""The comparison of two trainings finds every difference that is planted, and nothing else."""

import collections
import copy
import itertools
import random
import types

import numpy as np
import pytest
import torch
from torch import nn

import compare
import memscale
import zoo


def keep(value):
    """A callable that holds something."""

    def kept():
        return value

    return kept


class Kept(nn.Module):
    """A module with attributes of all kinds."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("steps", torch.zeros(()))
        self.number, self.text, self.nan = 1.5, "a", float("nan")
        self.items = [1, {"b": (2, 3)}]
        self.recent = collections.deque([1, 2], maxlen=3)
        self.names = {"a", "b"}
        self.random = torch.Generator().manual_seed(1)
        self.numpy_random = np.random.default_rng(1)
        self.python_random = random.Random(1)
        self.iterator = iter([1, 2, 3])
        self.count = itertools.count(4)
        self.running = (i for i in range(3))
        self.array = np.arange(3.0)
        self.object = types.SimpleNamespace(table=torch.arange(3))
        self.closure = keep([1])
        self.register_forward_hook(keep("hook"))
        self.__class__ = type("Kept", (Kept,), {"shared": []})

    def forward(self, x):
        return self.second(self.first(x))


CHANGES = {
    "a bit of a parameter": lambda m: m.first.weight.data[0, 0].mul_(1 + 2**-23),
    "a gradient": lambda m: setattr(m.first.weight, "grad", torch.zeros(4, 4)),
    "an attribute of a parameter": lambda m: setattr(m.first.weight, "note", 1),
    "a hook of a parameter": lambda m: m.first.weight.register_hook(lambda gradient: None),
    "a frozen parameter": lambda m: m.first.requires_grad_(False),
    "strides": lambda m: setattr(m.first.weight, "data", m.first.weight.data.t().contiguous().t()),
    "a tied parameter": lambda m: setattr(m.second, "weight", m.first.weight),
    "an equal copy in two places": lambda m: setattr(m, "steps", torch.zeros((), dtype=torch.float64)),
    "a buffer": lambda m: m.steps.add_(1),
    "a number": lambda m: setattr(m, "number", 2.5),
    "a text": lambda m: setattr(m, "text", "b"),
    "a NaN": lambda m: setattr(m, "nan", 0.0),
    "the type of a number": lambda m: setattr(m, "number", np.float64(1.5)),
    "a nested value": lambda m: m.items[1].update(b=(2, 4)),
    "a new attribute": lambda m: setattr(m, "more", None),
    "a lost attribute": lambda m: delattr(m, "text"),
    "a deque": lambda m: m.recent.append(3),
    "a set": lambda m: m.names.add("c"),
    "a generator of torch": lambda m: torch.rand(1, generator=m.random),
    "a generator of numpy": lambda m: m.numpy_random.random(),
    "a generator of Python": lambda m: m.python_random.random(),
    "an iterator": lambda m: next(m.iterator),
    "a count": lambda m: next(m.count),
    "a running generator": lambda m: next(m.running),
    "an array": lambda m: m.array.__setitem__(0, 1.0),
    "a tensor of an object": lambda m: m.object.table.add_(1),
    "a meta tensor": lambda m: setattr(m.object, "table", torch.arange(3, device="meta")),
    "a closure": lambda m: m.closure().append(2),
    "a class attribute": lambda m: m.shared.append(1),
    "a hook": lambda m: m.register_forward_hook(keep("hook")),
    "a lost hook": lambda m: m._forward_hooks.clear(),
    "a hook of a part": lambda m: m.first.register_full_backward_hook(lambda *args: None),
    "a flag": lambda m: m.second.eval(),
    "a submodule": lambda m: setattr(m, "second", nn.Sequential(m.second)),
}


def test_equal_models_are_the_same():
    compare.same(Kept(), Kept())


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_planted_difference_is_found(change):
    changed = Kept()
    change(changed)
    with pytest.raises(AssertionError):
        compare.same(Kept(), changed, "model")


def test_what_memscale_adds_counts_unless_it_is_attached(quiet_config):
    model, plain = zoo.Chain(zoo.Block), zoo.Chain(zoo.Block)
    plain.load_state_dict(model.state_dict())
    compare.same(plain, model)
    memscale.wrap(model, quiet_config)
    compare.same(plain, model, attached=True)
    with pytest.raises(AssertionError, match="attributes"):
        compare.same(plain, model)
    model.blocks[0].register_forward_hook(lambda *args: None)
    with pytest.raises(AssertionError, match=r"blocks.*_forward_hooks"):
        compare.same(plain, model, attached=True)
    model.blocks[0]._forward_hooks.clear()
    memscale.detach(model)
    compare.same(plain, model)


def drops_once_more(training):
    """A case that is wrong: wrapped, it draws one more number."""
    model = zoo.Chain(zoo.Block)
    if training.mode is not None:
        torch.rand(1)
    return compare.fit(training, model, ((zoo.floats(4, 16),), {}))


def changes_its_optimizer(training):
    left = compare.fit(training, zoo.Chain(zoo.Block), ((zoo.floats(4, 16),), {}))
    if training.mode is not None:
        left["optimizer"].param_groups[0]["lr"] /= 2
    return left


def leaves_a_copy(training):
    left = compare.fit(training, zoo.Chain(zoo.Block), ((zoo.floats(4, 16),), {}))
    left["model"].again = left["model"].blocks[0]
    if training.mode is not None:
        left["model"].again = copy.deepcopy(left["model"].again)
    return left


@pytest.mark.parametrize("case", [drops_once_more, changes_its_optimizer, leaves_a_copy])
def test_a_training_that_differs_is_found(case, tmp_path):
    with pytest.raises(AssertionError):
        compare.check(case, "everything", tmp_path)


def test_a_refusal_that_is_not_expected_is_found(tmp_path):
    def wraps_twice(training):
        model = zoo.Chain(zoo.Block)
        training.wrap(model.blocks[0])
        return compare.fit(training, model, ((zoo.floats(4, 16),), {}))

    with pytest.raises(AssertionError, match="wrapped already"):
        compare.check(wraps_twice, "default", tmp_path)
    compare.check(wraps_twice, "default", tmp_path, refused="wrapped already")
