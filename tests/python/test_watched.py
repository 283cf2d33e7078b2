"""Steps that have to be watched while they run, since no child process is allowed: the same promises, and the plan that
follows such a step is the one that an analysis would have led to.

The first tests are those of other modules, run once more.
"""

import gc
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import TorchDispatchMode

import memscale
import zoo
from test_detach import test_after_training, test_detach_restores_everything  # noqa: F401
from test_equality import test_settled_plan_equals_plain  # noqa: F401
from test_growth import test_wrapping_and_detaching_many_times  # noqa: F401
from test_trainer import test_same_losses_with_accumulation_clipping_evaluation_and_resume  # noqa: F401

pytestmark = pytest.mark.watched

BARE = memscale.Config("aggressive", force_optimize=True, enable_logging=False)
NAMES = ["gpt2", "bert", "llama", "t5", "resnet", "albert", "lstm", "mixtral", "unet", "tuple", "whisper"]


def train(model, batch, optimizer, n_steps=2, accumulate=1):
    args, kwargs = batch
    for _ in range(n_steps):
        for _ in range(accumulate):
            loss = zoo.loss_of(model(*args, **kwargs))
            loss.backward()
            del loss
        optimizer.step()
        optimizer.zero_grad()


def watched_profile(model, batch, **options):
    """The profile of a step that was watched."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    memscale.wrap(model, BARE)
    train(model, batch, optimizer, **options)
    profile = model._memscale_executor._planner.profile
    memscale.detach(model)
    assert profile.source == "empirical"
    assert "MEMSCALE_NO_FORK" in profile.why_empirical
    return profile


@pytest.mark.parametrize("name", NAMES)
def test_what_is_seen_is_what_an_analysis_finds(name, monkeypatch):
    """Plain, recomputed and between steps: to 0.5 %, which is the count of a step that optimizers keep in a tensor of
    its own, and nothing more in most models."""
    batch = zoo.LARGE.batch_of(name)
    seen = watched_profile(zoo.LARGE.make(name), batch)
    monkeypatch.delenv("MEMSCALE_NO_FORK")
    model = zoo.LARGE.make(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    known = memscale.profile(model, batch[0] or batch[1], optimizer=optimizer, loss=zoo.loss_of)
    for recompute in ((), "all"):
        one, other = known.simulate(recompute), seen.simulate(recompute)
        for field in ("first_peak_bytes", "steady_peak_bytes", "idle_bytes"):
            assert getattr(other, field) == pytest.approx(getattr(one, field), rel=0.005), (recompute, field)


def test_accumulated_gradients(monkeypatch):
    """The optimizer's step comes after several forwards; the first of them is the one that is known."""
    batch = zoo.LARGE.batch_of("gpt2")
    one = watched_profile(zoo.LARGE.make("gpt2"), batch)
    other = watched_profile(zoo.LARGE.make("gpt2"), batch, accumulate=3)
    assert other.simulate().steady_peak_bytes == one.simulate().steady_peak_bytes


def test_the_plan_follows_the_first_step():
    model = memscale.wrap(zoo.make("gpt2"), BARE)
    executor, batch = model._memscale_executor, zoo.batch_of("gpt2")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train(model, batch, optimizer, 1)
    assert executor.plan is None
    zoo.loss_of(model(*batch[0], **batch[1]))
    assert executor.plan is not None
    assert torch._C._len_torch_dispatch_stack() == 0


class Dropped(nn.Module):
    """Its steps run some of the layers: those that are listed for each."""

    def __init__(self, steps):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(4))
        self.steps = iter(steps)

    def forward(self, x):
        for index in next(self.steps):
            x = self.layers[index](x)
        return x


def test_layers_that_are_dropped_at_random():
    """The plan is made for the step with the most layers, once such a step came."""
    model = Dropped([[0, 2], [0, 1, 2], [0, 3], [1, 2, 3], [0, 1, 2, 3], [2], [0, 1, 2, 3], [0, 3]])
    config = memscale.Config("aggressive", force_optimize=True, enable_logging=False, use_static_profiling=False)
    memscale.wrap(model, config)
    watched = []
    for _ in range(8):
        model(torch.ones(4, 32, requires_grad=True)).sum().backward()
        executor = memscale.executor_of(model)
        watched.append(executor._watching.is_active)
        model.zero_grad()
    assert watched == [True, False, True, False, True, False, False, False]
    assert not executor._watching.unseen
    segments = executor._planner.profile.simulate().timeline
    assert {segment.unit for segment in segments if segment.unit} == {f"layers.{i}" for i in range(4)}
    memscale.detach(model)


def test_evaluation_runs_all_layers_and_is_no_reason_to_watch():
    model = Dropped([[0, 2], [0, 2]])
    config = memscale.Config("aggressive", force_optimize=True, enable_logging=False, use_static_profiling=False)
    memscale.wrap(model, config)
    for _ in range(2):
        model(torch.ones(4, 32, requires_grad=True)).sum().backward()
        model.zero_grad()
    watching = memscale.executor_of(model)._watching
    with torch.no_grad():
        model.layers[1](torch.ones(4, 32))
    assert len(watching.unseen) == 2
    assert not watching.wants_more
    memscale.detach(model)


def test_more_steps_may_be_watched():
    model = memscale.wrap(zoo.make("gpt2"), BARE.replace(warmup_steps=3))
    optimizer, batch = torch.optim.AdamW(model.parameters(), lr=1e-3), zoo.batch_of("gpt2")
    train(model, batch, optimizer, 3)
    assert model._memscale_executor.plan is None
    train(model, batch, optimizer, 1)
    assert model._memscale_executor.plan is not None


def test_without_the_fallback_it_is_an_error():
    model = memscale.wrap(zoo.make("gpt2"), BARE.replace(use_empirical_fallback=False))
    args, kwargs = zoo.batch_of("gpt2")
    with pytest.raises(memscale.MemScaleError, match="cannot be analysed"):
        model(*args, **kwargs)


def test_what_cannot_fit_is_refused_by_the_step_after_it():
    model = memscale.wrap(zoo.make("gpt2"), BARE.replace(memory_budget_gb=1e-6))
    optimizer, batch = torch.optim.AdamW(model.parameters(), lr=1e-3), zoo.batch_of("gpt2")
    train(model, batch, optimizer, 1)
    with pytest.raises(memscale.BudgetError):
        train(model, batch, optimizer, 1)


def test_larger_batches_are_watched_again():
    model = memscale.wrap(zoo.make("encoder"), BARE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    peaks = []
    for batch in (2, 2, 1, 8, 8):
        train(model, ((zoo.floats(batch, 10, 32),), {}), optimizer, 1)
        plan = model._memscale_executor.plan
        peaks.append(None if plan is None else plan.baseline_peak_bytes)
    assert peaks[1] == peaks[2] < peaks[4]


class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(zoo.Block() for _ in range(3))
        self.fail = ""

    def forward(self, x):
        for i, block in enumerate(self.blocks):
            x = block(x)
            if self.fail == "forward" and i == 1:
                raise KeyError("on purpose")
        if self.fail == "backward":
            x.register_hook(self._raise)
        return x

    def _raise(self, gradient):
        raise KeyError("on purpose")


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_step_that_raises_is_forgotten(where):
    model = memscale.wrap(Failing(), BARE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.fail = where
    with pytest.raises(KeyError, match="on purpose"):
        model(zoo.floats(4, 16)).sum().backward()
    model.fail = ""
    optimizer.zero_grad()
    train(model, ((zoo.floats(4, 16),), {}), optimizer, 2)
    assert torch._C._len_torch_dispatch_stack() == 0
    whole = memscale.wrap(Failing(), BARE)
    train(whole, ((zoo.floats(4, 16),), {}), torch.optim.AdamW(whole.parameters(), lr=1e-3), 2)
    plan, wanted = (m._memscale_executor.plan for m in (model, whole))
    assert plan.baseline_peak_bytes == wanted.baseline_peak_bytes


class Counts(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.n += 1
        return func(*args, **(kwargs or {}))


def test_modes_of_the_user_stay_theirs():
    model = memscale.wrap(zoo.make("encoder"), BARE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = model(zoo.floats(2, 10, 32)).sum()
    with Counts() as mine:  # around backward and the step, which ends what is watched
        loss.backward()
        optimizer.step()
        assert torch._C._len_torch_dispatch_stack() == 1
    assert mine.n > 0
    assert torch._C._len_torch_dispatch_stack() == 0
    optimizer.zero_grad()
    with Counts():  # around forward: nothing is watched
        model(zoo.floats(2, 10, 32)).sum().backward()
    assert model._memscale_executor.plan is None
    train(model, ((zoo.floats(2, 10, 32),), {}), optimizer, 1)
    assert model._memscale_executor.plan is not None


def test_a_closure_holds_forward_and_backward():
    results = []
    for wrapped in (False, True):
        torch.manual_seed(0)
        model = zoo.make("encoder").eval()
        if wrapped:
            memscale.wrap(model, BARE)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def closure(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = model(zoo.floats(2, 10, 32)).square().mean()
            loss.backward()
            return loss

        losses = [optimizer.step(closure).detach() for _ in range(3)]
        results.append([*losses, *(p.detach().clone() for p in model.parameters())])
        if wrapped:
            plan = model._memscale_executor.plan
            assert plan is not None
            assert plan.parts["optimizer_state"] > 0
    zoo.assert_same(*results)


def test_two_optimizers():
    model = memscale.wrap(zoo.make("encoder"), BARE)
    halves = list(model.parameters())
    optimizers = [torch.optim.AdamW(half, lr=1e-3) for half in (halves[::2], halves[1::2])]
    for _ in range(2):
        model(zoo.floats(2, 10, 32)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    n = sum(p.numel() * p.element_size() for p in model.parameters())
    assert model._memscale_executor._planner.profile.simulate().parts["optimizer_state"] >= 2 * n


def test_without_an_optimizer_of_torch():
    model = memscale.wrap(zoo.make("encoder"), BARE)
    for _ in range(2):
        model(zoo.floats(2, 10, 32)).sum().backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 1e-3 * p.grad
                p.grad = None
    model(zoo.floats(2, 10, 32))
    assert model._memscale_executor.plan is not None


def test_no_tensor_is_held(no_warnings):
    model = memscale.wrap(zoo.make("encoder"), BARE)
    x = zoo.floats(2, 10, 32)
    output = model(x)
    alive = [weakref.ref(t) for t in (x, output)]
    output.sum().backward()
    del x, output
    gc.collect()
    assert [ref() for ref in alive] == [None, None]


def test_nothing_is_left_after_detach():
    hooks = optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks
    before = [len(table) for table in hooks]
    model = memscale.wrap(zoo.make("encoder"), BARE)
    loss = model(zoo.floats(2, 10, 32)).sum()
    assert [len(table) for table in hooks] != before
    memscale.detach(model)
    assert [len(table) for table in hooks] == before
    assert torch._C._len_torch_dispatch_stack() == 0
    loss.backward()


def test_a_compiled_block():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = []
        for wrapped in (False, True):
            torch.manual_seed(0)
            model = zoo.make("encoder").eval()
            model.encoder.layers[1].compile(backend="eager")
            if wrapped:
                memscale.wrap(model, BARE)
            for _ in range(2):
                model.zero_grad()
                loss = model(zoo.floats(2, 10, 32)).square().sum()
                loss.backward()
            results.append([loss.detach(), *(p.grad for p in model.parameters())])
        zoo.assert_same(*results)
