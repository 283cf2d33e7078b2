"""Layers whose saved tensors are in host memory until backward: equal to plain training, whatever the engine does."""

import contextlib
import copy
import gc
import io
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

import memscale
import zoo
from graphs import GRAPHS, chain, gradients, loss_of
from memscale._run import offloading
from zoo import Block

MIXTURES = {
    "offload": ["offload"],
    "blocking": ["offload_blocking"],
    "with kept ones": ["offload", "keep", "offload", "offload_blocking"],
    "inputs": ["recompute_offload"],
    "blocking inputs": ["recompute_offload_blocking"],
    "with all": ["recompute_offload", "offload", "keep", "recompute", "recompute_offload_blocking", "offload_blocking"],
    "without pointwise results": ["offload_pointwise"],
    "with and without": ["offload_pointwise", "offload", "recompute_pointwise", "recompute", "offload_pointwise"],
    "with recomputed ones": ["recompute", "offload", "offload", "recompute", "keep"],
}


@pytest.fixture(autouse=True)
def small_and_late(monkeypatch):
    """Tensors of small models are offloaded too, and copies are late at random."""
    options = {"least_bytes": 1, "delay_ns": 300_000, "seed": 1}
    monkeypatch.setattr(offloading, "OPTIONS", options)
    return options


def stats_of(model):
    return memscale.executor_of(model)._offloading.stats()


def assert_empty(model):
    """Nothing is left in the pool once the graphs are gone."""
    gc.collect()
    stats = stats_of(model)
    assert (stats["n_groups"], stats["used_bytes"], stats["n_pending"]) == (0, 0, 0)
    assert stats["n_refused"] == 0


@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", list(zoo.SMALL.names))
def test_equals_plain(name, autocast, mixture, no_warnings):
    plain = zoo.train_or_skip(zoo.make(name), zoo.batch_of(name), autocast=autocast)
    model = zoo.wrap_with(zoo.make(name), MIXTURES[mixture])
    zoo.assert_same(plain, zoo.train(model, zoo.batch_of(name), autocast=autocast))
    assert stats_of(model)["n_puts"] > 0 or mixture.startswith("with")
    assert_empty(model)


def both(run, actions=("offload",), block=Block):
    """run(model) on a plain and on a wrapped chain of blocks must give the same."""
    model = zoo.wrap_with(chain(block), actions)
    zoo.assert_same(run(chain(block)), run(model))
    assert_empty(model)
    return model


# Trap 1: records that are freed at the first unpack


@pytest.mark.parametrize(
    "actions",
    [["offload"], ["offload_blocking"], ["offload", "recompute"], ["recompute_offload"], ["offload_pointwise"]],
)
@pytest.mark.parametrize("run", GRAPHS)
def test_trap_1_unpacked_again(run, actions):
    both(run, actions)


@pytest.mark.parametrize("name", ["gpt2", "t5", "resnet", "lstm"])
def test_trap_1_models_with_retained_graphs(name):
    def run(model):
        args, kwargs = zoo.batch_of(name)
        torch.manual_seed(7)
        loss = zoo.loss_of(model(*args, **kwargs))
        found = []
        for keep in (True, False):
            loss.backward(retain_graph=keep)
            found.append(gradients(model))
        return found

    model = zoo.wrap_with(zoo.make(name), ["offload"])
    zoo.assert_same(run(zoo.make(name)), run(model))
    assert_empty(model)


# Trap 2: cycles through hooks that return their input


class Outputs(nn.Module):
    """Operations that save their own results, which are the outputs of the layer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        y = self.linear(x).exp().softmax(-1).tanh()
        y = y.view(2, 2, 1, 16)
        return nn.functional.scaled_dot_product_attention(y, y, y).view(4, 16)


def test_trap_2_forwards_without_backward_leave_nothing():
    model = zoo.wrap_with(chain(Outputs), ["offload"])
    gc.disable()
    try:
        for _ in range(20):
            out = model(zoo.floats(4, 16))
            alive = weakref.ref(out)
            del out
            assert alive() is None
            assert stats_of(model)["n_groups"] == 0
    finally:
        gc.enable()
    assert stats_of(model)["pool_bytes"] <= 4 << 20


# Trap 4: what is changed in place


class InPlace(Block):
    def forward(self, x):
        y = nn.functional.dropout(super().forward(x), 0.3, self.training, inplace=True)
        return nn.functional.relu(y, inplace=True) + x


def test_trap_4_operations_in_place():
    both(lambda model: (loss_of(model).backward(), gradients(model))[1], block=InPlace)


class Stash(nn.Module):
    """Remembers what it computes, so that somebody can change it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        self.kept = [self.linear(x)]
        return self.kept[0].sin()


@pytest.mark.parametrize("action", ["keep", "offload", "offload_blocking"])
def test_trap_4_a_saved_tensor_that_was_changed_raises_as_in_torch(action):
    model = zoo.wrap_with(chain(Stash), [action])
    loss = loss_of(model)
    with torch.no_grad():
        model.blocks[1].kept[0].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
def test_trap_4_a_parameter_that_was_changed_raises(autocast):
    model = zoo.wrap_with(chain(), ["offload"])
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = loss_of(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# Trap 5: views, aliases, strides


def test_trap_5_bytes_that_move():
    """Of a GPT-2 block: what only backward needs, each storage once; no weight, no input, no output."""
    batch, length, n = 2, 10, 32
    model = zoo.wrap_with(zoo.make("gpt2", dropout=0.0), ["keep", "keep", "keep", "offload", "keep"])
    executor = memscale.executor_of(model)
    offloaded = [name for name, layer in executor.plan.layers.items() if "offload" in layer]
    assert offloaded == ["transformer.h.0"]
    ids = torch.randint(0, 50, (batch, length))
    model(input_ids=ids, labels=ids)
    tokens = batch * length
    widths = [n, 3 * n, n, n, n]  # first norm; q, k, v; attention; first sum; second norm
    widths += [4 * n] * 5  # the MLP's product, and of its activation: half, tanh, 1 + tanh, result
    statistics = [1] * 4  # mean and deviation of both norms
    log_sums = batch * 4 * length  # of each head's rows
    assert stats_of(model)["put_bytes"] == 4 * (tokens * sum(widths + statistics) + log_sums)


class Strides(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))

    def forward(self, x):
        y = x @ self.weight.t()
        seen = []
        for view in (
            y.t(),
            y[:, ::2],
            y[1:3].expand(3, 2, 16),
            y.view(4, 4, 4).permute(2, 0, 1),
            y.flip(0),
            y.as_strided((3, 3), (17, 2), 5),
            y.unfold(1, 4, 2),
            y.narrow(1, 15, 1),
        ):
            seen.append((view * view.detach().cos()).sum() + (view.exp() / 8).sum())
        return x + y.sigmoid() * torch.stack(seen).sum()


def test_trap_5_strides(monkeypatch):
    geometry = []

    class Watch(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            geometry.append((x.shape, x.stride(), x.storage_offset(), x.data_ptr() % 64, x.clone()))
            return gradient

    class Watched(Strides):
        def forward(self, x):
            y = super().forward(x) * 1
            for view in (y.t(), y[1:, 3:9], y[:1].expand(5, 16), y.view(2, 2, 16)[1], y[3]):
                y = y + Watch.apply(view).sum()
            return y

    def run(model):
        geometry.clear()
        loss_of(model).backward()
        return list(geometry), gradients(model)

    both(run, block=Watched)


def test_trap_5_a_slice_of_something_large_stays():
    table = torch.randn(1000, 16)

    class Slice(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x):
            return self.linear(x).tanh() * table[10:14]

    model = both(lambda m: (loss_of(m).backward(), gradients(m))[1], block=Slice)
    assert stats_of(model)["put_bytes"] < table.nbytes


# Trap 13: nothing is left


def test_trap_13_detach_copies_and_pickles():
    model = chain()
    before = [dict(vars(module)) for module in model.modules()]
    zoo.wrap_with(model, ["offload"])
    loss_of(model).backward()
    twin = copy.deepcopy(model)
    stored = io.BytesIO()
    torch.save(model, stored)
    assert memscale.executor_of(twin) is None
    engine = memscale.executor_of(model)._offloading
    loss = loss_of(model)
    memscale.detach(model)
    assert engine.stats() == {}
    model.zero_grad()
    loss.backward()  # what was put away before still comes back
    after = gradients(model)
    twin.zero_grad()
    loss_of(twin).backward()
    zoo.assert_same(after, gradients(twin))
    for module, old in zip(model.modules(), before):
        assert vars(module).keys() == old.keys()


@pytest.mark.parametrize("actions", [["offload"], ["recompute_offload"], ["offload", "recompute_offload", "keep"]])
def test_trap_13_an_exception_in_backward(actions):
    """Of a gradient's hook. Torch's engine lets go of what it had not come to when the next backward runs."""

    def fails(_):
        raise KeyboardInterrupt

    model = zoo.wrap_with(chain(n=6), actions)
    loss_of(model).backward()
    model.zero_grad()
    for _ in range(3):
        handle = model.blocks[2].a.bias.register_hook(fails)
        with pytest.raises(KeyboardInterrupt):
            loss_of(model).backward()
        handle.remove()
        model.zero_grad()
    torch.ones(1, requires_grad=True).sum().backward()
    assert_empty(model)
    pool = stats_of(model)["pool_bytes"]
    loss_of(model).backward()
    plain = chain(n=6)
    loss_of(plain).backward()
    zoo.assert_same(gradients(plain), gradients(model))
    assert_empty(model)
    assert stats_of(model)["pool_bytes"] == pool


def test_trap_13_an_exception_in_forward():
    class Fails(Block):
        fail = False

        def forward(self, x):
            y = super().forward(x)
            if self.fail:
                raise KeyboardInterrupt
            return y

    model = zoo.wrap_with(chain(Fails), ["offload"])
    model.blocks[3].fail = True
    with pytest.raises(KeyboardInterrupt):
        loss_of(model)
    assert_empty(model)
    model.blocks[3].fail = False
    loss_of(model).backward()
    plain = chain(Fails)
    loss_of(plain).backward()
    zoo.assert_same(gradients(plain), gradients(model))
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


# Trap 15: threads and forks


def test_trap_15_backward_from_another_thread():
    def run(model):
        found = []
        for _ in range(3):
            thread = threading.Thread(target=loss_of(model).backward)
            thread.start()
            thread.join()
            found.append(gradients(model))
        return found

    both(run)


def test_trap_15_two_models_and_one_model_in_threads():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x):
            return self.linear(x).tanh().exp()

    models = [zoo.wrap_with(chain(Plain), ["offload"]) for _ in range(2)]
    expected = chain(Plain)
    expected(zoo.floats(4, 16)).pow(2).mean().backward()
    wanted = gradients(expected)
    problems = []

    def work(model):
        for _ in range(10):
            loss = model(zoo.floats(4, 16)).pow(2).mean()
            found = torch.autograd.grad(loss, list(model.parameters()))
            if not all(torch.equal(a, b) for a, b in zip(found, wanted.values())):
                problems.append("another gradient")

    threads = [threading.Thread(target=work, args=(model,)) for model in models for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    for model in models:
        assert_empty(model)


def test_trap_15_a_forked_child_lets_go():
    model = zoo.wrap_with(chain(), ["offload"])
    loss = loss_of(model)
    child = os.fork()
    if child == 0:
        del loss
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    loss.backward()
    plain = chain()
    loss_of(plain).backward()
    zoo.assert_same(gradients(plain), gradients(model))
    assert_empty(model)


# Memory


def test_no_host_memory_left(caplog):
    """What does not fit stays on the device; that is said once, and gradients are the same."""
    plain = zoo.train(zoo.make("gpt2"), zoo.batch_of("gpt2"))
    config = memscale.Config(max_cpu_offload_gb=20e-6)
    model = zoo.make("gpt2")
    with caplog.at_level("WARNING", logger="memscale"):
        memscale.wrap(model, config, plan=zoo.plan_of(model, ["offload"]))
        zoo.assert_same(plain, zoo.train(model, zoo.batch_of("gpt2")))
    assert stats_of(model)["n_refused"] > 0
    assert stats_of(model)["pool_bytes"] <= 20_000
    assert caplog.text.count("max_cpu_offload_gb") == 1
    memscale.detach(model)


def test_the_pool_is_taken_once():
    model = zoo.wrap_with(zoo.make("bert"), ["offload"])
    zoo.train(model, zoo.batch_of("bert"), steps=2)
    before = stats_of(model)
    zoo.train(model, zoo.batch_of("bert"), steps=4)
    after = stats_of(model)
    assert after["n_grows"] == before["n_grows"]
    assert after["pool_bytes"] == before["pool_bytes"]
    assert after["n_late"] <= before["n_late"] + 4  # the first group of each backward may be


@pytest.mark.parametrize("actions", [["offload"], ["recompute_offload"], ["offload_blocking", "recompute"]])
def test_inputs_that_grow_take_more_host_memory_in_the_middle_of_steps(actions):
    """By what is missing; gradients are the same, and sizes that came before take none."""
    plain, model = chain(n=6), zoo.wrap_with(chain(n=6), actions)
    lengths, pools = (64, 10_000, 30_000, 60_000), []
    for n in (*lengths, *lengths):
        for each in (plain, model):
            each.zero_grad()
            loss_of(each, zoo.floats(n, 16)).backward()
        zoo.assert_same(gradients(plain), gradients(model))
        assert_empty(model)
        pools.append(stats_of(model)["pool_bytes"])
    stats = stats_of(model)
    assert pools[0] < pools[1] < pools[2] < pools[3] == pools[-1]
    assert stats["pool_bytes"] <= 1.1 * stats["peak_used_bytes"] + (2 << 20)


def not_forked():
    """Addresses and bytes of memory without a file that forked children do not get, as the system sees it."""
    found, header = set(), ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.startswith("VmFlags:") and "dc" in line.split() and len(header.split()) == 5:
            found.add(header.split()[0])
        elif "-" in line.split(" ", 1)[0] and not line.split(" ", 1)[0].endswith(":"):
            header = line
    return found


def test_the_pool_as_the_system_sees_it():
    """No memory is taken after the second step, and none is left after detach."""
    before = not_forked()
    model = zoo.wrap_with(chain(n=6), ["offload", "recompute_offload", "keep"])
    for step in range(20):
        loss_of(model, zoo.floats(20_000, 16)).backward()
        if step == 1:
            after_two = not_forked()
    assert len(after_two) > len(before)
    assert not_forked() == after_two
    memscale.detach(model)
    gc.collect()
    assert not_forked() <= before


def test_layers_are_fetched_ahead():
    """One is gone as soon as it has run, and fetched when backward begins with the next."""
    model = zoo.wrap_with(chain(n=8), ["offload"], [(0, 1)] * 8)
    for _ in range(3):
        loss_of(model).backward()
    stats = stats_of(model)
    assert stats["n_fetches"] == stats["n_puts"] == 24
    assert stats["n_late"] == 3  # the last layer's, once in a step


@pytest.mark.parametrize("n_ahead", [1, 3])
def test_inputs_are_fetched_ahead(n_ahead):
    model = zoo.wrap_with(chain(n=8), ["recompute_offload"], [(1, n_ahead)] * 8)
    for _ in range(3):
        loss_of(model).backward()
    stats = stats_of(model)
    assert stats["n_puts"] == 21  # the first layer's input is the user's
    assert stats["n_fetches"] == 18  # the last layer's is still there
    assert stats["n_late"] == (0 if n_ahead == 1 else 4)  # no layer runs three after two of them: learned in two steps


def test_a_backward_in_another_order_is_learned():
    """Two branches: backward comes to the layers of the first one when no mark for them was passed."""

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = chain(n=4), chain(n=4)

        def forward(self, x):
            return self.left(x), self.right(x)

    def run(model):
        found, lates = [], []
        for step in range(6):
            torch.manual_seed(step)
            left, right = model(torch.ones(4, 16))
            (left.pow(2).sum() * 3).backward()  # the one that ran first, first
            right.pow(2).sum().backward()
            found.append(gradients(model))
            lates.append(stats_of(model)["n_late"] if hasattr(model, "_memscale_executor") else 0)
        return found, lates

    torch.manual_seed(0)
    plain = Branches()
    model = copy.deepcopy(plain)
    zoo.wrap_with(model, ["offload"], [(0, 1)] * 8)
    expected, _ = run(plain)
    found, lates = run(model)
    zoo.assert_same(expected, found)
    per_step = [after - before for before, after in zip([0, *lates], lates)]
    assert per_step[-1] < per_step[0]


@pytest.mark.parametrize("others", ["keep", "recompute"])
def test_layers_are_gone_when_two_more_have_run(others, small_and_late):
    """Whatever is done to the others; and they are fetched when backward is two layers away: without a schedule."""
    small_and_late["delay_ns"] = 20_000_000  # a forward takes less
    pending = {}  # by layer: how many are on their way out when it runs

    class Looks(Block):
        def forward(self, x):
            if hasattr(model, "_memscale_executor"):
                pending[self] = stats_of(model)["n_pending"]
            return super().forward(x)

    model = chain(Looks, 7)
    expected = [(loss_of(model).backward(), gradients(model))[1] for _ in range(3)]
    model.zero_grad()
    zoo.wrap_with(model, ["offload", others, others, others, "offload", others, others])
    for wanted in expected:
        pending.clear()
        loss = loss_of(model)
        assert max(pending.values()) <= 1
        assert pending[model.blocks[3]] == 0
        assert stats_of(model)["n_pending"] == 0
        loss.backward()
        zoo.assert_same(wanted, gradients(model))
    stats = stats_of(model)
    assert stats["n_fetches"] == stats["n_puts"] == 6
    assert stats["n_late"] == 0


def test_inside_hooks_of_others():
    def run(model):
        with torch.autograd.graph.save_on_cpu():
            loss = loss_of(model)
        loss.backward()
        return gradients(model)

    model = zoo.wrap_with(chain(), ["offload"])
    zoo.assert_same(run(chain()), run(model))
    assert stats_of(model)["n_puts"] == 0


# What reviews have found


def test_a_graph_that_dies_while_the_layer_runs():
    """Its storages are gone; others may have their addresses."""

    class Metric(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x):
            metric = float(self.linear(x).exp().sin().sum().detach())
            return self.linear(x).tanh().sigmoid().sin() + x + 0 * metric

    both(lambda model: (loss_of(model).backward(), gradients(model))[1], block=Metric)


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 2, dtype=torch.float64))

    def forward(self, x):
        weight = torch.view_as_complex(self.weight.float())
        return torch.view_as_real(x.to(torch.complex64) * weight).sum(-1)


class Rounded(nn.Module):
    """Weights that are rounded after they were cast, as in training for quantization."""

    def __init__(self, by_data):
        super().__init__()
        self.weight, self.by_data = nn.Parameter(torch.randn(16, 16)), by_data

    def forward(self, x):
        weight = self.weight.to(torch.bfloat16)
        with torch.no_grad():
            if self.by_data:
                weight.data = (weight.data * 4).round() / 4
            else:
                weight.mul_(4).round_().div_(4)
        return nn.functional.linear(x.bfloat16(), weight).float()


@pytest.mark.parametrize(
    "block", [Complex, lambda: Rounded(False), lambda: Rounded(True)], ids=["a view of it", "in place", "by data"]
)
@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
def test_casts_of_the_users_own(block, autocast):
    """Only casts by autocast are made again."""

    def run(model):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = loss_of(model)
        loss.backward()
        return gradients(model)

    both(run, block=block)


class ChangesWhatItSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        ctx.save_for_backward(y)
        return y * 1

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return y.mul_(gradient)


@pytest.mark.parametrize("action", ["keep", "offload", "offload_blocking"])
def test_trap_4_a_backward_that_changes_what_others_saved_raises(action):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x):
            return ChangesWhatItSaved.apply(self.linear(x).exp())

    loss = loss_of(zoo.wrap_with(chain(Layer), [action]))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_kept_layers_near_an_offloaded_one_have_no_hooks():
    """torch.func.grad refuses hooks on saved tensors."""

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x):
            y = self.linear(x).tanh()
            return y + (torch.func.grad(lambda t: t.sin().sum())(x) if self.linear.bias is None else 0)

    def made():
        model = chain(Inner)
        for block in model.blocks[1::2]:
            block.linear.bias = None
        return model

    plain, model = made(), zoo.wrap_with(made(), ["offload", "keep"])
    for each in (plain, model):
        loss_of(each).backward()
    zoo.assert_same(gradients(plain), gradients(model))
    assert stats_of(model)["n_puts"] == 3


def test_detach_lets_go_of_host_memory():
    model = zoo.wrap_with(chain(), ["recompute_offload", "recompute"])
    loss_of(model).backward()
    executor = memscale.executor_of(model)
    units = executor._units
    memscale.detach(model)
    assert [(unit.put_inputs, unit.handler) for unit in units] == [(None, None)] * 5
    assert executor._offloading.stats() == {}


def test_an_interrupt_while_something_is_fetched_early(monkeypatch):
    """It is the user's, at whichever tensor it comes."""
    real, model = torch.empty, zoo.wrap_with(chain(n=6), ["offload"], [(0, 1)] * 6)
    left = [0]  # storages until the interrupt

    def empty(*args, **kwargs):
        if kwargs.get("dtype") is torch.uint8:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
        return real(*args, **kwargs)

    n_raised = 0
    for at in range(1, 60):
        loss, left[0] = loss_of(model), at
        monkeypatch.setattr(torch, "empty", empty)
        try:
            loss.backward()
            assert left[0] > 0, f"interrupt {at} is lost"
            break
        except KeyboardInterrupt:
            n_raised += 1
        finally:
            monkeypatch.setattr(torch, "empty", real)
    assert left[0] > 0
    assert n_raised > 5


class Holds(nn.Module):
    """What its module holds anyway: a buffer, a constant, a parameter of another class."""

    class Weight(nn.Parameter):
        pass

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.linear.weight = Holds.Weight(self.linear.weight.data)
        self.register_buffer("table", torch.randn(4, 16))
        self.constant = torch.randn(4, 16)

    def forward(self, x):
        return self.linear(x) * self.table + x * self.constant


def test_what_others_hold_is_not_copied():
    model = both(lambda m: (loss_of(m).backward(), gradients(m))[1], block=Holds)
    assert stats_of(model)["put_bytes"] == 0


def test_a_storage_that_is_given_another_size():
    class Resizes(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x):
            y = self.linear(x).exp()
            z = y.sin()
            y.untyped_storage().resize_(0)
            return z

    loss_of(zoo.wrap_with(chain(Resizes), ["offload"]))  # backward cannot work, with or without


def test_what_is_expanded_counts_as_large_as_it_is(small_and_late):
    small_and_late["least_bytes"] = 1024

    class Expands(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x):
            return (self.linear(x).mean().exp().expand(400, 4, 16) * x).sum(0)

    model = both(lambda m: (loss_of(m).backward(), gradients(m))[1], block=Expands)
    assert stats_of(model)["n_puts"] == 0


def test_a_forked_child_trains_without_copies():
    model = zoo.wrap_with(chain(), ["offload"])
    loss_of(model).backward()
    wanted = gradients(model)
    model.zero_grad()
    pid = os.fork()
    if pid == 0:
        try:
            loss_of(model).backward()
            zoo.assert_same(wanted, gradients(model))
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_layer_far_away_does_not_fetch(monkeypatch):
    """Only the layers just behind an offloaded one fetch it early, though nothing was offloaded since."""
    model = zoo.wrap_with(chain(n=8), ["offload", *["keep"] * 7])
    loss, fetched = loss_of(model), []
    for i in (7, 4, 3, 2, 1):
        model.blocks[i].b.bias.register_hook(lambda _: fetched.append(stats_of(model)["n_fetches"]))
    loss.backward()
    assert fetched == [0, 0, 0, 1, 1]


ENDLESS = """
import signal
import sys
sys.path.insert(0, {tests!r})
import torch
import memscale
import zoo
from graphs import chain, loss_of
from memscale._run import offloading

offloading.OPTIONS = {{"least_bytes": 1, "delay_ns": 400_000_000, "seed": 3}}
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it for what runs in the background
torch.set_num_threads(1)
model = zoo.wrap_with(chain(n=6), ["offload", "recompute_offload"])
stats, fetched = memscale.executor_of(model)._offloading.stats, [0]

def out(*_):
    if stats()["n_pending"] > 0:
        print("copying out", flush=True)

def back(*_):
    if stats()["n_fetches"] > fetched[0]:
        print("copying back", flush=True)
    fetched[0] = stats()["n_fetches"]

model.blocks[5].register_forward_pre_hook(out)
model.blocks[3].b.bias.register_hook(back)
while True:
    loss_of(model).backward()
    print("step", flush=True)
"""


def processes_of_session(session):
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[3]) == session:
                found.append(path.parent.name)
    return found


def names_in(process):
    """What a process has mapped or opened."""
    place = Path(f"/proc/{process.pid}")
    opened = [os.readlink(path) for path in (place / "fd").iterdir()]
    return (place / "maps").read_text().splitlines() + opened


@pytest.mark.parametrize("moment", ["copying out", "copying back"])
@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_killed_in_the_middle(signal_name, moment, tmp_path):
    """Copies are late by up to 0.4 s when it comes. The process ends at once; its host memory has no name, so nothing
    is left: no process, no shared memory, no file."""
    script, scratch = tmp_path / "endless.py", tmp_path / "scratch"
    script.write_text(ENDLESS.format(tests=str(Path(__file__).parent)))
    scratch.mkdir()
    command = [sys.executable, str(script)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    ) as process:
        try:
            while process.stdout.readline() != "step\n":
                pass
            while (line := process.stdout.readline()) != f"{moment}\n":
                assert line, process.stderr.read()
            process.send_signal(signal.SIGSTOP)  # hold it where it is for a look
            named = names_in(process)
            process.send_signal(getattr(signal, signal_name))
            process.send_signal(signal.SIGCONT)
            _, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == -getattr(signal, signal_name), errors
    assert not [name for name in named if "/dev/shm" in name or "memfd:" in name]
    assert not [name for name in os.listdir("/dev/shm") if str(process.pid) in name]
    assert not list(scratch.iterdir())
    assert not processes_of_session(process.pid)


@pytest.mark.parametrize("actions", [["offload"], ["offload", "keep", "keep"], ["recompute_offload", "keep"]])
def test_host_memory_goes_with_backward(actions):
    """Also while the loss is there, whose graph has the hooks that fetch."""
    model = zoo.wrap_with(chain(n=6), actions)
    used = []
    for _ in range(4):
        loss = loss_of(model)
        loss.backward()
        used.append((stats_of(model)["used_bytes"], stats_of(model)["peak_used_bytes"]))
    assert used == [(0, used[0][1])] * 4


def test_host_memory_goes_with_graphs_that_are_not_used():
    """Each forward runs before the last one's output goes."""
    model = zoo.wrap_with(chain(n=6), ["offload"], [(2, 2)] * 6)
    counts = []
    for _ in range(12):
        output = loss_of(model)
        counts.append(stats_of(model)["n_groups"])
    assert max(counts) <= 2 * 6
    del output


def test_one_look_at_an_input_is_forgotten():
    """Somebody who holds inputs in one step does not keep them on the device for good."""
    model = zoo.wrap_with(chain(n=6), ["recompute_offload"])

    def puts():
        before = stats_of(model)["n_puts"]
        loss_of(model).backward()
        return stats_of(model)["n_puts"] - before

    usual, seen = puts(), []
    handles = [block.register_forward_pre_hook(lambda _, args: seen.append(args)) for block in model.blocks]
    puts()
    for handle in handles:
        handle.remove()
    seen.clear()
    assert [puts() for _ in range(3)] == [usual] * 3


def test_garbage_goes_while_layers_are_let_go_of(monkeypatch):
    """Torch is asked who holds a tensor, and meanwhile a collector frees the group that was asked for."""
    model, real = zoo.wrap_with(chain(n=6), ["recompute_offload"]), torch._C._storage_Use_Count

    def count(address):
        gc.collect()
        return real(address)

    monkeypatch.setattr(torch._C, "_storage_Use_Count", count)
    expected = None
    for _ in range(4):
        cycle = [loss_of(model)]
        cycle.append(cycle)
        del cycle
        loss_of(model).backward()
        found = gradients(model)
        model.zero_grad()
        expected = expected or found
        zoo.assert_same(expected, found)
