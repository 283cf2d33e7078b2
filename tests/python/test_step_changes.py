"""What may change after the first step: which parameters are trained, by which optimizer, and what else is trained."""

import logging

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import memscale
from memscale._run import device_memory
from quick import _one_thread  # noqa: F401
from stack import WIDTH, Stack, batch_of


def config_of(n_bytes, **fields):
    return memscale.Config(memory_budget_gb=n_bytes * 1.02 * 64 / 63 / 1e9, **fields)


def batch(dtype=torch.float32):
    return batch_of(16, dtype)


def step(model, optimizer, x=None):
    model(batch() if x is None else x).backward()
    optimizer.step()
    optimizer.zero_grad()


def plan_of(model):
    return memscale.executor_of(model).plan


# ---- Several models ----


@pytest.mark.parametrize("static", [True, False], ids=["analysed", "watched"])
@pytest.mark.parametrize("has_sample", [False, True])
def test_two_models_that_are_trained_in_turn(static, has_sample, no_warnings):
    """torch iterates over all hooks of optimizers: none may be removed while an optimizer steps."""
    config = memscale.Config(enable_logging=False, force_optimize=True, use_static_profiling=static)
    models = [Stack(), Stack()]
    optimizers = [torch.optim.Adam(model.parameters()) for model in models]
    for model in models:
        memscale.wrap(model, config, batch() if has_sample and static else None)
    for _ in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            step(model, optimizer)
    for model in models:
        assert len(memscale.executor_of(model)._planner.optimizers) == 1
        memscale.detach(model)


@pytest.mark.parametrize("static", [True, False], ids=["analysed", "watched"])
def test_hooks_of_the_user_on_all_optimizers(static):
    from torch.optim.optimizer import _global_optimizer_post_hooks as post
    from torch.optim.optimizer import _global_optimizer_pre_hooks as pre

    before, seen = (len(pre), len(post)), []
    model = memscale.wrap(Stack(), memscale.Config(enable_logging=False, use_static_profiling=static))
    optimizer = torch.optim.Adam(model.parameters())
    model(batch()).backward()
    mine = [
        register(lambda *step: seen.append(1))
        for register in (register_optimizer_step_pre_hook, register_optimizer_step_post_hook)
    ]
    optimizer.step()
    for _ in range(2):
        step(model, optimizer)
    assert len(seen) == 6
    for hook in mine:
        hook.remove()
    memscale.detach(model)
    assert (len(pre), len(post)) == before


def test_detach_inside_a_hook_of_the_user():
    """On all optimizers, and while one of them steps."""
    from torch.optim.optimizer import _global_optimizer_post_hooks as post
    from torch.optim.optimizer import _global_optimizer_pre_hooks as pre

    before = len(pre), len(post)
    for register in (register_optimizer_step_pre_hook, register_optimizer_step_post_hook):
        model = memscale.wrap(Stack(), memscale.Config(enable_logging=False))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step(model, optimizer)
        hook = register(lambda *given, model=model: memscale.detach(model))
        step(model, optimizer)
        hook.remove()
        assert not hasattr(model, "_memscale_executor")
    memscale.detach(memscale.wrap(Stack(), memscale.Config(enable_logging=False), batch()))
    assert (len(pre), len(post)) == before


def count_work(model, monkeypatch):
    """How often its steps are analysed, and watched."""
    executor, counts = memscale.executor_of(model), {"analysed": 0, "watched": 0}
    analyse, watch = executor._planner.analyse, executor._watching.begin

    def counted(name, function):
        def call(*args, **kwargs):
            counts[name] += 1
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(executor._planner, "analyse", counted("analysed", analyse))
    monkeypatch.setattr(executor._watching, "begin", counted("watched", watch))
    return counts


@pytest.mark.parametrize("static", [True, False], ids=["analysed", "watched"])
def test_an_optimizer_that_is_made_anew(static, monkeypatch):
    """For the same parameters: nothing else is new."""
    model = memscale.wrap(Stack(), memscale.Config(enable_logging=False, use_static_profiling=static))
    counts = count_work(model, monkeypatch)
    for _ in range(6):
        step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert counts["analysed" if static else "watched"] <= 2
    memscale.detach(model)


@pytest.mark.parametrize("static", [True, False], ids=["analysed", "watched"])
def test_two_optimizers_that_take_turns(static, monkeypatch):
    model = memscale.wrap(Stack(), memscale.Config(enable_logging=False, use_static_profiling=static))
    counts = count_work(model, monkeypatch)
    halves = [list(model.layers[:3].parameters()), list(model.layers[3:].parameters())]
    optimizers = [torch.optim.Adam(half) for half in halves]
    for i in range(8):
        step(model, optimizers[i % 2])
    assert counts["analysed" if static else "watched"] <= 2
    memscale.detach(model)


# ---- What is trained ----


def test_layers_that_are_trained_later():
    """First the last layer alone, then all: the plan is made anew, for the step as it is now."""
    model, whole = Stack(), memscale.profile(Stack(), batch()).peak_bytes
    for p in model.parameters():
        p.requires_grad_(False)
    for p in model.layers[-1].parameters():
        p.requires_grad_(True)
    memscale.wrap(model, config_of(whole * 0.7, enable_logging=False))
    step(model, torch.optim.AdamW(model.layers[-1].parameters()))
    assert plan_of(model).n_recomputed == 0
    for p in model.parameters():
        p.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        step(model, optimizer)
    assert plan_of(model).n_recomputed > 0
    assert plan_of(model).baseline_peak_bytes == pytest.approx(whole, rel=0.01)
    memscale.detach(model)


def test_another_type():
    model = memscale.wrap(Stack(), config_of(memscale.profile(Stack(), batch()).peak_bytes * 1.5, enable_logging=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        step(model, optimizer)
    before = plan_of(model)
    model.to(torch.float64)
    step(model, torch.optim.SGD(model.parameters(), lr=0.1), batch(torch.float64))
    assert plan_of(model).baseline_peak_bytes > 1.9 * before.baseline_peak_bytes
    memscale.detach(model)


def test_layers_that_are_frozen_in_turn(monkeypatch):
    """As a network of two is while the other one is trained: each kind of step is analysed once."""
    model = memscale.wrap(Stack(), memscale.Config(enable_logging=False, force_optimize=True))
    planner, analysed = memscale.executor_of(model)._planner, []
    analyse = planner.analyse
    monkeypatch.setattr(planner, "analyse", lambda *a, **k: (analysed.append(1), analyse(*a, **k)))
    optimizer, plans = torch.optim.SGD(model.parameters(), lr=0.1), []
    for i in range(6):
        for p in model.layers[0].parameters():
            p.requires_grad_(i % 2 == 0)
        step(model, optimizer)
        plans.append(plan_of(model))
    assert plans[2] is plans[4] is not plans[3]
    assert plans[3] is plans[5]
    assert len(analysed) <= 4  # twice for each kind: before and after the optimizer is known
    memscale.detach(model)


@pytest.mark.parametrize("static", [True, False], ids=["analysed", "watched"])
def test_layers_that_are_frozen_in_turn_without_an_optimizer_of_torch(static, monkeypatch):
    model = memscale.wrap(Stack(), memscale.Config(enable_logging=False, use_static_profiling=static))
    counts = count_work(model, monkeypatch)
    for i in range(8):
        for p in model.layers[0].parameters():
            p.requires_grad_(i % 2 == 0)
        model(batch()).backward()
        model.zero_grad()
    assert counts["analysed" if static else "watched"] <= 2
    memscale.detach(model)


def test_gradients_of_what_is_trained_count():
    """Those of the other kind of step do not."""
    model = memscale.wrap(Stack(), memscale.Config(enable_logging=False, force_optimize=True))
    planner, asked = memscale.executor_of(model)._planner, []
    at = planner.at
    planner.at = lambda *args, held, **kwargs: (asked.append(held), at(*args, held=held, **kwargs))[1]
    first, others = model.layers[0], model.layers[1:]
    for i in range(4):
        first.requires_grad_(i % 2 == 0)
        others.requires_grad_(i % 2 == 1)
        model(batch().requires_grad_()).backward()
        first.zero_grad(set_to_none=True)  # those of the others are set to zero
        others.zero_grad(set_to_none=False)
    assert asked == [False, False, False, True]
    memscale.detach(model)


def test_a_forward_of_a_frozen_model_is_no_step(monkeypatch):
    """As where features are extracted with gradients enabled: there is nothing to plan, and nothing is concluded."""
    model = memscale.wrap(Stack(), memscale.Config(enable_logging=False))
    counts = count_work(model, monkeypatch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model, optimizer)
    for _ in range(3):
        model.requires_grad_(False)
        model(batch())
        model.requires_grad_(True)
        step(model, optimizer)
    assert counts == {"analysed": 1, "watched": 0}
    memscale.detach(model)


def test_parameters_that_are_added_later():
    """Adapters around frozen layers."""
    model = memscale.wrap(Stack(), memscale.Config(enable_logging=False, force_optimize=True))
    model.requires_grad_(False)
    for layer in model.layers:
        layer.append(nn.Linear(WIDTH, WIDTH))
    adapters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(adapters)
    for _ in range(3):
        step(model, optimizer)
    executor = memscale.executor_of(model)
    assert executor._planner.optimizers == (optimizer,)
    assert {id(p) for p in executor._trained.parameters} == {id(p) for p in adapters}
    memscale.detach(model)


class Scale(torch.autograd.Function):
    """Makes the weight's gradient in forward and saves it, as fused losses do."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight.clone(), x.sum((0, 1)))
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        weight, saved = ctx.saved_tensors
        return gradient * weight, saved


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.inner = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        return self.inner(Scale.apply(x, self.weight))


def test_a_gradient_that_was_made_in_forward():
    """A watched step of recomputed layers whose saved gradient is taken over as it is."""
    model = Stack()
    model.layers = nn.ModuleList(Scaled() for _ in range(4))
    memscale.wrap(model, memscale.Config(enable_logging=False, force_optimize=True, use_static_profiling=False))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        step(model, optimizer)
    assert plan_of(model) is not None
    memscale.detach(model)


def test_an_optimizer_that_replaces_another():
    model = memscale.wrap(Stack(), config_of(memscale.profile(Stack(), batch()).peak_bytes * 2, enable_logging=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        step(model, optimizer)
    before = plan_of(model)
    del optimizer
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        step(model, optimizer)
    n_bytes = sum(p.numel() * 4 for p in model.parameters())
    assert plan_of(model).baseline_peak_bytes >= before.baseline_peak_bytes + 1.9 * n_bytes
    memscale.detach(model)


def test_the_optimizer_of_a_watched_step_is_not_memory_of_others(monkeypatch):
    """Its state is in the profile."""
    model = memscale.wrap(Stack(), memscale.Config(memory_budget_gb=1, use_static_profiling=False))
    optimizer = torch.optim.AdamW(model.parameters())
    executor, present = memscale.executor_of(model), []
    monkeypatch.setattr(executor._device_memory, "_is_gpu", True)
    monkeypatch.setattr(executor._device_memory, "_count", lambda: (0, 0))
    monkeypatch.setattr(executor._device_memory, "grow", lambda: None)
    monkeypatch.setattr(device_memory, "occupied_bytes", lambda device, known, tensors: present.extend(tensors) or 0)
    for _ in range(2):
        step(model, optimizer)
    state = [t for values in optimizer.state.values() for t in values.values()]
    assert {id(t) for t in state} <= {id(t) for t in present}
    monkeypatch.undo()
    memscale.detach(model)


# ---- Models that are trained in parts ----


def lightning_like():
    base = type("LightningModule", (nn.Module,), {"__module__": "lightning.pytorch.core.module"})

    class Model(base):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = Encoder(), Stack()

        def training_step(self, x):
            return self.decoder(self.encoder(x))

    class Encoder(Stack):
        def forward(self, x):
            for layer in self.layers:
                x = x + layer(x)
            return x

    return Model()


def test_a_step_of_several_modules(caplog):
    """All of its layers may be recomputed, and each part may run out of memory."""
    model = lightning_like()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memscale.wrap(model, memscale.Config("aggressive", force_optimize=True))

    def train():
        model.training_step(batch()).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(4):
        train()
    before = plan_of(model)
    recomputed = {entry.name.split(".")[0] for entry in before.entries if entry.action}
    assert recomputed == {"encoder", "decoder"}
    memscale.detach(model)
    memscale.wrap(model, memscale.Config(memory_budget_gb=before.baseline_peak_bytes * 0.8 / 1e9))
    for _ in range(4):
        train()
    before = plan_of(model)
    assert before.n_recomputed > 0
    model.decoder.error = torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(torch.OutOfMemoryError):
        train()
    model.decoder.error = None
    optimizer.zero_grad()
    with caplog.at_level(logging.INFO, logger="memscale"):
        train()
    assert plan_of(model).needed_bytes < before.needed_bytes
    memscale.detach(model)


def test_batches_that_grow_are_refused_too():
    """A step that is watched tells that it does not fit; a larger one does not have to be watched for that."""
    least = memscale.profile(Stack(), batch()).simulate("all").peak_bytes
    model = memscale.wrap(Stack(), config_of(least / 3, enable_logging=False, use_static_profiling=False))
    model(batch()).backward()
    model.zero_grad()
    with pytest.raises(memscale.BudgetError):
        model(torch.ones(17, 64, WIDTH))
    memscale.detach(model)
