"""Plans as users get them: from a static profile, made at the first batch, and for batches of other sizes."""

import copy
import itertools
import json
import logging
import types

import pytest
import torch
from torch import nn

import memscale
import zoo
from memscale._base.vocabulary import ACTIONS
from memscale._plan import step_profiler as _planner
from test_detach import snapshot
from zoo import LARGE


def budget_for(build, batch, share=1.05):
    """A budget in GB that only a plan with much recomputation keeps."""
    model = build()
    args, kwargs = batch
    with pytest.raises(memscale.BudgetError) as error:
        memscale.wrap(model, memscale.Config(memory_budget_gb=1e-6, enable_logging=False), args or kwargs)
    assert not hasattr(model, "_memscale_executor")
    return error.value.smallest_peak_bytes * share / 1e9


def config_of(budget_gb, **fields):
    return memscale.Config(memory_budget_gb=budget_gb, enable_logging=False, **fields)


@pytest.mark.parametrize("name", list(zoo.SMALL.names))
def test_a_tight_plan_equals_plain(name, no_warnings):
    batch = zoo.batch_of(name)
    config = config_of(budget_for(lambda: zoo.make(name), batch))
    plain = zoo.train(zoo.make(name), batch, steps=3)
    model = memscale.wrap(zoo.make(name), config)
    zoo.assert_same(plain, zoo.train(model, batch, steps=3))
    plan = model._memscale_executor.plan
    assert plan is not None
    assert plan.predicted_peak_bytes <= plan.budget_bytes - plan.margin_bytes


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5", "vit", "resnet"])
def test_a_tight_plan_recomputes(name, recomputed, no_warnings):
    batch = LARGE.batch_of(name)
    config = config_of(budget_for(lambda: LARGE.make(name), batch))
    model = memscale.wrap(LARGE.make(name), config)
    args, kwargs = batch
    loss = zoo.loss_of(model(*args, **kwargs))
    recomputed.clear()  # the analysis tried them, too
    loss.backward()
    plan = model._memscale_executor.plan
    assert set(recomputed) == {entry.name for entry in plan.entries if ACTIONS[entry.action].recomputes}
    assert any(plan.layers.values())


def test_a_sample_settles_the_plan_at_once():
    args, kwargs = LARGE.batch_of("gpt2")
    config = config_of(budget_for(lambda: LARGE.make("gpt2"), (args, kwargs)))
    early = memscale.wrap(LARGE.make("gpt2"), config, args or kwargs)
    late = memscale.wrap(LARGE.make("gpt2"), config)
    assert late._memscale_executor.plan is None
    zoo.loss_of(late(*args, **kwargs)).backward()
    assert early._memscale_executor.plan.to_json() == late._memscale_executor.plan.to_json()
    assert early._memscale_executor.plan.fingerprint == late._memscale_executor.plan.fingerprint


class Spy(nn.Module):
    """Records what it sees: devices of its inputs, calls of its hooks."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(zoo.Block() for _ in range(3))
        self.calls = 0
        self.seen = []

    def forward(self, x):
        self.calls += 1
        self.seen.append(x.device.type)
        for block in self.blocks:
            x = block(x)
        return x


def test_nothing_is_left_of_the_analysis():
    model = Spy()
    seen = []
    model.register_forward_hook(lambda *args: seen.append("after"))
    model.register_forward_pre_hook(lambda *args: seen.append("before"))
    model.blocks[1].register_full_backward_hook(lambda *args: seen.append("backward"))
    before = snapshot(model)
    memscale.wrap(model, memscale.Config(force_optimize=True, enable_logging=False))
    model(zoo.floats(4, 16)).sum().backward()
    assert seen == ["before", "after", "backward"]
    assert model.calls == 1
    assert model.seen == ["cpu"]
    memscale.detach(model)
    model.calls, model.seen = 0, []
    model.zero_grad()
    zoo.assert_same(snapshot(model), before)


def test_hooks_that_make_weights_take_part():
    def build():
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(3)))
        for block in model:
            nn.utils.spectral_norm(block[0])
        return model

    results = []
    for wrapped in (False, True):
        model = build()
        if wrapped:
            memscale.wrap(model, config_of(1.0))
        loss = model(zoo.floats(8, 64)).sum()
        loss.backward()
        results.append([loss, *(p.grad for p in model.parameters()), *model.buffers()])
    zoo.assert_same(*results)


class Noted(zoo.Block):
    """Notes where its inputs are, outside of the model."""

    places: list = []  # noqa: RUF012

    def forward(self, x):
        Noted.places.append(x.device.type)
        return super().forward(x)


def test_what_cannot_fit_is_refused_before_anything_runs():
    model = memscale.wrap(zoo.Chain(Noted, 3), config_of(1e-6))
    Noted.places.clear()
    with pytest.raises(memscale.BudgetError) as error:
        model(zoo.floats(4, 16))
    assert error.value.smallest_peak_bytes > 1000
    assert Noted.places == []  # not in this process


def test_a_step_that_cannot_be_analysed_is_watched(caplog):
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(zoo.Block() for _ in range(3))

        def forward(self, x):
            for block in self.blocks:
                if x.sum().item() == 12345:
                    raise AssertionError
                x = block(x)
            return x

    plain, model = Reads().eval(), Reads().eval()  # no dropout
    model.load_state_dict(plain.state_dict())
    with caplog.at_level(logging.INFO, "memscale"):
        memscale.wrap(model, memscale.Config("aggressive", force_optimize=True))
        for m in (plain, model):
            optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
            for _ in range(2):
                optimizer.zero_grad()
                m(zoo.floats(4, 16)).sum().backward()
                optimizer.step()
    assert "which is watched while it runs" in caplog.text
    assert model._memscale_executor.plan is not None
    memscale.detach(model)
    zoo.assert_same([p.grad for p in plain.parameters()], [p.grad for p in model.parameters()])


@pytest.mark.parametrize(("key", "value"), [("action", "tile"), ("model_options", ["8bit"])])
def test_a_plan_that_this_version_cannot_run_is_refused(key, value):
    args, kwargs = LARGE.batch_of("gpt2")
    model = LARGE.make("gpt2")
    text = json.loads(memscale.plan(model, args or kwargs, config=config_of(0.040)).to_json())
    (text if key == "model_options" else text["units"][3])[key] = value
    with pytest.raises(memscale.MemScaleError, match="this version cannot run"):
        memscale.wrap(model, config_of(0.040), plan=memscale.Plan.from_json(json.dumps(text)))
    assert not hasattr(model, "_memscale_executor")


def test_a_plan_by_its_path(tmp_path):
    args, kwargs = LARGE.batch_of("gpt2")
    model = LARGE.make("gpt2")
    plan = memscale.plan(model, args or kwargs, config=config_of(0.028))
    assert plan.n_recomputed > 0
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    for given in (path, str(path)):
        memscale.wrap(model, config_of(0.028), plan=given)
        assert memscale.executor_of(model).plan.to_json() == plan.to_json()
        memscale.detach(model)


def test_a_wrapped_model_knows_its_trade():
    args, kwargs = LARGE.batch_of("gpt2")
    model = memscale.wrap(LARGE.make("gpt2"), config_of(0.040), args or kwargs)
    points = memscale.executor_of(model).plan.pareto(4)
    assert len(points) > 1
    assert points[0].peak_bytes > points[-1].peak_bytes


def test_a_path_without_a_plan(tmp_path):
    model = LARGE.make("gpt2")
    path = tmp_path / "plan.json"
    with pytest.raises(memscale.MemScaleError, match=r"plan\.json' cannot be read: No such file"):
        memscale.wrap(model, plan=path)
    with pytest.raises(memscale.MemScaleError, match="cannot be read: Is a directory"):
        memscale.wrap(model, plan=tmp_path)
    for content in (b"{}", b"no plan", b"\xff\xfe", b"[1, 2]", b""):
        path.write_bytes(content)
        with pytest.raises(memscale.MemScaleError, match=r"plan\.json' is not a saved plan: "):
            memscale.wrap(model, plan=str(path))
    with pytest.raises(ValueError, match="Plan.from_json"):
        memscale.wrap(model, plan='{"memscale_plan": 2}')
    for wrong in (3, b"plan.json", {"units": []}, True):
        with pytest.raises(TypeError, match="memscale.Plan or the path of a file"):
            memscale.wrap(model, plan=wrong)
    assert memscale.executor_of(model) is None


def test_the_handle_of_a_model():
    model = LARGE.make("gpt2")
    assert memscale.executor_of(model) is None
    memscale.wrap(model, memscale.Config(enable_logging=False))
    executor = memscale.executor_of(model)
    assert executor is model._memscale_executor
    assert (executor.model, executor.attached) == (model, True)
    assert memscale.executor_of(types.SimpleNamespace(model=model, train=model.train)) is executor  # as a Trainer
    assert memscale.executor_of(copy.deepcopy(model)) is None
    memscale.detach(model)
    assert (memscale.executor_of(model), executor.attached) == (None, False)
    for wrong in (3, None, "model", torch.ones(2), type(model)):
        with pytest.raises(TypeError, match=r"takes a torch\.nn\.Module or a Hugging Face Trainer"):
            memscale.executor_of(wrong)


# ---- Batches that change ----


def repeated(batch, n):
    args, kwargs = batch
    return tuple(torch.cat([a] * n) for a in args), {k: torch.cat([v] * n) for k, v in kwargs.items()}


def gradients(model, batch, recomputed=None):
    args, kwargs = batch
    model.zero_grad()
    torch.manual_seed(3)
    loss = zoo.loss_of(model(*args, **kwargs))
    if recomputed is not None:
        recomputed.clear()  # the analysis tried them, too
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


def test_a_larger_batch_gets_a_plan_of_its_own(caplog, recomputed):
    batch = LARGE.batch_of("gpt2")
    plain, model = LARGE.make("gpt2"), LARGE.make("gpt2")
    model.load_state_dict(plain.state_dict())
    config = memscale.Config(memory_budget_gb=0.040)
    with caplog.at_level(logging.INFO, "memscale"):
        memscale.wrap(model, config)
        for n in (1, 2, 1, 2, 2):
            given = repeated(batch, n)
            zoo.assert_same(gradients(plain, given), gradients(model, given, recomputed))
            plan = model._memscale_executor.plan
            assert (plan.n_recomputed > 0) == (n == 2)
            assert plan.predicted_peak_bytes <= plan.budget_bytes - plan.margin_bytes
            assert bool(recomputed) == (n == 2)
    memscale.detach(model)
    messages = [record.message for record in caplog.records if "for batches like" in record.message]
    assert len(messages) == 2  # one for each shape, not for each batch


def test_a_batch_that_cannot_fit_is_refused_before_it_runs():
    batch = LARGE.batch_of("gpt2")
    model = memscale.wrap(LARGE.make("gpt2"), config_of(0.040))
    gradients(model, batch)
    with pytest.raises(memscale.BudgetError):
        gradients(model, repeated(batch, 64))
    gradients(model, batch)
    assert model._memscale_executor.plan.n_recomputed == 0


def test_smaller_batches_cost_nothing(monkeypatch):
    batch = repeated(LARGE.batch_of("gpt2"), 2)
    model = memscale.wrap(LARGE.make("gpt2"), config_of(0.040))
    gradients(model, batch)
    plan = model._memscale_executor.plan
    monkeypatch.setattr(_planner, "trace_samples", None)  # whoever profiles again fails
    for n in (1, 2, 1):
        gradients(model, repeated(LARGE.batch_of("gpt2"), n))
        assert model._memscale_executor.plan is plan


def long_gpt2():
    model = LARGE.make("gpt2")
    model.transformer.wpe = nn.Embedding(256, model.config.n_embd)
    return model


def test_lengths_are_profiled_once():
    plain, model = long_gpt2(), long_gpt2()
    model.load_state_dict(plain.state_dict())
    memscale.wrap(model, config_of(0.040))
    used = set()
    for length in (40, 64, 72, 100, 40, 128, 96, 131, 64):
        ids = LARGE.tokens(4, length)
        batch = ((), {"input_ids": ids, "labels": ids})
        zoo.assert_same(gradients(plain, batch), gradients(model, batch))
        plan = model._memscale_executor.plan
        used.add(plan.fingerprint)
        assert plan.predicted_peak_bytes <= plan.budget_bytes - plan.margin_bytes
    assert model._memscale_executor._planner.n_analyses == 1
    assert len(used) > 1


def encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).train()


def test_other_dimensions_count_too():
    """Sequences of vectors: their length is no length of tokens."""
    plain, model = encoder(), encoder()
    memscale.wrap(model, config_of(0.020))
    recomputed = []
    for length in (32, 128, 64, 32, 128):
        batch = ((zoo.floats(8, length, 64),), {})
        zoo.assert_same(gradients(plain, batch), gradients(model, batch))
        plan = model._memscale_executor.plan
        recomputed.append(plan.n_recomputed)
        assert plan.predicted_peak_bytes <= plan.budget_bytes - plan.margin_bytes
    assert recomputed[0] == recomputed[3] == 0
    assert recomputed[1] == recomputed[2] == recomputed[4] > 0  # what fits more fits less
    assert model._memscale_executor._planner.n_analyses == 1
    with pytest.raises(memscale.BudgetError):
        model(zoo.floats(8, 2048, 64))


def test_shapes_that_cannot_be_analysed_run_lean(monkeypatch):
    plain, model = LARGE.make("gpt2"), memscale.wrap(LARGE.make("gpt2"), config_of(0.060))
    model.load_state_dict(plain.state_dict())
    gradients(model, LARGE.batch_of("gpt2"))
    first = model._memscale_executor.plan

    def fail(*args, **named):
        raise memscale.MemScaleError("no")

    monkeypatch.setattr(_planner, "trace_samples", fail)
    for n in (2, 3):
        batch = repeated(LARGE.batch_of("gpt2"), n)
        zoo.assert_same(gradients(plain, batch), gradients(model, batch))
        lean = model._memscale_executor.plan
        assert lean.n_recomputed == sum("transformer.h." in name for name in lean.layers)
    gradients(model, LARGE.batch_of("gpt2"))
    assert model._memscale_executor.plan is first


def test_evaluation_is_left_alone():
    model = memscale.wrap(LARGE.make("gpt2"), config_of(0.040))
    gradients(model, LARGE.batch_of("gpt2"))
    plan = model._memscale_executor.plan
    with torch.no_grad():
        args, kwargs = repeated(LARGE.batch_of("gpt2"), 64)
        model(*args, **kwargs)
    assert model._memscale_executor.plan is plan


# ---- Layers that turn out not to be repeatable ----


class Dice(nn.Module):
    throws = itertools.count(1)

    def __init__(self, is_loaded):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 256))
        self.is_loaded = is_loaded

    def forward(self, x):
        return self.inner(x) * (1 / next(Dice.throws) if self.is_loaded else 1)


def test_others_make_up_for_a_layer_that_cannot_be_recomputed():
    def build():
        return nn.Sequential(*(Dice(i == 4) for i in range(6)))

    x = zoo.floats(4096, 256)
    model = memscale.wrap(build(), config_of(0.170), x)
    assert model._memscale_executor.plan.layers["4"] == ("recompute",)
    with pytest.warns(memscale.MemScaleWarning, match="'4'"):
        model(x).sum().backward()
    plan = model._memscale_executor.plan
    assert plan.layers["4"] == ()
    assert plan.n_recomputed > 0
    assert plan.predicted_peak_bytes <= plan.budget_bytes
