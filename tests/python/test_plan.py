"""Units, measurement and plans, as Python sees them."""

import copy
import json
import pickle

import pytest
import torch
from torch import nn

import memscale
import zoo
from memscale import Config, _core
from memscale._units import find_units
from memscale.plans import Plan


@pytest.mark.parametrize(
    ("name", "some", "not_these"),
    [
        ("gpt2", ["transformer.wte", "transformer.h.0", "transformer.h.2", "transformer.ln_f", "lm_head"], []),
        ("bert", ["bert.embeddings", "bert.encoder.layer.1", "cls"], []),
        ("llama", ["model.embed_tokens", "model.layers.0", "model.norm", "lm_head"], []),
        ("t5", ["encoder.block.0", "decoder.block.1", "lm_head"], []),
        (
            "resnet",
            ["resnet.encoder.stages.0.layers.0", "resnet.encoder.stages.1.layers.2"],
            ["resnet.encoder.stages.0"],
        ),
        ("encoder", ["encoder.layers.0", "encoder.layers.2", "head"], ["encoder.layers.0.linear1"]),
        ("lstm", ["embedding", "lstm", "head"], []),
        ("albert", ["albert.encoder.albert_layer_groups.0"], []),
        ("mixtral", ["model.layers.0", "model.layers.1"], []),
    ],
)
def test_units_of_known_models(name, some, not_these):
    units = list(find_units(zoo.make(name)))
    assert set(some) <= set(units)
    assert not set(not_these) & set(units)
    for unit in units:
        assert not any(other.startswith(unit + ".") for other in units)


def test_a_shared_module_is_one_unit():
    block = nn.TransformerEncoderLayer(8, 2, 16)
    assert list(find_units(nn.Sequential(block, nn.Linear(8, 8), block))) == ["0", "1"]


@pytest.fixture
def planned(quiet_config):
    def plan(**changes):
        model = zoo.make("gpt2")
        args, _ = zoo.batch_of("gpt2")
        memscale.wrap(model, quiet_config.replace(**changes), sample_input=(args[0], None))
        found = model._memscale_executor.plan
        memscale.detach(model)
        return found

    return plan


def test_the_same_plan_every_time(planned):
    first, second = planned(), planned()
    assert first.to_json() == second.to_json()
    assert first.fingerprint == second.fingerprint
    assert first.predicted_peak_bytes < first.baseline_peak_bytes


def test_a_plan_through_json(planned):
    plan = planned()
    again = Plan.from_json(plan.to_json())
    assert again.to_json() == plan.to_json()
    assert dict(again.layers) == dict(plan.layers)
    assert again.fingerprint == plan.fingerprint
    with pytest.raises(TypeError):
        plan.layers["x"] = ()


def test_budgets(planned):
    """A larger budget never gives a slower plan, a smaller one never a higher peak, and none is exceeded."""
    roomy = planned(memory_budget_gb=1)
    assert roomy.n_recomputed == 0
    low, high = planned().predicted_peak_bytes, roomy.predicted_peak_bytes
    last = None
    for share in range(11):
        budget = low + (high - low) * share // 10 + 8192  # what rounding to the grid may take
        plan = planned(memory_budget_gb=budget / 1e9)
        assert plan.fits
        assert plan.predicted_peak_bytes <= budget
        if last is not None:
            assert plan.predicted_slowdown <= last.predicted_slowdown
            assert plan.predicted_peak_bytes >= last.predicted_peak_bytes
        last = plan
    assert last.n_recomputed == 0


def test_slowdown_limits(planned):
    little = planned(mode="conservative")
    much = planned(mode="balanced")
    none = planned(max_slowdown=0.0)
    assert 0 < little.predicted_slowdown <= 0.15 < much.predicted_slowdown <= 0.55
    assert none.n_recomputed == 0
    assert much.predicted_peak_bytes < little.predicted_peak_bytes < none.predicted_peak_bytes


def test_smart_skip_and_checkpointing_off(planned):
    assert planned(force_optimize=False).skipped
    assert planned(enable_checkpointing=False).n_recomputed == 0


def test_prediction_against_what_was_measured():
    """The planner's own figure for the baseline is within a few percent of the bytes that autograd really keeps."""
    model = zoo.make("encoder").train()
    x = zoo.floats(8, 10, 32)
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.detach()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = model(x)
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved = sum(t.untyped_storage().nbytes() for address, t in kept.items() if address not in parameters)
    saved += out.untyped_storage().nbytes()
    state = sum(p.numel() * 16 for p in model.parameters())
    memscale.wrap(model, Config(enable_logging=False, force_optimize=True), sample_input=x)
    assert model._memscale_executor.plan.baseline_peak_bytes == pytest.approx(saved + state, rel=0.05)


def test_the_optimizer_is_part_of_the_estimate(quiet_config):
    peaks = []
    for make in (lambda p: torch.optim.SGD(p, 0.1), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), torch.optim.AdamW):
        model = zoo.make("encoder")
        with memscale.optimize(model, make(model.parameters()), quiet_config, zoo.floats(2, 10, 32)) as executor:
            peaks.append(executor.plan.baseline_peak_bytes)
    n = sum(p.numel() for p in model.parameters())
    assert peaks[1] - peaks[0] == 4 * n
    assert peaks[2] - peaks[1] == 4 * n


def test_the_plan_is_settled_by_the_first_batch(quiet_config):
    model = memscale.wrap(zoo.make("gpt2"), quiet_config)
    args, kwargs = zoo.batch_of("gpt2")
    executor = model._memscale_executor
    with torch.no_grad():
        model(*args, **kwargs)
    assert executor.plan.provisional  # an evaluation settles nothing
    with pytest.raises(IndexError):
        model(torch.full((1, 4), 10_000))
    assert executor.plan.provisional  # nor does a forward that fails
    model(*args, **kwargs).loss.backward()
    assert not executor.plan.provisional
    assert "recompute" in repr(executor)


def test_the_plan_is_settled_without_the_models_own_forward(quiet_config):
    class Quiet(nn.Module):
        """Its forward returns nothing; training goes through another method."""

        def __init__(self):
            super().__init__()
            self.encoder = zoo.make("encoder")

        def forward(self, x):
            self.out = self.training_step(x)

        def training_step(self, x):
            return self.encoder.encoder(x)

    for use_forward in (False, True):
        model = memscale.wrap(Quiet(), quiet_config)
        for _ in range(2):
            model(zoo.floats(2, 10, 32)) if use_forward else None
            out = model.out if use_forward else model.training_step(zoo.floats(2, 10, 32))
            out.sum().backward()
            assert not model._memscale_executor.plan.provisional
        assert model._memscale_executor.plan.n_recomputed >= 2


def test_plans_can_be_pickled_and_copied(planned):
    for plan in (planned(), memscale.wrap(zoo.make("mlp"), Config(enable_logging=False))._memscale_executor.plan):
        for twin in (pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan)):
            assert twin.to_json() == plan.to_json()
            assert twin.provisional == plan.provisional


def test_a_given_plan_stays(quiet_config):
    model = zoo.make("encoder")
    lean = memscale.wrap(model, quiet_config)._memscale_executor.plan
    memscale.detach(model)
    memscale.wrap(model, quiet_config.replace(force_optimize=False), plan=lean)
    model(zoo.floats(2, 10, 32)).sum().backward()
    assert model._memscale_executor.plan.layers == lean.layers
    assert not model._memscale_executor.plan.provisional


def test_repr_says_what_matters(planned):
    text = repr(planned())
    assert "recompute" in text
    assert "GB" in text


def test_the_host_record_round_trips():
    record = _core.hw_detect("")
    assert _core.hw_from_json(record) == record
    values = json.loads(record)
    assert values["memory_available_bytes"] <= values["memory_limit_bytes"] <= values["memory_total_bytes"]
    for broken in ("{}", record.replace("n_cores", "cores"), record.replace('"memscale_hw": 1', '"memscale_hw": 7')):
        with pytest.raises((ValueError, memscale.MemScaleError)):
            _core.hw_from_json(broken)


def test_core_functions_reject_wrong_types():
    unit = _core.Unit("name", torch.nn.Identity(), print)
    for call in (
        lambda: _core.hash64("text"),
        lambda: _core.find_units(b"", b""),
        lambda: _core.find_units("a", "b", "c", "d", "e"),
        lambda: _core.plan_create([("x", 1)], 0, 0, 1, 0, 0),
        lambda: _core.plan_create("units", 0, 0, 1, 0, 0),
        lambda: _core.plan_create([], 0, 0, "1", 0, 0),
        lambda: _core.Frame(),
        lambda: _core.Frame(print, 3),
        lambda: _core.Plan(),
        lambda: _core.bind(3),
        lambda: _core.bind({"tensor_type": torch.Tensor}),
        lambda: _core.Unit("name"),
        lambda: _core.Call(_core.Unit.__new__(_core.Unit), (), {}),
        lambda: _core.Call(3, (), {}),
        lambda: _core.Call(unit, [], {}),
        lambda: _core.Call(unit, (), {}).observe([]),
        lambda: _core.Call(unit, (), {}).run(set(), True),
        lambda: _core.Call(unit, (), {}).run([], True, False, True, (), {}),
        lambda: _core.Call(unit, (), {}).keep_buffers([]),
        lambda: _core.Randomness(3),
        lambda: _core.unpack(None),
        lambda: _core.plan_create([3], 0, 0, 1, 0, 0),
        lambda: _core.set_log(3),
        lambda: _core.plan_from_json(3),
        lambda: _core.hw_detect(None),
    ):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(ValueError, match="differ in length"):
        _core.find_units(b"\0" * 8, b"", b"", b"", b"")
    with pytest.raises(ValueError, match="no modules"):
        _core.find_units(b"", b"", b"", b"", b"")
    with pytest.raises(_core.StopRecompute):
        _core.Frame(print, "unit").collect(torch.ones(1))  # no recomputation is running
    with pytest.raises(AttributeError):
        _core.ModuleState(3)
    with pytest.raises(RuntimeError, match="observe"):
        _core.Call(unit, (), {}).enter()
    state = _core.ModuleState(unit.module)
    state.enter()
    with pytest.raises(RuntimeError, match="entered"):
        state.enter()
    state.leave()
