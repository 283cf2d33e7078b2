"""Layers that keep what they save but for pointwise results: equal to plain training, less is held, nothing is lost."""

import array
import gc
import threading

import pytest
import torch
import torch.nn.functional as nnf
from torch import nn

import memscale
import zoo
from graphs import GRAPHS, alive, chain, forget, gradients, loss_of, see
from memscale import _core
from memscale._base import storages
from memscale._base.vocabulary import ACTIONS
from memscale._run import offloading, recomputation
from memscale._trace import profiling, tracer

NUMBER = next(i for i, row in enumerate(ACTIONS) if row.identifier == "recompute_pointwise")
MIXTURES = {
    "pointwise": ["recompute_pointwise"],
    "offloaded": ["offload_pointwise"],
    "mixed": ["recompute_pointwise", "recompute", "offload", "keep", "recompute_pointwise", "recompute_except_both"],
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Results of small models are computed again, too."""
    monkeypatch.setattr(recomputation, "POINTWISE", {"least_bytes": 1})
    monkeypatch.setattr(tracer, "POINTWISE", {"least_bytes": 1, "compares": False})
    monkeypatch.setattr(offloading, "OPTIONS", {"least_bytes": 1})


def layers_of(model):
    return [unit.pointwise for unit in memscale.executor_of(model)._units]


def counted(model):
    """How many tensors were made again so far, as a list that grows."""
    made = []
    for layer in layers_of(model):
        layer.on_make = lambda: made.append(1)
    return made


def trusts(model):
    return [trust for layer in layers_of(model) for trust in layer.trusts]


def steps_of(model, n=3):
    found = []
    for _ in range(n):
        loss = loss_of(model)
        loss.backward()
        found.append((loss.detach(), gradients(model)))
        model.zero_grad()
    return found


def both(block, n_made=None):
    """Compare some steps; how many tensors are made again in each of five layers."""
    plain, model = chain(block), zoo.wrap_with(chain(block), ["recompute_pointwise"])
    made = counted(model)
    zoo.assert_same(steps_of(plain), steps_of(model))
    if n_made is not None:
        assert len(made) == 3 * 5 * n_made
    return model


@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", list(zoo.SMALL.names))
def test_equals_plain(name, autocast, mixture, no_warnings):
    plain = zoo.train_or_skip(zoo.make(name), zoo.batch_of(name), steps=5, autocast=autocast)
    model = zoo.wrap_with(zoo.make(name), MIXTURES[mixture])
    zoo.assert_same(plain, zoo.train(model, zoo.batch_of(name), steps=5, autocast=autocast))
    assert "never" not in trusts(model)


class Gated(nn.Module):
    """As in Llama: three of the four large tensors that are saved follow from others or are needed themselves."""

    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(16, 64), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x):
        return x + self.down(nnf.silu(self.gate(x)) * self.up(x))


class Gelu(nn.Module):
    """As in GPT-2: of four tensors that are saved, two follow from the others."""

    def __init__(self):
        super().__init__()
        self.fc, self.proj = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x):
        h = self.fc(x)
        return x + self.proj(0.5 * h * (1.0 + torch.tanh(0.8 * (h + 0.04 * torch.pow(h, 3.0)))))


@pytest.mark.parametrize(("block", "n_made"), [(Gated, 1), (Gelu, 2)])
def test_what_others_give_is_made_again(block, n_made):
    model = both(block, n_made)
    assert "never" not in trusts(model)
    memscale.detach(model)
    assert "forward" not in vars(model.blocks[0])


@pytest.mark.parametrize("run", GRAPHS)
@pytest.mark.parametrize("block", [Gated, Gelu])
def test_graphs(block, run):
    def thrice(model):
        return [run(model) for _ in range(3)]

    zoo.assert_same(thrice(chain(block)), thrice(zoo.wrap_with(chain(block), ["recompute_pointwise"])))


# What is held


class Watched(nn.Module):
    """The result of a function that is saved, and what it follows from."""

    def __init__(self):
        super().__init__()
        self.fc, self.proj = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x):
        h = torch.tanh(self.fc(x))  # it saves its result
        return self.proj(see(h * 2.0).square())


def test_storages_are_free_after_the_forward():
    forget()
    model = zoo.wrap_with(chain(Watched, 2), ["recompute_pointwise"])
    loss = loss_of(model)
    assert alive(0, 2) == [False, False]
    loss.backward()


def test_trap_2_forwards_without_backward_leave_nothing():
    model = zoo.wrap_with(chain(Watched, 2), ["recompute_pointwise"])
    gc.disable()
    try:
        for _ in range(20):
            forget()
            loss = loss_of(model)
            del loss
            assert not any(alive(0, 2))
    finally:
        gc.enable()


# Changes in place


def changed_result(self, x):
    h = torch.tanh(self.fc(x))
    y = h * 2.0
    y.add_(1.0)
    return self.proj(y.square())


def changed_operand(self, x):
    h = self.fc(x)
    y = h * 2.0
    z = y.square()
    h.add_(1.0)
    return self.proj(z + h)


def changed_operand_before_it_is_saved(self, x):
    h = self.fc(x)
    y = h * 2.0
    h.add_(1.0)
    return self.proj(y.square() + h)


def in_place_function(self, x):
    return self.proj(nnf.silu(self.fc(x), inplace=True).square())


def output_of_the_layer(self, x):
    y = torch.tanh(self.fc(x))[..., :16] * 2.0
    return y.square() + y


def view_of_it(self, x):
    h = torch.tanh(self.fc(x))
    y = h * 2.0
    return self.proj(y.view(-1, 64).square().view(y.shape) + y.square())


def parts_of_one_storage(self, x):
    a, b = torch.tanh(self.fc(x)).chunk(2, -1)
    return self.proj(torch.cat([(a * 2.0).square(), (b * 3.0).square()], -1))


def of_the_input(self, x):
    return self.proj(self.fc(x * 2.0).tanh()) + (x * 3.0).square()


def without_gradients(self, x):
    with torch.no_grad():
        scale = self.fc(x).abs() * 2.0
    return self.proj(torch.tanh(self.fc(x)) * scale)


def with_numbers_of_its_own(self, x):
    h = self.fc(x)
    return self.proj(torch.add(h, h.sigmoid(), alpha=2).square())


def through_types(self, x):
    h = torch.tanh(self.fc(x))
    return self.proj(h.to(torch.float64).square().to(torch.float32))


FORWARDS = [
    changed_result,
    changed_operand,
    changed_operand_before_it_is_saved,
    in_place_function,
    output_of_the_layer,
    view_of_it,
    parts_of_one_storage,
    of_the_input,
    without_gradients,
    with_numbers_of_its_own,
    through_types,
]


class WritesOverInputs(torch.autograd.Function):
    """Its backward puts gradients where its inputs were, and tells nobody, as fused kernels do."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, gradient):
        a, b = ctx.saved_tensors
        for_a, for_b = gradient * b, gradient * a
        a.data.copy_(for_a)
        b.data.copy_(for_b)
        return a, b


def kernels_that_write_over_what_they_saved(self, x):
    g = self.fc(x)
    return self.proj((g * 0.5).square() + WritesOverInputs.apply(g, self.fc(x).tanh()))


def other_memory(self, x):
    h = self.fc(x)
    y = h * 2.0
    z = y.square()
    h.data = torch.zeros_like(h)
    return self.proj(z) + h.sum()


def no_memory(self, x):
    h = self.fc(x)
    y = h * 2.0
    z = y.square()
    h.untyped_storage().resize_(0)
    return self.proj(z)


FORWARDS += [kernels_that_write_over_what_they_saved, other_memory, no_memory]


class Box:
    """Holds a tensor, and nobody looks into it."""

    def __init__(self, x):
        self.x = x


class ReadsABox(nn.Module):
    """As a root mean square norm of a residual stream that somebody adds to."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 16).bfloat16()

    def forward(self, box):
        h = box.x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.fc(h.bfloat16())


class Stream(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(ReadsABox() for _ in range(3))

    def forward(self, x):
        box = Box(x.bfloat16() * 1.0)
        for block in self.blocks:
            box.x += block(box)
        return box.x


def test_operands_that_others_change_later():
    """Plain torch has no need of them."""
    x = zoo.floats(4, 16).requires_grad_()
    plain, model = Stream(), zoo.wrap_with(Stream(), ["recompute_pointwise"])
    for each in (plain, model):
        each(x).float().pow(2).mean().backward()
    zoo.assert_same(gradients(plain), gradients(model))


@pytest.mark.parametrize("forward", FORWARDS, ids=lambda forward: forward.__name__)
def test_trap_4_and_5_whatever_the_layer_does(forward):
    both(type("Kind", (Watched,), {"forward": forward}))


class Keeps(Watched):
    """Its owner changes an intermediate result after the layer has returned."""

    def forward(self, x):
        self.kept = torch.tanh(self.fc(x))
        return self.proj((self.kept * 2.0).square())


def test_an_operand_that_is_changed_later_raises_as_in_torch():
    model = zoo.wrap_with(chain(Keeps, 2), ["recompute_pointwise"])
    loss = loss_of(model)
    with torch.no_grad():
        model.blocks[0].kept.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# Trust


def _make_another(function, args, kwargs):
    return function(*[a.detach() if hasattr(a, "detach") else a for a in args], **(kwargs or {})) + 1e-3


def test_what_differs_the_first_time_is_kept(monkeypatch):
    monkeypatch.setattr(storages._make_again, "__code__", _make_another.__code__)
    model = both(Gelu, 0)
    assert set(trusts(model)) == {"never"}


def test_another_plan_does_not_compare_again(monkeypatch):
    model = both(Gelu)
    known = [layer.trusts for layer in layers_of(model)]
    steps_of(model, 1)
    assert [layer.trusts for layer in layers_of(model)] == known


# Threads, modes, errors


def test_trap_15_threads():
    model = zoo.wrap_with(chain(Gelu), ["recompute_pointwise"])
    plain, found = gradients_of(chain(Gelu)), []
    with torch.autograd.set_multithreading_enabled(False):
        thread = threading.Thread(target=lambda: found.append(gradients_of(model)))
        thread.start()
        thread.join()
    zoo.assert_same(plain, found[0])


def gradients_of(model):
    loss_of(model).backward()
    return gradients(model)


class Raises(Gelu):
    broken = False

    def forward(self, x):
        result = super().forward(x)
        if self.broken:
            raise ValueError("broken")
        return result


def test_trap_13_an_exception_leaves_no_mode():
    model = zoo.wrap_with(chain(Raises), ["recompute_pointwise"])
    model.blocks[3].broken = True
    with pytest.raises(ValueError, match="broken"):
        loss_of(model)
    assert torch._C._len_torch_function_stack() == 0
    model.blocks[3].broken = False
    zoo.assert_same(steps_of(chain(Raises)), steps_of(model))


def test_inside_hooks_of_the_user():
    model = zoo.wrap_with(chain(Gelu), ["recompute_pointwise"])
    made = counted(model)
    with torch.autograd.graph.save_on_cpu():
        loss = loss_of(model)
    loss.backward()
    plain = chain(Gelu)
    zoo.assert_same(gradients_of(plain), gradients(model))
    assert not made


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_autocast_casts_are_made_again(dtype):
    """The cast of a result that is held in fewer bits."""

    class Casts(Watched):
        def forward(self, x):
            h = self.fc(x)
            return self.proj(nnf.mse_loss(h, torch.zeros_like(h), reduction="none").to(x.dtype))

    def run(model):
        with torch.autocast("cpu", torch.bfloat16):
            return gradients_of(model)

    zoo.assert_same(run(chain(Casts)), run(zoo.wrap_with(chain(Casts), ["recompute_pointwise"])))


def test_layers_refuse_what_is_no_layer():
    with pytest.raises(TypeError):
        _core.PointwiseLayer(1, None)
    with pytest.raises(TypeError, match="unpack_pointwise"):
        _core.unpack_pointwise(None)


# ---- Profiles at several sizes ----


class Broadcast(nn.Module):
    """With one sample its operand is as large as its result: nothing is gained. With several, there is."""

    def __init__(self):
        super().__init__()
        self.table, self.fc = nn.Parameter(torch.randn(32, 64)), nn.Linear(64, 64)
        self.mix = nn.Linear(16, 1)

    def forward(self, x):
        base = self.fc(self.table)
        return x + (base + self.mix(x).mean(1, keepdim=True)).square().mean()


def test_sizes_at_which_other_results_are_dropped():
    model = chain(Broadcast, 2)
    samples = [memscale.profile(model, zoo.floats(n, 8, 16), loss=lambda y: y.sum()) for n in (1, 4, 2)]
    assert ['"pointwise"' in profile.to_json() for profile in samples] == [False, True, True]
    fitted = _core.profile_fit([profile.core for profile in samples]).at(4, 0)
    assert '"pointwise"' not in fitted.to_json()
    assert fitted.simulate(samples[1].device) == samples[1].core.simulate(samples[1].device)


@pytest.mark.parametrize(("batch", "n_traces"), [(2, 2), (64, 3)])
def test_steps_without_large_results_are_traced_twice(batch, n_traces, monkeypatch):
    """Nothing that is smaller than what a layer drops makes another trace worth its time."""
    monkeypatch.setattr(tracer, "POINTWISE", {"least_bytes": 1000, "compares": False})
    counts, real = [], profiling.run_in_children

    def run(*works, **options):
        counts.append(len(works))
        return real(*works, **options)

    monkeypatch.setattr(profiling, "run_in_children", run)
    profile = memscale.profile(chain(Gelu, 3), zoo.floats(batch, 16), loss=lambda y: y.sum())
    assert sum(counts) == n_traces
    assert profile.has_pointwise == (n_traces == 3)


def test_profiles_in_files_keep_the_variant():
    model = chain(Gelu, 3)
    profile = memscale.profile(model, zoo.floats(64, 16), loss=lambda y: y.sum())
    actions = dict.fromkeys((unit.name for unit in profile.units), "recompute_pointwise")
    numbers = array.array("i", [NUMBER] * len(profile.units)).tobytes()
    again = _core.profile_from_json(profile.core.to_json())
    assert again.simulate(profile.device, actions=numbers) == profile.core.simulate(profile.device, actions=numbers)
    assert profile.simulate(actions).peak_bytes < profile.simulate().peak_bytes
