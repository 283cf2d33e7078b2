"""Layers that are recomputed without their matrix products and attention: equal to plain training, and not computed."""

import collections
import gc
import threading

import pytest
import torch
import torch.nn.functional as nnf
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import memscale
import zoo
from graphs import GRAPHS, alive, chain, forget, gradients, loss_of, see
from zoo import Block

ACTIONS = ["recompute_except_both", "recompute_except_products", "recompute_except_attention"]
MIXTURES = {action: [action] for action in ACTIONS}
MIXTURES["mixed"] = ["recompute_except_products", "keep", "recompute", "offload", "recompute_except_both"]


class Count(TorchDispatchMode):
    """How often each operation runs."""

    def __init__(self):
        super().__init__()
        self.names = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))

    def of(self, *names):
        return sum(self.names[name] for name in names)


PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution")
ATTENTION = ("_scaled_dot_product_flash_attention_for_cpu",)


def counted(model, actions, x=None, steps=3, names=PRODUCTS):
    """How often the operations run in the backward of a steady step."""
    zoo.wrap_with(model, actions)
    for _ in range(steps):
        loss = loss_of(model, x)
        with Count() as count:
            loss.backward()
    return count.of(*names)


def steps_of(model, x=None, n=4):
    """What some steps compute: the first is checked, the second compares what was kept, the others rely on it."""
    found = []
    for _ in range(n):
        loss = loss_of(model, x)
        loss.backward()
        found.append((loss.detach(), gradients(model)))
        model.zero_grad()
    return found


def both(block, actions=("recompute_except_both",), x=None, run=steps_of):
    plain, model = chain(block), chain(block)
    zoo.assert_same(run(plain, x), run(zoo.wrap_with(model, list(actions)), x))
    return model


def trusts(model):
    return [unit.trusts for unit in memscale.executor_of(model)._units]


@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", list(zoo.SMALL.names))
def test_equals_plain(name, autocast, mixture, no_warnings):
    plain = zoo.train_or_skip(zoo.make(name), zoo.batch_of(name), steps=5, autocast=autocast)
    model = zoo.wrap_with(zoo.make(name), MIXTURES[mixture])
    zoo.assert_same(plain, zoo.train(model, zoo.batch_of(name), steps=5, autocast=autocast))


@pytest.mark.parametrize("actions", [["recompute_except_both"], ["recompute_except_products", "offload"]])
@pytest.mark.parametrize("run", GRAPHS)
def test_graphs(run, actions):
    def thrice(model):
        return [run(model) for _ in range(3)]

    zoo.assert_same(thrice(chain()), thrice(zoo.wrap_with(chain(), actions)))


# What is not computed


class Product(nn.Module):
    """One product between functions that save what they compute."""

    def __init__(self, product, shape):
        super().__init__()
        self.product = product
        self.weight = nn.Parameter(torch.randn(shape) / 8)

    def forward(self, x):
        return self.product(x.sin(), self.weight).exp().reciprocal()


FUNCTIONS = {
    "linear": (lambda x, w: nnf.linear(x, w), (16, 16), (4, 3, 16)),
    "linear with bias": (lambda x, w: nnf.linear(x, w, w[0]), (16, 16), (4, 3, 16)),
    "matmul": (torch.matmul, (16, 16), (4, 3, 16)),
    "@": (lambda x, w: x @ w, (16, 16), (4, 16)),
    "matmul, a method": (lambda x, w: w.matmul(x.mT).mT, (16, 16), (4, 16)),
    "mm": (torch.mm, (16, 16), (4, 16)),
    "addmm": (lambda x, w: torch.addmm(w[0], x, w), (16, 16), (4, 16)),
    "bmm": (torch.bmm, (4, 16, 16), (4, 3, 16)),
    "bmm of transposed": (lambda x, w: torch.bmm(w.mT, x.mT).mT, (4, 16, 16), (4, 3, 16)),
    "baddbmm": (lambda x, w: torch.baddbmm(x, x, w), (4, 16, 16), (4, 3, 16)),
    "einsum": (lambda x, w: torch.einsum("bij,jk->bik", x, w), (16, 16), (4, 3, 16)),
    "conv1d": (lambda x, w: nnf.conv1d(x, w, padding=1), (3, 3, 3), (4, 3, 16)),
    "conv2d": (lambda x, w: nnf.conv2d(x, w, padding=1), (3, 3, 3, 3), (2, 3, 8, 8)),
    "conv_transpose2d": (lambda x, w: nnf.conv_transpose2d(x, w, padding=1), (3, 3, 3, 3), (2, 3, 8, 8)),
}


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_products_are_not_computed_again(name, autocast):
    function, weight, shape = FUNCTIONS[name]

    def run(actions):
        model, x = chain(lambda: Product(function, weight)), zoo.floats(*shape)
        x.requires_grad_(name == "einsum")  # it is reshaped before it is cast: only a history tells what was cast
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return counted(model, actions, x)

    plain = run(["keep"])
    assert run(["recompute"]) == plain + 5
    assert run(["recompute_except_products"]) == plain
    assert run(["recompute_except_attention"]) == plain + 5


class Attention(nn.Module):
    def __init__(self, mask=None, dropout=0.0, **options):
        super().__init__()
        self.linear = nn.Linear(16, 48)
        self.mask, self.options = mask, {"dropout_p": dropout, **options}

    def forward(self, x):
        q, k, v = (t.view(2, 6, 4, 4).transpose(1, 2) for t in self.linear(x).split(16, -1))
        y = nnf.scaled_dot_product_attention(q, k, v, self.mask, **self.options)
        return x + y.transpose(1, 2).reshape(2, 6, 16).sin()


MASKS = {
    "none": {},
    "causal": {"is_causal": True},
    "of floats": {"mask": torch.randn(6, 6)},
    "scaled": {"scale": 0.3},
}


@pytest.mark.parametrize("mask", MASKS)
def test_attention_is_not_computed_again(mask):
    x = zoo.floats(2, 6, 16)

    def run(actions):
        return counted(chain(lambda: Attention(**MASKS[mask])), actions, x, names=ATTENTION)

    assert run(["keep"]) == 0
    assert run(["recompute"]) == 5
    assert run(["recompute_except_attention"]) == 0
    assert run(["recompute_except_products"]) == 5
    both(lambda: Attention(**MASKS[mask]), x=x)


@pytest.mark.parametrize(
    "options", [{"dropout": 0.1}, {"mask": torch.randn(2, 4, 6, 6) > -1}], ids=["dropout", "a mask of another type"]
)
def test_attention_that_makes_more_than_its_result_is_computed_again(options):
    """With dropout on a CPU it is many operations; and a mask that it converts would be held in addition."""
    model = both(lambda: Attention(**options), x=zoo.floats(2, 6, 16))
    assert all(trust != "equal" for unit in trusts(model) for trust in unit[1:])


def test_frozen_weights_under_autocast():
    """Their casts have no history, and neither has the cast of the first input."""

    class Adapter(nn.Module):
        def __init__(self):
            super().__init__()
            self.base, self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 2, bias=False), nn.Linear(2, 16, bias=False)
            self.base.requires_grad_(False)

        def forward(self, x):
            return (self.base(x) + self.b(self.a(x)) * 2).tanh()

    def run(model, x):
        with torch.autocast("cpu", torch.bfloat16):
            return steps_of(model, x)

    model = both(Adapter, x=zoo.floats(3, 16), run=run)
    assert set(trusts(model)[1]) == {"equal"}


# What must be computed


class Changed(nn.Module):
    """Its product is changed in place after it was computed, before backward."""

    def __init__(self, change):
        super().__init__()
        self.linear, self.change = nn.Linear(16, 16), change

    def forward(self, x):
        y = self.linear(x)
        return self.change(y).sin()


CHANGES = {
    "relu_": lambda y: torch.relu_(y),
    "add_ of a view": lambda y: (y[0].add_(1), y)[1],
    "+=": lambda y: y.__iadd__(y.detach() / 2),
    "data": lambda y: (y.data.mul_(2), y)[1],
}


@pytest.mark.parametrize("change", CHANGES)
def test_trap_4_results_that_are_changed_in_place(change):
    model = both(lambda: Changed(CHANGES[change]))
    assert trusts(model) == [["never"] if change == "data" else []] * 5  # []: there was nothing to compare


def test_a_result_that_is_changed_outside_of_the_layer():
    class Outside(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(16, 16) for _ in range(4)])

        def forward(self, x):
            for block in self.blocks:
                x = block(x.sin())
                x += 1
            return x

    def made():
        torch.manual_seed(0)
        return Outside()

    zoo.assert_same(steps_of(made()), steps_of(zoo.wrap_with(made(), ["recompute_except_both"])))


def test_a_recomputation_that_calls_functions_in_another_order():
    """Weights tell the results apart: what was kept is not used, and gradients are those of what was computed."""

    class Swaps(Block):
        swapped = False

        def forward(self, x):
            first, second = (self.b, self.a) if Swaps.swapped else (self.a, self.b)
            return second(first(x).sin()).cos()

    model, whole = (zoo.wrap_with(chain(Swaps), [action]) for action in ("recompute_except_both", "recompute"))
    found = []
    for wrapped in (model, whole):
        steps_of(wrapped, n=3)
        loss = loss_of(wrapped)
        Swaps.swapped = True
        loss.backward()
        Swaps.swapped = False
        found.append(gradients(wrapped))
    zoo.assert_same(*found)


def test_without_gradients_inside():
    class Inside(Block):
        def forward(self, x):
            with torch.no_grad():
                y = self.a(x)
            return self.b(y.sin()).cos() + self.a(x.detach()).sin()

    both(Inside)


def test_compiled_parts_are_recomputed_whole():
    class Compiled(Block):
        def __init__(self):
            super().__init__()
            self.a = torch.compile(self.a, backend="eager")

    model = zoo.wrap_with(chain(Compiled), ["recompute_except_both"])
    assert [unit.keeps for unit in memscale.executor_of(model)._units] == [0] * 5


# Nothing is left


def n_modes():
    return torch._C._len_torch_function_stack()


@pytest.mark.parametrize("where", ["forward", "recomputation"])
def test_trap_13_an_exception_leaves_no_mode(where):
    fails = []

    class Fails(Block):
        def forward(self, x):
            y = self.a(x)
            if fails:
                raise KeyboardInterrupt
            return self.b(y.sin()).cos()

    model = zoo.wrap_with(chain(Fails), ["recompute_except_both"])
    for _ in range(3):
        loss_of(model).backward()
    model.zero_grad()
    if where == "recomputation":
        loss = loss_of(model)
    fails.append(True)
    with pytest.raises(KeyboardInterrupt):
        loss_of(model) if where == "forward" else loss.backward()
    assert n_modes() == 0
    fails.clear()
    model.zero_grad()
    plain = chain(Fails)
    zoo.assert_same(steps_of(plain), steps_of(model))


def test_results_die_with_the_graph_and_as_backward_goes_on():
    looks = []

    class Looks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            looks.append(alive(0, 2))
            return gradient

    class Layer(Block):
        def forward(self, x):
            y = see(self.a(x))
            z = see(self.b(Looks.apply(y.sin())))
            return z.cos()

    model = zoo.wrap_with(chain(Layer, 3), ["recompute_except_both"])
    for n in range(4):
        forget()
        loss = loss_of(model)
        assert alive(0, 6) == [n > 0] * 6  # the first step is checked
        loss.backward()
        assert alive(0, 6) == [False] * 6
        assert looks[-1] == [n > 0, False]  # of the first layer: backward is past its second product
    gc.disable()
    try:
        loss_of(model)
        assert alive(6, 6) == [False] * 6
    finally:
        gc.enable()


def test_results_that_nothing_needs_are_not_kept():
    """That of the last product, if nothing is saved after it."""

    class Last(Block):
        def forward(self, x):
            return x + see(self.b(see(self.a(x)).sin()))

    model = zoo.wrap_with(chain(Last, 2), ["recompute_except_both"])
    for n in range(4):
        forget()
        loss = loss_of(model)
        assert alive(0, 4) == [n > 0, False, n > 0, False]
        loss.backward()


def test_trap_15_threads():
    wanted = steps_of(chain())[-1][1]
    models = [zoo.wrap_with(chain(), ["recompute_except_both"]) for _ in range(2)]
    for model in models:
        steps_of(model, n=3)
    problems = []

    def work(model):
        for _ in range(5):
            torch.manual_seed(7)
            loss = loss_of(model)
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join()
            try:
                zoo.assert_same(wanted, gradients(model))
            except AssertionError as error:
                problems.append(error)
            model.zero_grad()

    for model in models:
        work(model)
    assert not problems


# What was trusted once


def fails_later(block, batches, actions=("recompute_except_both",)):
    """Steps on batches that differ: the first ones are trusted, others must not be mistaken for them."""

    def run(model, _):
        found = []
        for args in batches:
            torch.manual_seed(7)
            output = model(*args)
            loss = (torch.view_as_real(output) if output.is_complex() else output).pow(2).mean()
            loss.backward()
            found.append((loss.detach(), gradients(model)))
            model.zero_grad()
        return found

    return both(block, actions, run=run)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 48)

    def forward(self, x, mask=None):
        q, k, v = (t.view(2, 6, 4, 4).transpose(1, 2) for t in self.linear(x).split(16, -1))
        y = nnf.scaled_dot_product_attention(q, k, v, mask)
        return x + y.transpose(1, 2).reshape(2, 6, 16).sin()


def masked_batch(has_mask):
    return (zoo.floats(2, 6, 16), zoo.floats(2, 1, 6, 6, seed=3) > -0.5 if has_mask else None)


def test_a_mask_that_comes_later():
    """Attention makes numbers of a boolean mask, and saves them: that is no cast by autocast."""
    fails_later(Masked, [masked_batch(n >= 4) for n in range(6)])


def test_what_has_differed_once_is_never_trusted_again():
    """Two calls before their backwards: the second is compared first, and differs."""

    def run(model, _):
        found = []
        for n in range(5):
            losses = []
            for has_mask in (False,) if n == 0 else (False, True):
                torch.manual_seed(7)
                losses.append(model(*masked_batch(has_mask)).pow(2).mean())
            for loss in reversed(losses):
                loss.backward()
            found.append(gradients(model))
            model.zero_grad()
        return found

    both(Masked, run=run)


def test_another_number_of_products_before():
    """What is known of one product is not known of another that comes at its place."""

    class Repeats(Block):
        def forward(self, x, n):
            for _ in range(n):
                x = self.a(x).sin()
            y = self.b(x)
            y.data.mul_(2)  # as a kernel does that changes its input without telling
            return y.sin().cos()

    fails_later(Repeats, [(zoo.floats(4, 16), 2 if n < 3 else 1) for n in range(6)])


def test_conjugated_operands():
    class Gram(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))

        def forward(self, z):
            h = (self.weight.to(z.dtype) @ z).sin()
            c = h @ h.conj().transpose(-1, -2)
            return (c.abs() + 1).sqrt().sin().to(torch.complex64) @ z

    def complexes(*shape):
        return torch.complex(zoo.floats(*shape), zoo.floats(*shape, seed=2)) / 4

    fails_later(Gram, [(complexes(*((4, 5) if n < 4 else (2, 4, 5))),) for n in range(6)])


# What others do


@torch.compile(backend="eager", fullgraph=True)
def compiled_function(x, weight):
    return nnf.linear(nnf.silu(x), weight).sin()


class CallsCompiled(Block):
    def forward(self, x):
        return x + compiled_function(self.a(x).sin(), self.b.weight).sin()


@pytest.mark.parametrize("action", ["recompute_except_both", "offload"])
def test_layers_that_call_compiled_functions(action):
    """No mode is around them: it would be part of what is compiled."""
    model = both(CallsCompiled, [action])
    units = memscale.executor_of(model)._units
    assert [(unit.keeps, unit.has_compiled) for unit in units] == [(0, True)] * 5


def test_a_mode_that_a_layer_leaves_behind():
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    fails, mode = [], Mode()

    class Leaves(Block):
        def forward(self, x):
            y = self.a(x).sin()
            if fails:
                mode.__enter__()
                raise ValueError("what the layer raises")
            return self.b(y).cos()

    model = zoo.wrap_with(chain(Leaves), ["recompute_except_both"])
    for _ in range(3):
        loss_of(model).backward()
    fails.append(True)
    with pytest.raises(ValueError, match="what the layer raises"):
        loss_of(model)
    assert n_modes() == 1
    mode.__exit__(None, None, None)
    assert n_modes() == 0


def test_results_that_the_layer_changes_are_not_held():
    class Adds(Block):
        def forward(self, x):
            y = see(self.a(x.sin()))
            y += x
            return (y * 1.0).sin().cos()

    model = zoo.wrap_with(chain(Adds, 2), ["recompute_except_both"])
    for _ in range(3):
        forget()
        loss = loss_of(model)
        assert alive(0, 2) == [False, False]
        loss.backward()


def test_garbage_that_is_collected_during_a_recomputation():
    """A branch that nobody needs dies while the layer is recomputed, and with it what was kept for it."""
    collects = []

    class Two(Block):
        def forward(self, x):
            out = x.sin().exp()
            h = x.cos()
            if collects:
                gc.collect()
            return out, self.b(h).sin().exp()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Two() for _ in range(2)])

        def forward(self, x):
            tails = []
            for block in self.blocks:
                x, tail = block(x)
                tails.append(tail)
            return x, tails

    torch.manual_seed(0)
    model = zoo.wrap_with(Model(), ["recompute_except_products"])
    x = zoo.floats(4, 16).requires_grad_()
    for _ in range(4):
        y, tails = model(x)
        (y.sum() + sum(tail.sum() for tail in tails)).backward()
    gc.disable()
    try:
        y, tails = model(x)
        cycle = [tails]
        cycle.append(cycle)
        del tails, cycle
        collects.append(True)
        x.grad = None
        y.sum().backward()
    finally:
        gc.enable()
    wanted = zoo.floats(4, 16).requires_grad_()
    wanted.sin().exp().sin().exp().sum().backward()
    zoo.assert_same(wanted.grad, x.grad)


def test_queries_keys_and_values_share_the_cast_of_their_input():
    class Three(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

        def forward(self, x):
            return (self.q(x).sin() + self.k(x).cos() + self.v(x).exp()).tanh()

    model = zoo.wrap_with(chain(Three), ["recompute_except_products"])
    for _ in range(4):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model)
        with Count() as count:
            loss.backward()
    plain = chain(Three)
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(plain)
    with Count() as plain_count:
        loss.backward()
    # of a layer: its input once, and three weights
    assert count.of("_to_copy") - plain_count.of("_to_copy") <= 5 * (1 + 3 + 1)


def test_a_query_without_a_history_that_attention_scales():
    """What attention's own operations make of it is no cast by autocast, even if it was equal to one."""

    class Positional(nn.Module):
        scale = 1.0

        def __init__(self):
            super().__init__()
            self.k, self.o = nn.Linear(64, 64), nn.Linear(128, 64)
            self.register_buffer("q", torch.randn(1, 1, 32, 64))

        def forward(self, x):
            keys = self.k(x).unsqueeze(1)
            q = self.q.to(x.dtype).expand(x.shape[0], 1, 32, 64).contiguous()
            y = nnf.scaled_dot_product_attention(q, keys, torch.cat((keys, keys), -1), scale=Positional.scale)
            return x + self.o(y.sin()).mean((1, 2))[:, None]

    def run(model, _):
        found = []
        for n in range(6):
            Positional.scale = 1.0 if n < 3 else 0.3
            x = zoo.floats(4, 8, 64).bfloat16().requires_grad_()
            model(x).float().square().sum().backward()
            found.append(gradients(model))
            model.zero_grad()
        return found

    plain, model = chain(Positional).bfloat16(), chain(Positional).bfloat16()
    zoo.assert_same(run(plain, None), run(zoo.wrap_with(model, ["recompute_except_both"]), None))
