"""A profile leaves everything as it was, even after errors: model, gradients, optimizer, inputs, random numbers."""

import gc
import random

import numpy
import pytest
import torch
from torch import nn

import memscale
import zoo
from memscale._trace import recorder as _recorder
from quick import _as_users_train, _one_thread  # noqa: F401
from test_detach import equal, snapshot

EMPIRICAL = memscale.Config(use_static_profiling=False)
CONFIGS = {"static": None, "empirical": EMPIRICAL}


class Everything:
    """All that a profile could change, as it is now."""

    def __init__(self, model, inputs=(), optimizer=None):
        self.model, self.inputs, self.optimizer = model, inputs, optimizer
        self.before = self.now()

    def now(self):
        tensors = [*self.model.parameters(), *(t for t in _tensors(self.inputs))]
        gradients = [(id(t.grad), None if t.grad is None else t.grad.clone()) for t in tensors]
        randomness = (torch.get_rng_state(), random.getstate(), str(numpy.random.get_state()))
        state = None if self.optimizer is None else snapshot(vars(self.optimizer))
        flags = (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_default_dtype())
        # Before anything else: a snapshot draws no numbers, but what it looks at might.
        return [randomness, gradients, snapshot(self.model), [t.clone() for t in tensors], state, flags, self.hooks()]

    def hooks(self):
        tables = [(p._backward_hooks, p._post_accumulate_grad_hooks) for p in self.model.parameters()]
        return [[None if table is None else list(table.items()) for table in pair] for pair in tables]

    def check(self):
        for before, after in zip(self.before, self.now()):
            assert equal(before, after)


def _tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def sample_of(name):
    """A batch as profile takes it."""
    args, kwargs = zoo.batch_of(name)
    return {"input_ids": args[0], **kwargs} if args and kwargs else args or kwargs


@pytest.mark.parametrize("way", CONFIGS)
@pytest.mark.parametrize("name", list(zoo.SMALL.names))
def test_nothing_changes(name, way):
    model, sample = zoo.make(name), sample_of(name)
    args, kwargs = zoo.batch_of(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if name in ("gpt2", "resnet", "mlp"):  # in the middle of training, with gradients and moments
        zoo.loss_of(model(*args, **kwargs)).backward()
        optimizer.step()
    everything = Everything(model, sample, optimizer)
    known = memscale.profile(model, sample, optimizer=optimizer, config=CONFIGS[way], loss=zoo.loss_of)
    everything.check()
    assert known.source == ("empirical" if way == "empirical" or name == "lstm" else "static")


@pytest.mark.parametrize("way", CONFIGS)
def test_gradients_of_some_parameters(way):
    model = zoo.make("bert")
    model.bert.embeddings.requires_grad_(False)
    for i, p in enumerate(model.parameters()):
        p.grad = torch.full_like(p, i) if i % 3 == 0 else None
    sample = sample_of("bert")
    everything = Everything(model, sample)
    memscale.profile(model, sample, config=CONFIGS[way])
    everything.check()


@pytest.mark.parametrize("way", CONFIGS)
def test_flags_of_training(way):
    model = zoo.make("resnet").eval()
    model.resnet.embedder.train()
    _, kwargs = zoo.batch_of("resnet")
    everything = Everything(model, kwargs)
    memscale.profile(model, kwargs, config=CONFIGS[way])
    everything.check()
    assert not model.training
    assert model.resnet.embedder.training


# ---- Models that do things in forward ----


class Noting(nn.Module):
    """Notes things: in attributes, containers, tensors that are no buffers, in place and not."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.calls, self.shapes, self.memory = 0, [], {}
        self.plain = torch.zeros(8)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.last = None

    def forward(self, x):
        self.calls += 1
        self.shapes.append(tuple(x.shape))
        self.memory["last"] = x.shape
        y = self.linear(x)
        self.plain.add_(1)
        self.mean.lerp_(y.detach().mean(0), 0.1)
        self.count += 1
        self.last = y
        self.linear.weight.data.mul_(1.0)
        return y


class Random(nn.Module):
    """Draws from every generator."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        scale = random.random() + numpy.random.rand() + float(torch.rand(()))
        return nn.functional.dropout(self.linear(x + torch.randn(8, device=x.device)), 0.5) * scale


class InPlace(nn.Module):
    """Changes its input."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x.relu_())


class Item(nn.Module):
    """Its Python looks at a value."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x)
        return y * 2 if y.abs().mean().item() > 1e-3 else y


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * gradient


class Custom(nn.Module):
    """A function of its own, with a backward of its own."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return Cube.apply(self.linear(x))


class Numpy(nn.Module):
    """Leaves torch on the way."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x) * torch.from_numpy(numpy.sqrt(x.detach().numpy() ** 2 + 1))


class Chosen(nn.Module):
    """Rows that are chosen by data, through shapes that depend on it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x)
        return y[y.sum(-1) > 0].sum() + y.nonzero().float().sum() * 0 + torch.unique(y.detach()).numel() * y.sum()


class Loop(nn.Module):
    """The number of rounds depends on the data."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        rounds = 0
        while rounds < 5 and x.norm() > 1e-3:
            x = self.linear(x)
            rounds += 1
        return x


class Gru(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(8, 8, num_layers=2, dropout=0.2, batch_first=True)

    def forward(self, x):
        return self.rnn(x[:, None])[0]


class Coin(nn.Module):
    """A coin decides whether a layer runs."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])

    def forward(self, x):
        for layer in self.layers:
            if torch.rand(()) < 0.5:
                x = x + layer(x)
        return self.layers[0](x)


SPECIAL = {
    Noting: "static",
    Random: "static",
    InPlace: "static",
    Custom: "static",
    Gru: "static",
    Coin: "static",
    Item: "empirical",
    Numpy: "empirical",
    Chosen: "empirical",
    Loop: "empirical",
}


@pytest.mark.parametrize("way", CONFIGS)
@pytest.mark.parametrize("kind", SPECIAL)
def test_models_that_do_things(kind, way):
    torch.manual_seed(0)
    model = kind()
    x = zoo.floats(4, 8)
    everything = Everything(model, x)
    known = memscale.profile(model, x, config=CONFIGS[way])
    everything.check()
    assert known.peak_bytes > 0
    if way == "static":
        assert known.source == SPECIAL[kind]
        assert bool(known.why_empirical) == (known.source == "empirical")
    else:
        assert "use_static_profiling" in known.why_empirical


class LayerDrop(nn.Module):
    """Layers are left out now and then, in the manner of transformers."""

    def __init__(self, p):
        super().__init__()
        self.layers, self.p = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(4)]), p

    def forward(self, x):
        for layer in self.layers:
            if not torch.rand([]) < self.p:
                x = layer(x)
        return x


@pytest.mark.parametrize("seed", range(3))
def test_layers_that_are_left_out_now_and_then_count(seed):
    whole = memscale.profile(LayerDrop(0.0), zoo.floats(4, 8)).peak_bytes
    torch.manual_seed(seed)
    assert memscale.profile(LayerDrop(0.3), zoo.floats(4, 8)).peak_bytes == whole


def test_the_reason_is_reported():
    known = memscale.profile(Item(), zoo.floats(4, 8))
    assert known.source == "empirical"
    assert "values" in known.why_empirical
    assert "values" in memscale.profile(Numpy(), zoo.floats(4, 8)).why_empirical
    assert "recurrent" in memscale.profile(zoo.make("lstm"), zoo.batch_of("lstm")[0]).why_empirical
    assert memscale.profile(Custom(), zoo.floats(4, 8)).why_empirical == ""
    assert memscale.predict(Item(), zoo.floats(4, 8)).source == "empirical"


def test_without_a_fallback():
    config = memscale.Config(use_empirical_fallback=False)
    with pytest.raises(memscale.MemScaleError, match="use_empirical_fallback is off"):
        memscale.profile(Item(), zoo.floats(4, 8), config=config)
    with pytest.raises(memscale.MemScaleError, match="not on the device"):
        memscale.profile(Item(), zoo.floats(4, 8), device="rtx3090")
    with pytest.raises(memscale.MemScaleError, match="precision"):
        memscale.profile(Item(), zoo.floats(4, 8), precision="pure-bf16")


# ---- Hooks ----


@pytest.mark.parametrize("way", CONFIGS)
def test_an_optimizer_in_hooks_does_not_step(way):
    model = zoo.make("mlp")
    stepped = []
    for p in model.parameters():
        optimizer = torch.optim.SGD([p], lr=1.0)

        def hook(parameter, optimizer=optimizer):
            stepped.append(parameter)
            optimizer.step()
            optimizer.zero_grad()

        p.register_post_accumulate_grad_hook(hook)
        p.register_hook(lambda gradient: gradient * 2)
    args, _ = zoo.batch_of("mlp")
    everything = Everything(model, args)
    memscale.profile(model, args, config=CONFIGS[way])
    everything.check()
    assert stepped == []
    model(*args).sum().backward()
    assert len(stepped) == len(list(model.parameters()))


@pytest.mark.parametrize("way", CONFIGS)
def test_hooks_on_modules_stay(way):
    model = zoo.make("encoder")
    model.register_forward_pre_hook(lambda module, args: None)
    model.encoder.layers[1].register_forward_hook(lambda module, args, output: output * 1)
    model.encoder.layers[1].register_full_backward_hook(lambda module, into, out: None)
    args, _ = zoo.batch_of("encoder")
    everything = Everything(model, args)
    memscale.profile(model, args, config=CONFIGS[way])
    everything.check()


# ---- Failures ----


class Fails(nn.Module):
    """Raises in forward, backward, or in the forward of one of its units."""

    def __init__(self, where, error):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)) for _ in range(3)])
        self.where, self.error, self.calls = where, error, 0

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if self.where == "forward" and i == 1:
                raise self.error("on purpose")
        if self.where == "backward":
            x.register_hook(self._fail)
        return x

    def _fail(self, gradient):
        raise self.error("on purpose")


@pytest.mark.parametrize("way", CONFIGS)
@pytest.mark.parametrize("where", ["forward", "backward", "loss"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("here", [False, True], ids=["in a child", "in this process"])
def test_after_a_failure(way, where, error, here, monkeypatch):
    if here:
        monkeypatch.setenv("MEMSCALE_NO_FORK", "1")
    model = Fails(where, error)
    next(model.parameters()).grad = torch.ones(8, 8)
    x = zoo.floats(4, 8)

    def loss(output):
        if where == "loss":
            raise error("on purpose")
        return output.sum()

    everything = Everything(model, x)
    expected = KeyboardInterrupt if here and error is KeyboardInterrupt else memscale.MemScaleError
    with pytest.raises(expected, match="on purpose"):
        memscale.profile(model, x, config=CONFIGS[way], loss=loss)
    everything.check()
    assert not torch._C._len_torch_dispatch_stack()
    assert not torch._C._len_torch_function_stack()
    model.where = loss = None
    assert memscale.profile(model, x, config=CONFIGS[way]).peak_bytes > 0


@pytest.mark.parametrize("way", CONFIGS)
@pytest.mark.parametrize("at", range(0, 60, 7))
def test_an_interrupt_at_any_operation(at, way, monkeypatch):
    """Ctrl-C comes when it wants: here at the n-th operation, in forward, backward or the optimizer's step of a step
    that runs in this process."""
    monkeypatch.setenv("MEMSCALE_NO_FORK", "1")
    model = zoo.make("mlp")
    args, _ = zoo.batch_of("mlp")
    everything = Everything(model, args)
    record, seen = _recorder.Recorder._record, []

    def interrupted(self, *arguments):
        seen.append(arguments)
        if len(seen) == at + 1:
            raise KeyboardInterrupt
        return record(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(_recorder.Recorder, "_record", interrupted)
        with pytest.raises(KeyboardInterrupt):
            memscale.profile(model, args, config=CONFIGS[way])
    everything.check()
    assert not torch._C._len_torch_dispatch_stack()
    assert memscale.profile(model, args, config=CONFIGS[way]).peak_bytes > 0


# ---- What is left alive ----


@pytest.mark.parametrize("way", CONFIGS)
def test_nothing_stays_alive(way):
    model, sample = zoo.make("gpt2"), sample_of("gpt2")
    memscale.profile(model, sample, config=CONFIGS[way])
    gc.collect()
    gc.freeze()
    known = [memscale.profile(model, sample, config=CONFIGS[way]) for _ in range(2)]
    gc.collect()
    assert [o for o in gc.get_objects() if type(o) in (torch.Tensor, nn.Parameter)] == []
    del known


@pytest.mark.parametrize("way", CONFIGS)
def test_training_goes_on_unchanged(way):
    """Between two steps a profile is taken: losses, gradients, moments and random numbers are those without it."""

    def train(between):
        model = zoo.make("encoder")
        args, _ = zoo.batch_of("encoder")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        torch.manual_seed(3)
        losses = []
        for _ in range(3):
            loss = zoo.loss_of(model(*args))
            loss.backward()
            losses.append(loss.detach())
            between(model, args, optimizer)
            optimizer.step()
            optimizer.zero_grad()
        return {"losses": losses, "state": model.state_dict(), "random": torch.get_rng_state()}

    plain = train(lambda *_: None)
    zoo.assert_same(
        plain,
        train(lambda model, args, optimizer: memscale.profile(model, args, optimizer=optimizer, config=CONFIGS[way])),
    )
