"""The process that analyses a step, made by a process that uses a GPU: it never touches the GPU, and a call that tries
to ends the child and nothing else."""

import contextlib
import threading
import time

import pytest
import torch
from torch import nn

import memscale
import zoo
from memscale._trace.child import ChildError, ForeignError, run_in_children

pytestmark = pytest.mark.gpu


def run(function):
    [value] = run_in_children(function)
    return value


@pytest.fixture
def alive():
    """The GPU works before and after the test, and computes the same."""
    x = torch.randn(256, 256, device="cuda")
    expected = (x @ x).sum()
    yield
    torch.cuda.synchronize()
    assert torch.equal((x @ x).sum(), expected)
    assert torch.equal(torch.zeros(3, device="cuda").cpu(), torch.zeros(3))


def train(model, n_steps=2):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    args, kwargs = zoo.move(zoo.batch_of("gpt2"), torch.device("cuda"), torch.float32)
    for _ in range(n_steps):
        zoo.loss_of(model(*args, **kwargs)).backward()
        optimizer.step()
        optimizer.zero_grad()


def sample():
    args, kwargs = zoo.move(zoo.batch_of("gpt2"), torch.device("cuda"), torch.float32)
    return args or kwargs


STRAY = {
    "allocate": lambda: torch.zeros(3, device="cuda").sum().item(),
    "large": lambda: torch.zeros(1 << 28, device="cuda").sum().item(),
    "synchronize": torch.cuda.synchronize,
    "stream": lambda: torch.cuda.Stream().synchronize(),
    "copy": lambda: torch.ones(4).cuda().cpu().tolist(),
}


@pytest.mark.parametrize("name", STRAY)
@pytest.mark.parametrize("after_backward", [False, True], ids=["first", "after backward"])
def test_a_stray_call_ends_the_child_alone(name, after_backward, alive):
    x = torch.ones(4, device="cuda", requires_grad=True)
    if after_backward:
        (x * 2).sum().backward()
    with contextlib.suppress(ChildError, ForeignError):  # it may also do nothing: what counts is the parent
        run(STRAY[name])
    (x * 3).sum().backward()
    torch.cuda.synchronize()
    assert x.grad.tolist() == [5.0 if after_backward else 3.0] * 4


def test_a_tensor_of_the_parent(alive):
    x = torch.arange(4, device="cuda")
    with pytest.raises((ChildError, ForeignError)):
        run(lambda: x.add_(1).tolist())
    assert x.tolist() == [0, 1, 2, 3]


def test_a_model_that_calls_cuda_is_watched(alive):
    class Stray(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(zoo.Block() for _ in range(3))

        def forward(self, x):
            torch.cuda.current_stream().synchronize()
            noise = torch.ones(x.shape[-1]).cuda()
            for block in self.blocks:
                x = block(x) * noise
            return x

    torch.manual_seed(0)
    model = Stray().cuda().eval()
    memscale.wrap(model, memscale.Config("aggressive", force_optimize=True, enable_logging=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(zoo.floats(4, 16).cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert model._memscale_executor.plan is not None


@pytest.mark.parametrize("pinned", [False, True])
def test_values_of_inputs_are_known(pinned, alive):
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x, lengths):
            return self.linear(x[:, : int(lengths.max())])

    model = Reads().cuda()
    lengths = torch.tensor([2, 3])
    lengths = lengths.pin_memory() if pinned else lengths.cuda()
    known = memscale.profile(model, {"x": torch.randn(2, 5, 8, device="cuda"), "lengths": lengths})
    assert known.source == "static"


def test_fifty_times_after_a_backward(alive):
    model = zoo.make("gpt2").cuda()
    train(model)
    batch = sample()
    for _ in range(50):
        start = time.monotonic()
        assert memscale.profile(model, batch).source == "static"
        assert time.monotonic() - start < 30
    train(model)


def test_with_threads_that_use_the_gpu(alive):
    stop = threading.Event()

    def compute():
        x = torch.randn(128, 128, device="cuda")
        while not stop.is_set():
            (x @ x).sum().item()

    threads = [threading.Thread(target=compute, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    model, batch = zoo.make("gpt2").cuda(), sample()
    try:
        sources = [memscale.profile(model, batch).source for _ in range(10)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert sources == ["static"] * 10
    train(model)


@pytest.mark.watched
@pytest.mark.parametrize("name", ["gpt2", "bert", "t5", "resnet", "lstm"])
def test_a_watched_step_equals_plain(name, alive):
    device = torch.device("cuda")
    batch = zoo.batch_of(name)
    plain = zoo.train(zoo.make(name).to(device), batch)
    model = zoo.make(name).to(device)
    memscale.wrap(model, memscale.Config("aggressive", force_optimize=True, enable_logging=False))
    zoo.assert_same(plain, zoo.train(model, batch))
    assert model._memscale_executor.plan is not None
