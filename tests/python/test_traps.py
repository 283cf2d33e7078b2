"""What PyTorch does implicitly, which must not break a recomputation or be broken by it."""

import gc
import itertools
import random
import threading
import types
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import memscale
import zoo
from memscale import _core
from zoo import Block, Chain


def chain(block, n=3):
    torch.manual_seed(0)
    return Chain(block, n).train()


def both(block, run):
    """run(model) on a plain and on a wrapped chain of these blocks must give the same."""
    wrapped = zoo.everything_recomputed(chain(block))
    zoo.assert_same(run(chain(block)), run(wrapped))
    return wrapped


def step(model, x=None, backward=True, **kwargs):
    torch.manual_seed(7)
    x = zoo.floats(4, 16) if x is None else x
    out = model(x, **kwargs)
    out = out[0] if isinstance(out, tuple) else out
    loss = out.float().pow(2).mean()
    if backward:
        loss.backward()
    return loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def test_trap_6_keyword_only_inputs_get_their_random_numbers():
    class Keyword(Block):
        def forward(self, x, *, scale, extra):
            return super().forward(x) * scale + extra["shift"][0]

    both(Keyword, lambda m: step(m, scale=torch.tensor(2.0), extra={"shift": [torch.ones(16)]}))


def test_nested_outputs():
    class Nested(Block):
        def forward(self, x):
            x = x[0]["x"] if isinstance(x, tuple) else x
            return ({"x": super().forward(x)}, [x.mean()])

    def run(model):
        torch.manual_seed(7)
        out = model(zoo.floats(4, 16))
        (out[0]["x"].sum() + out[1][0]).backward()
        return [p.grad.clone() for p in model.parameters()]

    both(Nested, run)


def test_a_unit_called_several_times(recomputed):
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Block(), Block()])

        def forward(self, x):
            for _ in range(3):
                for block in self.blocks:
                    x = block(x)
            return x

    def make():
        torch.manual_seed(0)
        return Loop().train()

    zoo.assert_same(step(make()), step(zoo.everything_recomputed(make())))
    assert recomputed.count("blocks.0") == 3


def test_batch_norm_statistics_are_updated_once():
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16, momentum=0.3)

        def forward(self, x):
            return torch.tanh(self.norm(self.linear(x)))

    def run(model):
        return [step(model) for _ in range(3)], dict(model.state_dict())

    both(Norm, run)


def test_spectral_norm_sees_its_old_vectors():
    class Spectral(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16))

        def forward(self, x):
            return torch.tanh(self.linear(x))

    def run(model):
        return [step(model) for _ in range(3)], dict(model.state_dict())

    both(Spectral, run)


def test_a_buffer_that_is_replaced_in_forward():
    class Counter(Block):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.ones(()))

        def forward(self, x):
            self.count = self.count + 1
            return super().forward(x) / self.count

    def run(model):
        return [step(model) for _ in range(3)], dict(model.state_dict())

    both(Counter, run)


def test_evaluation_mode_between_forward_and_backward():
    def run(model):
        torch.manual_seed(7)
        loss = model(zoo.floats(4, 16)).pow(2).mean()
        model.eval()
        loss.backward()
        assert not any(m.training for m in model.modules())
        return [p.grad.clone() for p in model.parameters()]

    class Norm(Block):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(16)

        def forward(self, x):
            return self.norm(super().forward(x))

    both(Norm, run)


def test_trap_6_autocast_is_over_when_backward_runs(recomputed):
    def run(model):
        torch.manual_seed(7)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(zoo.floats(4, 16)).float().pow(2).mean()
        loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    both(Block, run)
    assert recomputed


def test_backward_inside_autocast_of_a_plain_forward():
    def run(model):
        torch.manual_seed(7)
        loss = model(zoo.floats(4, 16)).pow(2).mean()
        with torch.autocast("cpu", torch.bfloat16):
            loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    both(Block, run)


def test_attention_switches_are_over_when_backward_runs():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(16, 48)

        def forward(self, x):
            q, k, v = self.qkv(x).view(1, 4, 3, 2, 8).permute(2, 0, 3, 1, 4)
            return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(4, 16)

    def run(model):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            loss = model(zoo.floats(4, 16)).pow(2).mean()
        loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    both(Attention, run)


@pytest.mark.parametrize("where", ["input", "parameter"])
def test_a_change_before_backward_is_an_error_that_names_the_unit(where):
    model = zoo.everything_recomputed(chain(Block))
    for _ in range(2):
        x = zoo.floats(4, 16)
        loss = model(x).sum()
        with torch.no_grad():
            (x if where == "input" else model.blocks[0].a.bias).add_(1)
        with pytest.raises(memscale.MemScaleError, match=r"blocks\.0.*modified by an inplace operation"):
            loss.backward()


def test_in_place_change_of_a_saved_tensor_raises_as_in_plain_torch():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(16))

        def forward(self, x):
            y = x * 2
            z = y * self.weight
            y.add_(1)
            return z

    for model in (chain(Broken), zoo.everything_recomputed(chain(Broken))):
        for _ in range(2):
            loss = model(zoo.floats(4, 16)).sum()
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()


def test_a_unit_that_changes_its_input_is_left_alone(no_warnings):
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x):
            return self.linear(nn.functional.dropout(x.mul_(2), 0.5, self.training))

    def run(model):
        torch.manual_seed(7)
        x = zoo.floats(4, 16) + 0
        loss = model(x.clone()).sum()
        loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    wrapped = both(InPlace, lambda m: [run(m) for _ in range(2)])
    assert all(unit.excluded for unit in wrapped._memscale_executor._units)


def test_views_and_odd_strides():
    class Views(Block):
        def forward(self, x):
            y = torch.exp(self.a(x))
            parts = (y.t()[:, ::2], y.flip(0)[1:3], y[:1].expand(4, 16), y.as_strided((3, 5), (16, 2), 1))
            return x + self.b(y) * sum((p * p).mean() for p in parts)

    both(Views, step)


def test_trap_6_key_value_cache_is_not_appended_twice():
    model = zoo.everything_recomputed(zoo.llama().train())
    cache = type(zoo.llama().eval()(zoo.tokens(1, 2)).past_key_values)()
    out = model(zoo.tokens(1, 6), past_key_values=cache, use_cache=True)
    assert out.past_key_values.get_seq_length() == 6
    out.logits.sum().backward()
    assert cache.get_seq_length() == 6


def test_use_cache_is_off_in_training_only():
    model = zoo.llama()
    assert model.config.use_cache
    x = zoo.tokens(1, 6)
    assert model.train()(x).past_key_values is not None
    zoo.everything_recomputed(model)
    assert model(x).past_key_values is None
    assert model.config.use_cache
    with torch.no_grad():
        assert model.eval()(x).past_key_values is not None
    memscale.detach(model)
    assert model.train()(x).past_key_values is not None


def test_losses_with_and_without_the_cache_are_the_same():
    x = zoo.tokens(2, 12)
    for make in (zoo.gpt2, zoo.llama):
        losses = []
        for wrapped in (False, True):
            torch.manual_seed(0)
            model = make(use_cache=True).train()
            if wrapped:
                zoo.everything_recomputed(model)
            torch.manual_seed(7)
            losses.append(model(x, labels=x).loss.detach())
        zoo.assert_same(*losses)


def test_trap_7_a_user_who_checkpoints_already():
    def make():
        model = zoo.make("gpt2")
        model.gradient_checkpointing_enable()
        return model

    plain = zoo.train(make(), zoo.batch_of("gpt2"))
    zoo.assert_same(plain, zoo.train(zoo.everything_recomputed(make()), zoo.batch_of("gpt2")))


def test_checkpoint_inside_a_unit():
    class Inner(Block):
        def forward(self, x):
            return x + checkpoint(lambda t: self.b(torch.relu(self.a(t))), x, use_reentrant=False)

    both(Inner, step)


def test_gradient_inside_a_forward(no_warnings):
    class Penalty(Block):
        def forward(self, x):
            y = super().forward(x)
            (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            return y + slope

    def run(model):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", memscale.MemScaleWarning)
            return [step(model, zoo.floats(4, 16).requires_grad_()) for _ in range(2)]

    both(Penalty, run)


def test_saved_tensors_read_twice_in_a_backward():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0] + 0 * ctx.saved_tensors[0]

    class Custom(Block):
        def forward(self, x):
            return Twice.apply(super().forward(x) * 0.1)

    both(Custom, step)


def test_reading_a_saved_tensor_outside_of_backward():
    class Exp(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(16))

        def forward(self, x):
            return torch.exp(x * self.weight)

    model = zoo.everything_recomputed(chain(Exp, 2))
    for _ in range(2):
        out = model(zoo.floats(2, 16))
        assert torch.equal(out.grad_fn._saved_result, out)
        out.sum().backward()


def test_torch_func_transforms():
    plain, wrapped = chain(Block), zoo.everything_recomputed(chain(Block))
    results = []
    for model in (plain, wrapped):
        model.eval()
        parameters = {name: p.detach() for name, p in model.named_parameters()}

        def loss(values, model=model):
            return torch.func.functional_call(model, values, (zoo.floats(4, 16),)).sum()

        results.append(torch.func.grad(loss)(parameters))
    zoo.assert_same(*results)


def test_trap_7_torch_compile_of_a_wrapped_model():
    model = zoo.everything_recomputed(chain(Block))
    compiled = torch.compile(model, backend="aot_eager")
    zoo.assert_same(step(chain(Block))[0].shape, step(compiled)[0].shape)
    assert all(p.grad is not None for p in model.parameters())


def test_backward_on_another_thread():
    def run(model):
        torch.manual_seed(7)
        loss = model(zoo.floats(4, 16)).pow(2).mean()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        return [p.grad.clone() for p in model.parameters()]

    both(Block, run)


def test_backward_of_one_graph_on_two_threads():
    plain = chain(Block)
    model = zoo.everything_recomputed(chain(Block))
    expected = step(plain)[1]
    torch.manual_seed(7)
    loss = model(zoo.floats(4, 16)).pow(2).mean()
    parameters = list(model.parameters())
    found, errors = [], []

    def work():
        try:
            for _ in range(20):
                found.append(torch.autograd.grad(loss, parameters, retain_graph=True))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(found) == 40
    for gradients in found:
        zoo.assert_same(list(expected.values()), list(gradients))


def test_without_autograd_threads():
    def run(model):
        with torch.autograd.set_multithreading_enabled(False):
            return step(model)

    both(Block, run)


def test_two_models_on_two_threads():
    expected = step(chain(Block))
    models = [zoo.everything_recomputed(chain(Block)) for _ in range(2)]
    results = {}
    lock = threading.Lock()  # the seed is global: one step at a time

    def work(name):
        for _ in range(5):
            models[name].zero_grad()
            with lock:
                results[name] = step(models[name])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results.values():
        zoo.assert_same(expected, result)


class Dice(Block):
    """Not repeatable: it depends on something outside that moves on."""

    throws = itertools.count(1)

    def forward(self, x):
        return super().forward(x) * (1 / next(Dice.throws))


def test_a_unit_that_is_not_deterministic_is_named_and_left_alone(quiet_config):
    model = memscale.wrap(chain(Dice, 4), quiet_config)
    x = zoo.floats(1024, 16)  # enough that recomputing a block saves memory, except for the last
    with pytest.warns(memscale.MemScaleWarning) as caught:
        step(model, x)
    assert [f"blocks.{i}" in str(w.message) for i, w in enumerate(caught)] == [True] * 3
    assert "different output" in str(caught[0].message)
    assert "To have it recomputed" in str(caught[0].message)
    model.zero_grad()  # with gradients that are held, recomputing the last block would save memory, too
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(model, x)
    assert model._memscale_executor.plan.n_recomputed == 0


def test_the_first_step_of_an_unrepeatable_unit_is_the_plain_one():
    results = []
    for wrapped in (False, True):
        model = chain(Dice)
        if wrapped:
            zoo.everything_recomputed(model)
        Dice.throws = itertools.cycle([2, 5] if wrapped else [2])  # second runs see something else
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results.append(step(model))
    zoo.assert_same(*results)


class Fickle(Block):
    """Repeatable at first; later it saves something else."""

    late = False

    def forward(self, x):
        Fickle.late_calls = getattr(Fickle, "late_calls", 0) + Fickle.late
        if Fickle.late and Fickle.late_calls % 2 == 0:
            return torch.sigmoid(self.b(torch.cat([x, x])))[:4]
        return super().forward(x)


def test_a_later_mismatch_raises_and_names_the_unit():
    model = zoo.everything_recomputed(chain(Fickle, 1 + 1))
    Fickle.late, Fickle.late_calls = False, 0
    try:
        step(model)
        Fickle.late = True
        model(zoo.floats(4, 16))  # an odd and an even call
        loss = model.blocks[0](zoo.floats(4, 16)).sum()
        with pytest.raises(memscale.MemScaleError, match=r"blocks\.0' did not repeat itself"):
            loss.backward()
    finally:
        Fickle.late = False


def test_fewer_tensors_in_a_recomputation_raise():
    class Shrinking(Block):
        short = False

        def forward(self, x):
            return x * 1 if Shrinking.short else super().forward(x)

    model = zoo.everything_recomputed(chain(Shrinking, 2))
    step(model)
    loss = model(zoo.floats(4, 16)).sum()
    Shrinking.short = True
    with pytest.raises(memscale.MemScaleError, match="did not repeat itself"):
        loss.backward()


def test_an_exception_in_a_recomputation_leaves_things_as_they_were():
    class Bomb(Block):
        armed = False

        def forward(self, x):
            if Bomb.armed:
                raise KeyError("boom")
            return super().forward(x)

    model = zoo.everything_recomputed(chain(Bomb, 2))
    expected = step(chain(Block, 2))
    step(model)
    model.zero_grad()
    loss = model(zoo.floats(4, 16)).sum()
    Bomb.armed = True
    random_before = torch.get_rng_state()
    with pytest.raises(KeyError, match="boom"):
        loss.backward()
    assert torch.equal(random_before, torch.get_rng_state())
    assert torch.is_grad_enabled()
    Bomb.armed = False
    model.zero_grad()
    zoo.assert_same(expected, step(model))


def test_exceptions_in_forward_unwind_everything():
    class Bomb(Block):
        def forward(self, x):
            y = super().forward(x)
            if x.shape[0] == 3:
                raise KeyError("boom")
            return y

    model = zoo.everything_recomputed(chain(Bomb))
    for _ in range(3):
        with pytest.raises(KeyError, match="boom"):
            model(zoo.floats(3, 16))
    x = torch.ones(2, requires_grad=True)
    y = x.exp()
    assert torch.equal(y.grad_fn._saved_result, y)  # no hook of ours is left on the stack
    zoo.assert_same(step(chain(Block)), step(model))


@pytest.mark.parametrize("what", [torch.exp, lambda t: torch.softmax(t, -1), torch.tanh])
def test_outputs_that_are_saved_do_not_leak(what):
    class Saves(Block):
        def forward(self, x):
            return what(super().forward(x))

    model = zoo.everything_recomputed(chain(Saves))
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            out = model(zoo.floats(4, 16))
            alive = weakref.ref(out.untyped_storage())
            del out
            assert alive() is None
    finally:
        gc.enable()


def test_zero_length_batches_and_nan():
    def run(model):
        model(torch.zeros(0, 16)).sum().backward()
        first = [p.grad.clone() for p in model.parameters()]
        x = zoo.floats(4, 16)
        x[0, 0] = float("nan")
        return first, step(model, x)

    both(Block, run)


# What else a forward may depend on, or do on the side


class Stateful(Block):
    """Keeps things in attributes: a counter that scales, an auxiliary loss, a list of features, a dict."""

    def __init__(self):
        super().__init__()
        self.count, self.features, self.table, self.aux = 0, [], {}, None

    def forward(self, x):
        self.count += 1
        y = super().forward(x) / self.count
        self.features.append(y.detach().mean())
        self.table["last"] = self.count
        self.aux = y.pow(2).mean()
        return y


def test_attributes_are_as_in_a_plain_run():
    def run(model):
        found = []
        for _ in range(3):
            torch.manual_seed(7)
            out = model(zoo.floats(4, 16))
            (out.sum() + sum(block.aux for block in model.blocks)).backward()
            found.append([p.grad.clone() for p in model.parameters()])
        kept = [(block.count, len(block.features), dict(block.table)) for block in model.blocks]
        return found, kept, [block.aux.detach() for block in model.blocks]

    both(Stateful, run)


def test_attributes_that_hold_outputs_do_not_chain_graphs():
    model = zoo.everything_recomputed(chain(Stateful))
    for step_ in range(6):
        model(zoo.floats(4, 16))  # no backward
        gc.collect()
        frames = sum(type(o).__name__ == "Frame" for o in gc.get_objects())
        if step_ == 2:
            before = frames
    assert frames <= before


def test_functional_call_with_other_weights():
    def run(model):
        torch.manual_seed(3)
        scale = torch.ones((), requires_grad=True)
        found = []
        for _ in range(2):
            weights = {name: p.detach() * scale + 0.01 for name, p in model.named_parameters()}
            torch.manual_seed(7)
            loss = torch.func.functional_call(model, weights, (zoo.floats(4, 16),)).pow(2).mean()
            found.append(torch.autograd.grad(loss, [scale, *weights.values()]))
        return found

    both(Block, run)


def test_parameters_replaced_between_forward_and_backward():
    def run(model):
        old = list(model.parameters())
        torch.manual_seed(7)
        loss = model(zoo.floats(4, 16)).pow(2).mean()
        model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()}, assign=True)
        return torch.autograd.grad(loss, old)

    both(Block, lambda m: [run(m) for _ in range(2)])


class Scaled(Block):
    def __init__(self, n=4):
        super().__init__()
        self.register_buffer("scale", torch.full((n,), 2.0))

    def forward(self, x):
        return super().forward(x) * self.scale.sum()


class ScaledByALot(Scaled):
    def __init__(self):
        super().__init__(100_000)
        self.scale /= 100_000


@pytest.mark.parametrize("block", [Scaled, ScaledByALot])
@pytest.mark.parametrize("checked", [True, False], ids=["first step", "later"])
def test_buffers_replaced_between_forward_and_backward(block, checked):
    def run(model):
        if not checked:
            step(model)
            model.zero_grad()
        torch.manual_seed(7)
        loss = model(zoo.floats(4, 16)).pow(2).mean()
        for b in model.blocks:
            b.scale = b.scale * 3
        loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    both(block, run)


@pytest.mark.parametrize("checked", [True, False], ids=["first step", "later"])
def test_a_large_buffer_changed_in_place_before_backward_raises(checked):
    model = zoo.everything_recomputed(chain(ScaledByALot))
    if not checked:
        step(model)
    loss = model(zoo.floats(4, 16)).sum()
    model.blocks[0].scale.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_buffer_made_in_inference_mode():
    class Lazy(Block):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", None)

        def forward(self, x):
            if self.mask is None:
                self.mask = torch.ones(16)
            return super().forward(x) * self.mask

    def run(model):
        with torch.inference_mode():
            model.eval()(zoo.floats(4, 16))
        model.train()
        return [step(model) for _ in range(3)]

    wrapped = zoo.everything_recomputed(chain(Lazy))
    plain = chain(Lazy)
    with torch.inference_mode():
        plain.eval()(zoo.floats(4, 16))
    try:
        expected = [step(plain.train()) for _ in range(3)]
    except RuntimeError:  # plain torch refuses to save such a tensor
        with pytest.raises(RuntimeError, match="Inference tensors"):
            run(wrapped)
    else:
        zoo.assert_same(expected, run(wrapped))


def test_statistics_of_train_and_evaluation_mode_in_one_graph():
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16, momentum=0.4)

        def forward(self, x):
            return torch.tanh(self.norm(self.linear(x)))

    def run(model):
        for _ in range(2):
            x = zoo.floats(4, 16)
            first = model.train()(x)
            second = model.train()(x * 2)
            third = model.eval()(x)  # last: plain torch would use statistics that a later forward changes under it
            (first + second * third).sum().backward()
        return [p.grad.clone() for p in model.parameters()], dict(model.state_dict())

    both(Norm, run)


def test_unfreezing_between_forward_and_backward():
    class Square(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x):
            return self.b(torch.tanh(self.a(x)))

    def run(model):
        model.blocks[1].a.requires_grad_(False)
        found = []
        for _ in range(2):
            loss = model(zoo.floats(16, 16)).pow(2).mean()
            model.requires_grad_(True)
            loss.backward()
            assert all(p.requires_grad for p in model.parameters())
            found.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
            model.blocks[1].a.requires_grad_(False)
        return found

    both(Square, run)


def test_modules_injected_after_wrap():
    def run(model):
        first = step(model)
        for block in model.blocks:
            torch.manual_seed(1)
            block.a = nn.Sequential(block.a, nn.BatchNorm1d(16), nn.Dropout(0.2))
        return first, [step(model) for _ in range(3)], dict(model.state_dict())

    both(Block, run)


def test_a_unit_that_updates_its_own_parameters():
    class Codebook(Block):
        def __init__(self):
            super().__init__()
            self.book = nn.Parameter(torch.ones(16), requires_grad=False)

        def forward(self, x):
            with torch.no_grad():
                self.book.mul_(1.5)
            return super().forward(x) * self.book

    def run(model):
        return [step(model) for _ in range(3)], dict(model.state_dict())

    both(Codebook, run)


def test_tensor_hooks_on_an_input_fire_once():
    class Hooked(Block):
        def forward(self, x):
            if x.requires_grad:
                x.register_hook(lambda grad: grad * 2)
            return super().forward(x)

    both(Hooked, lambda m: [step(m) for _ in range(2)])


def test_rare_events_of_python_and_numpy_generators():
    import numpy

    class Rare(Block):
        def forward(self, x):
            if random.random() < 0.3 or numpy.random.rand() < 0.2:
                return x * 0.5 + self.a(x)
            return super().forward(x)

    def run(model):
        random.seed(5)
        numpy.random.seed(5)
        return [step(model) for _ in range(8)], random.random(), float(numpy.random.rand())

    both(Rare, run)


def test_default_dtype_around_forward_only():
    class Made(Block):
        def forward(self, x):
            return super().forward(x) * torch.full((16,), 2.0)

    def run(model):
        torch.manual_seed(7)
        torch.set_default_dtype(torch.float64)
        try:
            loss = model(zoo.floats(4, 16).float()).sum()
        finally:
            torch.set_default_dtype(torch.float32)
        loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    zoo.assert_same(run(chain(Made, 1)), run(zoo.everything_recomputed(chain(Made, 1))))


class Bag:
    """An object that MemScale cannot see into."""

    def __init__(self, x):
        self.x, self.seen = x, 0


def test_opaque_inputs_are_not_recomputed(recomputed, no_warnings):
    class Takes(Block):
        def forward(self, bag):
            bag.seen += 1
            bag.x = super().forward(bag.x)
            return bag

    def run(model):
        bag = Bag(zoo.floats(4, 16))
        torch.manual_seed(7)
        model(bag).x.pow(2).mean().backward()
        return bag.seen, [p.grad.clone() for p in model.parameters()]

    both(Takes, lambda m: [run(m) for _ in range(2)])
    assert recomputed == []


@pytest.mark.parametrize("kind", ["dataclass", "ordered", "default", "named"])
def test_state_that_the_parent_changes_later(kind):
    import collections
    import dataclasses

    @dataclasses.dataclass
    class Data:
        x: torch.Tensor

    def pack(x):
        if kind == "dataclass":
            return Data(x)
        if kind == "named":
            return collections.namedtuple("Named", "x")(x)
        return (collections.OrderedDict if kind == "ordered" else lambda **k: collections.defaultdict(int, **k))(x=x)

    class Takes(Block):
        def forward(self, state):
            return super().forward(state.x if kind in ("dataclass", "named") else state["x"])

    class Parent(Chain):
        def forward(self, x):
            state = pack(x)
            for block in self.blocks:
                y = block(state)
                if kind == "dataclass":
                    state.x = y
                elif kind == "named":
                    state = pack(y)
                else:
                    state["x"] = y
            return y

    def make():
        torch.manual_seed(0)
        return Parent(Takes).train()

    wrapped = zoo.everything_recomputed(make())
    plain = make()
    zoo.assert_same([step(plain) for _ in range(2)], [step(wrapped) for _ in range(2)])


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_outputs_collected_on_the_side(name):
    def run(model):
        model.set_attn_implementation("eager")
        args, kwargs = zoo.batch_of(name)
        found = []
        for _ in range(2):
            torch.manual_seed(7)
            out = model(*args, **kwargs, output_attentions=True, output_hidden_states=True)
            (out.loss + sum(a.pow(2).mean() for a in out.attentions)).backward()
            found.append((len(out.attentions), len(out.hidden_states), [p.grad.clone() for p in model.parameters()]))
        return found

    zoo.assert_same(run(zoo.make(name)), run(zoo.everything_recomputed(zoo.make(name))))


def test_router_losses_of_a_mixture_of_experts():
    def run(model):
        args, kwargs = zoo.batch_of("mixtral")
        found = []
        for _ in range(2):
            torch.manual_seed(7)
            out = model(*args, **kwargs, output_router_logits=True)
            out.loss.backward()
            found.append((out.loss.detach(), len(out.router_logits), [p.grad.clone() for p in model.parameters()]))
        return found

    zoo.assert_same(run(zoo.make("mixtral")), run(zoo.everything_recomputed(zoo.make("mixtral"))))


def test_a_unit_that_swallows_errors_cannot_crash_the_process():
    class Swallows(Block):
        changed = False

        def forward(self, x):
            try:
                y = torch.exp(x.repeat(1, 2) if Swallows.changed else x).sum(-1, keepdim=True)
            except RuntimeError:
                y = torch.exp(x)
            return super().forward(x) + y

    model = zoo.everything_recomputed(chain(Swallows, 2))
    step(model)
    loss = model(zoo.floats(4, 16)).sum()
    Swallows.changed = True
    with pytest.raises(memscale.MemScaleError, match="did not repeat itself"):
        loss.backward()


def test_hooks_of_others_around_the_model_come_first(recomputed):
    def run(model):
        with torch.autograd.graph.save_on_cpu():
            return step(model)

    both(Block, run)
    assert recomputed == []


def test_a_checkpoint_over_several_units_keeps_its_saving(recomputed):
    class Outer(Chain):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    def make():
        torch.manual_seed(0)
        return Outer(Block).train()

    zoo.assert_same(step(make()), step(zoo.everything_recomputed(make())))
    assert recomputed == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork_while_another_thread_is_in_a_unit():
    import os

    class Slow(Block):
        def forward(self, x):
            if Slow.gate is not None:
                Slow.inside.set()
                Slow.gate.wait(20)
            return super().forward(x)

    Slow.gate, Slow.inside = None, threading.Event()
    model, other = zoo.everything_recomputed(chain(Slow, 2)), zoo.everything_recomputed(chain(Block, 2))
    step(model)
    step(other)
    Slow.gate = threading.Event()
    thread = threading.Thread(target=lambda: model(zoo.floats(4, 16)))
    thread.start()
    Slow.inside.wait(20)
    child = os.fork()
    if child == 0:
        import signal

        signal.alarm(20)
        torch.set_num_threads(1)
        other(zoo.floats(4, 16))
        os._exit(0)
    Slow.gate.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_nested_tensors_and_data_parallel_and_positional_use_cache():
    model = zoo.everything_recomputed(chain(Block))
    with pytest.raises(memscale.MemScaleError, match="DataParallel"):
        model._replicate_for_data_parallel()

    class Decoder(Chain):
        def __init__(self):
            super().__init__(Block)
            self.config = types.SimpleNamespace(use_cache=True)

        def forward(self, x, use_cache=None):
            assert use_cache is False or not torch.is_grad_enabled()
            return super().forward(x)

    decoder = zoo.everything_recomputed(Decoder())
    decoder(zoo.floats(4, 16), False)
    decoder(zoo.floats(4, 16))

    class Pad(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x):
            return self.linear(x)

    nested = torch.nested.nested_tensor([zoo.floats(2, 16), zoo.floats(3, 16)], layout=torch.jagged)
    zoo.everything_recomputed(chain(Pad))(nested).values().sum().backward()


def test_features_collected_by_a_forward_hook_inside_a_unit():
    def run(model):
        features = {}
        for i, block in enumerate(model.blocks):
            block.a.register_forward_hook(lambda m, args, out, i=i: features.__setitem__(i, out))
        found = []
        for _ in range(3):
            model.zero_grad()
            torch.manual_seed(7)
            loss = model(zoo.floats(4, 16)).pow(2).mean()
            (loss + sum(f.pow(2).mean() for f in features.values())).backward()
            found.append([p.grad.clone() for p in model.parameters()])
        return found

    plain, wrapped = run(chain(Block)), run(zoo.everything_recomputed(chain(Block)))
    for a, b in zip(
        plain[0], wrapped[0]
    ):  # the checked step: gradients come along two graphs and add up in another order
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
    zoo.assert_same(plain[1:], wrapped[1:])


def test_containers_that_are_emptied_between_forward_and_backward():
    class Lists(Block):
        def __init__(self):
            super().__init__()
            self.losses, self.memo = [], {}

        def forward(self, x):
            if "scale" not in self.memo:
                self.memo["scale"] = 1 + len(self.losses)
            y = super().forward(x) * self.memo["scale"]
            self.losses.append(y.pow(2).mean())
            return y

    def run(model):
        found = []
        for _ in range(3):
            torch.manual_seed(7)
            loss = model(zoo.floats(4, 16)).sum() + sum(sum(b.losses) for b in model.blocks)
            for b in model.blocks:
                b.losses.clear()
                b.memo.clear()
            loss.backward()
            found.append(
                (loss.detach(), [len(b.losses) for b in model.blocks], [p.grad.clone() for p in model.parameters()])
            )
        return found

    both(Lists, run)


def test_a_hook_added_between_forward_and_backward():
    def run(model):
        found = []
        for _ in range(2):
            torch.manual_seed(7)
            loss = model(zoo.floats(4, 16)).pow(2).mean()
            handle = model.blocks[0].a.register_forward_hook(lambda m, args, out: out * 2)
            loss.backward()
            handle.remove()
            found.append([p.grad.clone() for p in model.parameters()])
        return found

    both(Block, run)


def test_attributes_of_classes_of_their_own(no_warnings):
    class Attributes(dict):
        def __getattr__(self, name):
            return self[name]

    class Frozen(dict):
        def copy(self):
            raise TypeError("frozen")

    class Configured(Block):
        def __init__(self):
            super().__init__()
            self.config, self.frozen = Attributes(k=2.0), Frozen(k=3.0)

        def forward(self, x):
            return super().forward(x) * self.config.k * self.frozen["k"]

    wrapped = both(Configured, lambda m: [step(m) for _ in range(2)])
    assert not any(unit.excluded for unit in wrapped._memscale_executor._units)


def test_a_tensor_attribute_that_a_unit_changes_in_place(no_warnings):
    class Seen(Block):
        def __init__(self):
            super().__init__()
            self.seen = torch.zeros(16)

        def forward(self, x):
            self.seen += x.detach().mean(0)
            return super().forward(x) + self.seen

    def run(model):
        return [step(model) for _ in range(3)], [b.seen.clone() for b in model.blocks]

    both(Seen, run)


def test_a_module_that_is_passed_as_an_input():
    class Uses(Block):
        def forward(self, x, norm):
            return norm(super().forward(x))

    def run(model):
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(16)
        found = [step(model, norm=norm) for _ in range(3)]
        return found, dict(norm.state_dict())

    both(Uses, run)


def test_a_dataclass_input_with_a_hook():
    import dataclasses

    @dataclasses.dataclass
    class Data:
        x: torch.Tensor

    class Hooked(Block):
        def forward(self, data):
            data.x.register_hook(lambda grad: grad * 2)
            return super().forward(data.x)

    class Parent(Chain):
        def forward(self, x):
            for block in self.blocks:
                x = block(Data(x * 1))
            return x

    def make():
        torch.manual_seed(0)
        return Parent(Hooked).train()

    def run(model):
        return [step(model, zoo.floats(4, 16).requires_grad_()) for _ in range(2)]

    zoo.assert_same(run(make()), run(zoo.everything_recomputed(make())))


def test_modes_around_forward_only():
    from torch.utils.flop_counter import FlopCounterMode

    class Doubling(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            return out * 2 if func is torch.relu else out

    def run(model):
        found = []
        for mode in (Doubling, lambda: FlopCounterMode(display=False), lambda: torch.device("cpu")):
            torch.manual_seed(7)
            with mode():
                loss = model(zoo.floats(4, 16)).pow(2).mean()
            loss.backward()
            found.append([p.grad.clone() for p in model.parameters()])
        return found

    both(Block, run)


def test_odd_containers_as_inputs():
    import collections

    class Pair(collections.namedtuple("Pair", "x y")):
        def __new__(cls, x):
            return super().__new__(cls, x, x * 2)

    class Shrinks(dict):
        """Copying it empties the list next to it."""

        def __copy__(self):
            Shrinks.victim.clear()
            return Shrinks(self)

    class Takes(Block):
        def forward(self, x, *args, **kwargs):
            return super().forward(x)

    model = zoo.everything_recomputed(chain(Takes))
    for _ in range(2):
        Shrinks.victim = [Shrinks(a=1), torch.ones(2), torch.ones(2)]
        model(zoo.floats(4, 16), Pair(torch.ones(2)), Shrinks.victim, {"k": Shrinks.victim}).sum().backward()
    model(zoo.floats(4, 16), [torch.ones(1)] * 3)


@pytest.mark.parametrize("where", ["lock", "forward"])
def test_an_interrupt_in_a_recomputation_leaves_the_modules_alone(where):
    class Lock:
        def acquire(self):
            raise KeyboardInterrupt

        def release(self):
            raise AssertionError("it was never taken")

    class Interrupted(Block):
        def forward(self, x):
            calls.append(None)  # in a closure, where repetitions add up unseen
            if armed and len(calls) == n:
                raise KeyboardInterrupt
            return super().forward(x)

    armed, n, calls = False, 0, []
    model = zoo.everything_recomputed(chain(Interrupted))
    step(model)
    dicts = [id(vars(m)) for m in model.modules()]
    loss = model(zoo.floats(4, 16)).sum()
    before = torch.get_rng_state()
    if where == "lock":
        _core.set_random_lock(Lock())
    else:
        armed, n = True, len(calls) + 2
    with pytest.raises(KeyboardInterrupt):
        loss.backward()
    _core.set_random_lock(threading.RLock())
    assert torch.equal(before, torch.get_rng_state())
    assert [id(vars(m)) for m in model.modules()] == dicts
    armed = False
    step(model)  # no lock is still held, no module is in another state
    memscale.detach(model)
    assert not any("forward" in vars(m) for m in model.modules())
