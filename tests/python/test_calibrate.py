"""Models of GPUs, rates of devices, and `memscale calibrate`: what is measured, what is written, and what goes wrong.

There is no GPU here: its part of the measurement runs on the CPU, with torch.cuda and the link replaced.
"""

import contextlib
import dataclasses
import errno
import io
import json
import math
import os
import random
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest
import torch

import memscale
from memscale import MemScaleError, _core, cli
from memscale._cli import env_command as _environment
from memscale._core import Rates
from memscale._hw import calibration as _calibrate
from memscale._hw import gpu as _gpu
from memscale._hw import host_costs, rate_bench
from memscale._hw.rate_bench import Effort, Figure

# Too quick to be steady, so that is not asked for.
QUICK = Effort(
    sizes=(8, 16),
    copy_bytes=1 << 18,
    link_bytes=1 << 12,
    n_operators=5,
    repeats=3,
    batch_ns=10_000,
    item_ns=1_000_000,
    n_rounds=5,
    n_retries=0,
    max_spread=math.inf,
    min_share=0.0,
)
TABLE = Rates.of_model("rtx3090")


@pytest.fixture(autouse=True)
def path(monkeypatch, tmp_path):
    """The default file, in a folder of this test: the user's own file is not touched."""
    monkeypatch.setenv(_calibrate.VARIABLE, str(tmp_path / "calibration.json"))
    monkeypatch.setattr(_calibrate, "FULL", QUICK)
    return tmp_path / "calibration.json"


@pytest.fixture
def instant(monkeypatch):
    """Nothing is measured."""
    monkeypatch.setattr(_calibrate, "measure", lambda bench, progress: {})
    monkeypatch.setattr(_calibrate, "_rates", lambda bench, figures: TABLE)


def put(path, devices):
    path.write_text(json.dumps({"memscale_calibration": 1, "devices": devices}))


def record(rates=TABLE, **changes):
    return {**json.loads(rates.to_json()), **changes}


# Models and rates


def test_models():
    models = _core.gpu_models()
    assert len(models) >= 50
    assert len({model["key"] for model in models}) == len(models)
    for model in models:
        assert _core.gpu_model(model["key"]) == model
        assert Rates.of_model(model["key"]).memory_bytes == model["memory_bytes"]
    assert _core.gpu_model("NVIDIA GeForce RTX 3090") == _core.gpu_model("rtx 3090")
    assert _core.gpu_model("RTX 3090")["capability"] == 86


def test_unknown_models():
    for call in (_core.gpu_model, _core.Device.of_model, Rates.of_model):
        with pytest.raises(ValueError, match='no GPU "rtx 3091" is known; the closest is "rtx3090"'):
            call("rtx 3091")
        for wrong in (3, None, b"t4"):
            with pytest.raises(TypeError):
                call(wrong)
        with pytest.raises(ValueError, match="null"):
            call("t4\0")


def test_rates_round_trip():
    assert Rates.from_json(TABLE.to_json()) == TABLE
    assert TABLE.source == 0
    assert TABLE.memory_bytes < 24 << 30
    measured = Rates(**{**TABLE.as_dict(), "source": 1, "fp32_gflops": 7})
    assert Rates.from_json(measured.to_json()) == measured
    for changes in ({"fp32_gflops": 0}, {"source": 2}, {"launch_ns": 1.5}, {"colour": 1}):
        with pytest.raises(ValueError, match=next(iter(changes))):
            Rates.from_json(json.dumps(record(**changes)))
    with pytest.raises(MemScaleError, match="version 3"):
        Rates.from_json(json.dumps(record(memscale_rates=3)))
    old = {**dict(list(record().items())[: 1 + list(record()).index("dispatch_ns")]), "memscale_rates": 1}
    assert (Rates.from_json(json.dumps(old)).dispatch_ns, Rates.from_json(json.dumps(old)).product_ns) == (19_000, 0)
    with pytest.raises(ValueError, match="fp32_gflops"):
        Rates(**{**TABLE.as_dict(), "fp32_gflops": -1})


# Measuring


KNOWN = {"source", "capability", "memory_bytes"}  # not measured


def test_the_cpu_is_measured(path):
    rates = memscale.calibrate("cpu")
    assert rates.source == 1
    assert all(type(value) is int and value >= 0 for value in rates.as_dict().values())
    assert min(rates.fp32_gflops, rates.bf16_gflops, rates.memory_mb_per_s, rates.random_mb_per_s) > 0
    assert min(getattr(rates, name) for name in host_costs.FIELDS) > 0
    assert (rates.capability, rates.tf32_gflops, rates.to_device_mb_per_s, rates.launch_ns) == (0, 0, 0, 0)
    assert 0 < rates.memory_bytes < 1 << 50
    assert _calibrate.load("cpu") == rates
    document = json.loads(path.read_text())
    assert document["devices"] == {"cpu": json.loads(rates.to_json())}
    measured = document["measurements"]["cpu"]
    assert measured["busy"] == ""
    assert set(measured["spread"]) == {name for name, value in rates.as_dict().items() if value} - KNOWN
    assert all(0 < low <= high for low, high in measured["spread"].values())
    assert path.stat().st_mode & 0o777 == 0o666 & ~current_umask()


def current_umask():
    umask = os.umask(0)
    os.umask(umask)
    return umask


def test_the_effort_is_bounded(monkeypatch):
    """Products that would take longer than a figure may are left out; rates are those of the best."""
    sizes = []
    bench = rate_bench.CpuBench(dataclasses.replace(QUICK, sizes=(8, 16, 32, 64), item_ns=10**9))

    def sample(call):
        sizes.append(call.args[0].shape[0])
        return [{8: 1000, 16: 100, 32: 10**8, 64: 1}[sizes[-1]]], 1.0

    monkeypatch.setattr(bench, "sample", sample)
    assert bench.matrix("fp32").value == round(2 * 16 * 16 * 64 / 100)
    assert sizes == [8, 16, 32]


def test_repeats(monkeypatch):
    bench = rate_bench.CpuBench(dataclasses.replace(QUICK, repeats=5, batch_ns=1000))
    times, batches = iter([5000, 100, 90, 110, 10_000, 95, 100]), []
    monkeypatch.setattr(bench, "time", lambda call, n: batches.append(n) or next(times))
    samples, share = bench.sample(print)
    assert samples == [90, 110, 10_000, 95, 100]
    assert 0 <= share <= 1
    assert batches == [1, 1, *[11] * 5]
    figure = Figure.of(samples)
    assert (figure.value, figure.low, figure.high, figure.spread) == (100, 95, 110, 0.15)


# A machine that is busy


def played(values, share=1.0):
    """Figures whose n-th try has the n-th of these spreads."""
    tries = iter(values)
    return lambda self: Figure(100, 50, 150, next(tries), share)


@pytest.fixture
def strict(monkeypatch):
    """Only the memory's figure is judged, and tried again."""
    monkeypatch.setattr(rate_bench.CpuBench, "matrix", lambda self, kind: Figure(7, 7, 7))
    costs = {name: Figure(9, 9, 9) for name in host_costs.FIELDS}
    monkeypatch.setattr(rate_bench.CpuBench, "host_costs", lambda self: costs)
    for name in ("random", "fresh"):
        monkeypatch.setattr(rate_bench.CpuBench, name, lambda self: Figure(8, 8, 8))
    monkeypatch.setattr(_calibrate, "FULL", dataclasses.replace(QUICK, n_retries=2, max_spread=0.25, min_share=0.75))


def test_figures_that_are_not_steady_are_measured_again(strict, monkeypatch):
    told = []
    monkeypatch.setattr(rate_bench.CpuBench, "memory", played([0.9, 0.3, 0.2]))
    result = _calibrate.run("cpu", progress=told.append)
    assert result.busy == ""
    assert result.figures["memory_mb_per_s"].spread == 0.2
    assert told.count("cpu: memory, again: the machine is busy") == 2


def test_a_busy_machine(strict, path, monkeypatch):
    """Repeats that disagree: nothing is written, unless that is wanted."""
    monkeypatch.setattr(rate_bench.CpuBench, "memory", played([0.9, 0.3, 0.4] * 2))
    words = (
        r"cpu is too busy to be measured: repeats of memory_mb_per_s were 30% apart \(50 to 150\). Nothing was written"
    )
    with pytest.raises(MemScaleError, match=words):
        memscale.calibrate("cpu")
    assert not path.exists()
    assert memscale.calibrate("cpu", force=True).memory_mb_per_s == 100
    assert _calibrate.load("cpu").memory_mb_per_s == 100
    measured = json.loads(path.read_text())["measurements"]["cpu"]
    assert measured["busy"] == "repeats of memory_mb_per_s were 30% apart (50 to 150)"
    assert measured["spread"]["memory_mb_per_s"] == [50, 150]


def test_processors_that_others_use(strict, path, monkeypatch, capsys):
    monkeypatch.setattr(rate_bench.CpuBench, "memory", played([0.0] * 6, share=0.5))
    assert cli.main(["calibrate", "--device", "cpu"]) == 1
    error = capsys.readouterr().err
    assert "memory_mb_per_s was 100 while the process got 50% of its processors" in error
    assert error.count("\n") == 1
    assert not path.exists()
    assert cli.main(["calibrate", "--device", "cpu", "--force"]) == 0
    assert "busy" in capsys.readouterr().out
    assert path.exists()


# What the host does


def test_host_costs_follow_from_times():
    """Of stacks whose operations are counted, and times that were made up."""
    bench = host_costs.HostBench(torch.device("cpu"), lambda: None)
    times = dict.fromkeys(bench.round(), 0.0)
    forward, backward = bench._counts["blocks"]
    assert forward.product == 7 * 8
    assert min(forward.other, forward.view, backward.other, backward.product, backward.view, bench._n_saved) > 0
    pointwise = bench._counts["pointwise"]
    times["views"] = 2_000.0 * bench._counts["views"][0].view
    times["views without autograd"] = times["views"] / 2
    times["pointwise"] = 5_000.0 * pointwise[0].other + 2_000.0 * pointwise[0].view
    times["pointwise backward"] = 4_000.0 * pointwise[1].other + 1_000.0 * pointwise[1].view
    times["blocks"] = 5_000.0 * forward.other + 2_000.0 * forward.view + 10_000.0 * forward.product
    times["blocks backward"] = 4_000.0 * backward.other + 1_000.0 * backward.view + 8_000.0 * backward.product
    times["units"] = times["blocks"]
    times["units backward"] = times["blocks backward"] + times["blocks"] + 3_000.0 * (bench._n_saved + 14 * 8)
    times["fused"] = 700.0 * bench._listed["fused"].listed + 6_000.0 * len(bench._steps["fused"].parameters)
    times["foreach"] = 700.0 * bench._listed["foreach"].listed + 6_000.0 * len(bench._steps["fused"].parameters)
    expected = {
        "dispatch_ns": 5_000,
        "product_ns": 10_000 * host_costs.MODEL_CODE,
        "view_ns": 2_000,
        "backward_ns": 4_000,
        "backward_product_ns": 8_000,
        "backward_view_ns": 1_000,
        "list_tensor_ns": 700,
        "parameter_ns": 6_000,
        "saved_tensor_ns": 3_000,
        "recomputation_ns": 42_000,
    }
    assert bench.costs(times) == {name: round(host_costs.IN_MODELS["cpu"] * ns) for name, ns in expected.items()}
    assert min(bench.costs(dict.fromkeys(times, 0.0)).values()) == 1


def state():
    matmul = torch.backends.cuda.matmul
    return {
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads(), threading.active_count()),
        "dtype": torch.get_default_dtype(),
        "random": (torch.get_rng_state().tolist(), random.getstate()),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")),
        "tf32": [getattr(matmul, name, None) for name in ("allow_tf32", "fp32_precision")],
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "environment": dict(os.environ),
    }


@pytest.mark.parametrize(
    "around", [contextlib.nullcontext, torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu")]
)
def test_nothing_stays_changed(around, no_warnings):
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with around():
            before = state()
            memscale.calibrate("cpu")
            assert state() == before
    finally:
        torch.set_default_dtype(default)


def test_switches_are_put_back_after_a_failure(monkeypatch):
    def fails(call):
        raise KeyboardInterrupt

    before = state()
    monkeypatch.setattr(rate_bench.CpuBench, "sample", lambda self, call: fails(call))
    with pytest.raises(KeyboardInterrupt):
        memscale.calibrate("cpu")
    assert state() == before


def test_the_switch_of_tf32(monkeypatch):
    for name, values in (("fp32_precision", ("tf32", "ieee")), ("allow_tf32", (True, False))):
        matmul = types.SimpleNamespace(**{name: "before"})
        monkeypatch.setattr(torch.backends.cuda, "matmul", matmul)
        for allowed, value in zip((True, False), values):
            with rate_bench.tf32(allowed):
                assert getattr(matmul, name) == value
            assert getattr(matmul, name) == "before"


def test_devices_that_do_not_exist(monkeypatch):
    for wrong in ("gpu", "cuda:x", 3.5, [], "0"):
        with pytest.raises(ValueError, match="is not a device such as 'cpu'"):
            memscale.calibrate(wrong)
    with pytest.raises(ValueError, match="only CPUs and CUDA devices"):
        memscale.calibrate("meta")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MemScaleError, match="torch cannot use a GPU here.*memscale doctor"):
        memscale.calibrate("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match="'cuda:2' does not exist: torch sees 2 GPUs"):
        memscale.calibrate("cuda:2")


# A GPU, played by the CPU


class FakeEvent:
    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        pass

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return 0.0125  # ms, of QUICK.n_operators kernels


class PlayedGpu(rate_bench.CudaBench):
    def __init__(self, effort, index):
        rate_bench.CpuBench.__init__(self, effort)
        self.index, self.name, self.capability, self.memory_bytes = index, "NVIDIA Played", 80 + index, 10**10
        self.types = ("fp32", "tf32", "fp16", "bf16") if index else ("fp32", "fp16")


LINK = {
    "to_device_rate": 25 * 10**9,
    "from_device_rate": 26 * 10**9,
    "both_rate": 45 * 10**9,
    "pinning_rate": 16 * 10**8,
}


@pytest.fixture
def played_gpu(monkeypatch):
    waits = []
    link = {"n_bytes": 1, **LINK, "intact": True}
    monkeypatch.setattr(_calibrate, "CudaBench", PlayedGpu)
    monkeypatch.setattr(_gpu, "get", lambda: types.SimpleNamespace(link=lambda device, n_bytes: link))
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "current_device": lambda: 1,
        "synchronize": waits.append,
        "device": contextlib.nullcontext,
        "Event": FakeEvent,
        "empty_cache": lambda: waits.append("empty"),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return types.SimpleNamespace(waits=waits, link=link)


def test_a_gpu_is_measured(played_gpu):
    before, told = state(), []
    result = _calibrate.run(progress=told.append)
    rates = result.rates
    assert state() == before
    assert result.device == "NVIDIA Played"
    assert (rates.capability, rates.memory_bytes, rates.launch_ns) == (81, 10**10, 2500)
    assert min(rates.fp32_gflops, rates.tf32_gflops, rates.fp16_gflops, rates.bf16_gflops, rates.dispatch_ns) > 0
    assert rates.to_device_mb_per_s == 25_000
    assert rates.from_device_mb_per_s == 26_000
    assert rates.both_mb_per_s == 45_000
    assert rates.pinning_mb_per_s == 1600
    assert _calibrate.load("NVIDIA Played") == rates
    assert set(played_gpu.waits[:-1]) == {1}
    assert played_gpu.waits[-1] == "empty"
    assert told[0] == "NVIDIA Played: matrix products in fp32"
    assert len(told) == 10
    older = _calibrate.run("cuda:0").rates
    assert (older.tf32_gflops, older.bf16_gflops) == (0, 0)
    assert older.fp16_gflops > 0


def test_a_gpu_that_cannot_be_measured(played_gpu, path, monkeypatch):
    played_gpu.link["intact"] = False
    with pytest.raises(MemScaleError, match="bytes were changed on their way to NVIDIA Played"):
        memscale.calibrate()
    assert played_gpu.waits[-1] == "empty"
    played_gpu.waits.clear()

    def full(self, n, dtype):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 256 MiB")

    monkeypatch.setattr(PlayedGpu, "product", full)
    with pytest.raises(MemScaleError, match="too little free memory to be measured: CUDA out of memory"):
        memscale.calibrate()
    assert played_gpu.waits == ["empty"]
    assert not path.exists()


# The file


def test_where_the_file_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/of me")
    monkeypatch.delenv(_calibrate.VARIABLE)
    for config, folder in (
        ("/etc/mine", "/etc/mine"),
        ("", "/home/of me/.config"),
        ("relative", "/home/of me/.config"),
    ):
        monkeypatch.setenv("XDG_CONFIG_HOME", config)
        assert _calibrate.default_path() == Path(folder, "memscale/calibration.json")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert _calibrate.default_path() == Path("/home/of me/.config/memscale/calibration.json")
    monkeypatch.setenv(_calibrate.VARIABLE, "")
    assert _calibrate.default_path() == Path("/home/of me/.config/memscale/calibration.json")
    monkeypatch.setattr(Path, "home", raises(RuntimeError("Could not determine home directory.")))
    with pytest.raises(MemScaleError, match="set MEMSCALE_CALIBRATION to a file"):
        _calibrate.default_path()
    monkeypatch.setenv(_calibrate.VARIABLE, "/a/file")
    assert _calibrate.default_path() == Path("/a/file")


def raises(error):
    def function(*args, **kwargs):
        raise error

    return function


def test_several_devices_in_one_file(instant, path):
    put(path, {"NVIDIA H200": record(fp32_gflops=1), "A": {"kept": "as it is"}})
    assert memscale.calibrate("cpu") == TABLE
    assert list(json.loads(path.read_text())["devices"]) == ["A", "NVIDIA H200", "cpu"]
    assert _calibrate.devices() == ["A", "NVIDIA H200", "cpu"]
    assert _calibrate.load("NVIDIA H200").fp32_gflops == 1
    assert _calibrate.load("cpu") == TABLE
    assert json.loads(path.read_text())["devices"]["A"] == {"kept": "as it is"}


def test_another_file(instant, path, tmp_path):
    for given in (tmp_path / "new/folder/file", str(tmp_path / "other.json")):
        assert memscale.calibrate("cpu", given) == TABLE
        assert _calibrate.load("cpu", given) == TABLE
        assert _calibrate.devices(given) == ["cpu"]
    assert not path.exists()


def test_nothing_was_calibrated(path):
    assert _calibrate.load("cpu") is None
    assert _calibrate.devices() == []
    assert _calibrate.load("cpu", f"{__file__}/below") is None
    put(path, {"NVIDIA H200": record()})
    assert _calibrate.load("cpu") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is not JSON"),
        ('{"memscale_calibration": 1, "devices": {"cpu": ', "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        (b"\xff\xfe\x00", "it is not JSON"),
        ("[]", "it has no 'memscale_calibration'"),
        ("{}", "it has no 'memscale_calibration'"),
        ('{"memscale_calibration": true, "devices": {}}', "it has no 'memscale_calibration'"),
        ('{"memscale_calibration": 2, "devices": {}}', "it is of version 2, and this MemScale reads 1"),
        ('{"memscale_calibration": 1}', "it has no 'devices'"),
        ('{"memscale_calibration": 1, "devices": []}', "it has no 'devices'"),
    ],
)
def test_a_broken_file(instant, path, text, reason):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    for call in (lambda: _calibrate.load("cpu"), _calibrate.devices):
        with pytest.raises(MemScaleError) as error:
            call()
        for words in (f"the calibration {path} cannot be used: {reason}", "Run `memscale calibrate`", "or delete it"):
            assert words in str(error.value)
    assert _environment.calibration()["problem"] == str(error.value)
    memscale.calibrate("cpu")  # the remedy
    assert _calibrate.load("cpu") == TABLE


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (record(memscale_rates=3), "memscale_rates has version 3"),
        (record(fp32_gflops=0), '"fp32_gflops" must be'),
        (record(fp32_gflops=float("nan")), ""),
        (record(colour=1), "colour"),
        ([], ""),
        (7, ""),
    ],
)
def test_a_broken_record(path, changed, reason):
    put(path, {"cpu": changed, "NVIDIA H200": record()})
    with pytest.raises(MemScaleError) as error:
        _calibrate.load("cpu")
    assert f"the calibration {path} cannot be used: cpu: " in str(error.value)
    assert reason in str(error.value)
    assert _calibrate.load("NVIDIA H200") == TABLE


def test_places_that_cannot_be_written(monkeypatch, tmp_path):
    """They are refused before anything is measured."""
    monkeypatch.setattr(_calibrate, "measure", raises(AssertionError("measured")))
    (tmp_path / "file").touch()
    (tmp_path / "closed").mkdir(mode=0o500)
    places = [(tmp_path / "file/below", "File exists|Not a directory"), (tmp_path, "it is a folder"), ("", "a folder")]
    if os.geteuid() != 0:
        places += [(tmp_path / "closed/new", "its folder cannot"), (tmp_path / "closed/a/new", "Permission denied")]
    for place, reason in places:
        with pytest.raises(MemScaleError, match=f"cannot be written: .*({reason}).*--output or MEMSCALE_CALIBRATION"):
            memscale.calibrate("cpu", place)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(MemScaleError, match="cannot be written: its folder cannot be written"):
        memscale.calibrate("cpu")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk(instant, path, monkeypatch, call):
    put(path, {"cpu": record(fp32_gflops=1)})
    monkeypatch.setattr(os, call, raises(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    with pytest.raises(MemScaleError, match=f"{path} cannot be written: No space left on device"):
        memscale.calibrate("cpu")
    assert _calibrate.load("cpu").fp32_gflops == 1
    assert os.listdir(path.parent) == [path.name]


def test_an_interruption(instant, path, monkeypatch):
    put(path, {"cpu": record(fp32_gflops=1)})
    monkeypatch.setattr(os, "fsync", raises(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        memscale.calibrate("cpu")
    assert _calibrate.load("cpu").fp32_gflops == 1
    assert os.listdir(path.parent) == [path.name]


def test_a_link_stays_one(instant, path, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path.symlink_to(elsewhere / "real.json")
    memscale.calibrate("cpu")
    assert path.is_symlink()
    assert _calibrate.load("cpu") == TABLE
    assert os.listdir(elsewhere) == ["real.json"]


def test_readers_see_a_whole_file(path):
    """One thread replaces it with texts of other lengths while another reads."""
    texts = [
        json.dumps({"memscale_calibration": 1, "devices": {"cpu": record(), "x" * n: {}}}) for n in (1, 50_000, 300)
    ]
    path.write_text(texts[0])
    done = threading.Event()

    def write():
        for i in range(150):
            _calibrate._replace(path, texts[i % 3])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    reads = 0
    while not done.is_set() or not reads:
        assert _calibrate.load("cpu") == TABLE
        reads += 1
    writer.join()
    assert os.listdir(path.parent) == [path.name]


# The command line


def test_the_command(capsys, path):
    assert cli.main(["calibrate", "--device", "cpu"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    rows = [line.split("  ", 1) for line in output.out.splitlines() if line and not line.startswith(" ")]
    assert rows == [["device", "cpu"], ["file", f"  {path}"], ["rates"]]
    for words in ("matrix products, fp32", "GFLOP/s", "memory, read and written", "operator, on the host"):
        assert words in output.out
    assert "tf32" not in output.out
    assert "link" not in output.out


def test_the_command_with_a_gpu(capsys, played_gpu):
    assert cli.main(["calibrate"]) == 0
    output = capsys.readouterr().out
    for words in ("NVIDIA Played", "tf32", "25.0 GB/s", "45.0 GB/s", "1.6 GB/s", "least time of a kernel     2.50 us"):
        assert words in output


def test_the_command_as_json(capsys, path, tmp_path):
    other = tmp_path / "other.json"
    assert cli.main(["calibrate", "--json", "--device", "cpu", "--output", str(other)]) == 0
    output = capsys.readouterr()
    report = json.loads(output.out)
    assert output.err == ""
    assert list(report) == ["device", "path", "rates", "spread", "busy"]
    assert (report["device"], report["path"], report["busy"]) == ("cpu", str(other), "")
    assert set(report["spread"]) <= set(report["rates"])
    assert Rates(**report["rates"]) == _calibrate.load("cpu", other)
    assert not path.exists()


def test_exit_codes(capsys, tmp_path):
    for arguments in (["--device", "gpu"], ["--device", "meta"], ["--output", str(tmp_path)], ["--device", ""]):
        assert cli.main(["calibrate", *arguments]) == 1
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err.startswith("memscale: error: ")
        assert output.err.count("\n") == 1
    for arguments in (["--colour"], ["--device"], ["now"]):
        with pytest.raises(SystemExit) as error:
            cli.main(["calibrate", *arguments])
        assert error.value.code == 2


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert cli.main(["calibrate", "--device", "cpu", "--json"]) == 0
    text = sys.stderr.getvalue()
    assert "cpu: matrix products in bf16...\r" in text
    assert text.endswith("\r")
    monkeypatch.setattr(_calibrate, "measure", lambda bench, progress: progress("something") or 1 / 0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(ZeroDivisionError):
        cli.main(["calibrate", "--device", "cpu"])
    assert sys.stderr.getvalue().endswith("\r")  # the line is gone before anything else is written


def test_the_line_in_env(capsys, path, monkeypatch):
    monkeypatch.setattr(_gpu, "get", lambda: _core.Gpu("/nowhere/cuda", "/nowhere/ml", [], ""))

    def line():
        assert cli.main(["env"]) == 0
        lines = capsys.readouterr().out.splitlines()
        return lines[lines.index("calibration") + 1]

    assert line() == f"  none  `memscale calibrate` measures this machine into {path}"
    put(path, {"NVIDIA H200": record(), "cpu": record()})
    assert line() == f"  NVIDIA H200, cpu  {path}"
    path.write_text("{")
    assert line().startswith(f"  broken  the calibration {path} cannot be used: it is not JSON")
    monkeypatch.setattr(_calibrate, "default_path", raises(MemScaleError("no home")))
    assert _environment.calibration() == {"path": None, "devices": [], "problem": "no home"}


def test_the_process(path):
    """The whole of it, as users run it, and no output but its own. Tests run on busy machines, so it is forced."""
    folders = [str(Path(memscale.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    result = subprocess.run(
        [sys.executable, "-W", "error", "-m", "memscale", "calibrate", "--json", "--device", "cpu", "--force"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        timeout=100,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    rates = _calibrate.load("cpu")
    assert rates.as_dict() == json.loads(result.stdout)["rates"]
    assert rates.fp32_gflops > 1
