"""Layers that are compiled one by one, on a GPU: equal bit for bit to the same compiled layers without MemScale."""

import pytest
import torch

import memscale
from memscale._run import offloading
from test_compiled_layers import MIXTURES, WAYS, compare, gpt2


@pytest.fixture(autouse=True)
def _small_tensors_too(monkeypatch):
    monkeypatch.setattr(offloading, "OPTIONS", {"least_bytes": 1})
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def batch(model, step):
    ids = torch.randint(0, 64, (4, 64), generator=torch.Generator().manual_seed(step)).cuda()
    return {"input_ids": ids, "labels": ids}


@pytest.mark.parametrize(
    ("way", "mixture", "autocast"), [*((way, "mixed", True) for way in WAYS), ("in place", "recomputed", False)]
)
def test_block_compiled_gpt2_equals_plain(way, mixture, autocast):
    model = compare(lambda: gpt2().cuda(), way, MIXTURES[mixture], batch=batch, autocast=autocast)
    executor = memscale.executor_of(model)
    assert (executor._offloading.stats().get("n_puts", 0) > 0) == (mixture == "mixed")
