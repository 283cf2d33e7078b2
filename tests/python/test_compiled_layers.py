"""Models whose layers are compiled one by one: ``layer.compile()`` before or after ``wrap``, ``torch.compile(layer)``.

Compiled code is compared with compiled code: a graph of inductor rounds otherwise than eager torch.
"""

import copy
import gc
import itertools
import pickle
import shutil

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import memscale
import zoo
from memscale._run import offloading
from test_predict_actions import simulate

N_LAYERS = 10  # more than the eight graphs that torch.compile makes of one function
MIXTURES = {
    "recomputed": ["recompute"],
    "kept": ["recompute_except_both"],
    "offloaded": ["offload", "offload_blocking"],
    "inputs": ["recompute_offload", "recompute_offload_blocking"],
    "mixed": ["offload", "keep", "recompute_except_both", "recompute", "recompute_offload"],
}


pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="torch.compile needs a C++ compiler on a CPU"
)


@pytest.fixture(autouse=True)
def fresh_compiler(monkeypatch):
    monkeypatch.setattr(offloading, "OPTIONS", {"least_bytes": 1})
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def gpt2(n_layers=N_LAYERS, width=32):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=n_layers, n_embd=width, n_head=2, vocab_size=64, n_positions=128, use_cache=False)
    config.bos_token_id = config.eos_token_id = None
    return GPT2LMHeadModel(config).train()


class Normed(nn.Module):
    """Batch norm changes buffers in forward."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 16)

    def forward(self, x):
        return x + torch.dropout(self.b(self.norm(self.a(x)).relu()), 0.2, self.training)


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        return torch.nn.functional.gelu(self.linear(x))


class Partly(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = Inner(), nn.Linear(16, 16)

    def forward(self, x):
        return x + torch.dropout(self.b(self.a(x)).sin(), 0.2, self.training)


class Broken(Partly):
    """Two graphs, with Python in between."""

    def forward(self, x):
        y = self.a(x).sin()
        torch._dynamo.graph_break()
        return x + torch.dropout(self.b(y), 0.2, self.training)


def layers_of(model):
    return model.transformer.h if hasattr(model, "transformer") else model.blocks


def in_place(layers, backend):
    for layer in layers:
        layer.compile(backend=backend)


def as_modules(layers, backend):
    for i, layer in enumerate(layers):
        layers[i] = torch.compile(layer, backend=backend)


def parts(layers, backend):
    for layer in layers:
        layer.a.compile(backend=backend)


def nothing(layers, backend):
    pass


WAYS = {"in place": (in_place, nothing), "after wrap": (nothing, in_place), "modules": (as_modules, nothing)}


def batch_of(model, step):
    if hasattr(model, "transformer"):
        ids = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(step))
        return {"input_ids": ids, "labels": ids}
    return {"x": zoo.floats(4, 16, seed=step)}


def random_state(device):
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def train(model, n_steps=5, autocast=False, batch=batch_of):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    device = next(model.parameters()).device
    torch.manual_seed(7)
    record = []
    for step in range(n_steps):
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            loss = zoo.loss_of(model(**batch(model, step)))
        loss.backward()
        gradients = [p.grad.clone() for p in model.parameters()]
        record.append((loss.detach().clone(), gradients, random_state(device)))
        optimizer.step()
        optimizer.zero_grad()
    return record, {name: value.clone() for name, value in model.state_dict().items()}


def compare(make, way, actions, backend="inductor", wrap=zoo.wrap_with, **options):
    """Train compiled layers with and without MemScale. Returns the wrapped model."""
    before, after = WAYS[way] if isinstance(way, str) else way
    found, n_compiled = [], []
    for is_wrapped in (False, True):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch.manual_seed(0)
        model = make()
        before(layers_of(model), backend)
        if is_wrapped:
            wrap(model, actions)
        after(layers_of(model), backend)
        found.append(train(model, **options))
        n_compiled.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    zoo.assert_same(*found)
    assert n_compiled[0] == n_compiled[1] > 0
    executor = memscale.executor_of(model)
    assert [unit.excluded for unit in executor._units] == [None] * len(executor._units)
    return model


def count_recomputed(units):
    """A list that gets the name of each layer that is recomputed from now on."""
    names = []
    for unit in units:
        unit.on_backward = lambda name=unit.name: names.append(name)
    return names


QUICK = [("in place", "recomputed"), *((way, "mixed") for way in WAYS)]
LONG = [case for case in itertools.product(WAYS, MIXTURES) if case not in QUICK]


BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("way", "mixture"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.long) for case in LONG)])
def test_block_compiled_gpt2_equals_plain(way, mixture, backend):
    model = compare(gpt2, way, MIXTURES[mixture], backend=backend)
    executor = memscale.executor_of(model)
    recomputed = count_recomputed(executor._units)
    ids = torch.randint(0, 64, (2, 16))
    model(input_ids=ids, labels=ids).loss.backward()
    n_rows = sum(action.startswith("recompute") for action in MIXTURES[mixture]) / len(MIXTURES[mixture])
    assert abs(len(recomputed) - n_rows * len(executor._units)) < 3
    assert (executor._offloading.stats().get("n_puts", 0) > 0) == any("offload" in a for a in MIXTURES[mixture])


@pytest.mark.parametrize("mixture", ["recomputed", "mixed"])
@pytest.mark.parametrize("way", [*WAYS.values(), (parts, nothing), (nothing, parts)], ids=[*WAYS, "part", "part after"])
@pytest.mark.parametrize("kind", [Normed, Partly, Broken])
def test_other_layers_equal_plain(kind, way, mixture):
    if kind is Normed and parts in way:
        pytest.skip("torch does not compile its own layers in place")
    compare(lambda: zoo.Chain(kind), way, MIXTURES[mixture], backend="aot_eager")


@pytest.mark.parametrize("way", ["in place", pytest.param("modules", marks=pytest.mark.long)])
def test_under_autocast(way):  # by inductor
    compare(gpt2, way, MIXTURES["mixed"], autocast=True)


@pytest.mark.parametrize("way", ["in place", "after wrap", pytest.param("modules", marks=pytest.mark.long)])
def test_planned_by_watching(way):
    """The watched step runs compiled code, and what that keeps is what is planned with."""

    def batch(model, step):
        ids = torch.randint(0, 64, (8, 64), generator=torch.Generator().manual_seed(step))
        return {"input_ids": ids, "labels": ids}

    def wrap(model, _):
        memscale.wrap(model, memscale.Config("aggressive", force_optimize=True, enable_logging=False))

    executor = memscale.executor_of(compare(gpt2, way, None, wrap=wrap, batch=batch))
    assert executor._planner.profile.source == "empirical"
    assert executor.recomputes()


def allocated_peak(function):
    """The most that torch's CPU allocator handed out, beyond what there was before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        function()
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


@pytest.mark.parametrize("actions", [["keep"], ["recompute"], ["offload"], MIXTURES["mixed"]], ids=str)
def test_predicted_peaks(actions):
    """From one watched step: within 1 % of what torch's allocator hands out."""
    ids = torch.randint(0, 64, (8, 128))
    model = gpt2(6, width=256)
    in_place(model.transformer.h, "inductor")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step():
        model(input_ids=ids, labels=ids).loss.backward()

    memscale.wrap(model, memscale.Config(enable_logging=False))
    for _ in range(2):
        step()
        optimizer.step()
        optimizer.zero_grad()
    known = memscale.executor_of(model)._planner.profile
    memscale.detach(model)
    predicted = simulate(known, actions)
    zoo.wrap_with(model, actions, predicted["schedule"])
    for _ in range(3):
        step()
        optimizer.zero_grad()
    gc.collect()
    measured = allocated_peak(step) + sum(p.nbytes for p in model.parameters()) + 2 * ids.nbytes
    assert abs(predicted["steady_peak_bytes"] / measured - 1) < 0.01


def test_another_graph_in_the_recomputation_is_an_error():
    """A graph for all sizes has taken the place of the one that forward ran."""
    model = zoo.Chain(Partly)
    in_place(model.blocks, "inductor")
    zoo.everything_recomputed(model)
    zoo.loss_of(model(zoo.floats(4, 16))).backward()  # checked
    first = zoo.loss_of(model(zoo.floats(4, 16)))
    for n in (5, 6, 7):
        zoo.loss_of(model(zoo.floats(n, 16))).backward()
    with pytest.raises(memscale.MemScaleError, match=r"compiled it anew since its forward.*dynamic=True"):
        first.backward()
    zoo.loss_of(model(zoo.floats(4, 16))).backward()


@pytest.mark.long
def test_sizes_that_vary():
    sizes = [5, 9, 3, 9, 14, 5, 20]

    def batch(model, step):
        ids = torch.randint(0, 64, (2, sizes[step]), generator=torch.Generator().manual_seed(step))
        return {"input_ids": ids, "labels": ids}

    compare(gpt2, "in place", MIXTURES["mixed"], n_steps=len(sizes), batch=batch)


def test_detach_copies_and_pickles():
    model = zoo.Chain(Partly)
    in_place(model.blocks, "eager")
    before = [dict(vars(module)) for module in model.modules()]
    zoo.everything_recomputed(model)
    zoo.loss_of(model(zoo.floats(4, 16))).backward()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert memscale.executor_of(other) is None
        zoo.assert_same(other(zoo.floats(4, 16)).shape, torch.Size([4, 16]))
        assert all("forward" not in vars(layer) for layer in other.blocks)
    memscale.detach(model)
    assert [dict(vars(module)) for module in model.modules()] == before


def test_detach_of_layers_compiled_after_wrap():
    model = zoo.everything_recomputed(zoo.Chain(Partly))
    in_place(model.blocks, "eager")
    calls = [layer._compiled_call_impl for layer in model.blocks]
    zoo.loss_of(model(zoo.floats(4, 16))).backward()
    assert all(layer._compiled_call_impl is not call for layer, call in zip(model.blocks, calls))
    in_place(model.blocks[:1], "eager")
    calls[0] = model.blocks[0]._compiled_call_impl
    zoo.loss_of(model(zoo.floats(4, 16))).backward()
    memscale.detach(model)
    assert [layer._compiled_call_impl for layer in model.blocks] == calls
    assert not any("forward" in vars(layer) for layer in model.blocks)


@pytest.mark.parametrize("compile_model", [torch.compile, lambda model, **options: model.compile(**options) or model])
def test_whole_models_are_refused(compile_model):
    with pytest.raises(memscale.MemScaleError, match=r"as a whole.*layer\.compile\(\)"):
        memscale.wrap(compile_model(zoo.Chain(Partly), backend="eager"))
