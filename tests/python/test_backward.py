"""Backward stays on the thread that calls it while layers of a model on one GPU are recomputed, and only then."""

import gc
import threading

import pytest
import torch

import memscale
import zoo
from memscale._run import executor
from memscale._run import torch_state as _backward


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Let every model count as one on a GPU: the engine's mode is there without one, too."""
    monkeypatch.setattr(executor, "is_on_one_gpu", lambda model: True)


def threads_in_use():
    return torch._C._is_multithreading_enabled()


def forward_of(model):
    args, kwargs = zoo.batch_of("gpt2")
    return model(*args, **kwargs)


def wrapped(config):
    return memscale.wrap(zoo.make("gpt2"), config)


def test_until_detach(on_a_gpu, quiet_config):
    model = wrapped(quiet_config)
    assert threads_in_use()
    with torch.no_grad():
        forward_of(model)
    assert threads_in_use()
    forward_of(model)
    assert not threads_in_use()
    memscale.detach(model)
    assert threads_in_use()


def test_two_models_in_any_order(on_a_gpu, quiet_config):
    first, second = wrapped(quiet_config), wrapped(quiet_config)
    forward_of(first)
    forward_of(second)
    memscale.detach(first)
    assert not threads_in_use()
    memscale.detach(second)
    assert threads_in_use()


def test_the_user_has_the_last_word(on_a_gpu, quiet_config):
    with torch.autograd.set_multithreading_enabled(False):
        model = wrapped(quiet_config)
        forward_of(model)
        memscale.detach(model)
        assert not threads_in_use()
    model = wrapped(quiet_config)
    forward_of(model)
    with torch.autograd.set_multithreading_enabled(True):
        forward_of(model)
        assert threads_in_use()
    memscale.detach(model)
    assert threads_in_use()


def test_a_model_that_dies_attached(on_a_gpu, quiet_config):
    model = wrapped(quiet_config)
    forward_of(model)
    del model
    gc.collect()
    assert threads_in_use()


def test_other_threads_are_left_alone(on_a_gpu, quiet_config):
    model = wrapped(quiet_config)
    forward_of(model)
    seen = []

    def work():
        seen.append(threads_in_use())
        forward_of(model)
        seen.append(threads_in_use())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True, False]
    memscale.detach(model)
    assert threads_in_use()


def test_not_where_nothing_is_done(on_a_gpu):
    model = wrapped(memscale.Config(memory_budget_gb=1, enable_logging=False))
    forward_of(model)
    assert memscale.executor_of(model).plan.n_recomputed == 0
    assert threads_in_use()
    memscale.detach(model)


def test_not_on_a_cpu(quiet_config):
    model = wrapped(quiet_config)
    forward_of(model)
    assert threads_in_use()
    memscale.detach(model)
    assert not _backward.is_on_one_gpu(model)
    assert not _backward.is_on_one_gpu(torch.nn.Identity())
