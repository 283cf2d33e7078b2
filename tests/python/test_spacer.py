"""The spacer: plans for GPUs have one where torch's allocator then needs less, and steps take it for one forward."""

import json
import weakref

import pytest
import torch
import transformers

import memscale
import zoo
from memscale._run.device_memory import DeviceMemory


@pytest.fixture(scope="module")
def planned():
    """A plan for a GPT-2 whose logits are most of its memory, and the profile that it was made from."""
    config = transformers.GPT2Config(n_embd=256, n_layer=6, n_head=4, n_positions=256, use_cache=False)
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(config).train()
        ids = torch.zeros(16, 256, dtype=torch.long)
    batch, optimizer = {"input_ids": ids, "labels": ids}, torch.optim.AdamW(model.parameters(), fused=True)
    profile = memscale.profile(model, batch, device="h200", optimizer=optimizer, precision="bf16")
    budget = profile.predict("all").needed_bytes * 64 / 63 / 1e9
    config = memscale.Config(memory_budget_gb=budget)
    return memscale.plan(model, batch, optimizer=optimizer, device="h200", precision="bf16", config=config), profile


def test_a_plan_has_one(planned):
    plan, profile = planned
    assert plan.spacer_layer == "lm_head"
    assert plan.spacer_bytes > 0
    assert plan.grows
    assert not plan.is_cramped
    without = profile.predict(plan.actions)  # which knows the actions alone
    assert without.needed_bytes - plan.spacer_saved_bytes == plan.needed_bytes
    assert without.peak_bytes == plan.predicted_peak_bytes
    assert plan.spacer_saved_bytes > plan.needed_bytes // 64


def test_it_is_said(planned):
    plan, _ = planned
    assert "While lm_head runs forward, a spacer of " in plan.explain()
    assert "while lm_head runs forward, which saves " in plan.to_html()


def test_files_have_it(planned):
    plan, _ = planned
    back = memscale.Plan.from_json(plan.to_json())
    assert (back.spacer_layer, back.spacer_bytes) == (plan.spacer_layer, plan.spacer_bytes)
    assert back.fingerprint == plan.fingerprint
    assert json.loads(plan.to_json())["spacer_saved_bytes"] == plan.spacer_saved_bytes


# Steps


class Device:
    """Stands in for a GPU: what is taken there, and what else happens, in order."""

    def __init__(self, monkeypatch):
        self.events, self.fails, self.empty = [], False, torch.empty
        monkeypatch.setattr(torch, "empty", self.take)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)

    def take(self, *size, **options):
        if options.get("dtype") is not torch.uint8:
            return self.empty(*size, **options)
        if self.fails:
            self.events.append("refused")
            raise torch.OutOfMemoryError
        block = self.empty(1)
        self.events.append(f"take {size[0]}")
        weakref.finalize(block, self.events.append, "give")
        return block

    def since(self):
        """What has happened since the last time."""
        events, self.events[:] = list(self.events), []
        return events


def wrap_with_spacer(model, action):
    """Wrap with a plan that recomputes every layer but the last, which has this action and a spacer."""
    document = json.loads(zoo.recompute_plan(model).to_json())
    names = [unit["name"] for unit in document["units"]]
    document["units"][names.index("lm_head")]["action"] = action
    document |= {"spacer_bytes": 4096, "spacer_unit": names.index("lm_head"), "spacer_saved_bytes": 512}
    plan = memscale.Plan.from_json(json.dumps(document))
    memscale.wrap(model, memscale.Config(enable_logging=False), plan=plan)
    return memscale.executor_of(model)


@pytest.fixture(params=["keep", "recompute"])
def trained(request, monkeypatch):
    """A wrapped model whose last layer has a spacer, its batch, its executor and what stands in for its device."""
    model, batch = zoo.make("gpt2"), zoo.batch_of("gpt2")
    model.lm_head.register_forward_hook(lambda *_: device.events.append("forward"))
    executor, device = wrap_with_spacer(model, request.param), Device(monkeypatch)
    monkeypatch.setattr(executor._spacer, "_device", torch.device("cuda", 0))
    monkeypatch.setattr(DeviceMemory, "is_growing", True)
    executor._spacer.use(executor.plan)
    yield model, batch, executor, device
    executor.detach()


def step(model, batch):
    args, kwargs = batch
    model(*args, **kwargs).loss.backward()
    model.zero_grad()


def test_once_in_a_step(trained):
    model, batch, _, device = trained
    for _ in range(3):
        step(model, batch)
        assert device.since() == ["take 4096", "give", "forward"]


def test_not_in_an_evaluation(trained):
    model, batch, _, device = trained
    with torch.no_grad():
        model(*batch[0], **batch[1])
    assert device.since() == ["forward"]


def test_not_after_detach(trained):
    model, batch, _, device = trained
    memscale.detach(model)
    step(model, batch)
    assert device.since() == ["forward"]
    assert "forward" not in vars(model.lm_head)


def test_not_where_segments_do_not_grow(trained, monkeypatch):
    model, batch, _, device = trained
    monkeypatch.setattr(DeviceMemory, "is_growing", False)
    step(model, batch)
    assert device.since() == ["forward"]


def test_without_memory_the_step_does_without(trained, monkeypatch):
    model, batch, executor, device = trained
    counts = iter(((1, 5), (1, 5)))
    monkeypatch.setattr(executor._device_memory, "_count", lambda: next(counts))
    device.fails = True
    step(model, batch)
    assert device.since() == ["refused", "forward"]
    assert executor._device_memory._counts == (1, 0)  # no failed step, though memory was returned
    step(model, batch)
    assert device.since() == ["forward"]


def test_a_forward_that_fails_gives_it_back(trained):
    """Also while the exception, with its frames, is still there."""
    model, batch, executor, device = trained
    (unit,) = (unit for unit in executor._units if unit.name == "lm_head")

    def fail(*args, **kwargs):
        raise ValueError("no")

    plain, unit.plain = unit.plain, fail
    with pytest.raises(ValueError, match="no") as caught:
        step(model, batch)
    assert device.since() == ["take 4096", "give"]
    assert caught.tb is not None
    unit.plain = plain
    step(model, batch)
    assert device.since() == ["take 4096", "give", "forward"]


def test_never_on_a_cpu():
    model, batch = zoo.make("gpt2"), zoo.batch_of("gpt2")
    spacer = wrap_with_spacer(model, "keep")._spacer
    step(model, batch)
    spacer.begin_step()
    assert spacer.take() is None
    memscale.detach(model)
