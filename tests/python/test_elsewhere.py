"""Effects of a layer outside of its modules: where they are seen, they happen once, as in plain training."""

import collections
import random

import pytest
import torch

import memscale
import zoo
from zoo import Block, Chain

CALLS = 0
LAST = None
SEEN: list = []
STATS = {"calls": 0, "inner": {"sizes": [], "shapes": set()}}
RECENT: collections.deque = collections.deque(maxlen=3)
CACHE: dict = {}
DICE = random.Random(3)
TORCH_DICE = torch.Generator().manual_seed(3)


class Stats:
    def __init__(self):
        self.n, self.sums, self.nested = 0, [], {"n": [0]}


class Holder(Block):
    n_calls = 0
    seen: list = []  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.stats, self.table, self.recent = Stats(), {"a": {"n": 0}}, collections.deque(maxlen=5)


class GlobalNumber(Block):
    def forward(self, x):
        global CALLS
        CALLS += 1
        return super().forward(x)


class GlobalList(Block):
    def forward(self, x):
        SEEN.append(x.shape[0])
        return super().forward(x)


class GlobalDict(Block):
    def forward(self, x):
        STATS["calls"] += 1
        return super().forward(x)


class NestedList(Block):
    def forward(self, x):
        STATS["inner"]["sizes"].append(1)
        return super().forward(x)


class GlobalDeque(Block):
    def forward(self, x):
        RECENT.append(object())
        return super().forward(x)


class GlobalGenerator(Block):
    def forward(self, x):
        return super().forward(x) + DICE.random()


class GlobalTorchGenerator(Block):
    def forward(self, x):
        return super().forward(x) + torch.rand((), generator=TORCH_DICE)


class ClassNumber(Holder):
    def forward(self, x):
        type(self).n_calls += 1
        return super().forward(x)


class InheritedList(Holder):
    def forward(self, x):
        self.seen.append(x.shape[0])
        return super().forward(x)


class ObjectNumber(Holder):
    def forward(self, x):
        self.stats.n += 1
        return super().forward(x)


class ObjectList(Holder):
    def forward(self, x):
        self.stats.sums.append(1)
        self.stats.nested["n"][0] += 1
        return super().forward(x)


class DictInDict(Holder):
    def forward(self, x):
        self.table["a"]["n"] += 1
        return super().forward(x)


class OwnDeque(Holder):
    def forward(self, x):
        self.recent.append(x.shape[0])
        return super().forward(x)


WHERE = {
    GlobalNumber: "the global variable 'CALLS' of test_elsewhere",
    GlobalList: "the global variable 'SEEN' of test_elsewhere",
    GlobalDict: "the global variable 'STATS' of test_elsewhere",
    NestedList: "the global variable 'STATS' of test_elsewhere",
    GlobalDeque: "the global variable 'RECENT' of test_elsewhere",
    GlobalGenerator: "the global variable 'DICE' of test_elsewhere",
    GlobalTorchGenerator: "the global variable 'TORCH_DICE' of test_elsewhere",
    ClassNumber: "the class attribute 'n_calls' of ClassNumber",
    InheritedList: "the class attribute 'seen' of Holder",
    ObjectNumber: "what attribute 'stats' of ObjectNumber holds",
    ObjectList: "what attribute 'stats' of ObjectList holds",
    DictInDict: "what attribute 'table' of DictInDict holds",
    OwnDeque: "what attribute 'recent' of OwnDeque holds",
}


def forget():
    global CALLS, LAST
    CALLS, LAST = 0, None
    for container in (SEEN, STATS["inner"]["sizes"], STATS["inner"]["shapes"], RECENT, CACHE, Holder.seen):
        container.clear()
    STATS["calls"] = ClassNumber.n_calls = Holder.n_calls = 0
    DICE.seed(3)
    TORCH_DICE.manual_seed(3)


def held(model):
    """All that the layers of these tests may change."""
    parts = [
        (vars(block.stats), block.table, list(block.recent)) for block in model.blocks if isinstance(block, Holder)
    ]
    places = (CALLS, SEEN, STATS, len(RECENT), sorted(CACHE), ClassNumber.n_calls, vars(Holder)["n_calls"], Holder.seen)
    return repr((parts, places, DICE.getstate(), TORCH_DICE.get_state().tolist()))


def train(cls, wrap):
    forget()
    torch.manual_seed(0)
    model = wrap(Chain(cls).train())
    return zoo.train(model, ((zoo.floats(4, 16),), {})), held(model)


@pytest.mark.parametrize("cls", WHERE, ids=lambda cls: cls.__name__)
def test_an_effect_happens_once(cls, recomputed):
    plain = train(cls, lambda model: model)
    with pytest.warns(memscale.MemScaleWarning, match="is not recomputed") as warned:
        ours = train(cls, zoo.everything_recomputed)
    zoo.assert_same(plain[0], ours[0])
    assert plain[1] == ours[1]
    assert not [name for name in recomputed if name.startswith("blocks.")]
    assert len(warned) == 3
    assert f"it changes {WHERE[cls]}, and a recomputation would change that again" in str(warned[0].message)


class SameValue(Block):
    def forward(self, x):
        global LAST
        LAST = float(x.shape[0])
        return super().forward(x)


class LastTensor(Block):
    def forward(self, x):
        global LAST
        LAST = super().forward(x)
        return LAST


class Cached(Block):
    """A table that is made when it is first needed."""

    def forward(self, x):
        if x.shape[-1] not in CACHE:
            CACHE[x.shape[-1]] = torch.arange(x.shape[-1]).float()
        return super().forward(x) + CACHE[x.shape[-1]]


@pytest.mark.parametrize("cls", [SameValue, LastTensor, Cached], ids=lambda cls: cls.__name__)
def test_what_does_not_add_up_is_no_effect(cls, recomputed, no_warnings):
    plain = train(cls, lambda model: model)
    ours = train(cls, zoo.everything_recomputed)
    zoo.assert_same(plain[0], ours[0])
    assert plain[1] == ours[1]
    assert len([name for name in recomputed if name.startswith("blocks.")]) == 9


def test_a_check_puts_the_last_tensor_back():
    """It is that of the first run, with its graph."""
    forget()
    model = zoo.everything_recomputed(Chain(LastTensor).train())
    out = model(zoo.floats(4, 16))
    assert LAST is out


class Raises(Block):
    def forward(self, x):
        SEEN.append(id(self))
        if SEEN.count(id(self)) == 2:
            raise ArithmeticError
        return super().forward(x)


def test_an_effect_of_a_second_run_that_raises():
    forget()
    model = zoo.everything_recomputed(Chain(Raises, 2).train())
    with pytest.warns(memscale.MemScaleWarning, match="it changes the global variable 'SEEN'"):
        model(zoo.floats(4, 16)).sum().backward()
    assert [id(block) for block in model.blocks] == SEEN
