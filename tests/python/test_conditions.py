"""What a recomputation starts from: the state of modules, generators and switches, captured and put back in C."""

import functools
import gc
import itertools
import random
import threading
import weakref

import numpy
import pytest
import torch
from torch import nn

import memscale
import zoo
from memscale import _core


class Block(zoo.Block):
    """With attributes that subclasses change."""

    def __init__(self):
        super().__init__()
        self.log = []
        self.table = {}
        self.steps = 0


def make(block):
    torch.manual_seed(0)
    return zoo.Chain(block).train()


def step(model, seed=7):
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)
    loss = model(zoo.floats(4, 16)).pow(2).mean()
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    return loss.detach(), found


def states():
    return torch.get_rng_state(), random.getstate(), numpy.random.get_state()[2:], numpy.random.get_state()[1].tolist()


def attributes(model):
    return [(block.steps, list(block.log), dict(block.table)) for block in model.blocks]


def run(block, n_steps=5, wrap=zoo.everything_recomputed):
    model = wrap(make(block))
    found = [step(model) for _ in range(n_steps)]
    return found, attributes(model), states()


def same_as_plain(block, n_steps=5):
    zoo.assert_same(run(block, n_steps, lambda m: m), run(block, n_steps))


def test_the_plain_block():
    same_as_plain(Block)


@pytest.mark.parametrize("when", [1, 2, 4])
def test_attributes_that_change_only_later(when):
    """In the checked run it leaves no trace, so recomputations run in place; what it does later is still undone."""

    class Late(Block):
        calls = 0

        def forward(self, x):
            out = super().forward(x)
            if Late.calls >= 3 * 2 * when:  # beyond the checked step
                self.steps += 1
                self.log.append(self.steps)
                self.table[self.steps] = "seen"
                self.extra = self.steps
                if self.steps > 2:
                    self.log.pop(0)
                    del self.table[min(self.table)]
            return out

    def counted(wrap):
        Late.calls = 0
        model = wrap(make(Late))
        found = []
        for _ in range(6):
            found.append(step(model))
            Late.calls += 6
        return found, attributes(model), [getattr(b, "extra", None) for b in model.blocks]

    zoo.assert_same(counted(lambda m: m), counted(zoo.everything_recomputed))


def test_a_hook_that_comes_and_goes_between_forward_and_backward(recomputed):
    def go(model):
        step(model)
        torch.manual_seed(7)
        loss = model(zoo.floats(4, 16)).pow(2).mean()
        tables = [id(vars(m)["_forward_hooks"]) for m in model.modules()]
        handle = model.blocks[1].a.register_forward_hook(lambda module, args, out: out * 2)
        loss.backward()  # the hook was not there in forward
        assert [id(vars(m)["_forward_hooks"]) for m in model.modules()] == tables
        assert len(model.blocks[1].a._forward_hooks) == 1
        handle.remove()
        assert not model.blocks[1].a._forward_hooks
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    zoo.assert_same(go(make(Block)), go(zoo.everything_recomputed(make(Block))))
    assert recomputed


def test_training_mode_and_parameters_that_change_in_between():
    def go(model):
        step(model)
        torch.manual_seed(7)
        loss = model(zoo.floats(4, 16)).pow(2).mean()
        model.eval()
        model.blocks[0].steps = 99
        loss.backward()
        assert not any(m.training for m in model.modules())
        assert model.blocks[0].steps == 99
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    zoo.assert_same(go(make(Block)), go(zoo.everything_recomputed(make(Block))))


def test_parameters_swapped_for_one_forward():
    """functional_call puts others in for the forward alone; backward must see those."""

    def go(model):
        step(model)
        other = {name: (p * 1.5).detach().requires_grad_() for name, p in model.named_parameters()}
        torch.manual_seed(7)
        loss = torch.func.functional_call(model, other, (zoo.floats(4, 16),)).pow(2).mean()
        return torch.autograd.grad(loss, list(other.values()))

    zoo.assert_same(go(make(Block)), go(zoo.everything_recomputed(make(Block))))


class Drawing(Block):
    """Draws from generators other than torch's, from some call on."""

    source = "python"
    start = 0
    calls = 0

    def draw(self):
        if self.source == "python":
            return random.random()
        if self.source == "gauss":
            return random.gauss(0, 1)
        if self.source == "numpy":
            return float(numpy.random.rand())
        return float(numpy.random.randn())

    def forward(self, x):
        scale = 1.0 + 0.1 * self.draw() if Drawing.calls >= Drawing.start else 1.0
        return super().forward(x * scale)


@pytest.mark.parametrize("start", [0, 2])
@pytest.mark.parametrize("source", ["python", "gauss", "numpy", "randn"])
def test_other_generators(source, start):
    """Also by a unit that did not draw from them when it was checked. gauss and randn return every second number
    without a draw."""

    def go(wrap):
        Drawing.source, Drawing.start, Drawing.calls = source, start, 0
        model = wrap(make(Drawing))
        found = []
        for _ in range(5):
            found.append(step(model))
            Drawing.calls += 1
        return found, states()

    zoo.assert_same(go(lambda m: m), go(zoo.everything_recomputed))


def test_other_generators_that_move_between_forward_and_backward():
    class Python(Block):
        def forward(self, x):
            return super().forward(x * (1.0 + random.random() + float(numpy.random.randn())))

    def go(model):
        for _ in range(3):
            torch.manual_seed(7)
            random.seed(7)
            numpy.random.seed(7)
            loss = model(zoo.floats(4, 16)).pow(2).mean()
            torch.rand(3), random.gauss(0, 1), numpy.random.randn()
            before = states()
            loss.backward()
            zoo.assert_same(before, states())
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    zoo.assert_same(go(make(Python)), go(zoo.everything_recomputed(make(Python))))


def test_another_bit_generator_of_numpy():
    """Its memory has another layout: numpy is asked for its state."""

    class Numpy(Block):
        def forward(self, x):
            return super().forward(x * (1.0 + float(numpy.random.rand())))

    old = numpy.random.get_bit_generator()
    try:
        numpy.random.set_bit_generator(numpy.random.MT19937(5))

        def go(wrap):
            model = wrap(make(Numpy))
            found = []
            for _ in range(3):
                numpy.random.seed(3)
                torch.manual_seed(7)
                loss = model(zoo.floats(4, 16)).pow(2).mean()
                loss.backward()
                found.append(loss.detach())
            return found, {name: p.grad.clone() for name, p in model.named_parameters()}

        zoo.assert_same(go(lambda m: m), go(zoo.everything_recomputed))
    finally:
        numpy.random.set_bit_generator(old)


def test_randomness_notices_and_restores():
    for draw in (
        lambda: torch.rand(1),
        random.random,
        lambda: random.gauss(0, 1),
        numpy.random.rand,
        numpy.random.randn,
    ):
        draw()
        noted = _core.Randomness([torch.device("cpu")])
        assert not noted.moved()
        first = draw()
        assert noted.moved()
        noted.restore()
        assert not noted.moved()
        assert first == draw()


def test_switches_of_forward_hold_in_backward():
    seen = []

    class Switched(Block):
        def forward(self, x):
            seen.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.get_default_dtype()))
            return super().forward(x)

    model = zoo.everything_recomputed(make(Switched))
    x = zoo.floats(4, 16)
    for outside in (False, True):
        for _ in range(2):
            del seen[:]
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(x).float().pow(2).mean()
            forward = set(seen)
            del seen[:]
            with torch.autocast("cpu", torch.float16, enabled=outside):
                loss.backward()
                assert torch.is_autocast_enabled("cpu") == outside
            assert set(seen) == forward == {(True, torch.bfloat16, torch.float32)}
        model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        pass
    loss = model(x).pow(2).mean()
    del seen[:]
    with torch.autocast("cpu", torch.bfloat16):
        loss.backward()
    assert {entry[0] for entry in seen} == {False}


def test_switches_are_left_as_backward_found_them():
    """Also what autocast would use if it were on, and how many autocast blocks are open."""

    def state():
        depth = torch.autocast_increment_nesting() - 1
        torch.autocast_decrement_nesting()
        read = (torch.is_autocast_enabled, torch.get_autocast_dtype)
        autocast = [function(kind) for kind in ("cpu", "cuda") for function in read]
        return depth, torch.is_autocast_cache_enabled(), autocast, torch.get_default_dtype()

    model = zoo.everything_recomputed(make(Block))
    for forward, backward in itertools.product((None, torch.bfloat16, torch.float16), repeat=2):
        with torch.autocast("cpu", forward or torch.bfloat16, enabled=forward is not None, cache_enabled=False):
            loss = model(zoo.floats(4, 16)).float().pow(2).mean()
        with torch.autocast("cpu", backward or torch.bfloat16, enabled=backward is not None):
            before = state()
            loss.backward()
            assert state() == before
        assert state()[0] == 0


def test_an_interrupted_check_does_not_count():
    calls = []

    class Interrupted(Block):
        def forward(self, x):
            calls.append(self)
            if len(calls) == 2:  # the recomputation of the first check
                raise KeyboardInterrupt
            return super().forward(x)

    model = zoo.everything_recomputed(make(Interrupted))
    with pytest.raises(KeyboardInterrupt):
        step(model)
    del calls[2:]
    found = step(model)
    assert len(calls) == 2 + 3 * 3  # each block: forward, its check, and its recomputation in backward
    zoo.assert_same(step(make(Block)), found)


def test_a_capture_keeps_no_tensor_that_a_module_gave_up():
    """Attributes with tensors are not kept from one call to the next."""

    class Keeping(Block):
        def forward(self, x):
            out = super().forward(x)
            self.last = out.detach()
            self.log = [out.detach()]
            return out

    model = zoo.everything_recomputed(make(Keeping))
    for _ in range(2):
        step(model)
    held = [weakref.ref(t) for block in model.blocks for t in (block.last, *block.log)]
    for block in model.blocks:
        block.last, block.log = None, []
    gc.collect()
    assert not any(ref() is not None for ref in held)


def test_a_model_that_moves_to_another_type_and_back():
    model, plain = zoo.everything_recomputed(make(Block)), make(Block)
    for convert in (lambda m: m, lambda m: m.double(), lambda m: m.float()):
        for m in (model, plain):
            convert(m)
        x = zoo.floats(4, 16).to(next(plain.parameters()).dtype)
        found = []
        for m in (plain, model):
            torch.manual_seed(7)
            loss = m(x).pow(2).mean()
            loss.backward()
            found.append((loss.detach(), {name: p.grad.clone() for name, p in m.named_parameters()}))
            m.zero_grad()
        zoo.assert_same(*found)


def test_recomputations_of_one_unit_exclude_each_other():
    """Two graphs of one model, backward in two threads: the modules live in one state at a time."""

    busy, worst = {}, []

    class Slow(Block):
        def forward(self, x):
            if threading.current_thread() is not threading.main_thread():
                busy[id(self)] = busy.get(id(self), 0) + 1
                worst.append(busy[id(self)])
                threading.Event().wait(0.01)
                busy[id(self)] -= 1
            return super().forward(x)

    torch.manual_seed(0)
    model = zoo.everything_recomputed(zoo.Chain(Slow, 2).train())
    step(model)
    losses = [model(zoo.floats(4, 16)).pow(2).mean() for _ in range(4)]
    threads = [threading.Thread(target=loss.backward) for loss in losses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(worst) == 8
    assert max(worst) == 1


def test_where_a_recomputation_stops(recomputed):
    """It stops after the last tensor that is needed, unless that is the mask of a small dropout."""
    ends = []

    class Last(Block):
        masked = True

        def forward(self, x):
            out = super().forward(x)
            if self.masked:
                mask = torch.rand_like(out) > 0.5
                out = torch.where(mask, out, torch.zeros_like(out))  # saves the mask
            ends.append(recomputed != [])
            return out

    for masked in (True, False):
        Last.masked = masked
        model = zoo.everything_recomputed(make(Last))
        step(model)
        del ends[:], recomputed[:]
        step(model)
        assert recomputed == ["blocks.2", "blocks.1", "blocks.0"]
        assert ends.count(True) == (3 if masked else 0)
        zoo.assert_same(step(make(Last)), step(model))
    memscale.detach(model)


class Save(torch.autograd.Function):
    """Saves a tensor, and nothing else."""

    @staticmethod
    def forward(ctx, x, tensor):
        ctx.save_for_backward(tensor)
        return x.clone()


def run_saving(tensors):
    """Run a unit that saves the tensors of this list; returns a function that unpacks the i-th of them."""
    unit = _core.Unit("unit", nn.Identity(), lambda x: functools.reduce(Save.apply, tensors, x))
    args = (torch.ones(1, requires_grad=True),)
    out = _core.Call(unit, args, {}).run(args, {})
    nodes = [out.grad_fn]
    while len(nodes) < len(tensors):
        nodes.append(nodes[-1].next_functions[0][0])
    return lambda i: nodes[len(nodes) - 1 - i].saved_tensors[0]


def test_saved_parameters_are_kept_and_the_rest_is_recomputed(recomputed):
    weight, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(2))
    tensors = [weight, torch.ones(3), weight]
    saved = run_saving(tensors)
    assert saved(0).data_ptr() == weight.data_ptr()
    assert not recomputed
    tensors[1:] = [torch.full((3,), 5.0)]  # without the last one, which is a parameter: it ends before that
    assert saved(1).tolist() == [5, 5, 5]
    assert saved(2).data_ptr() == weight.data_ptr()
    assert recomputed == ["unit"]
    tensors = [weight, torch.ones(3) > 0]
    saved = run_saving(tensors)
    tensors[:] = [other, torch.zeros(3) > 0]  # another parameter in its place: then that one counts
    assert not saved(1).any()
    assert saved(0).data_ptr() == other.data_ptr()
    saved = run_saving([weight])
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        saved(0)


def test_a_parameter_that_changes_before_backward_raises_as_in_plain_training():
    for model in (make(Block), zoo.everything_recomputed(make(Block))):
        step(model)
        loss = model(zoo.floats(4, 16)).pow(2).mean()
        with torch.no_grad():
            model.blocks[1].b.weight.mul_(2)
        with pytest.raises(RuntimeError, match="inplace operation"):
            loss.backward()
