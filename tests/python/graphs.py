"""A chain of layers, and what can be done with its graph: functions of the model that return what must be the same."""

import weakref

import torch

import zoo
from zoo import Block, Chain


def chain(block=Block, n=5):
    torch.manual_seed(0)
    return Chain(block, n).train()


def gradients(model):
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def loss_of(model, x=None):
    torch.manual_seed(7)
    return model(zoo.floats(4, 16) if x is None else x).float().pow(2).mean()


def retained(model):
    loss, found = loss_of(model), []
    for keep in (True, True, False):
        loss.backward(retain_graph=keep)
        found.append(gradients(model))
    return found


def twice_differentiated(model):
    first = torch.autograd.grad(loss_of(model), list(model.parameters()), create_graph=True)
    sum(g.pow(2).sum() for g in first).backward()
    return [g.detach() for g in first], gradients(model)


def two_forwards(model):
    first, second, third = (loss_of(model) for _ in range(3))
    second.backward()
    first.backward()
    del third
    return gradients(model)


def partly(model):
    loss = loss_of(model)
    some = torch.autograd.grad(loss, list(model.blocks[-1].parameters()), retain_graph=True)
    loss.backward()
    return some, gradients(model)


def forward_only(model):
    return loss_of(model).detach()


GRAPHS = (retained, twice_differentiated, two_forwards, partly, forward_only)

# What lives. A layer that changes a list of its own module would not be recomputed; nobody looks in here.

SEEN: list[weakref.ref] = []


def see(tensor):
    SEEN.append(weakref.ref(tensor.untyped_storage()))
    return tensor


def alive(first, n):
    return [seen() is not None for seen in SEEN[first : first + n]]


def forget():
    SEEN.clear()
