"""What convolutions take on a GPU counts as it was measured there; here the measurement is made up."""

import contextlib

import pytest
import torch
from torch import nn

import memscale
from memscale import _core
from memscale._trace import gpu_kernels, profiling

MANY = 512 << 20


@pytest.fixture
def measured(monkeypatch):
    """Convolutions that were asked for, and a function that answers."""
    asked = []

    def answer(n_bytes, *, can_measure=True):
        monkeypatch.setattr(profiling, "gpu_of", lambda device, model: torch.device("cpu"))
        monkeypatch.setattr(gpu_kernels, "_can_measure", lambda: can_measure)
        monkeypatch.setattr(gpu_kernels, "_apart", lambda place: contextlib.nullcontext())
        monkeypatch.setattr(gpu_kernels, "_bytes_of", lambda c, place: asked.append(c) or (n_bytes, 0, 0))
        return asked

    return answer


def peak():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, groups=2, bias=False))
    profile = memscale.profile(model, torch.zeros(2, 3, 32, 32), device="rtx3090", loss=lambda output: output.sum())
    return profile.simulate().steady_peak_bytes


def test_what_is_measured_counts(measured):
    by_rule = peak()
    asked = measured(MANY)
    assert MANY < peak() < MANY + by_rule
    (forward, *_), (backward, layouts, options, wanted) = asked[0], asked[2]
    assert (forward, backward) == (False, True)
    assert [shape for shape, *_ in layouts] == [(2, 8, 14, 14), (2, 8, 30, 30), (8, 4, 3, 3)]
    assert options == ((2, 2), (0, 0), (1, 1), False, (0, 0), 2)
    assert wanted == (True, True, False)


def test_what_cannot_be_measured_counts_by_rule(measured):
    by_rule = peak()
    measured(-1)
    assert peak() == by_rule
    measured(MANY, can_measure=False)
    assert peak() == by_rule


def test_nothing_is_measured_for_a_gpu_that_is_not_here():
    model = nn.Conv2d(3, 8, 3)
    assert gpu_kernels.gpu_of(memscale._hw.devices.find("rtx3090"), model) is None
    assert gpu_kernels.gpu_of(memscale._hw.devices.find("cpu"), model) is None


@pytest.mark.parametrize("scratch", [b"\0" * 16, b"\0" * 56, b"\0" * 47])
def test_a_trace_has_bytes_for_each_name_or_none(scratch):
    trace = (b"", b"", b"", b"", ["aten.mm.default", "aten.add.Tensor"], scratch)
    with pytest.raises(ValueError, match="scratch|whole number"):
        _core.profile_from_traces([], b"", b"", (trace, None, None), (1, 1))
