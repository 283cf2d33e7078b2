"""Steps that ran out of memory: what is said, and the leaner plan that follows."""

import logging
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import memscale
import zoo
from memscale._run import device_memory


class Failing(nn.Module):
    """Runs out of memory when it is told to."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.fails = False

    def forward(self, *args, **kwargs):
        output = self.model(*args, **kwargs)
        if self.fails:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return output


def wrapped(*, has_sample=False, **fields):
    model = Failing(zoo.LARGE.make("gpt2"))
    _, batch = zoo.LARGE.batch_of("gpt2")
    profile = memscale.profile(model, batch)
    budget = (profile.predict("all").peak_bytes + profile.peak_bytes) / 2 * 64 / 63 / 1e9
    memscale.wrap(model, memscale.Config(memory_budget_gb=budget, **fields), batch if has_sample else None)
    return model, batch


def step(model, batch):
    model(**batch).loss.backward()
    model.zero_grad()


def fail(model, batch):
    """A step that runs out of memory."""
    model.fails = True
    with pytest.raises(torch.OutOfMemoryError):
        step(model, batch)
    model.fails = False


def messages(caplog):
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def test_a_leaner_plan_after_it(caplog):
    model, batch = wrapped()
    step(model, batch)
    before = memscale.executor_of(model).plan
    assert before.n_changed > 0
    with caplog.at_level("INFO", logger="memscale"):
        fail(model, batch)
    with caplog.at_level("INFO", logger="memscale"):
        step(model, batch)
    after = memscale.executor_of(model).plan
    assert after.needed_bytes < before.needed_bytes
    assert after.predicted_peak_bytes < before.predicted_peak_bytes
    (text,) = messages(caplog)
    assert text.startswith("a step ran out of memory. Its plan needs ")
    step(model, batch)
    assert memscale.executor_of(model).plan is after
    memscale.detach(model)


def test_until_no_plan_is_leaner(caplog):
    model, batch = wrapped()
    step(model, batch)
    needed = [memscale.executor_of(model).plan.needed_bytes]
    for _ in range(40):
        fail(model, batch)
        with caplog.at_level("INFO", logger="memscale"):
            step(model, batch)
        needed.append(memscale.executor_of(model).plan.needed_bytes)
        if needed[-1] == needed[-2]:
            break
    assert needed == sorted(needed, reverse=True)
    assert messages(caplog)[-1] == "no plan needs less memory; a smaller batch does"
    memscale.detach(model)


def test_only_the_report(caplog):
    model, batch = wrapped(on_oom="raise")
    step(model, batch)
    before = memscale.executor_of(model).plan
    fail(model, batch)
    with caplog.at_level("INFO", logger="memscale"):
        step(model, batch)
    assert memscale.executor_of(model).plan is before
    assert len(messages(caplog)) == 1
    memscale.detach(model)


def test_other_errors_change_nothing(caplog):
    model, batch = wrapped()
    step(model, batch)
    before = memscale.executor_of(model).plan
    with pytest.raises(ValueError, match="batch_size"), caplog.at_level("INFO", logger="memscale"):
        model(input_ids=torch.zeros(1, 3, dtype=torch.long), labels=torch.zeros(7, 9, dtype=torch.long))
    with caplog.at_level("INFO", logger="memscale"):
        step(model, batch)
    assert memscale.executor_of(model).plan is before
    assert not messages(caplog)
    memscale.detach(model)


def test_an_error_after_forward_is_found_by_the_count(caplog, monkeypatch):
    """As on a GPU: backward ran out of memory, and torch counted it."""
    model, batch = wrapped()
    step(model, batch)
    memory = memscale.executor_of(model)._device_memory
    before = memscale.executor_of(model).plan
    monkeypatch.setattr(memory, "_is_gpu", True)
    monkeypatch.setattr(memory, "grow", lambda: None)
    monkeypatch.setattr(memory, "_count", lambda: (1, 0))
    monkeypatch.setattr(memory, "_occupied", lambda: 0)
    monkeypatch.setattr(device_memory, "return_cache", lambda device: None)
    monkeypatch.setattr(memory, "_report", lambda plan, occupied: "a step ran out of memory")
    with caplog.at_level("INFO", logger="memscale"):
        step(model, batch)
    assert memscale.executor_of(model).plan.needed_bytes < before.needed_bytes
    assert messages(caplog) == ["a step ran out of memory"]
    after = memscale.executor_of(model).plan
    step(model, batch)
    assert memscale.executor_of(model).plan is after  # it is not counted twice
    monkeypatch.undo()
    memscale.detach(model)


def test_plans_that_take_turns_settle_once(monkeypatch):
    """Returning memory at every step would be slow: batches of two sizes may have two plans."""
    model, _ = wrapped()
    memory = memscale.executor_of(model)._device_memory
    returned = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: returned.append(1))
    monkeypatch.setattr(memory, "_is_gpu", True)
    monkeypatch.setattr(memory, "_count", lambda: (0, 0))
    monkeypatch.setattr(memory, "_growing", SimpleNamespace(works=True))
    fields = {"grows": True, "n_changed": 1, "is_cramped": False, "budget_bytes": 9}
    small, large = (SimpleNamespace(needed_bytes=n, **fields) for n in (1, 2))
    before = small
    for plan in (small, small, large, small, large, small, large):
        assert not memory.begin_step(before, held=False)
        memory.use(plan)
        memory.count_step()
        before = plan
    assert len(returned) == 2  # once for each plan that needs more than those before
    monkeypatch.undo()
    memscale.detach(model)


def test_memory_that_cannot_be_taken_at_once_is_no_failed_step(monkeypatch, caplog):
    """The memory of a step is taken as one block, if that works; torch counts it if it does not."""
    model, _ = wrapped()
    memory, failures, wanted = memscale.executor_of(model)._device_memory, [], []

    def refuse(n_bytes, **options):
        failures.append(1)
        wanted.append(n_bytes)
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    monkeypatch.setattr(torch, "empty", refuse)
    monkeypatch.setattr(memory, "_is_gpu", True)
    monkeypatch.setattr(memory, "_count", lambda: (len(failures), 0))
    monkeypatch.setattr(memory, "_growing", SimpleNamespace(works=True))
    monkeypatch.setattr(memory, "_cap", object())
    monkeypatch.setattr(memory, "_cap_bytes", lambda: 999_999_999)
    fields = {"grows": True, "n_changed": 1, "is_cramped": False, "budget_bytes": 1 << 30}
    plan = SimpleNamespace(needed_bytes=1 << 30, occupied_bytes=0, margin_bytes=0, **fields)
    memory.use(plan)
    with caplog.at_level("INFO", logger="memscale"):
        for _ in range(4):
            assert not memory.begin_step(plan, held=False)
            memory.count_step()
    assert len(failures) == 1
    assert 0 <= 999_999_999 - wanted[0] < 2 << 20
    assert wanted[0] % (2 << 20) == 0
    assert not messages(caplog)
    monkeypatch.undo()
    memscale.detach(model)


def test_a_block_that_is_taken_again_leaves_room_for_small_ones(monkeypatch):
    """They are in segments of their own: with all of the cap in one block, the first of them returns it."""
    model, _ = wrapped()
    memory, retries, taken, cap = memscale.executor_of(model)._device_memory, [], [], 8 << 30
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 1 << 30)
    monkeypatch.setattr(torch, "empty", lambda n_bytes, **options: taken.append(n_bytes))
    monkeypatch.setattr(memory, "_is_gpu", True)
    monkeypatch.setattr(memory, "_count", lambda: (0, len(retries)))
    monkeypatch.setattr(memory, "_growing", SimpleNamespace(works=True))
    monkeypatch.setattr(memory, "_cap", object())
    monkeypatch.setattr(memory, "_cap_bytes", lambda: cap)
    fields = {"grows": True, "n_changed": 1, "is_cramped": False, "budget_bytes": cap, "margin_bytes": 128 << 20}
    plan = SimpleNamespace(needed_bytes=7 << 30, **fields)
    memory.use(plan)
    for _ in range(4):
        assert not memory.begin_step(plan, held=False)
        memory.count_step()
        retries.append(1)
    assert taken == [(6 << 30) + (64 << 20), *[(7 << 30) - (128 << 20)] * 2]
    monkeypatch.undo()
    memscale.detach(model)


@pytest.mark.parametrize("has_sample", [False, True])
def test_memory_is_taken_at_once_after_the_first_step(monkeypatch, has_sample):
    """Also if the plan was made before it; with accumulated gradients, after the optimizer has made its state."""
    model, batch = wrapped(has_sample=has_sample)
    memory, finished, seen = memscale.executor_of(model)._device_memory, [], []
    optimizer = torch.optim.AdamW(model.parameters())
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: seen.append(len(finished)))
    monkeypatch.setattr(memory, "_is_gpu", True)
    monkeypatch.setattr(memory, "_count", lambda: (0, 0))
    monkeypatch.setattr(memory, "_occupied", lambda: 0)
    monkeypatch.setattr(memory, "_growing", SimpleNamespace(works=True))
    for _ in range(3):
        for _ in range(2):
            model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        finished.append(1)
    assert seen[0] == 1
    monkeypatch.undo()
    memscale.detach(model)


def test_memory_of_a_given_plan_is_taken_at_once(monkeypatch):
    """After the first step, as for a plan that is made here, and no plan is made."""
    model, (_, batch) = zoo.LARGE.make("gpt2"), zoo.LARGE.batch_of("gpt2")
    plan, finished, seen = zoo.recompute_plan(model), [], []
    memscale.wrap(model, memscale.Config(enable_logging=False), plan=plan)
    memory, optimizer = memscale.executor_of(model)._device_memory, torch.optim.AdamW(model.parameters())
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: seen.append(len(finished)))
    monkeypatch.setattr(memory, "_is_gpu", True)
    monkeypatch.setattr(memory, "_count", lambda: (0, 0))
    monkeypatch.setattr(memory, "_growing", SimpleNamespace(works=True))
    monkeypatch.setattr(plan, "needed_bytes", plan.budget_bytes)
    for _ in range(3):
        for _ in range(2):
            model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        finished.append(1)
    assert seen == [1]
    assert memscale.executor_of(model).plan is plan
    monkeypatch.undo()
    memscale.detach(model)


def test_a_given_plan_that_runs_out_of_memory_is_reported_and_stays(caplog):
    model, (_, batch) = Failing(zoo.LARGE.make("gpt2")), zoo.LARGE.batch_of("gpt2")
    plan = zoo.recompute_plan(model)
    memscale.wrap(model, plan=plan)
    step(model, batch)
    fail(model, batch)
    with caplog.at_level("INFO", logger="memscale"):
        step(model, batch)
    assert len(messages(caplog)) == 1
    assert memscale.executor_of(model).plan is plan
    memscale.detach(model)


def test_a_plan_with_room_to_spare_gets_leaner(caplog):
    """Its budget is far from what it needs: less of that is not less memory."""
    model, (_, batch) = Failing(zoo.LARGE.make("gpt2")), zoo.LARGE.batch_of("gpt2")
    memscale.wrap(model, memscale.Config(memory_budget_gb=memscale.profile(model, batch).peak_bytes * 3 / 1e9))
    step(model, batch)
    before = memscale.executor_of(model).plan
    assert before.n_recomputed == 0
    fail(model, batch)
    with caplog.at_level("INFO", logger="memscale"):
        step(model, batch)
    after = memscale.executor_of(model).plan
    assert after.needed_bytes <= before.needed_bytes * 15 / 16
    assert len(messages(caplog)) == 1
    memscale.detach(model)


def test_what_is_kept_free_refuses_no_step():
    """The plan for gradients that are held needs more than the one that failed; it ran before, so it runs again."""
    model, (_, batch) = Failing(zoo.LARGE.make("gpt2")), zoo.LARGE.batch_of("gpt2")
    profile = memscale.profile(model, batch)
    least = profile.simulate("all", keep_gradients=True).peak_bytes
    memscale.wrap(model, memscale.Config(memory_budget_gb=least * 1.02 * 64 / 63 / 1e9))
    for _ in range(4):
        for _ in range(2):
            model(**batch).loss.backward()
        model.zero_grad()
        fail(model, batch)
        model.zero_grad()
    memscale.detach(model)


def test_an_evaluation_that_ran_out_of_memory_is_no_step(caplog):
    model, batch = wrapped()
    step(model, batch)
    before = memscale.executor_of(model).plan
    with torch.no_grad():
        fail(model, batch)
    with caplog.at_level("INFO", logger="memscale"):
        step(model, batch)
    assert memscale.executor_of(model).plan is before
    assert not messages(caplog)
    memscale.detach(model)


def test_a_watched_step_that_ran_out_of_memory_had_no_plan(caplog):
    model, batch = wrapped(use_static_profiling=False)
    fail(model, batch)
    with caplog.at_level("INFO", logger="memscale"):
        for _ in range(4):
            step(model, batch)
    assert not messages(caplog)
    memscale.detach(model)
