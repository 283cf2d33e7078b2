"""detach leaves no trace, and while attached a model looks, copies and saves like a plain one."""

import collections
import copy
import inspect
import io
import pickle
import types

import pytest
import torch
from torch import nn

import memscale
import zoo


def snapshot(value, seen=None):
    """Everything that can be seen of a model: attributes, parameters, buffers, configs, hook tables, in order."""
    seen = {} if seen is None else seen
    if id(value) in seen:
        return ("again", seen[id(value)])
    if isinstance(value, torch.Tensor):
        seen[id(value)] = len(seen)
        extra = snapshot(vars(value), seen) if vars(value) else None
        hooks = getattr(value, "_backward_hooks", None), getattr(value, "_post_accumulate_grad_hooks", None)
        return (type(value), id(value), value.detach().clone(), value.requires_grad, value.is_leaf, extra, hooks)
    if isinstance(value, nn.Module):
        seen[id(value)] = len(seen)
        return (type(value), id(value), snapshot(vars(value), seen))
    if isinstance(value, (dict, types.MappingProxyType)):
        return (type(value), [(key, snapshot(item, seen)) for key, item in value.items()])
    if isinstance(value, (list, tuple, set)):
        return (type(value), [snapshot(item, seen) for item in value])
    if hasattr(value, "to_dict"):  # transformers configs
        return (type(value), id(value), repr(sorted(vars(value).items(), key=str)))
    if callable(value):
        return (type(value), id(value))
    return (type(value), repr(value))


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b))
    return a == b


@pytest.mark.parametrize("name", list(zoo.SMALL.names))
def test_detach_restores_everything(name, quiet_config):
    model = zoo.make(name)
    before = snapshot(model)
    memscale.wrap(model, quiet_config)
    assert not equal(before, snapshot(model))
    assert memscale.detach(model) is None
    assert equal(before, snapshot(model))
    assert not hasattr(model, "_memscale_executor")


def check_after_training(name, config, device, everything):
    """`everything`: with a plan that recomputes every layer, else with the plan that the model gets."""
    reference = zoo.make(name).to(device)
    zoo.train(reference, zoo.batch_of(name))
    model = zoo.make(name).to(device)
    args, kwargs = zoo.move(zoo.batch_of(name), device, torch.float32)
    with torch.no_grad():
        model.eval()(*args, **kwargs)  # some models note things in their config the first time
    before = snapshot(model.train())
    memscale.wrap(model, config, plan=zoo.recompute_plan(model) if everything else None)
    zoo.train(model, zoo.batch_of(name))
    memscale.detach(model)
    zoo.assert_same(dict(reference.state_dict()), dict(model.state_dict()))
    # The values are trained ones; with the old values back, all else is as it was.
    fresh = zoo.make(name).state_dict()
    with torch.no_grad():
        for key, value in model.state_dict().items():
            value.copy_(fresh[key])
    model.zero_grad()
    assert equal(before, snapshot(model))


@pytest.mark.parametrize("name", ["gpt2", "t5", "resnet", "mlp"])
@pytest.mark.parametrize("everything", [False, True], ids=["own plan", "everything recomputed"])
def test_after_training(name, everything, quiet_config):
    check_after_training(name, quiet_config, torch.device("cpu"), everything)


def test_after_an_exception_in_forward(quiet_config):
    model = zoo.make("gpt2")
    before = snapshot(model)
    memscale.wrap(model, quiet_config)
    for _ in range(2):
        with pytest.raises(IndexError):
            model(torch.full((1, 4), 10_000))
    memscale.detach(model)
    assert equal(before, snapshot(model))


def test_after_wrapping_twice(quiet_config):
    model = zoo.make("gpt2")
    before = snapshot(model)
    memscale.wrap(model, quiet_config)
    with pytest.warns(memscale.MemScaleWarning, match="wrapped already") as caught:
        memscale.wrap(model, quiet_config)
    assert len(caught) == 1
    memscale.detach(model)
    assert equal(before, snapshot(model))


def test_detach_of_a_model_that_was_never_wrapped():
    model = zoo.make("mlp")
    before = snapshot(model)
    with pytest.warns(memscale.MemScaleWarning, match="not wrapped") as caught:
        assert memscale.detach(model) is None
    assert len(caught) == 1
    assert equal(before, snapshot(model))


def test_optimize_detaches_also_when_the_block_raises(quiet_config):
    model = zoo.make("gpt2")
    before = snapshot(model)
    with memscale.optimize(model, config=quiet_config) as executor:
        assert model._memscale_executor is executor
    assert equal(before, snapshot(model))
    with pytest.raises(KeyError), memscale.optimize(model, config=quiet_config):
        raise KeyError
    assert equal(before, snapshot(model))


def test_hooks_of_the_user_stay_in_order(quiet_config):
    model = zoo.make("encoder")
    calls = []
    model.register_forward_pre_hook(lambda *a: calls.append("pre"))
    model.encoder.layers[0].register_forward_hook(lambda *a: calls.append("block"))
    before = snapshot(model)
    memscale.wrap(model, quiet_config)
    model.register_forward_hook(lambda *a: calls.append("post"))
    model(zoo.floats(2, 10, 32)).sum().backward()
    assert calls == ["pre", "block", "post"]
    model._forward_hooks.popitem()
    memscale.detach(model)
    assert equal(before, snapshot(model))


def test_backward_after_detach(quiet_config):
    plain = zoo.train(zoo.make("gpt2"), zoo.batch_of("gpt2"), steps=1)
    model = zoo.everything_recomputed(zoo.make("gpt2"))
    args, kwargs = zoo.batch_of("gpt2")
    torch.manual_seed(7)
    loss = model(*args, **kwargs).loss
    memscale.detach(model)
    loss.backward()
    zoo.assert_same(plain["gradients"][0], {n: p.grad for n, p in model.named_parameters()})


def test_somebody_else_patches_forward_on_top(quiet_config):
    model = zoo.make("gpt2")
    memscale.wrap(model, quiet_config)
    block = model.transformer.h[0]
    ours = block.forward
    block.forward = types.MethodType(lambda self, *a, **k: ours(*a, **k), block)
    theirs = block.forward
    memscale.detach(model)
    assert vars(block)["forward"] is theirs
    zoo.assert_same(zoo.train(zoo.make("gpt2"), zoo.batch_of("gpt2")), zoo.train(model, zoo.batch_of("gpt2")))


@pytest.mark.parametrize("style", ["method", "partial", "function"])
def test_a_forward_on_the_instance_is_put_back(style, quiet_config):
    model = zoo.make("encoder")
    layer = model.encoder.layers[1]
    original = type(layer).forward
    if style == "method":
        layer.forward = types.MethodType(original, layer)
    elif style == "partial":
        import functools

        layer.forward = functools.partial(original, layer)
    else:
        layer.forward = lambda src, src_mask=None, **kwargs: original(layer, src, src_mask, **kwargs)
    signature = inspect.signature(layer.forward)
    before = snapshot(model)
    zoo.everything_recomputed(model)
    assert inspect.signature(layer.forward) == signature
    plain = zoo.train(zoo.make("encoder"), zoo.batch_of("encoder"))
    zoo.assert_same(plain, zoo.train(model, zoo.batch_of("encoder")))
    memscale.detach(model)
    assert [key for key, _ in before[2][1]] == list(vars(model))
    assert "forward" in vars(layer)


@pytest.fixture
def pair(quiet_config):
    plain, model = zoo.make("gpt2"), zoo.make("gpt2")
    memscale.wrap(model, quiet_config)
    zoo.train(model, zoo.batch_of("gpt2"), steps=2)
    zoo.train(plain, zoo.batch_of("gpt2"), steps=2)
    return plain, model


def test_looks_like_a_plain_model(pair):
    plain, model = pair
    assert type(model) is type(plain)
    assert isinstance(model, type(plain))
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [n for n, _ in model.named_modules()] == [n for n, _ in plain.named_modules()]
    assert [type(m) for m in model.modules()] == [type(m) for m in plain.modules()]
    for a, b in zip(plain.modules(), model.modules()):
        assert inspect.signature(a.forward) == inspect.signature(b.forward)
        assert b.forward.__name__ == a.forward.__name__
        assert b.forward.__doc__ == a.forward.__doc__
    assert repr(model) == repr(plain)


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save", "copy"])
def test_copies_are_plain(way, pair):
    plain, model = pair
    before = snapshot(model)
    if way == "deepcopy":
        other, reference = copy.deepcopy(model), copy.deepcopy(plain)
    elif way == "copy":
        other, reference = copy.copy(model), copy.copy(plain)
    elif way == "pickle":
        assert len(pickle.dumps(model)) == len(pickle.dumps(plain))
        other, reference = pickle.loads(pickle.dumps(model)), pickle.loads(pickle.dumps(plain))
    else:
        files = io.BytesIO(), io.BytesIO()
        torch.save(model, files[0])
        torch.save(plain, files[1])
        other, reference = (torch.load(io.BytesIO(f.getvalue()), weights_only=False) for f in files)
    assert not hasattr(other, "_memscale_executor")
    assert list(vars(other)) == list(vars(reference))
    if way != "copy":
        for a, b in zip(reference.modules(), other.modules()):
            assert list(vars(a)) == list(vars(b))
            assert "forward" not in vars(b)
            for table in ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_always_called"):
                assert getattr(a, table) == getattr(b, table) == collections.OrderedDict()
        zoo.assert_same(zoo.train(reference, zoo.batch_of("gpt2")), zoo.train(other, zoo.batch_of("gpt2")))
    assert equal(before, snapshot(model))  # and the model itself is still wrapped
    assert model._memscale_executor.attached


def test_a_model_with_its_own_deepcopy(quiet_config):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(2)])

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x

        def __deepcopy__(self, memo):
            twin = Own.__new__(Own)
            memo[id(self)] = twin
            twin.__dict__ = {key: copy.deepcopy(value, memo) for key, value in vars(self).items()}
            return twin

    model = memscale.wrap(Own(), quiet_config)
    model(zoo.floats(2, 8)).sum().backward()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
    assert torch.equal(twin(zoo.floats(2, 8)), torch.zeros(2, 8))
    assert not torch.equal(model(zoo.floats(2, 8)), torch.zeros(2, 8))
