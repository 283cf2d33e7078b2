"""Nothing grows: neither over steps nor over forwards that never see a backward."""

import gc
import sys

import pytest
import torch

import memscale
import zoo
from memscale import _core


def live_bytes():
    """Bytes of all tensors that Python can see, and the number of our own objects."""
    gc.collect()
    objects = gc.get_objects()
    tensors = [o for o in objects if issubclass(type(o), torch.Tensor)]
    calls = sum(type(o) in (_core.SavedTensors, _core.Call) for o in objects)
    return sum(t.untyped_storage().nbytes() for t in tensors), len(tensors), calls


def assert_no_more(after, before):
    assert all(now <= then for now, then in zip(after, before)), (before, after)


def memory_of_process():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.parametrize("name", ["gpt2", "resnet", "t5", "lstm"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward only", "training"])
def test_no_growth_over_100_steps(name, backward):
    model = zoo.everything_recomputed(zoo.make(name))
    args, kwargs = zoo.batch_of(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run(n):
        for _ in range(n):
            loss = zoo.loss_of(model(*args, **kwargs))
            if backward:
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            del loss
        return live_bytes()

    calls = live_bytes()[2]
    before = run(5)
    blocks = sys.getallocatedblocks()
    assert_no_more(run(100), before)
    assert before[2] <= calls  # no call outlives its graph
    assert sys.getallocatedblocks() - blocks < 2000


def test_no_growth_of_the_process():
    """One large layer: a leak of one activation a step would show as hundreds of megabytes."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU()) for _ in range(3)])
    zoo.everything_recomputed(model)
    x = zoo.floats(1024, 512)
    for backward in (False, True):
        for step in range(40):
            loss = model(x).sum()
            if backward:
                loss.backward()
            del loss
            if step == 9:
                before = memory_of_process()
        assert memory_of_process() - before < 32e6


def test_wrapping_and_detaching_many_times(quiet_config):
    model = zoo.make("gpt2")
    args, kwargs = zoo.batch_of("gpt2")

    def run(n):
        for _ in range(n):
            memscale.wrap(model, quiet_config)
            model(*args, **kwargs).loss.backward()
            memscale.detach(model)
        model.zero_grad()
        return live_bytes()

    before = run(3)
    assert_no_more(run(30), before)
