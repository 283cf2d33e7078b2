"""Profiles at other shapes, and what units could keep: fitted to traces of small models, compared with other traces."""

from array import array
from fractions import Fraction
from math import prod

import pytest
import torch

import memscale
import zoo
from memscale import _core
from memscale._trace import twin_optimizer as _optimizers
from memscale._trace.target import Target
from memscale._trace.tracer import Tracer

GPU = _core.Device(
    kind="cuda",
    name="a GPU",
    rates=_core.Rates(
        source=0,
        capability=80,
        memory_bytes=80 << 30,
        fp32_gflops=15000,
        tf32_gflops=100000,
        fp16_gflops=200000,
        bf16_gflops=200000,
        memory_mb_per_s=1500000,
        to_device_mb_per_s=20000,
        from_device_mb_per_s=20000,
        both_mb_per_s=40000,
        pinning_mb_per_s=0,
        launch_ns=2000,
        dispatch_ns=1000,
    ),
    n_multiprocessors=108,
    usable_bytes=80 << 30,
)
CPU = zoo.device_with(GPU, kind="cpu", rates=_core.Rates(**{**GPU.rates.as_dict(), "capability": 0}))
FITTED = [(2, 64), (4, 64), (2, 40), (4, 40), (2, 20), (4, 20), (3, 100)]


def language(batch, length):
    ids = torch.zeros(batch, length, dtype=torch.int64)
    return {"input_ids": ids, "labels": ids.clone()}


def images(batch, length):
    return {"pixel_values": torch.empty(batch, 3, 16, 16), "labels": torch.zeros(batch, dtype=torch.int64)}


class Traced:
    """Profiles of one model."""

    def __init__(self, name, autocast=None, inputs=language):
        self.inputs = inputs
        self.tracer = Tracer(zoo.make(name), Target("cuda", 80, autocast))
        self.maker = _optimizers.maker_of((), True)

    def at(self, batch, length):
        arguments = ((), self.inputs(batch, length), lambda output: output.loss, self.maker)
        plain, recomputed = self.tracer.static(*arguments), self.tracer.static(*arguments, recompute=True)
        names, sizes = list(self.tracer.units), self.tracer.param_bytes()
        return _core.profile_from_traces(
            names, sizes, self.tracer.unit_flags, (plain.packed(), recomputed.packed(), None), (batch, length)
        )

    def fitted(self, shapes):
        return _core.profile_fit([self.at(*shape) for shape in shapes])


def simulations(profile):
    """All simulations of a profile: units plain, recomputed, and some of each."""
    n = len(profile.units())
    plans = [None, array("i", [1] * n).tobytes(), array("i", [i % 2 for i in range(n)]).tobytes()]
    flags = (0, _core.SIMULATE_ALLOCATOR, _core.SIMULATE_ALLOCATOR | _core.SIMULATE_ENGINE_THREAD)
    return profile.units(), [profile.simulate(GPU, actions=plan, flags=flag) for plan in plans for flag in flags]


@pytest.mark.parametrize(
    ("name", "autocast", "shapes", "others"),
    [
        ("llama", None, FITTED, [(5, 31), (9, 130)]),
        ("llama", torch.bfloat16, FITTED, [(9, 130)]),
        ("t5", torch.bfloat16, FITTED, [(9, 130)]),
    ],
)
def test_unseen_shapes_are_exact(name, autocast, shapes, others):
    model = Traced(name, autocast)
    fitted = model.fitted(shapes)
    for shape in others:
        assert simulations(fitted.at(*shape)) == simulations(model.at(*shape))


def test_images_have_a_batch_alone():
    model = Traced("vit", inputs=images)
    fitted = model.fitted([(2, 0), (4, 0), (3, 0)])
    assert simulations(fitted.at(9, 0)) == simulations(model.at(9, 0))
    with pytest.raises(ValueError, match="this profile has no length"):
        fitted.at(2, 1)


def test_a_profile_at_shapes_that_it_chose():
    """Of 64 tokens; what attention kernels pad is exact at any length."""
    model = zoo.make("llama")
    known = memscale.profile(model, language(1, 64), device="a100-80gb", shapes=True)
    wanted = memscale.profile(model, language(5, 77), device="a100-80gb")
    assert known.at(5, 77).peak_bytes == wanted.peak_bytes


def test_lengths_that_tell_padding_from_growth():
    """To three lengths padding is a square and a line; to the fourth it must not be."""
    for length in (*range(8, 1100), 4096, 131072):
        shapes = _core.fit_shapes(2, length)
        lengths = [*sorted({shape[1] for shape in shapes[:-1]} | {length}), shapes[-1][1]]
        assert len(set(lengths)) == 4
        assert min(lengths) > 0
        assert max(lengths) == length
        fitted, last = lengths[:3], lengths[3]
        shares = [prod(Fraction(last - m, n - m) for m in fitted if m != n) * (-n % 32) for n in fitted]
        assert length < 64 or sum(shares) != -last % 32


@pytest.fixture(scope="module")
def gpt2():
    return Traced("gpt2")


@pytest.fixture(scope="module")
def batches(gpt2):
    return [gpt2.at(batch, 12) for batch in (2, 4, 3)]


def test_files_know_other_shapes(batches):
    fitted = _core.profile_fit(batches)
    read = _core.profile_from_json(fitted.to_json())
    assert simulations(read.at(7, 12)) == simulations(fitted.at(7, 12))
    assert simulations(read.at(7, 12).at(2, 12)) == simulations(batches[0])


def test_a_batch_of_one_is_another_step(gpt2, batches):
    """Nothing is summed over it, so it cannot be fitted with others; the peak is as good as the same."""
    one = gpt2.at(1, 12)
    with pytest.raises(memscale.MemScaleError, match="at 1 x 12 and 2 x 12 the step differs"):
        _core.profile_fit([one, *batches])
    peaks = [p.simulate(GPU)["steady_peak_bytes"] for p in (one, _core.profile_fit(batches).at(1, 12))]
    assert abs(peaks[0] - peaks[1]) <= peaks[0] // 100


def test_what_cannot_be_fitted(gpt2, batches):
    with pytest.raises(memscale.MemScaleError, match="its size in bytes at 3 x 20 is"):
        _core.profile_fit([*batches[:2], gpt2.at(3, 20)])
    with pytest.raises(ValueError, match="that no other profile has"):
        _core.profile_fit([*batches, batches[0]])
    with pytest.raises(ValueError, match="at least two"):
        _core.profile_fit(batches[:1])
    with pytest.raises(ValueError, match="valid for batch 2 only"):
        batches[0].at(4, 12)
    with pytest.raises(ValueError, match="too large"):
        _core.profile_fit(batches).at(1 << 62, 12)
    for wrong in ((), None, [None], [batches[0], 1]):
        with pytest.raises(TypeError):
            _core.profile_fit(wrong)
    for wrong in ((1,), ("1", 2), (1.5, 2)):
        with pytest.raises(TypeError):
            batches[0].at(*wrong)


def test_frontiers(batches):
    """The first point recomputes as much as a simulation does; the others trade bytes for time."""
    profile = batches[1]
    units = [name for name, *_ in profile.units()]
    kept = profile.simulate(CPU)["step_ns"]
    for i, name in enumerate(units):
        points = profile.frontier(i, CPU)
        keeps, n_bytes, times, saved = zip(*points)
        assert n_bytes[0] == 0
        assert list(n_bytes) == sorted(set(n_bytes))
        assert list(times) == sorted(set(times), reverse=True)
        assert {a + b for a, b in zip(times, saved)} == {times[0] + saved[0]}
        plan = array("i", [unit == name for unit in units])
        assert profile.simulate(CPU, actions=plan.tobytes())["step_ns"] - kept == times[0] + saved[0]
        if ".h." in name:
            attention, products, everything = 1, 2, 7  # enum ms_keep
            assert keeps == (0, attention, products, attention | products, everything)
            hidden = 4 * 12 * 32 * 4
            sums = 4 * 4 * 4 * 32  # of four heads, padded to 32
            assert n_bytes[1] == hidden + sums + 16  # and where dropout's random numbers begin
            assert n_bytes[2] == (3 + 1 + 4 + 1) * hidden  # queries, keys and values, three projections
    with pytest.raises(ValueError, match="no layer"):
        profile.frontier(len(units), CPU)
    with pytest.raises(TypeError, match="Device"):
        profile.frontier(0, "{}")
