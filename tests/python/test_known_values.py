"""Values that decide shapes or branches: known where they do not depend on parameters, else the step must run."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import memscale
import zoo
from memscale._trace.meta_results import MetaCache
from memscale._trace.meta_values import Values
from quick import _as_users_train, _one_thread  # noqa: F401
from test_predict import check

STATIC = memscale.Config(use_empirical_fallback=False)
aten = torch.ops.aten
KINDS = {"cpu": "cpu", "cuda": "h100"}


def below(x, n):
    return torch.arange(16, device=x.device) < n


def filled(x):
    mask = torch.zeros(16, 4, dtype=torch.long, device=x.device)
    mask[:, 0] = 1
    mask[3:5] += 1
    assert mask.sum().item() == 16 + 8
    return mask


KNOWN = {
    "item": lambda m, x: m(x)[: torch.tensor([3, 4], device=x.device).sum().item()].view(7, 64),
    "tolist": lambda m, x: torch.cat(torch.split(m(x), torch.tensor([3, 13], device=x.device).tolist())),
    "numpy": lambda m, x: m(x)[torch.arange(3, device=x.device).cpu().numpy()].view(3, 64),
    "boolean index": lambda m, x: m(x)[below(x, 5)].view(5, 64),
    "mask of two dimensions": lambda m, x: m(x)[below(x, 5)[:, None].expand(16, 64)].view(5 * 64),
    "nonzero": lambda m, x: m(x)[torch.nonzero(below(x, 5)).squeeze(-1)].view(5, 64),
    "where": lambda m, x: m(x)[torch.where(below(x, 5))[0]].view(5, 64),
    "masked_select": lambda m, x: m(x).masked_select(below(x, 5)[:, None]).view(5, 64),
    "unique": lambda m, x: m(x)[torch.unique(torch.tensor([1, 1, 2], device=x.device))].view(2, 64),
    "repeat_interleave": lambda m, x: m(x).repeat_interleave(torch.tensor([2] * 16, device=x.device), 0).view(32, 64),
    "equal": lambda m, x: m(x) if torch.equal(below(x, 3), below(x, 3)) else None,
    "fraction": lambda m, x: m(x) if torch.linspace(0, 1, 5, device=x.device)[2].item() == 0.5 else None,
    "changed in place": lambda m, x: m(x) * filled(x)[:, :1],
    "finite": lambda m, x: m(x) if torch.isfinite(m(x)).all() and not torch.isnan(m(x)).any() else None,
    "layer drop": lambda m, x: m(x) if torch.rand([]) >= 0.1 and torch.rand(1, device=x.device).item() >= 0.1 else x,
}


class Model(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.linear, self.of = nn.Linear(64, 64), forward

    def forward(self, x, *rest):
        return self.of(self.linear, x, *rest)


def profile(kind, forward, batch=None, **options):
    x = zoo.floats(16, 64) if batch is None else batch
    model = Model(forward)
    return memscale.profile(
        model, x, device=KINDS[kind], config=STATIC, loss=lambda output: output.float().sum(), **options
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", KNOWN)
def test_known(name, kind):
    assert profile(kind, KNOWN[name]).source == "static"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: m(x) if m(x).sum() > 0 else x,
        lambda m, x: m(x)[m(x)[:, 0] > 0],
        lambda m, x: m(x).masked_select(m(x) > 0),
        lambda m, x: m(x) * len(torch.nonzero(m(x))),
        lambda m, x: m(x) * m(x).detach().cpu().numpy().max(),
        lambda m, x: m(x)[: m(x).argmax(1).tolist()[0]],
    ],
)
def test_unknown(forward, kind):
    with pytest.raises(memscale.MemScaleError, match="depends on values|depend on values"):
        profile(kind, forward)


def test_a_change_in_place_makes_other_views_unknown():
    """A value that was derived before the change stays; one that is asked for after it is the new one."""

    def forward(linear, x):
        ids = torch.arange(16, device=x.device)
        first = ids[:4]
        before = ids * 2
        ids.add_(1)
        assert before.sum().item() == 240
        assert ids.sum().item() == 136
        with pytest.raises(Exception, match="values"):
            first.sum().item()
        return linear(x)

    assert profile("cpu", forward).source == "static"


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_of_texts(kind):
    ids, mask = torch.arange(32).view(4, 8), torch.ones(4, 8, dtype=torch.long)
    mask[1:, 5:] = 0

    def forward(linear, x, mask):
        hidden = nn.functional.one_hot(x, 64).float()
        rows = [linear(hidden[i, :n]) for i, n in enumerate(mask.sum(1).tolist())]
        packed = linear(hidden[mask.bool()])
        assert packed.shape[0] == sum(len(row) for row in rows) == 23
        return torch.cat([*rows, packed])

    assert profile(kind, forward, (ids, mask)).source == "static"


@pytest.mark.parametrize("kind", KINDS)
def test_sparse_gradients(kind):
    class Sparse(nn.Module):
        def __init__(self, sparse):
            super().__init__()
            self.embedding = nn.Embedding(20000, 64, sparse=sparse)

        def forward(self, x):
            return self.embedding(x)

    def peak(sparse):
        model = Sparse(sparse)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        known = memscale.profile(
            model, torch.arange(512).view(4, 128), optimizer=optimizer, device=KINDS[kind], config=STATIC
        )
        return known.simulate().steady_peak_bytes

    assert peak(False) - peak(True) > 20000 * 64 * 4 * 0.9


class Packed(nn.Module):
    """Sequences of different lengths, packed for a recurrent layer."""

    def __init__(self, cell):
        super().__init__()
        self.embedding, self.cell = nn.Embedding(50, 64), cell(64, 64, batch_first=True)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(x), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        return nn.utils.rnn.pad_packed_sequence(self.cell(packed)[0], batch_first=True)[0].sum()


def sequences():
    return ((torch.arange(4 * 48).view(4, 48) % 50, torch.tensor([48, 20, 30, 9])), {})


def test_packed_sequences():
    known = check(lambda: Packed(nn.GRU), sequences, ways=(False,), loss=lambda loss: loss, config=STATIC)
    assert known.source == "static"
    with pytest.raises(memscale.MemScaleError, match="recurrent"):
        memscale.profile(Packed(nn.LSTM), sequences()[0], device="h100", config=STATIC, loss=lambda loss: loss)


@pytest.fixture
def cached():
    """A cache of results, and what was really computed: ``run(function, *args, **kwargs)``."""

    class Computed(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.functions.append(function)
            return function(*args, **(kwargs or {}))

    cache, values, mode = MetaCache(), Values(), Computed()
    mode.functions = []

    def run(function, *args, **kwargs):
        with mode:
            return cache.run(function, args, kwargs, values)

    run.functions = mode.functions
    return run


def meta(*shape):
    return torch.empty(shape, device="meta")


def test_operations_in_place_are_computed_once(cached):
    """On the meta device there is nothing to write; each shape and argument is checked by torch."""
    x, y = meta(3, 4), meta(3, 4)
    lists = [meta(2), meta(3)], [meta(2), meta(3)]
    for _ in range(3):
        assert cached(aten.add_.Tensor, x, y) is x
        assert cached(aten.add_.Tensor, y, x) is y
        assert cached(aten.addcdiv_.default, x, y, y, value=2) is x
        assert cached(aten._foreach_add_.List, *lists) is None
    assert cached.functions == [aten.add_.Tensor, aten.addcdiv_.default, aten._foreach_add_.List]
    assert cached(aten.add_.Tensor, x, meta(4)) is x
    assert cached(aten.addcdiv_.default, x, y, y, value=3) is x
    assert len(cached.functions) == 5


def test_what_changes_its_form_or_fails_is_computed_each_time(cached):
    x = meta(3, 4)
    for n in (1, 2, 3):
        assert cached(aten.transpose_.default, x, 0, 1) is x
        assert x.shape == ((4, 3) if n % 2 else (3, 4))
        assert cached(aten.resize_.default, meta(0), [n]).shape == (n,)
        assert cached(aten.add.out, meta(5), meta(5), out=meta(0)).shape == (5,)
        with pytest.raises(RuntimeError, match="broadcast"):
            cached(aten.add_.Tensor, meta(3), meta(2))
    assert cached.functions.count(aten.add_.Tensor) == 3
