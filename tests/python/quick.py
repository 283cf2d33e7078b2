"""Fixtures for modules that measure memory: one thread, torch as users have it, and no waiting for the collector."""

import gc

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Kernels take memory for every thread; with one, nobody waits for the other core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _as_users_train(_repeatable):
    torch.use_deterministic_algorithms(False)
    gc.freeze()  # what is there already need not be looked through after every test
