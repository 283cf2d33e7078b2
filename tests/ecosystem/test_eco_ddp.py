"""DistributedDataParallel on two processes (gloo): each rank trains plainly, then wrapped, and compares.

Ranks with batches of different sizes must make the same collective calls, however long each is analysed.
"""

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import compare
import fixtures  # noqa: F401  (the settings of all tests, in the processes of the ranks too)
import ranks
import torchvision_ops  # noqa: F401
import zoo

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def batch(step=0, n=4):
    """Another one for each rank and step."""
    return zoo.floats(n, 16, seed=1 + 10 * step + dist.get_rank())


def train(training, model, make_batch=batch, around=contextlib.nullcontext):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for i in range(3):
        with around():
            loss = zoo.loss_of(model(make_batch(i)))
        loss.backward()
        training.see(loss)
        optimizer.step()
        optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer}


def larger_on_rank_1(step):
    """Batches that grow on one rank alone: only there, other sizes are met in later steps."""
    return batch(step, 4 + 8 * step * dist.get_rank())


@case
def wrapped_first(training):
    model = zoo.Chain(zoo.Block)
    training.wrap(model)
    return train(training, DistributedDataParallel(model))


@case
def wrapped_last(training):
    model = DistributedDataParallel(zoo.Chain(zoo.Block))
    training.wrap(model)
    return train(training, model)


@case
def inner_wrapped_last(training):
    model = DistributedDataParallel(zoo.Chain(zoo.Block))
    training.wrap(model.module)
    return train(training, model)


@case
def other_sizes_on_each_rank(training):
    model = zoo.Chain(zoo.Block)
    training.wrap(model)
    return train(training, DistributedDataParallel(model), larger_on_rank_1)


@case
def other_sizes_with_one_graph(training):
    model = zoo.Chain(zoo.Block)
    training.wrap(model)
    return train(training, DistributedDataParallel(model, static_graph=True), larger_on_rank_1)


@case
def accumulation_without_sync(training):
    model = zoo.Chain(zoo.Block)
    training.wrap(model)
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(3):
        for k in range(3):
            with model.no_sync() if k < 2 else contextlib.nullcontext():
                loss = zoo.loss_of(model(batch(3 * i + k))) / 3
                loss.backward()
            training.see(loss)
        optimizer.step()
        optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer}


class Centred(nn.Module):
    """Subtracts the mean over all ranks, between its blocks, and counts its collective calls."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([zoo.Block() for _ in range(3)])
        self.calls = [0]

    def forward(self, x):
        for block in self.blocks:
            x = block(x - self.mean(x))
        return x

    def mean(self, x):
        total = torch.cat([x.detach().sum(0), torch.tensor([float(len(x))])])
        dist.all_reduce(total)
        self.calls[0] += 1
        return total[:-1] / total[-1]


@case
def collective_in_forward(training):
    model = Centred()
    training.wrap(model)
    return train(training, DistributedDataParallel(model))


@case
def collective_with_other_sizes(training):
    model = Centred()
    training.wrap(model)
    return train(training, DistributedDataParallel(model), larger_on_rank_1)


@case
def objects_in_forward(training):
    """Ranks tell each other the sizes of their batches, which only some collectives of gloo do."""

    class Model(Centred):
        def mean(self, x):
            sizes = [None, None]
            dist.all_gather_object(sizes, len(x))
            self.calls[0] += 1
            return x.detach().mean() / sum(sizes)

    model = Model()
    training.wrap(model)
    return train(training, DistributedDataParallel(model), larger_on_rank_1)


@case
def collective_with_gradient(training):
    """A loss over the outputs of all ranks, as contrastive losses have it."""
    model = zoo.Chain(zoo.Block)
    training.wrap(model)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(3):
        everything = torch.cat(dist.nn.functional.all_gather(model(batch(i))))
        loss = (everything @ everything.t()).logsumexp(1).mean() / 100
        loss.backward()
        training.see(loss)
        optimizer.step()
        optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer}


@case
def unused_parameters(training):
    class Model(zoo.Chain):
        def forward(self, x):
            for block in self.blocks[: 2 + dist.get_rank()]:
                x = block(x)
            return x

    model = Model(zoo.Block)
    training.wrap(model)
    return train(training, DistributedDataParallel(model, find_unused_parameters=True))


@case
def buffers(training):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU()) for _ in range(3)])
    training.wrap(model)
    return train(training, DistributedDataParallel(model))


@case
def autocast(training):
    model = zoo.Chain(zoo.Block)
    training.wrap(model)
    model = DistributedDataParallel(model)
    return train(training, model, around=lambda: torch.autocast("cpu", torch.bfloat16))


@case
def communication_hook(training):
    def halve(state, bucket):
        return dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future().then(lambda f: f.value()[0])

    model = zoo.Chain(zoo.Block)
    training.wrap(model)
    model = DistributedDataParallel(model)
    model.register_comm_hook(None, halve)
    return train(training, model)


@case
def gpt2(training):
    model = zoo.make("gpt2")
    training.wrap(model)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for i in range(3):
        ids = zoo.tokens(1 + dist.get_rank(), 12, seed=i)
        loss = model(ids, labels=ids).loss
        loss.backward()
        training.see(loss)
        optimizer.step()
        optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer}


def check(folder, name, mode):
    compare.check(CASES[name], mode, folder)


@pytest.mark.parametrize("mode", compare.MODES)
@pytest.mark.parametrize("name", CASES)
def test_ddp(name, mode, tmp_path):
    ranks.run_on_two(check, tmp_path, name, mode)
