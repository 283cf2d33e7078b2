"""Tests that need a GPU. They share models and fixtures with tests/python, and are skipped on machines without one.

With MEMSCALE_REQUIRE_GPU=1 (tools/test_gpu.sh sets it) none is skipped: without a GPU they fail.
"""

import gc
import os
import sys
from pathlib import Path

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))

import pytest
import torch

from fixtures import _repeatable, _watched, no_warnings, quiet_config, recomputed  # noqa: F401
from memscale._run import torch_state
from memscale._run.executor import Executor


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.gpu)
        if not torch.cuda.is_available() and os.environ.get("MEMSCALE_REQUIRE_GPU") != "1":
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(autouse=True)
def _clean_gpu():
    yield
    if torch_state._device_caps:  # of a test that failed: its cap would fail all others
        for thing in gc.get_objects():
            if isinstance(thing, Executor):
                thing.detach()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()  # each thread that multiplied has one
        torch.cuda.empty_cache()
