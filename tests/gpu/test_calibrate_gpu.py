"""Calibration of a real GPU: plausible figures, within its time, and nothing stays changed."""

import gc
import time

import pytest
import torch

import memscale
from memscale import _core
from memscale._hw import calibration as _calibrate


def state():
    gc.collect()
    torch.cuda.synchronize()
    matmul = torch.backends.cuda.matmul
    return {
        "device": torch.cuda.current_device(),
        "stream": torch.cuda.current_stream().cuda_stream,
        "random": (torch.get_rng_state().tolist(), torch.cuda.get_rng_state().tolist()),
        "tf32": [getattr(matmul, name, None) for name in ("allow_tf32", "fp32_precision")],
        "threads": torch.get_num_threads(),
    }


def product():
    """So that cuBLAS and its workspace exist already."""
    x = torch.ones(64, 64, device="cuda")
    return (x @ x).sum().item()


def test_this_gpu_is_measured(tmp_path):
    product()
    before, held, start = state(), torch.cuda.memory_allocated(), time.monotonic()
    rates = memscale.calibrate(path=tmp_path / "file", force=True)  # tests run on busy machines
    assert time.monotonic() - start < 40
    assert state() == before
    assert torch.cuda.memory_allocated() - held <= 128 << 20  # workspaces of cuBLAS, one for each way to multiply
    name = torch.cuda.get_device_name()
    assert _calibrate.load(name, tmp_path / "file") == rates
    properties = torch.cuda.get_device_properties(0)
    assert rates.memory_bytes == properties.total_memory
    assert rates.capability == 10 * properties.major + properties.minor
    assert (rates.random_mb_per_s, rates.fresh_mb_per_s) == (0, 0)  # of hosts alone
    assert min(list(rates.as_dict().values())[7:-2]) > 0
    assert rates.backward_ns < rates.product_ns
    assert rates.view_ns < rates.dispatch_ns
    assert rates.both_mb_per_s > max(rates.to_device_mb_per_s, rates.from_device_mb_per_s) * 0.9
    assert rates.to_device_mb_per_s < rates.memory_mb_per_s
    assert 300 < rates.launch_ns < 20_000
    assert 1000 < rates.dispatch_ns < 100_000
    assert (rates.tf32_gflops > 0) == (rates.bf16_gflops > 0) == (rates.capability >= 80)


def test_measured_and_table_agree(tmp_path):
    """Within what clocks, power limits and slots may do to a card."""
    try:
        model = _core.gpu_model(torch.cuda.get_device_name())
    except ValueError as error:
        pytest.skip(str(error))
    rates = memscale.calibrate("cuda:0", tmp_path / "file", force=True)
    for name in ("fp32_gflops", "tf32_gflops", "fp16_gflops", "bf16_gflops", "memory_mb_per_s"):
        measured, peak = getattr(rates, name), model[name]
        assert 0.25 * peak <= measured <= 1.25 * peak, (name, measured, peak)
    assert rates.to_device_mb_per_s <= 1.1 * model["link_mb_per_s"]


def test_it_repeats(tmp_path):
    first, second = (memscale.calibrate(path=tmp_path / "file", force=True) for _ in range(2))
    for name in ("fp32_gflops", "fp16_gflops", "memory_mb_per_s", "to_device_mb_per_s"):
        a, b = getattr(first, name), getattr(second, name)
        assert abs(a - b) <= 0.2 * max(a, b), (name, a, b)


def test_a_full_gpu(tmp_path):
    product()
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(max(0, free - (100 << 20)), dtype=torch.uint8, device="cuda")
    with pytest.raises(memscale.MemScaleError, match="too little free memory"):
        memscale.calibrate(path=tmp_path / "file", force=True)
    assert not (tmp_path / "file").exists()
    del held
