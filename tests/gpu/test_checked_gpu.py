"""Plans that are checked by their use, on a GPU: what torch's allocator and events say of a step, and what the
simulation does. (tests/python/test_checked_by_use.py has when a step is measured, with readings from a script.)
"""

import itertools
import logging

import pytest
import torch

import memscale
import zoo
from test_budget_gpu import between, encoder


@pytest.fixture(autouse=True)
def _statistics_are_the_users(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("somebody's statistics were reset")

    for name in ("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_accumulated_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, refuse)


def wrapped(model, x, share=0.5, **settings):
    return memscale.wrap(model, memscale.Config(memory_budget_gb=between(model, x, share) / 1e9, **settings))


def train(model, x, optimizer, n, loss=torch.sum):
    for _ in range(n):
        loss(model(x)).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_measured_step_is_the_simulated_one(share, caplog):
    model, x = encoder(), torch.randn(64, 256, 256, device="cuda")
    other = torch.empty(100 << 20, device="cuda")
    with caplog.at_level(logging.INFO, "memscale"):
        wrapped(model, x, share)
        optimizer = torch.optim.AdamW(model.parameters())
        train(model, x, optimizer, 3)
        executor = memscale.executor_of(model)
        found = executor.measured
        assert found is not None
        train(model, x, optimizer, 3)
        torch.cuda.synchronize()
        train(model, x, optimizer, 1)
    assert executor.plan.n_recomputed > 0
    layers = {reading.layer for reading in found.readings}
    assert layers - {None} == set(executor.plan.layers)
    assert all(reading.predicted_bytes is not None for reading in found.readings)
    assert found.first is None, executor.measured
    assert abs(found.difference_bytes) <= 0.02 * executor.plan.predicted_peak_bytes
    times = [reading.measured_ns for reading in executor.measured.readings if reading.layer is not None]
    assert None not in times
    assert times == sorted(times)
    assert times[-1] > 0
    assert not any("were predicted" in record.message for record in caplog.records)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    del other
    memscale.detach(model)


def test_measuring_waits_for_nothing():
    model, x = encoder(), torch.randn(64, 256, 256, device="cuda")
    wrapped(model, x, enable_logging=False)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, x, optimizer, 2)
    torch.cuda.set_sync_debug_mode("error")
    try:
        train(model, x, optimizer, 4)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert memscale.executor_of(model).measured is not None
    memscale.detach(model)


def test_a_measured_step_allocates_what_others_do():
    model, x = encoder(), torch.randn(64, 256, 256, device="cuda")
    wrapped(model, x, mode="conservative", enable_logging=False)  # copies learn for some steps
    optimizer = torch.optim.AdamW(model.parameters())
    held = []
    for _ in range(6):
        train(model, x, optimizer, 1)
        held.append((torch.cuda.memory_allocated(), torch.cuda.memory_stats()["allocation.all.allocated"]))
    counts = [after[1] - before[1] for before, after in itertools.pairwise(held[1:])]
    assert len({n_bytes for n_bytes, _ in held[1:]}) == 1
    assert len(set(counts)) == 1  # of the third step, which is measured, and those after it
    memscale.detach(model)


def test_a_loss_that_was_not_predicted(caplog):
    """Without a budget of the user's the margin is a 64th of the device. What the loss allocates is seen where it is
    still there when backward comes to a layer."""
    held = []

    def large(output):
        for _ in range(6):
            output = output.sigmoid()
        wide = output.repeat(1, 1, 64)
        for _ in range(6):
            wide = wide.sigmoid()
            held.append(wide.detach())
        return wide.sum()

    model, x = encoder(4), torch.randn(64, 256, 256, device="cuda")
    with caplog.at_level(logging.WARNING, "memscale"):
        memscale.wrap(model, memscale.Config("conservative", max_slowdown=1.0, force_optimize=True))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(5):
            train(model, x, optimizer, 1, large)
            held.clear()
    (record,) = [record for record in caplog.records if "were predicted" in record.message]
    assert "before the backward of layer" in record.message
    assert "A loss outside of the model is predicted as the sum of its outputs." in record.message
    memscale.detach(model)


@pytest.mark.parametrize("name", ["gpt2", "bert", "resnet"])
def test_equals_plain(name, no_warnings):
    batch = zoo.batch_of(name)
    plain = zoo.train(zoo.make(name).cuda(), batch, steps=6)
    model = memscale.wrap(
        zoo.make(name).cuda(), memscale.Config("aggressive", force_optimize=True, enable_logging=False)
    )
    zoo.assert_same(plain, zoo.train(model, batch, steps=6))
    executor = memscale.executor_of(model)
    assert (executor.measured is not None) == (executor.plan.n_changed > 0)
    memscale.detach(model)
