"""Which module a training step calls: the model, or one that a LightningModule calls in place of its own forward."""

import threading

import pytest
import torch
from torch import nn

from memscale._trace.model_modules import StepModule, step_module

# A stand-in for lightning's class, which is told by its name and that of its package.
LightningModule = type(
    "LightningModule",
    (nn.Module,),
    {
        "__module__": "lightning.pytorch.core.module",
        "forward": lambda self, *args, **kwargs: nn.Module.forward(self, *args, **kwargs),
    },
)


def block(width=4):
    return nn.Sequential(nn.Linear(width, width), nn.ReLU())


class Wrapper(LightningModule):
    """Trains `self.model`; has no forward."""

    def __init__(self):
        super().__init__()
        self.model = block()
        self.loss = nn.MSELoss()

    def training_step(self, x):
        return self.loss(self.model(x), x)


class WithForward(Wrapper):
    def forward(self, x):
        return self.model(x)


class CallsForward(WithForward):
    def training_step(self, x):
        return self.loss(self(x), x)


class Autoencoder(LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = block(), block()

    def training_step(self, x):
        return self.decoder(self.encoder(x)).sum()


class Members(LightningModule):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([block(), block()])

    def training_step(self, x):
        return self.parts[1](x).sum()


class WithTeacher(LightningModule):
    """A frozen module runs first, and another one without gradients."""

    def __init__(self):
        super().__init__()
        self.teacher, self.average, self.student = block().requires_grad_(False), block(), block()

    def training_step(self, x):
        wanted = self.teacher(x)
        with torch.no_grad():
            wanted = wanted + self.average(x)
        return (self.student(x) - wanted).sum()


def watch(model):
    """A StepModule with its hooks, and a list of what it says of each call."""
    step, calls = StepModule(model), []
    for module in step.candidates:
        module.register_forward_pre_hook(lambda m, args: calls.append(("begins", m)) if step.begins(m) else None)
        module.register_forward_hook(
            lambda m, args, output: calls.append(("ends", m)) if step.ends(m) else None, always_call=True
        )
    return step, calls


def test_a_plain_model_is_its_own():
    model = nn.Sequential(block(), block())
    step, calls = watch(model)
    assert step.candidates == (model,)
    assert step.module is model
    assert step_module(model) is model
    model(torch.ones(2, 4))
    assert calls == [("begins", model), ("ends", model)]


def test_a_class_of_that_name_from_elsewhere_is_a_plain_model():
    model = type("LightningModule", (nn.Module,), {})()
    model.inner = block()
    assert StepModule(model).candidates == (model,)


@pytest.mark.parametrize("package", ["lightning.pytorch.core.module", "pytorch_lightning.core.module"])
def test_both_packages_are_known(package):
    base = type("LightningModule", (nn.Module,), {"__module__": package})
    model = type("Mine", (base,), {})()
    model.inner = block()
    assert StepModule(model).candidates == (model, model.inner)


@pytest.mark.parametrize(
    ("cls", "found"),
    [
        (Wrapper, lambda m: m.model),
        (WithForward, lambda m: m.model),
        (CallsForward, lambda m: m),
        (Members, lambda m: m.parts[1]),
        (WithTeacher, lambda m: m.student),
    ],
)
def test_the_outermost_module_that_is_called_first(cls, found):
    model = cls()
    step, calls = watch(model)
    assert step.module is None
    for _ in range(2):
        model.training_step(torch.ones(2, 4)).backward()
    assert step.module is found(model)
    assert calls == [("begins", found(model)), ("ends", found(model))] * 2
    assert step.is_whole_step


def test_before_a_step_only_what_is_certain_is_said():
    wrapper, with_forward, autoencoder = Wrapper(), WithForward(), Autoencoder()
    assert step_module(wrapper) is wrapper.model
    assert step_module(with_forward) is with_forward
    assert step_module(autoencoder) is autoencoder


def test_a_step_of_several_modules():
    model = Autoencoder()
    step, calls = watch(model)
    model.training_step(torch.ones(2, 4))
    assert step.module is model.encoder
    assert not step.is_whole_step
    assert calls == [("begins", model.encoder), ("ends", model.encoder)]


def test_calls_without_gradients_tell_nothing():
    model = WithForward()
    step, calls = watch(model)
    with torch.no_grad():
        model(torch.ones(2, 4))
    assert step.module is None
    assert calls == []
    model.training_step(torch.ones(2, 4))
    with torch.no_grad():
        model(torch.ones(2, 4))
    assert step.module is model.model
    assert step.is_whole_step
    assert len(calls) == 2


def test_a_forward_that_raises_ends():
    model = Wrapper()
    step, calls = watch(model)
    with pytest.raises(RuntimeError):
        model.training_step(torch.ones(2, 5))
    model.training_step(torch.ones(2, 4))
    assert [what for what, _ in calls] == ["begins", "ends"] * 2
    assert step.is_whole_step


def test_a_forward_that_was_interrupted_does_not_hide_the_next():
    model = Wrapper()
    _, calls = watch(model)

    def interrupt(module, args):
        raise KeyboardInterrupt

    handle = model.model[0].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.training_step(torch.ones(2, 4))
    handle.remove()
    calls.clear()
    model.training_step(torch.ones(2, 4))
    assert [what for what, _ in calls] == ["begins", "ends"]


def test_another_thread_has_a_forward_of_its_own():
    model = Autoencoder()
    step, _ = watch(model)
    seen = []

    def other(module, args):
        thread = threading.Thread(target=lambda: seen.append(step.begins(model.encoder)))
        thread.start()
        thread.join()

    model.encoder[0].register_forward_pre_hook(other)
    model.encoder(torch.ones(2, 4))
    assert seen == [True]
