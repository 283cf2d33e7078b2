"""A batch that does not fit is refused; the next one, which fits, runs."""

import pytest
import torch

import memscale
from memscale._run import executor as executors
from quick import _one_thread  # noqa: F401
from stack import Stack, batch_of


def needs(n, recompute=None, *, held=False):
    """What a batch of n needs."""
    return memscale.profile(Stack(), batch_of(n)).simulate(recompute or (), keep_gradients=held).peak_bytes


def config_of(n_bytes, **fields):
    return memscale.Config(memory_budget_gb=n_bytes * 1.02 * 64 / 63 / 1e9, enable_logging=False, **fields)


@pytest.mark.parametrize("static", [True, False], ids=["analysed", "watched"])
def test_a_smaller_batch_after_one_that_was_refused(static):
    """Whoever catches the error and halves the batch gets there."""
    model = memscale.wrap(Stack(), config_of(needs(16), use_static_profiling=static))

    def train(n, n_steps):
        for _ in range(n_steps):
            model(batch_of(n)).backward()
            model.zero_grad()

    for n in (256, 128):
        with pytest.raises(memscale.BudgetError):
            train(n, 2)  # a step that is watched runs once
    train(16, 3)
    assert memscale.executor_of(model).plan.n_recomputed == 0
    memscale.detach(model)


def test_a_smaller_batch_with_gradients_that_are_held():
    """The large batch fits only while there are no gradients; that says nothing about the small one."""
    large = needs(64, "all")
    assert large * 1.02 < needs(64, "all", held=True)
    model = memscale.wrap(Stack(), config_of(large))
    model(batch_of(64)).backward()
    assert needs(4, held=True) < large
    model(batch_of(4)).backward()  # gradients are held now
    assert memscale.executor_of(model).plan.n_recomputed == 0
    memscale.detach(model)


def test_inputs_of_many_tensors():
    """Targets of a detector: a dictionary for each image."""

    class Detector(Stack):
        def forward(self, x, targets):
            return super().forward(x) + sum(target["boxes"].sum() for target in targets)

    model = memscale.wrap(Detector(), config_of(needs(16)))
    targets = [{"boxes": torch.ones(3, 4), "labels": torch.ones(3), "area": torch.ones(3)} for _ in range(100)]
    for _ in range(2):
        model(batch_of(4), targets).backward()
    memscale.detach(model)


def test_a_watched_batch_that_raises_changes_no_plan():
    """A larger batch is watched; if its forward raises, the plan is in force again."""
    model = memscale.wrap(Stack(), config_of(needs(64), use_static_profiling=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(n):
        model(batch_of(n)).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step(16)
    executor = memscale.executor_of(model)
    assert executor.plan.n_recomputed == 0
    assert not executor.recomputes()
    model.error = RuntimeError("of the user")
    with pytest.raises(RuntimeError, match="of the user"):
        step(32)
    model.error = None
    assert not executor.recomputes()
    step(16)
    assert not executor.recomputes()
    memscale.detach(model)


def test_a_refused_wrap_leaves_the_first_as_it_was(monkeypatch, recwarn):
    """The thread of backward and the optimizer are looked after as before."""
    monkeypatch.setattr(executors, "is_on_one_gpu", lambda model: True)
    before = torch._C._is_multithreading_enabled()
    model = memscale.wrap(Stack(), config_of(needs(64, "all") * 1.2), sample_input=batch_of(64))
    assumed = memscale.executor_of(model).plan
    with pytest.raises(memscale.BudgetError):
        memscale.wrap(model, memscale.Config(memory_budget_gb=1e-3, enable_logging=False), sample_input=batch_of(64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(batch_of(64)).backward()
        optimizer.step()
        optimizer.zero_grad()
    executor = memscale.executor_of(model)
    assert executor._planner.optimizers == (optimizer,)
    plan = executor.plan  # SGD has no state: what was left for layers is more
    assert plan.needed_bytes < assumed.needed_bytes or plan.predicted_slowdown < assumed.predicted_slowdown
    assert torch._C._is_multithreading_enabled() is False
    memscale.detach(model)
    assert torch._C._is_multithreading_enabled() is before
