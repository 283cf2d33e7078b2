"""Every test runs with deterministic algorithms and a fixed number of threads; nothing reaches a network."""

import gc
import os
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.pop("MEMSCALE_ASYNC_OFFLOAD", None)

import pytest
import torch
import transformers

import memscale

transformers.logging.set_verbosity_error()
torch.set_num_threads(2)


@pytest.fixture(autouse=True)
def _repeatable():
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    yield
    gc.collect()


@pytest.fixture
def no_warnings():
    """Any warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def recomputed(monkeypatch):
    """The names of the units that were computed again, in order."""
    from memscale import _recompute

    names: list[str] = []
    original = _recompute.Call.__call__

    def count(self, frame):
        names.append(self.unit.name)
        return original(self, frame)

    monkeypatch.setattr(_recompute.Call, "__call__", count)
    return names


@pytest.fixture
def quiet_config():
    return memscale.Config("aggressive", force_optimize=True, enable_logging=False)
