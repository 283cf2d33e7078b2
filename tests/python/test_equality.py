"""The first promise: wrapped training equals plain training, bit for bit."""

import pytest
import torch
from torch import nn

import memscale
import zoo


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", list(zoo.SMALL.names))
def test_every_unit_recomputed_equals_plain(name, autocast, recomputed, no_warnings):
    plain = zoo.train_or_skip(zoo.make(name), zoo.batch_of(name), autocast=autocast)
    model = zoo.everything_recomputed(zoo.make(name))
    wrapped = zoo.train(model, zoo.batch_of(name), autocast=autocast)
    zoo.assert_same(plain, wrapped)

    # Every repeated block was computed again in every backward, unless it changes its inputs in place.
    units = {unit.name: unit for unit in model._memscale_executor._units}
    blocks = {n for n in units if n.rpartition(".")[2].isdigit()} or {"lstm"}
    changing = {n for n, unit in units.items() if unit.excluded}
    for block in blocks - changing:
        saves = any(True for _ in units[block].module.parameters())
        assert not saves or recomputed.count(block) >= 3, block
    assert blocks - changing
    assert not changing & set(recomputed)


@pytest.mark.parametrize("name", list(zoo.SMALL.names))
def test_settled_plan_equals_plain(name, quiet_config, no_warnings):
    plain = zoo.train(zoo.make(name), zoo.batch_of(name), steps=3)
    model = memscale.wrap(zoo.make(name), quiet_config)
    zoo.assert_same(plain, zoo.train(model, zoo.batch_of(name), steps=3))
    assert model._memscale_executor.plan is not None


@pytest.mark.parametrize("name", ["encoder", "resnet", "t5"])
def test_sample_input_settles_the_plan_and_leaves_no_trace(name, quiet_config):
    plain = zoo.train(zoo.make(name), zoo.batch_of(name))
    model = zoo.make(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    attributes = [dict(vars(m)) for m in model.modules()]
    random = torch.get_rng_state()
    args, kwargs = zoo.batch_of(name)
    memscale.wrap(model, quiet_config, sample_input=kwargs or args)
    assert torch.equal(random, torch.get_rng_state())
    zoo.assert_same(before, dict(model.state_dict()))
    ours = {"forward", "__reduce_ex__", "_memscale_executor", "_replicate_for_data_parallel"}
    for module, old in zip(model.modules(), attributes):
        assert {k: v for k, v in vars(module).items() if k not in ours} == {
            k: v for k, v in old.items() if k not in ours
        }
    assert all(p.grad is None for p in model.parameters())
    assert model._memscale_executor.plan is not None
    zoo.assert_same(plain, zoo.train(model, zoo.batch_of(name)))


def test_gradient_accumulation():
    plain = zoo.train(zoo.make("gpt2"), zoo.batch_of("gpt2"), accumulate=3)
    zoo.assert_same(plain, zoo.train(zoo.everything_recomputed(zoo.make("gpt2")), zoo.batch_of("gpt2"), accumulate=3))


class Lora(nn.Module):
    """A frozen linear layer with a trainable low-rank path next to it."""

    def __init__(self, base: nn.Module, features_in: int, features_out: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(features_in, 2, bias=False), nn.Linear(2, features_out, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(nn.functional.dropout(x, 0.1, self.training)))


def lora_gpt2():
    model = zoo.make("gpt2").requires_grad_(False)
    torch.manual_seed(3)
    for block in model.transformer.h:
        block.attn.c_attn = Lora(block.attn.c_attn, 32, 96)
        block.mlp.c_proj = Lora(block.mlp.c_proj, 128, 32)
    return model.train()


def test_lora_with_frozen_base(recomputed):
    plain = zoo.train(lora_gpt2(), zoo.batch_of("gpt2"))
    model = zoo.everything_recomputed(lora_gpt2())
    wrapped = zoo.train(model, zoo.batch_of("gpt2"))
    zoo.assert_same(plain, wrapped)
    assert "transformer.h.1" in recomputed
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained
    assert all(wrapped["gradients"][0][name] is not None for name in trained)


def test_only_the_last_layer_trains():
    def make():
        model = zoo.make("bert").requires_grad_(False)
        model.cls.requires_grad_(True)
        return model

    plain = zoo.train(make(), zoo.batch_of("bert"))
    zoo.assert_same(plain, zoo.train(zoo.everything_recomputed(make()), zoo.batch_of("bert")))


def test_tied_weights():
    model = zoo.everything_recomputed(zoo.make("gpt2"))
    assert model.lm_head.weight is model.transformer.wte.weight
    plain = zoo.train(zoo.make("gpt2"), zoo.batch_of("gpt2"))
    zoo.assert_same(plain, zoo.train(model, zoo.batch_of("gpt2")))
    assert model.lm_head.weight is model.transformer.wte.weight


def gradients(model):
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", ["gpt2", "t5", "resnet", "lstm"])
def test_retain_graph_twice(name):
    def run(model):
        args, kwargs = zoo.batch_of(name)
        torch.manual_seed(7)
        loss = zoo.loss_of(model(*args, **kwargs))
        found = []
        for keep in (True, True, False):
            loss.backward(retain_graph=keep)
            found.append(gradients(model))
        return loss.detach(), found

    zoo.assert_same(run(zoo.make(name)), run(zoo.everything_recomputed(zoo.make(name))))


@pytest.mark.parametrize("name", ["gpt2", "mlp"])
def test_double_backward(name):
    def run(model):
        model.set_attn_implementation("eager") if name == "gpt2" else None
        args, kwargs = zoo.batch_of(name)
        torch.manual_seed(7)
        loss = zoo.loss_of(model(*args, **kwargs))
        parameters = list(model.parameters())
        first = torch.autograd.grad(loss, parameters, create_graph=True)
        penalty = sum(g.pow(2).sum() for g in first)
        penalty.backward()
        return loss.detach(), [g.detach() for g in first], penalty.detach(), gradients(model)

    zoo.assert_same(run(zoo.make(name)), run(zoo.everything_recomputed(zoo.make(name))))


def test_gradient_of_the_input():
    def run(model):
        x = zoo.floats(2, 10, 32).requires_grad_()
        torch.manual_seed(7)
        loss = zoo.loss_of(model(x))
        return torch.autograd.grad(loss, x)

    zoo.assert_same(run(zoo.make("encoder")), run(zoo.everything_recomputed(zoo.make("encoder"))))


def test_two_forwards_one_backward_and_the_other_order():
    def run(model):
        args, kwargs = zoo.batch_of("gpt2")
        torch.manual_seed(7)
        first, second = (zoo.loss_of(model(*args, **kwargs)) for _ in range(2))
        third = zoo.loss_of(model(*args, **kwargs))
        second.backward()
        first.backward()
        del third
        return first.detach(), second.detach(), gradients(model)

    zoo.assert_same(run(zoo.make("gpt2")), run(zoo.everything_recomputed(zoo.make("gpt2"))))


def test_partial_backward_leaves_the_rest_usable():
    def run(model):
        x = zoo.floats(2, 10, 32)
        torch.manual_seed(7)
        loss = zoo.loss_of(model(x))
        last = list(model.encoder.layers[-1].parameters())
        some = torch.autograd.grad(loss, last, retain_graph=True)
        loss.backward()
        return some, gradients(model)

    zoo.assert_same(run(zoo.make("encoder")), run(zoo.everything_recomputed(zoo.make("encoder"))))


@pytest.mark.parametrize("name", ["gpt2", "t5", "resnet"])
def test_evaluation_and_generation_in_between(name):
    def run(model):
        args, kwargs = zoo.batch_of(name)
        record = [zoo.train(model, (args, kwargs), steps=2)]
        model.eval()
        with torch.no_grad():
            record.append(zoo.loss_of(model(*args, **kwargs)))
            if name != "resnet":
                inputs = args[0] if args else kwargs["input_ids"]
                record.append(model.generate(inputs, max_new_tokens=5, do_sample=False))
        model.train()
        record.append(zoo.train(model, (args, kwargs), steps=2))
        return record

    zoo.assert_same(run(zoo.make(name)), run(zoo.everything_recomputed(zoo.make(name))))
