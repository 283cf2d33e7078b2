"""What convolutions take on a GPU is measured: as real ones take it, without a trace in torch's allocator."""

from array import array

import pytest
import torch
from torch import nn

import memscale
import zoo
from memscale._trace.gpu_kernels import convolution_of, with_seen_memory

pytestmark = pytest.mark.gpu
aten = torch.ops.aten


def forward_arguments(x, w, bias=None, stride=1, padding=0, groups=1, transposed=False):
    n = x.dim() - 2
    return x, w, bias, [stride] * n, [padding] * n, [1] * n, transposed, [0] * n, groups


CASES = {
    "conv1d": lambda d: forward_arguments(empty(4, 512, 3199, dtype=d), empty(512, 512, 3, dtype=d), stride=2),
    "image": lambda d: forward_arguments(empty(8, 3, 224, 224, dtype=d), empty(64, 3, 7, 7, dtype=d), stride=2),
    "strided": lambda d: forward_arguments(empty(8, 128, 56, 56, dtype=d), empty(128, 128, 3, 3, dtype=d), stride=2),
    "bias": lambda d: forward_arguments(
        empty(8, 64, 56, 56, dtype=d), empty(64, 64, 3, 3, dtype=d), empty(64, dtype=d), padding=1
    ),
    "grouped": lambda d: forward_arguments(empty(8, 96, 28, 28, dtype=d), empty(96, 48, 3, 3, dtype=d), groups=2),
    "depthwise": lambda d: forward_arguments(empty(8, 96, 56, 56, dtype=d), empty(96, 1, 7, 7, dtype=d), groups=96),
    "transposed": lambda d: forward_arguments(
        empty(4, 64, 28, 28, dtype=d), empty(64, 32, 2, 2, dtype=d), stride=2, transposed=True
    ),
    "channels last with bias": lambda d: forward_arguments(
        empty(8, 40, 56, 56, dtype=d).to(memory_format=torch.channels_last),
        empty(160, 40, 1, 1, dtype=d),
        empty(160, dtype=d),
    ),
    "channels last": lambda d: forward_arguments(
        empty(8, 64, 56, 56, dtype=d).to(memory_format=torch.channels_last),
        empty(64, 64, 3, 3, dtype=d).to(memory_format=torch.channels_last),
    ),
}


def empty(*shape, dtype):
    return torch.zeros(*shape, dtype=dtype, device="cuda")


def seen(convolution):
    """What the measurement says."""
    trace = (b"", b"", b"", b"", ["it"], b"")
    *_, scratch = with_seen_memory(trace, {0: convolution}, torch.device("cuda", 0))
    return list(array("q", scratch))


def real(work):
    """What it asks for beside its results, by torch's own statistics, when it has run before."""
    work()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    results = work()
    stats = torch.cuda.memory_stats()
    del results
    return stats["requested_bytes.all.peak"] - stats["requested_bytes.all.current"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_they_take_what_was_measured(name, dtype):
    args = CASES[name](dtype)
    assert seen(convolution_of(aten.convolution.default, args)) == [real(lambda: aten.convolution(*args)), 0, 0]
    data, weight, bias, *options = args
    gradient = torch.zeros_like(aten.convolution(*args))
    sizes = None if bias is None else list(bias.shape)
    results = [data.nbytes, weight.nbytes, 0 if bias is None else bias.nbytes]
    for wanted in ([True, True, bias is not None], [False, True, False], [True, False, False]):
        backward = (gradient, data, weight, sizes, *options, wanted)
        taken = seen(convolution_of(aten.convolution_backward.default, backward))
        later = [n for n, want in zip(results, wanted) if want] + [0, 0, 0]
        peaks = [taken[i] - sum(later[i + 1 :]) for i in range(3)]  # results that come later are not there yet
        measured = real(lambda: aten.convolution_backward(*backward))  # noqa: B023  (it is called at once)
        assert max(*peaks, 0) == pytest.approx(measured, abs=1024), wanted


def test_nothing_stays_in_the_allocator():
    model = nn.Sequential(nn.Conv2d(3, 64, 7, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.Flatten(), nn.LazyLinear(10))
    model, x = model.cuda(), torch.randn(8, 3, 96, 96, device="cuda")
    model(x).sum().backward()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    state = torch.cuda.get_rng_state()
    memscale.profile(model, x, loss=lambda output: output.sum())
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before
    assert torch.equal(torch.cuda.get_rng_state(), state)
    measured = torch.cuda.max_memory_allocated()
    model(x).sum().backward()
    assert torch.cuda.max_memory_allocated() >= measured  # the step itself needs more than a measurement


def test_without_room_the_rule_counts():
    """A convolution that cannot run here is not an error of the analysis."""
    layout = ((1 << 14, 1 << 14, 1 << 10), (1 << 24, 1 << 10, 1), "float32")  # a terabyte
    convolution = (
        False,
        (layout, ((4, 1 << 14, 3), (3 << 14, 3, 1), "float32"), None),
        ((1,), (0,), (1,), False, (0,), 1),
        (),
    )
    assert seen(convolution)[0] == -1


@pytest.mark.parametrize("recompute", [False, True], ids=["plain", "recomputed"])
def test_a_model_of_convolutions(recompute):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv1d(256, 256, 5, padding=2), nn.Conv1d(256, 256, 5, padding=2, groups=4)

        def forward(self, x):
            return x + self.second(torch.relu(self.first(x)))

    torch.manual_seed(0)
    before = torch.cuda.memory_allocated()
    blocks = nn.ModuleList(Block() for _ in range(4))
    model = nn.Sequential(nn.Conv1d(1, 256, 10, 5), *blocks, nn.Conv1d(256, 64, 3, 2)).cuda()
    x = torch.randn(8, 1, 16000, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    profile = memscale.profile(model, x, optimizer=optimizer, loss=lambda output: output.square().mean())
    predicted = profile.simulate("all" if recompute else ()).steady_peak_bytes
    if recompute:
        zoo.everything_recomputed(model)
    for _ in range(4):
        torch.cuda.reset_peak_memory_stats()
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    measured = torch.cuda.max_memory_allocated() - before
    if recompute:
        memscale.detach(model)
    assert predicted == pytest.approx(measured, rel=0.02)
