"""What takes longer: more steps, and random models, each compared with plain training bit for bit."""

import random

import pytest
import torch
from torch import nn

import memscale
import zoo

pytestmark = pytest.mark.long


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", list(zoo.SMALL.names))
@pytest.mark.parametrize("everything", [False, True], ids=["own plan", "everything recomputed"])
def test_many_steps(name, autocast, everything, quiet_config):
    plain = zoo.train_or_skip(zoo.make(name), zoo.batch_of(name), steps=15, autocast=autocast, accumulate=2)
    model = zoo.make(name)
    memscale.wrap(model, quiet_config, plan=zoo.recompute_plan(model) if everything else None)
    zoo.assert_same(plain, zoo.train(model, zoo.batch_of(name), steps=15, autocast=autocast, accumulate=2))


class Mlp(nn.Module):
    def __init__(self, n, activation, p, inplace):
        super().__init__()
        self.up, self.down = nn.Linear(n, 2 * n), nn.Linear(2 * n, n)
        self.activation = activation() if not inplace else nn.ReLU(inplace=True)
        self.drop = nn.Dropout(p)

    def forward(self, x, shift=None):
        y = x + self.down(self.drop(self.activation(self.up(x))))
        return y if shift is None else y + shift


class Norm(nn.Module):
    def __init__(self, n, kind):
        super().__init__()
        self.norm = nn.BatchNorm1d(n) if kind == "batch" else nn.LayerNorm(n) if kind == "layer" else nn.GroupNorm(2, n)
        self.linear = nn.Linear(n, n)

    def forward(self, x, shift=None):
        return torch.tanh(
            self.linear(self.norm(x.transpose(1, 2)).transpose(1, 2) if self._channels() else self.norm(x))
        )

    def _channels(self):
        return not isinstance(self.norm, nn.LayerNorm)


class Attention(nn.Module):
    def __init__(self, n, p):
        super().__init__()
        self.qkv, self.p = nn.Linear(n, 3 * n), p

    def forward(self, x, *, shift=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        mixed = nn.functional.scaled_dot_product_attention(
            q[:, None], k[:, None], v[:, None], dropout_p=self.p if self.training else 0.0, is_causal=True
        )
        return x + mixed[:, 0]


class Recurrent(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.rnn = nn.GRU(n, n, num_layers=2, dropout=0.2, batch_first=True)

    def forward(self, x, shift=None):
        return x * 0.5 + self.rnn(x)[0]


class Skip(nn.Module):
    """LayerDrop: a coin decides whether the layer runs at all."""

    def __init__(self, n):
        super().__init__()
        self.linear = nn.Linear(n, n)

    def forward(self, x, shift=None):
        return x if torch.rand(()) < 0.5 else x + self.linear(x).exp().clamp(max=3)


class Model(nn.Module):
    def __init__(self, chooser, n):
        super().__init__()
        p = chooser.choice([0.0, 0.1, 0.5])
        kinds = [
            lambda: Mlp(n, chooser.choice([nn.GELU, nn.SiLU, nn.Tanh]), p, chooser.random() < 0.3),
            lambda: Norm(n, chooser.choice(["batch", "layer", "group"])),
            lambda: Attention(n, p),
            lambda: Recurrent(n),
            lambda: Skip(n),
        ]
        make = chooser.choice([lambda: chooser.choice(kinds)(), chooser.choice(kinds)])
        self.blocks = nn.ModuleList([make() for _ in range(chooser.randint(1, 6))])
        if chooser.random() < 0.3:
            self.blocks.append(self.blocks[0])  # one block twice
        self.head = nn.Linear(n, n)
        if chooser.random() < 0.3:
            self.blocks[0].requires_grad_(False)
        self.shift = chooser.random() < 0.3

    def forward(self, x):
        shift = x.mean(-1, keepdim=True) if self.shift else None
        for block in self.blocks:
            x = block(x, shift=shift)
        return self.head(x)


@pytest.mark.parametrize("seed", range(60))
def test_random_models(seed):
    def make():
        torch.manual_seed(seed)
        return Model(random.Random(seed), 8).train()

    chooser = random.Random(1000 + seed)
    batch = ((zoo.floats(2, 5, 8, seed=seed),), {})
    autocast, accumulate = chooser.random() < 0.4, chooser.choice([1, 2])
    plain = zoo.train_or_skip(make(), batch, autocast=autocast, accumulate=accumulate)
    model = make()
    way = chooser.choice(["all", "settled", "sample"])
    if way == "all":
        zoo.everything_recomputed(model)
    else:
        mode = chooser.choice(["conservative", "balanced", "aggressive"])
        config = memscale.Config(mode, force_optimize=True, enable_logging=False)
        memscale.wrap(model, config, sample_input=batch[0] if way == "sample" else None)
    zoo.assert_same(plain, zoo.train(model, batch, autocast=autocast, accumulate=accumulate))
