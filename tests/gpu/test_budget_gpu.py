"""Budgets on a GPU: kept, and steps that run out of memory all the same."""

import logging

import pytest
import torch
from torch import nn

import memscale
from memscale._hw.torch_allocator import is_growing


def encoder(n_layers=12):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    return nn.TransformerEncoder(layer, n_layers, enable_nested_tensor=False).cuda().train()


def between(model, x, share):
    """A budget between what everything recomputed and what the plain step needs."""
    profile = memscale.profile(model, x)
    low, high = profile.predict("all").needed_bytes, profile.predict().needed_bytes
    return (low + share * (high - low)) * 64 / 63 + (64 << 20)


def step(model, x, optimizer):
    model(x).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_a_budget_in_a_fragmented_process(share):
    stays = [torch.empty(1 << 20, dtype=torch.uint8, device="cuda") for _ in range(200)][::3]
    model, x = encoder(), torch.randn(64, 256, 256, device="cuda")
    budget = between(model, x, share) + sum(t.numel() for t in stays) * 3
    memscale.wrap(model, memscale.Config(memory_budget_gb=budget / 1e9, enable_logging=False))
    optimizer = torch.optim.AdamW(model.parameters())
    torch.cuda.reset_peak_memory_stats()
    for i in range(8):
        step(model, x, optimizer)
        if i == 1:
            retries = torch.cuda.memory_stats()["num_alloc_retries"]
    plan = memscale.executor_of(model).plan
    assert plan.n_recomputed > 0
    assert plan.occupied_bytes > 0
    assert is_growing()
    assert torch.cuda.max_memory_reserved() <= budget
    assert torch.cuda.memory_stats()["num_alloc_retries"] == retries
    memscale.detach(model)


def test_a_step_that_runs_out_of_memory(caplog):
    """Somebody else takes almost all of the memory: the step fails, and the next one has a leaner plan."""
    model, x = encoder(), torch.randn(64, 256, 256, device="cuda")
    budget = int(between(model, x, 0.5))
    memscale.wrap(model, memscale.Config(memory_budget_gb=budget / 1e9))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        step(model, x, optimizer)
    before = memscale.executor_of(model).plan
    torch.cuda.empty_cache()

    def fail():  # in a frame of its own: the exception keeps its variables alive
        other = torch.empty(budget - torch.cuda.memory_reserved() - (200 << 20), dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            step(model, x, optimizer)
        del other

    fail()
    optimizer.zero_grad()
    with caplog.at_level("INFO", logger="memscale"):
        for _ in range(3):
            step(model, x, optimizer)
    after = memscale.executor_of(model).plan
    assert after.needed_bytes < before.needed_bytes
    assert after.n_recomputed > before.n_recomputed
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith("a step ran out of memory. Its plan needs ")
    memscale.detach(model)


def test_gradients_are_those_of_the_plain_step():
    x = torch.randn(64, 256, 256, device="cuda")

    def gradients(model):
        torch.manual_seed(1)
        model.zero_grad()
        model(x).pow(2).mean().backward()
        return [p.grad.cpu() for p in model.parameters()]

    model = encoder()
    plain = gradients(model)
    model.zero_grad()
    budget = between(model, x, 0.3)
    memscale.wrap(model, memscale.Config(memory_budget_gb=budget / 1e9, enable_logging=False))
    for _ in range(3):
        found = gradients(model)
        assert memscale.executor_of(model).plan.n_recomputed > 0
        assert all(torch.equal(a, b) for a, b in zip(plain, found))
    memscale.detach(model)
