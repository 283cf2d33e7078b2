"""Every test runs with deterministic algorithms and a fixed number of threads; nothing reaches a network."""

import gc
import os
import threading
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.pop("MEMSCALE_ASYNC_OFFLOAD", None)

import pytest
import torch
import transformers

import memscale
from memscale import _core

transformers.logging.set_verbosity_error()
torch.set_num_threads(2)


@pytest.fixture(autouse=True)
def _repeatable():
    lock = threading.RLock()
    _core.set_random_lock(lock)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    yield
    gc.collect()
    assert not lock._is_owned(), "a unit left the lock of the random generators behind"


@pytest.fixture(autouse=True)
def _measured(request, monkeypatch):
    """Plans come from a measured forward, which lets everything that it can be recomputed: these tests are about what
    an attached model does. Tests that are marked `profiled` have plans as users get them."""
    if request.node.get_closest_marker("profiled") is None:
        monkeypatch.setattr("memscale.executor.can_profile", lambda model, config: False)


@pytest.fixture
def no_warnings():
    """Any warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def recomputed():
    """The names of the units that were computed again, in order."""
    names: list[str] = []
    _core.set_observer(lambda unit: names.append(unit.name))
    yield names
    _core.set_observer(None)


@pytest.fixture
def quiet_config():
    return memscale.Config("aggressive", force_optimize=True, enable_logging=False)
