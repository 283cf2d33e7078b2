"""Training with inputs that vary in more than a batch and a length: how often steps are analysed, and what for."""

import contextlib
import dataclasses
import functools
import itertools
import random
import types

import pytest
import torch
from torch import nn

import memscale
import varying
import zoo
from memscale import _core
from memscale._plan import step_profiler
from memscale._plan.request import Request
from memscale._run.messages import Messages
from memscale._trace import profiling
from memscale._trace.sample import at_sizes, shape_of, sizes_of

STEPS = 120


def batches(case, n, *, growing=False):
    """Batches of random sizes; growing: the first one has the least."""
    chooser = random.Random(0)
    made = [case.batch(chooser, case.largest) for _ in range(n)]
    return sorted(made, key=lambda batch: sum(t.numel() for t in batch.values())) if growing else made


def train(model, given, after_step=lambda: None):
    losses = []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for batch in given:
        torch.manual_seed(1)
        loss = zoo.loss_of(model(**batch))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        after_step()
    return losses


def planner_of(model):
    return memscale.executor_of(model)._planner


@pytest.mark.parametrize("name", list(varying.CASES))
def test_nothing_is_analysed_again_where_nothing_is_to_be_done(name):
    case = varying.CASES[name]
    torch.manual_seed(0)
    plain = case.make()
    torch.manual_seed(0)
    model = memscale.wrap(case.make(), memscale.Config(enable_logging=False))
    given = batches(case, STEPS)
    plans = []
    losses = train(model, given, lambda: plans.append(memscale.executor_of(model).plan))
    zoo.assert_same(losses, train(plain, given))
    assert planner_of(model).n_analyses == 0
    assert all(plan is plans[0] for plan in plans)
    assert plans[0].n_recomputed == 0


def tight_budget(model, given):
    """In GB: little more than the largest batch needs at least, and the first one as it is."""
    largest = tuple(tuple(map(max, *shapes)) for shapes in zip(*(sizes_of((), batch) for batch in given)))
    profile = memscale.profile(model, at_sizes((), given[0], largest)[1])
    with pytest.raises(memscale.BudgetError) as error:
        Request(memscale.Config(memory_budget_gb=1e-6), profile.device).create(profile)
    first = memscale.profile(model, given[0]).peak_bytes
    return max(1.05 * error.value.smallest_peak_bytes, 1.02 * first) / 1e9


@pytest.mark.parametrize("name", list(varying.CASES))
def test_one_analysis_tells_how_a_step_grows(name):
    """Small batches are left alone, large ones are recomputed."""
    case = varying.CASES[name]
    torch.manual_seed(0)
    plain, model = case.make(), case.make()
    model.load_state_dict(plain.state_dict())
    given = batches(case, 30, growing=True)
    memscale.wrap(model, memscale.Config(memory_budget_gb=tight_budget(plain, given), enable_logging=False))
    plans = []

    def see_plan():
        plans.append(memscale.executor_of(model).plan)
        assert plans[-1].predicted_peak_bytes <= plans[-1].budget_bytes - plans[-1].margin_bytes

    zoo.assert_same(train(model, given, see_plan), train(plain, given))
    assert planner_of(model).n_analyses == 1
    assert plans[0].n_recomputed == 0
    assert any(plan.n_recomputed > 0 for plan in plans)


def test_the_step_runs_lean_where_analyses_would_take_too_long(monkeypatch):
    """Steps cannot be fitted here, so each larger image needs an analysis of its own."""
    real = step_profiler.trace_samples
    refused = []

    def trace(model, samples, *args, **named):
        if len(samples) > 1:
            refused.append(len(samples))
            raise memscale.MemScaleError("no")
        return real(model, samples, *args, **named)

    monkeypatch.setattr(step_profiler, "trace_samples", trace)
    case = varying.CASES["images"]
    torch.manual_seed(0)
    model = case.make()
    given = batches(case, 40, growing=True)
    memscale.wrap(model, memscale.Config(memory_budget_gb=tight_budget(model, given), enable_logging=False))
    planner = planner_of(model)
    shares = []

    def see_share():
        trained, analysed, _ = planner._times()
        shares.append(analysed / trained)

    train(model, given, see_share)
    plan = memscale.executor_of(model).plan
    assert refused == [5]
    assert planner.n_analyses == 1  # the next one would take more than 2 % of these few seconds
    assert plan.n_recomputed == len(model.blocks)
    assert shares[-1] <= 0.02
    planner._start_ns -= int(1e12)  # as after a quarter of an hour
    train(model, given[-2:-1])
    assert planner.n_analyses == 2
    assert len(refused) == 1


def test_plans_for_held_gradients_learn_with_the_others():
    case = varying.CASES["graphs"]
    model = case.make()
    given = batches(case, 12, growing=True)
    budget = 1.3 * memscale.profile(model, given[0]).peak_bytes / 1e9
    memscale.wrap(model, memscale.Config(memory_budget_gb=budget, enable_logging=False))
    for i, batch in enumerate(given[:8]):
        zoo.loss_of(model(**batch)).backward()
        if i % 2:
            model.zero_grad()
    planner = planner_of(model)
    assert len(planner._plans) == 2
    assert planner.n_analyses == 1


def test_several_steps_are_analysed_at_the_same_time(monkeypatch):
    """As many as there are cores; the profiles are those of one after the other."""
    case = varying.CASES["graphs"]
    model = case.make()
    samples = [((), batch) for batch in batches(case, 3)]
    place = memscale.profile(model, samples[0][1]).device
    alone = [profiling.trace_samples(model, [sample], (), place)[0].to_json() for sample in samples]
    real = profiling.host
    monkeypatch.setattr(profiling, "host", lambda: {**real(), "n_cores": 16})
    together = profiling.trace_samples(model, samples, (), place)
    assert [profile.to_json() for profile in together] == alone


def test_each_plan_is_logged_once_and_not_for_each_size(caplog):
    """With sizes at random nearly every batch has other sizes and another plan than the one before."""
    case = varying.CASES["images"]
    torch.manual_seed(0)
    model = case.make()
    given = batches(case, 30, growing=True)
    budget = tight_budget(model, given)
    plans = []
    with caplog.at_level("INFO", "memscale"):
        memscale.wrap(model, memscale.Config(memory_budget_gb=budget))
        train(model, given[:1] + given[::-1] + given, lambda: plans.append(memscale.executor_of(model).plan))
    n_changes = sum(before is not after for before, after in itertools.pairwise(plans))
    told = [record.message for record in caplog.records if "for batches like" in record.message]
    distinct = {plan.describe() for plan in plans}
    assert len(told) == len({line.partition(": ")[2] for line in told}) <= len(distinct) <= n_changes
    memscale.detach(model)


def test_not_all_plans_are_logged(caplog):
    messages = Messages(memscale.Config())
    messages.open()
    with caplog.at_level("INFO", "memscale"):
        for _ in range(2):
            for i in range(100):
                plan = types.SimpleNamespace(describe=lambda i=i: f"plan {i}")
                messages.other_plan(plan, ((4, i),), held=False)
    messages.close()
    assert len(caplog.records) == 33
    assert "not logged" in caplog.records[-1].message


# ---- Exactness ----


def lengths(source, target, batch=128):
    """Batches are large: activations are to be more than what torch's allocator cannot use."""
    ids = torch.zeros(batch, source, dtype=torch.int64)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": torch.zeros(batch, target, dtype=torch.int64),
    }


def on_gpu(model, batch):
    """The step on a GPU that is not here."""
    return memscale.profile(model, batch, device="a100-80gb", precision="bf16")


def plans_of(batch, profile, request, source, like=None):
    """The plans of a model by the sizes of its inputs."""
    return _core.ShapePlans(
        request=request.core,
        plan=request.create(profile).core,
        profile=profile.core,
        sizes=sizes_of((), batch),
        shape=shape_of((), batch),
        source=source,
        wrap=lambda plan: plan,
        fused=profile.fused,
        like=like,
    )


@pytest.mark.parametrize("make", [varying.t5, varying.bart], ids=["t5", "bart"])
def test_two_lengths_are_exact(make):
    """Fitted at five shapes, the step at others has the plan of a trace there: also with lengths that kernels pad."""
    model, first = make(), lengths(72, 40)
    base, plans, asked = on_gpu(model, first), None, []

    def trace(lists):
        asked.append(len(lists))
        return [on_gpu(model, at_sizes((), first, sizes)[1]).core for sizes in lists]

    for batch in (lengths(208, 192, 160), lengths(160, 96), lengths(80, 176, 192)):
        profile = on_gpu(model, batch)
        kept, recomputed = (profile.predict(recompute).needed_bytes for recompute in ((), "all"))
        request = Request(memscale.Config(memory_budget_gb=(0.6 * kept + 0.42 * recomputed) / 1e9), base.device)
        plans = plans_of(first, base, request, trace, plans)
        assert plans.find(sizes_of((), lengths(64, 40)), (128, 64)) is plans.find(sizes_of((), first), (128, 72))
        found, wanted = memscale.Plan(plans.find(sizes_of((), batch), shape_of((), batch))), request.create(profile)
        assert (found.predicted_peak_bytes, found.layers) == (wanted.predicted_peak_bytes, wanted.layers)
        assert found.needed_bytes == wanted.needed_bytes <= found.budget_bytes - found.margin_bytes
        assert found.step_seconds == wanted.step_seconds
        assert found.n_recomputed > 0
    assert asked == [5]


def test_indices_follow_what_they_point_to():
    batch = varying.graphs(random.Random(0), 96)
    nodes, edges, graph_of, labels = (batch[key] for key in ("nodes", "edges", "graph_of", "labels"))
    n, g = nodes.shape[0] * 2 + 3, labels.shape[0] - 2
    sizes = ((n, 8), (2, 77), (n,), (g,))
    _, other = at_sizes((), batch, sizes)
    assert sizes_of((), other) == sizes
    assert int(other["edges"].max()) < n
    assert int(other["graph_of"].max()) == g - 1
    assert other["nodes"].is_meta  # what has no values needs no memory
    assert at_sizes((), batch, sizes_of((), batch))[1]["edges"].equal(edges)
    assert graph_of.equal(batch["graph_of"])
    _, nested = at_sizes((), {"x": Pair(nodes, [edges])}, ((5, 8), (2, 3)))
    assert (nested["x"].first.shape, nested["x"].rest[0].shape) == ((5, 8), (2, 3))
    assert nodes.shape[0] != 5
    with pytest.raises(memscale.MemScaleError, match="cannot be resized"):
        at_sizes((), {"x": Opaque(nodes)}, ((5, 8),))


@dataclasses.dataclass(frozen=True)
class Pair:
    first: torch.Tensor
    rest: list


class Opaque(dict):
    """Another tensor each time that it is asked."""

    def __init__(self, tensor):
        super().__init__(x=tensor)

    def items(self):
        return [("x", self["x"].clone())]


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5000, 384)
        make = functools.partial(nn.TransformerEncoderLayer, 384, 6, 1536, batch_first=True, norm_first=True)
        self.layers = nn.ModuleList(make() for _ in range(10))
        self.head = nn.Linear(384, 5000)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.long)])  # of 60 budgets
def test_a_plan_that_is_used_again_fits(step):
    """On a GPU what the allocator reserves jumps by segments, and both ways in which a step may run count."""
    with torch.device("meta"):
        model = Encoder()

    @functools.lru_cache(None)
    def profile_of(batch, length=256):
        ids = torch.zeros(batch, length, dtype=torch.long, device="meta")
        return memscale.profile(model, ids, device="rtx3090")

    base = profile_of(32)
    profiles = {batch: profile_of(batch) for batch in (33, 34, 35)}
    least, most = base.predict("all").needed_bytes, base.predict().needed_bytes
    n_again = 0
    for part in range(0, 60, step):
        budget = (least + (most - least) * (part + 1) / 62) * 64 / 63 * 1.01
        request = Request(memscale.Config(memory_budget_gb=budget / 1e9), base.device)
        plan = request.create(base)
        plans = _core.ShapePlans(
            request=request.core,
            plan=plan.core,
            profile=base.core,
            sizes=((32, 256),),
            shape=(32, 256),
            source=lambda lists: [profile_of(*sizes[0]).core for sizes in lists],
            wrap=lambda other, plan=plan: plan if other is plan.core else other,
            fused=base.fused,
        )
        for batch, profile in profiles.items():
            with contextlib.suppress(memscale.BudgetError):
                if plans.find(((batch, 256),), (batch, 256)) is plan:
                    assert profile.predict(plan.actions).needed_bytes <= request.usable_bytes
                    n_again += 1
    assert n_again > 10 / step
