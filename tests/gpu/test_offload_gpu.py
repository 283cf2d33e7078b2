"""Saved tensors and inputs in host memory, on a GPU: the same gradients bit for bit, however late the copies are."""

import gc
import threading
import warnings

import pytest
import torch
from torch import nn

import memscale
import zoo
from memscale._run import offloading

MIXTURES = {
    "offload": ["offload"],
    "inputs": ["recompute_offload"],
    "blocking": ["offload_blocking", "recompute_offload_blocking"],
    "all": ["recompute_offload", "offload", "keep", "recompute", "offload", "offload_blocking"],
}


@pytest.fixture(autouse=True)
def _small_tensors_too(monkeypatch):
    monkeypatch.setattr(offloading, "OPTIONS", {"least_bytes": 1})


def make(name, precision="fp32"):
    model = zoo.make(name).cuda()
    return model.bfloat16() if precision == "bf16" else model


def train(model, name, precision="fp32", **options):
    return zoo.train(model, zoo.batch_of(name), autocast=precision == "autocast", **options)


def stats_of(model):
    return memscale.executor_of(model)._offloading.stats()


def assert_empty(model):
    gc.collect()
    torch.cuda.synchronize()
    stats = stats_of(model)
    assert (stats["n_groups"], stats["used_bytes"], stats["n_pending"], stats["n_refused"]) == (0, 0, 0, 0)


@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("precision", ["fp32", "autocast"])
@pytest.mark.parametrize("name", list(zoo.SMALL.names))
def test_equals_plain(name, precision, mixture, no_warnings):
    warnings.filterwarnings("ignore", message="RNN module weights")  # torch's own, about a model that was cast
    plain = train(make(name, precision), name, precision)
    model = zoo.wrap_with(make(name, precision), MIXTURES[mixture])
    zoo.assert_same(plain, train(model, name, precision))
    assert stats_of(model)["n_puts"] > 0 or name == "albert"  # whose one block has the mixture's first action alone
    assert_empty(model)


class Wide(nn.Module):
    """Much to save and little to compute: copies are always late."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(256), nn.Linear(256, 256)

    def forward(self, x):
        y = self.norm(x).sigmoid().tanh()
        return x + nn.functional.dropout(self.linear(y), 0.1, self.training).exp().reciprocal()


def wide(n=12):
    torch.manual_seed(0)
    return zoo.Chain(Wide, n).train().cuda()


def gradients(model):
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def steps(model, n=6):
    """Gradients of some steps; between them memory is taken, filled and given back, as others do."""
    x, found = torch.randn(16384, 256, device="cuda", generator=torch.Generator("cuda").manual_seed(1)), []
    for i in range(n):
        torch.manual_seed(i)
        loss = model(x).pow(2).mean()
        for _ in range(4):
            torch.full((16384, 256), float("nan"), device="cuda")
        loss.backward()
        found.append(gradients(model))
        model.zero_grad()
    torch.cuda.synchronize()
    return found


@pytest.mark.parametrize("mixture", MIXTURES)
def test_trap_3_copies_that_are_late(mixture):
    """Device memory is used again as soon as it is released, and nothing is read before it is there."""
    model = zoo.wrap_with(wide(), MIXTURES[mixture])
    zoo.assert_same(steps(wide()), steps(model))
    assert stats_of(model)["put_bytes"] > 1 << 30 or mixture != "offload"
    assert_empty(model)


def test_memory_falls_by_what_was_moved():
    """At most two groups are on their way out, and one is fetched ahead."""

    def peak(model):
        steps(model, 2)
        gc.collect()
        torch.cuda.empty_cache()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        steps(model, 1)
        return torch.cuda.max_memory_allocated() - held

    plain = peak(wide())
    model = zoo.wrap_with(wide(), ["offload"])
    before = stats_of(model)["put_bytes"]
    offloaded = peak(model)
    moved = (stats_of(model)["put_bytes"] - before) // 3
    assert plain - offloaded > 0.6 * moved
    grown = stats_of(model)["n_grows"]
    steps(model, 3)
    assert stats_of(model)["n_grows"] == grown


def test_on_streams_of_the_users():
    class Streams(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Wide() for _ in range(4)])
            self.streams = [torch.cuda.Stream() for _ in range(2)]

        def forward(self, x):
            for i, block in enumerate(self.blocks):
                stream = self.streams[i % 2]
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    x = block(x)
                torch.cuda.current_stream().wait_stream(stream)
            return x

    def made():
        torch.manual_seed(0)
        return Streams().train().cuda()

    model = zoo.wrap_with(made(), ["offload"])
    zoo.assert_same(steps(made()), steps(model))
    assert_empty(model)


def test_backward_from_another_thread_and_retained():
    def run(model):
        found = []
        x = torch.ones(4096, 256, device="cuda")
        for _ in range(3):
            torch.manual_seed(7)
            loss = model(x).pow(2).mean()
            thread = threading.Thread(target=loss.backward, kwargs={"retain_graph": True})
            thread.start()
            thread.join()
            found.append(gradients(model))
            loss.backward()
            found.append(gradients(model))
        return found

    model = zoo.wrap_with(wide(4), ["offload", "recompute_offload"])
    zoo.assert_same(run(wide(4)), run(model))
    assert_empty(model)


def test_forward_without_backward():
    model = zoo.wrap_with(wide(), ["offload"])
    x = torch.ones(16384, 256, device="cuda")
    model(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(10):
        model(x)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before
    assert_empty(model)


def test_no_synchronisation():
    """A steady step never waits for the GPU."""
    model = zoo.wrap_with(wide(), ["offload", "recompute_offload"])
    steps(model, 3)
    x = torch.ones(16384, 256, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the mode is a prototype
            model(x).pow(2).mean().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
