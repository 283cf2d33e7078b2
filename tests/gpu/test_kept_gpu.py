"""Layers that are recomputed without their products and attention, on a GPU: equal bit for bit, and as predicted."""

import gc
import warnings

import pytest
import torch
import torch.nn.functional as nnf
from torch import nn

import memscale
import zoo
from graphs import gradients

KEPT = ["recompute_except_both", "recompute_except_products", "recompute_except_attention"]


@pytest.mark.parametrize("action", KEPT)
@pytest.mark.parametrize("precision", ["fp32", "autocast", "bf16"])
@pytest.mark.parametrize("name", list(zoo.SMALL.names))
def test_equals_plain(name, precision, action, no_warnings):
    warnings.filterwarnings("ignore", message="RNN module weights")  # torch's own, about a model that was cast

    def run(actions):
        model = zoo.make(name).cuda()
        model = model.bfloat16() if precision == "bf16" else model
        if actions:
            zoo.wrap_with(model, actions)
        return zoo.train(model, zoo.batch_of(name), steps=5, autocast=precision == "autocast")

    zoo.assert_same(run(None), run([action]))


class Attention(nn.Module):
    """Drops attention at random, in a fused kernel."""

    def __init__(self, mask=False):
        super().__init__()
        self.norm, self.linear, self.mask = nn.LayerNorm(256), nn.Linear(256, 768), mask

    def forward(self, x):
        q, k, v = (t.view(4, 128, 4, 64).transpose(1, 2) for t in self.linear(self.norm(x)).split(256, -1))
        mask = torch.ones(128, 128, dtype=torch.bool, device=x.device).tril() if self.mask else None
        y = nnf.scaled_dot_product_attention(q, k, v, mask, dropout_p=0.1)
        return x + nnf.dropout(y.transpose(1, 2).reshape(4, 128, 256), 0.1)


@pytest.mark.parametrize("mask", [False, True])
def test_the_generator_moves_as_if_attention_ran(mask):
    """Dropout behind attention has the same masks, in later layers and steps."""

    def run(action):
        torch.manual_seed(0)
        model = zoo.Chain(lambda: Attention(mask), 4).train().cuda()
        zoo.wrap_with(model, [action])
        x, found = torch.randn(4, 128, 256, device="cuda", generator=torch.Generator("cuda").manual_seed(1)), []
        torch.manual_seed(7)
        for _ in range(5):
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(x).pow(2).mean()
            loss.backward()
            found.append((loss.detach(), gradients(model), torch.cuda.get_rng_state()))
            model.zero_grad()
        return found

    for action in KEPT:
        zoo.assert_same(run("keep"), run(action))


@pytest.mark.parametrize("action", KEPT)
def test_peaks_are_predicted(action):
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # those of threads of other tests
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()  # by other tests
    model = zoo.LARGE.make("gpt2").cuda()
    args, kwargs = zoo.move(zoo.LARGE.batch_of("gpt2"), torch.device("cuda"), torch.float32)
    kwargs = {key: value.repeat(16, 1) for key, value in kwargs.items()}
    optimizer = torch.optim.AdamW(model.parameters())
    profile = memscale.profile(model, args or kwargs, optimizer=optimizer, precision="bf16")
    predicted = profile.simulate(dict.fromkeys((unit.name for unit in profile.units), action))
    zoo.wrap_with(model, [action])
    gc.collect()
    for step in range(4):
        torch.cuda.reset_peak_memory_stats()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(*args, **kwargs).loss
        loss.backward()
        del loss
        optimizer.step()
        optimizer.zero_grad()
        if step > 1:  # in the second step results are compared
            assert predicted.steady_peak_bytes == pytest.approx(torch.cuda.max_memory_allocated() - before, rel=0.03)
