"""measure_peak: what a call takes, against sizes that are known and against a meter of the tests."""

import gc
import threading

import pytest
import torch
from torch import nn

import memscale
from memscale._hw.measure import peak_of_events
from meter import Meter
from quick import _as_users_train, _one_thread  # noqa: F401
from zoo import LARGE

MIB = 1 << 20


def mebibytes(n):
    return torch.empty(n * MIB, dtype=torch.uint8)


def growth(fn):
    measured = memscale.measure_peak(fn)
    assert measured.reserved_bytes == measured.peak_bytes
    return measured.peak_bytes - measured.before_bytes


def test_known_sizes():
    def fn():
        a = mebibytes(3)
        b = mebibytes(5)
        del a
        c = mebibytes(2)  # 7 now, 8 before
        del b, c
        return "done"

    measured = memscale.measure_peak(fn)
    assert measured.peak_bytes - measured.before_bytes == 8 * MIB
    assert measured.result == "done"
    assert "result" not in repr(measured)


def test_nothing():
    assert growth(lambda: None) == 0
    assert growth(lambda: torch.empty(0)) == 0
    assert growth(lambda: mebibytes(7).view(-1, 2).t()[1:].expand(3, 1, -1)) == 7 * MIB  # views take nothing


def test_what_was_there_before():
    before = memscale.measure_peak(lambda: None).before_bytes
    held = mebibytes(9)
    views = [held[: 4 * MIB], held.view(-1, 2)]
    assert memscale.measure_peak(lambda: None).before_bytes - before == 9 * MIB
    del held, views
    assert memscale.measure_peak(lambda: None).before_bytes == before


def test_older_blocks_that_are_freed():
    """The profiler does not report blocks from before the measurement; their storages are watched."""
    held = [mebibytes(6), mebibytes(2)]

    def fn():
        held.clear()
        return mebibytes(7)

    assert growth(fn) == 0  # 8 at first, 7 then

    held[:] = [mebibytes(6)]

    def later():
        more = mebibytes(4)
        held.clear()
        return more, mebibytes(5)  # 10 at first, 9 then

    assert growth(later) == 4 * MIB


def test_gradients_of_an_earlier_step():
    """zero_grad at the beginning of a step frees the gradients of the step before."""
    model = nn.Linear(512, 512, bias=False)
    x = torch.ones(1, 512)

    def step():
        model.zero_grad()
        model(x).sum().backward()

    step()
    assert growth(step) < model.weight.nbytes / 2


def test_addresses_that_are_used_again():
    """A block of an earlier measurement was freed unseen; another one at its address is freed now."""
    held = []
    memscale.measure_peak(lambda: held.append(mebibytes(8)))
    held.clear()
    held.append(mebibytes(8)[: 4 * MIB].clone())
    assert growth(lambda: (held.clear(), mebibytes(3))) == 0


def test_again_and_again():
    held = []

    def fn():
        held.append(mebibytes(1))
        return mebibytes(2)

    assert [growth(fn) for _ in range(4)] == [3 * MIB] * 4


def test_against_the_meter():
    model = LARGE.make("gpt2")
    _, kwargs = LARGE.lm()
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        model(**kwargs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    measured = memscale.measure_peak(step)
    with Meter() as meter, meter.mark("step"):
        step()
    assert measured.peak_bytes - measured.before_bytes == pytest.approx(meter["step"].peak, rel=0.001)
    known = memscale.profile(model, kwargs, optimizer=optimizer).simulate()
    others = measured.before_bytes - known.idle_bytes  # tensors of other tests
    assert known.steady_peak_bytes + others == pytest.approx(measured.peak_bytes, rel=0.001)


def test_the_meter_itself():
    """The reference for predictions, on known sizes."""
    with Meter() as meter:
        a = mebibytes(4)
        with meter.mark("one"):
            b = mebibytes(3)
            del a
            c = mebibytes(2)
        with meter.mark("two"):
            d = torch.ones(MIB)
            del b, d
        with meter.mark("three"):
            pass
    assert meter["one"][:3] == (4 * MIB, 7 * MIB, 5 * MIB)
    assert meter["two"][:3] == (5 * MIB, 9 * MIB, 2 * MIB)
    assert meter["three"][:3] == (2 * MIB,) * 3
    assert [n for n, _ in meter.at_peak("two")] == [4 * MIB, 3 * MIB, 2 * MIB]
    assert meter.at_peak("two")[0][1].startswith("/aten::ones")
    del c


def test_exceptions_pass_and_leave_nothing_behind():
    def fn():
        mebibytes(1)
        raise KeyError("mine")

    for error in (KeyError, KeyboardInterrupt):
        with pytest.raises(error):
            memscale.measure_peak(lambda error=error: (_ for _ in ()).throw(error("mine")))
    with pytest.raises(KeyError, match="mine"):
        memscale.measure_peak(fn)
    assert not torch._C._autograd._profiler_enabled()
    assert growth(lambda: mebibytes(2)) == 2 * MIB


def test_inside_a_profiler():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        with pytest.raises(memscale.MemScaleError, match="profiler"):
            memscale.measure_peak(lambda: None)
        torch.ones(3).sum()


def test_another_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(growth(lambda: mebibytes(6))))
    thread.start()
    thread.join()
    assert results == [6 * MIB]


def test_the_result_is_the_callers():
    measured = memscale.measure_peak(lambda: mebibytes(2))
    assert measured.result.numel() == 2 * MIB
    with pytest.raises(AttributeError):
        measured.peak_bytes = 0
    gc.collect()


@pytest.mark.parametrize("fn", [None, 3, "step", nn.Parameter(torch.ones(1))])
def test_fn_must_be_callable(fn):
    with pytest.raises(TypeError, match="fn must be callable"):
        memscale.measure_peak(fn)


@pytest.mark.parametrize("device", [3, 1.5, ["cpu"], object()])
def test_wrong_types_of_devices(device):
    with pytest.raises(TypeError, match="device"):
        memscale.measure_peak(lambda: None, device)


@pytest.mark.parametrize("device", ["meta", "mps", "rtx3090", "cuda:x", "", torch.device("meta"), "cuda:99"])
def test_devices_that_are_not_there(device):
    with pytest.raises(ValueError, match="device="):
        memscale.measure_peak(lambda: None, device)


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu"), None])
def test_names_of_the_cpu(device):
    assert memscale.measure_peak(lambda: mebibytes(1), device).peak_bytes >= MIB


def test_the_peak_of_a_series():
    assert peak_of_events([]) == 0
    assert peak_of_events([(1, 5), (2, 7), (3, -5), (4, 4)]) == 12
    assert peak_of_events([(3, -5), (1, 5), (2, 7)]) == 12  # in any order
    assert peak_of_events([(1, -5), (2, 4)]) == 0
