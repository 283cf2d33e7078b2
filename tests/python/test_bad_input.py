"""Bad input is tried on purpose: a clear error that names the problem and the remedy, or it simply works."""

import pytest
import torch
from torch import nn

import memscale
import zoo
from memscale import Config
from memscale.plans import Plan


@pytest.mark.parametrize("target", [None, 3, "model", torch.ones(2), nn.Linear, [nn.Linear(2, 2)], lambda x: x])
def test_not_a_module(target):
    with pytest.raises(TypeError, match=r"torch\.nn\.Module or a Hugging Face Trainer"):
        memscale.wrap(target)
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        memscale.detach(target)


def test_optimize_of_something_else():
    with pytest.raises(TypeError, match=r"takes a torch\.nn\.Module, not str"), memscale.optimize("model"):
        pass
    with pytest.raises(TypeError, match="optimizer, not str"), memscale.optimize(zoo.make("mlp"), "adam"):
        pass


@pytest.mark.parametrize("model", [nn.Module(), nn.ReLU(), nn.Sequential(), nn.ModuleList()])
def test_a_module_without_parameters(model):
    with pytest.raises(ValueError, match="has no parameters.*wrap the model that holds the layers"):
        memscale.wrap(model)
    assert "_memscale_executor" not in vars(model)


@pytest.mark.parametrize("sample", [3, "text", 1.5, {1: torch.ones(2)}, object(), {1, 2}])
def test_sample_input_of_the_wrong_type(sample, quiet_config):
    model = zoo.make("mlp")
    with pytest.raises(TypeError, match="sample_input must be a tensor, a tuple of positional inputs or a dict"):
        memscale.wrap(model, quiet_config, sample_input=sample)
    assert not hasattr(model, "_memscale_executor")


def test_sample_input_that_the_model_does_not_take(quiet_config):
    model = zoo.make("mlp")
    random = torch.get_rng_state()
    with pytest.raises(memscale.MemScaleError, match="does not run on sample_input"):
        memscale.wrap(model, quiet_config, sample_input=torch.ones(2, 3))
    assert not hasattr(model, "_memscale_executor")
    assert torch.equal(random, torch.get_rng_state())


@pytest.mark.parametrize(
    "sample", [zoo.floats(4, 16), (zoo.floats(4, 16),), [zoo.floats(4, 16)], {"input": zoo.floats(4, 16)}]
)
def test_sample_input_of_every_right_type(sample, quiet_config):
    model = memscale.wrap(zoo.make("mlp"), quiet_config, sample_input=sample)
    assert model._memscale_executor.plan is not None


@pytest.mark.parametrize("config", [{}, "balanced", memscale.OptimizationMode.BALANCED, Config])
def test_config_of_the_wrong_type(config):
    with pytest.raises(TypeError, match=r"config must be a memscale\.Config"):
        memscale.wrap(zoo.make("mlp"), config)


def test_wrap_inside_an_active_optimize(quiet_config):
    model = zoo.make("mlp")
    with memscale.optimize(model, config=quiet_config) as executor:
        with pytest.raises(memscale.MemScaleError, match="inside an active memscale.optimize block; leave the block"):
            memscale.wrap(model, quiet_config)
        with pytest.raises(memscale.MemScaleError, match="inside an active"), memscale.optimize(model):
            pass
        with pytest.raises(memscale.MemScaleError, match="inside an active"):
            memscale.detach(model)
        assert model._memscale_executor is executor
        assert executor.attached
    assert not hasattr(model, "_memscale_executor")


def test_frozen_models_and_models_without_trainable_parameters(quiet_config, no_warnings):
    model = memscale.wrap(zoo.make("encoder").requires_grad_(False), quiet_config)
    assert not model(zoo.floats(2, 10, 32)).requires_grad
    x = zoo.floats(2, 10, 32).requires_grad_()
    model(x).sum().backward()  # gradients of the input alone
    assert x.grad is not None


def test_a_single_layer_has_nothing_to_cut(quiet_config, no_warnings):
    model = memscale.wrap(nn.Linear(4, 4), quiet_config)
    model(torch.ones(2, 4)).sum().backward()
    assert dict(model._memscale_executor.plan.layers) == {}
    memscale.detach(model)


def test_lazy_modules(quiet_config):
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.raises(ValueError, match="lazy layers.*run one forward"):
        memscale.wrap(model, quiet_config)
    model(torch.ones(2, 4))
    memscale.wrap(model, quiet_config)
    model(torch.ones(2, 4)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_compiled_and_scripted_models():
    with pytest.raises(memscale.MemScaleError, match=r"torch\.compile.*_orig_mod"):
        memscale.wrap(torch.compile(zoo.make("mlp"), backend="eager"))
    with pytest.raises(memscale.MemScaleError, match="TorchScript"):
        memscale.wrap(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)))


def test_a_part_of_a_wrapped_model(quiet_config):
    model = memscale.wrap(zoo.make("encoder"), quiet_config)
    with pytest.raises(memscale.MemScaleError, match="wrapped already.*detach"):
        memscale.wrap(model.encoder, quiet_config)
    memscale.detach(model)
    memscale.wrap(model.encoder, quiet_config)
    with pytest.raises(memscale.MemScaleError, match="wrapped already.*detach"):
        memscale.wrap(model, quiet_config)
    memscale.detach(model.encoder)
    memscale.wrap(model, quiet_config)


def test_a_failed_attempt_keeps_the_old_plan(quiet_config):
    model = memscale.wrap(zoo.make("encoder"), quiet_config)
    old = model._memscale_executor
    with pytest.raises(memscale.MemScaleError, match="sample_input"), pytest.warns(memscale.MemScaleWarning):
        memscale.wrap(model, quiet_config, sample_input=torch.ones(1))
    assert model._memscale_executor is old
    assert old.attached
    zoo.assert_same(zoo.train(zoo.make("encoder"), zoo.batch_of("encoder")), zoo.train(model, zoo.batch_of("encoder")))


def test_a_trainer_without_a_model():
    class Trainer:
        model = None

        def train(self): ...

    with pytest.raises(TypeError, match="model_init"):
        memscale.wrap(Trainer())


def test_a_budget_that_cannot_be_met(quiet_config):
    config = quiet_config.replace(memory_budget_gb=1e-4)
    args, kwargs = zoo.batch_of("encoder")
    model = zoo.make("encoder")
    with pytest.raises(
        memscale.BudgetError, match="No plan fits 100 kB.*smallest reachable peak is.*What would fit"
    ) as error:
        memscale.wrap(model, config, sample_input=args)
    assert error.value.smallest_peak_bytes > 1e5
    assert not hasattr(model, "_memscale_executor")
    memscale.wrap(model, config)
    with pytest.raises(memscale.BudgetError):
        model(*args, **kwargs)
    memscale.detach(model)
    enough = config.replace(memory_budget_gb=error.value.smallest_peak_bytes / 1e9 * 1.02)
    memscale.wrap(model, enough, sample_input=args)
    assert model._memscale_executor.plan.fits


def test_a_plan_of_another_model(quiet_config):
    other = zoo.recompute_plan(zoo.make("encoder"))
    model = zoo.make("gpt2")
    with pytest.raises(memscale.MemScaleError, match="the plan is for 4 layers, the model has"):
        memscale.wrap(model, quiet_config, plan=other)
    assert not hasattr(model, "_memscale_executor")
    with pytest.raises(ValueError, match="plan is the text of a plan, not the path of a file"):
        memscale.wrap(model, quiet_config, plan=other.to_json())


@pytest.mark.parametrize("text", ["", "{}", "[]", "nonsense", '{"memscale_plan": 99}', '{"memscale_plan": 1}'])
def test_text_that_is_not_a_plan(text):
    with pytest.raises((ValueError, memscale.MemScaleError)):
        Plan.from_json(text)
    with pytest.raises(TypeError):
        Plan.from_json(3)


def test_a_log_file_that_cannot_be_written(tmp_path):
    model = zoo.make("mlp")
    with pytest.raises(ValueError, match="log_file.*cannot be written"):
        memscale.wrap(model, Config(log_file=tmp_path / "no" / "such" / "folder"))
    assert not hasattr(model, "_memscale_executor")


def test_errors_can_be_pickled():
    import pickle

    error = memscale.BudgetError("no")
    error.smallest_peak_bytes = 3
    assert pickle.loads(pickle.dumps(error)).smallest_peak_bytes == 3
    assert issubclass(memscale.BudgetError, memscale.MemScaleError)
    assert issubclass(memscale.MemScaleError, RuntimeError)
