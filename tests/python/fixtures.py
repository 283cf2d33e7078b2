"""Every test runs with deterministic algorithms and one thread of torch: pytest-xdist fills the cores, and a test that
needs more threads sets them. Nothing reaches a network."""

import gc
import os
import tempfile
import threading
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start, too
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.pop("MEMSCALE_ASYNC_OFFLOAD", None)
# Compiled code that torch has cached for another processor crashes: the suite also runs as on one with AVX2 alone.
os.environ.setdefault(
    "TORCHINDUCTOR_CACHE_DIR",
    f"{tempfile.gettempdir()}/memscale-inductor-{os.getuid()}-{os.environ.get('ATEN_CPU_CAPABILITY', 'any')}",
)

import pytest
import torch
import transformers

import memscale
from memscale import _core
from memscale._trace import recorder

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)
recorder._counts_if_alone()  # what every process that traces a step would find for itself
recorder._holders_of_alias()


@pytest.fixture(autouse=True)
def _repeatable():
    lock = threading.RLock()
    _core.set_random_lock(lock)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    gc.freeze()  # what the last tests left need not be searched again: a collection then takes milliseconds
    yield
    gc.collect()
    assert not lock._is_owned(), "a unit still holds the lock of the random generators"


@pytest.fixture(autouse=True)
def _watched(request, monkeypatch):
    """Tests run the shipped path: plans come from a process that analyses the step. Those marked `watched` are about
    steps that have to be watched while they run."""
    if request.node.get_closest_marker("watched") is not None:
        monkeypatch.setenv("MEMSCALE_NO_FORK", "1")


def skip_without_tool(reason):
    """Skip what needs a tool that is not installed. With MEMSCALE_REQUIRE_TOOLS=1, as in CI, that is a failure."""
    if os.environ.get("MEMSCALE_REQUIRE_TOOLS") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture
def no_warnings():
    """Any warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def recomputed():
    """The names of the units that were recomputed, in order."""
    names: list[str] = []
    _core.set_observer(lambda unit: names.append(unit.name))
    yield names
    _core.set_observer(None)


@pytest.fixture
def quiet_config():
    return memscale.Config("aggressive", force_optimize=True, enable_logging=False)
