"""What profile and predict take: every form of sample, output, optimizer and device; and what they refuse, by name."""

import collections
import dataclasses
import functools

import pytest
import torch
from torch import nn

import memscale
import zoo
from memscale.errors import MemScaleError
from meter import Meter
from quick import _as_users_train, _one_thread  # noqa: F401
from zoo import LARGE


def mlp():
    return LARGE.make("mlp")


X = zoo.floats(8, 64)


# ---- Samples ----


@pytest.mark.parametrize(
    "sample",
    [X, (X,), [X], {"input": X}, X.to("meta"), {"input": X.to("meta")}, collections.OrderedDict(input=X)],
    ids=["tensor", "tuple", "list", "dict", "meta", "meta in a dict", "ordered dict"],
)
def test_forms_of_samples(sample):
    assert memscale.profile(mlp(), sample).simulate() == memscale.profile(mlp(), X).simulate()


class Nested(nn.Module):
    """Takes a structure."""

    Pair = collections.namedtuple("Pair", "a b")

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, parts, pair, *, scale=1.0, mode="plus"):
        assert isinstance(pair, Nested.Pair)
        assert mode == "times"
        return self.linear(parts["x"][0] + parts["x"][1]) * pair.a + pair.b * scale


def test_nested_samples():
    sample = {"parts": {"x": [X, X.clone()]}, "pair": Nested.Pair(X, X), "scale": 2.0, "mode": "times"}
    known = memscale.profile(Nested(), sample)
    assert known.source == "static"
    assert known.parts["inputs"] == 2 * X.nbytes  # one is there three times


def test_an_input_that_is_given_twice_counts_once():
    _, kwargs = LARGE.lm()
    assert kwargs["input_ids"] is kwargs["labels"]
    twice = memscale.profile(LARGE.make("bert"), kwargs).parts["inputs"]
    apart = memscale.profile(LARGE.make("bert"), {**kwargs, "labels": kwargs["labels"].clone()}).parts["inputs"]
    assert apart == 2 * twice


def test_inputs_that_want_gradients():
    x = X.clone().requires_grad_()
    known = memscale.profile(mlp(), x)
    assert x.grad is None
    assert known.simulate().timeline[-1].parts["gradients"] >= X.nbytes
    frozen = memscale.profile(mlp().requires_grad_(False), x)
    assert frozen.simulate().timeline[-1].parts["gradients"] == X.nbytes


def test_buffers_count():
    model = nn.Sequential(nn.Linear(64, 64))
    before = memscale.profile(model, X)
    table = torch.zeros(1000, 100)
    model.register_buffer("kept", table)
    model[0].register_buffer("passing", torch.zeros(10), persistent=False)
    model[0].register_buffer("nothing", None)
    model.plain = torch.zeros(10)
    known = memscale.profile(model, X)
    assert known.parts["buffers"] - before.parts["buffers"] >= table.nbytes
    assert known.peak_bytes - before.peak_bytes == known.parts["buffers"] - before.parts["buffers"]


def test_models_on_the_meta_device():
    with torch.device("meta"):
        model = mlp()
    assert memscale.profile(model, X, device="cpu").simulate() == memscale.profile(mlp(), X, device="cpu").simulate()
    assert memscale.profile(model, X, device="rtx3090").device.kind == "cuda"
    if not torch.cuda.is_available():
        with pytest.raises(MemScaleError, match="meta device"):
            memscale.profile(model, X)


@pytest.mark.parametrize("name", ["gpt2", "t5", "vit"])
def test_large_models_take_no_memory(name):
    with torch.device("meta"):
        model = LARGE.make(name)
    args, kwargs = LARGE.batch_of(name)
    with Meter() as meter, meter.mark("profile"):
        memscale.profile(model, args or {key: value.to("meta") for key, value in kwargs.items()}, device="rtx3090")
    assert meter["profile"].peak < 1 << 20


@pytest.mark.parametrize(
    "shape",
    [(0, 64), (1, 64), (2, 0, 64)],
    ids=["no rows", "one row", "no length"],
)
def test_empty_and_tiny_batches(shape):
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    known = memscale.profile(model, zoo.floats(*shape))
    assert known.peak_bytes >= 4 * sum(p.nbytes for p in model.parameters())


def test_a_convolution_of_an_empty_batch():
    assert memscale.profile(LARGE.make("unet"), zoo.floats(0, 3, 16, 16)).peak_bytes > 0


def test_a_sample_that_does_not_fit_the_model():
    for sample, reason in ((zoo.floats(8, 63), "RuntimeError"), ({"wrong": X}, "wrong"), ((X, X), "positional")):
        with pytest.raises(MemScaleError, match=f"does not run on sample_input.*{reason}"):
            memscale.profile(mlp(), sample)


# ---- Outputs and losses ----


@dataclasses.dataclass
class Answer:
    hidden: torch.Tensor
    extra: dict


class Returns(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.linear, self.form = nn.Linear(64, 64), form

    def forward(self, input):
        return self.form(self.linear(input))


FORMS = {
    "tensor": lambda y: y,
    "tuple": lambda y: (y, None, 3),
    "list": lambda y: [y],
    "dict": lambda y: {"y": y, "name": "y"},
    "dict with a loss": lambda y: {"loss": y.sum(), "y": y},
    "nested": lambda y: {"a": [(y,)], "b": None},
    "dataclass": lambda y: Answer(y, {"y": y}),
    "scalar": lambda y: y.sum(),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_outputs(form):
    known = memscale.profile(Returns(FORMS[form]), X)
    gradients = known.simulate().timeline[-1].parts["gradients"]
    assert gradients == 4 * (64 * 64 + 64)


@pytest.mark.parametrize(
    "form",
    [lambda y: None, lambda y: y.detach(), lambda y: y > 0, lambda y: 3, lambda y: {"y": "text"}],
    ids=["None", "detached", "truth values", "number", "text"],
)
def test_outputs_without_a_gradient(form):
    with pytest.raises(MemScaleError, match="nothing in the model's output has a gradient"):
        memscale.profile(Returns(form), X)


@pytest.mark.parametrize(
    "model",
    [nn.Identity(), nn.Sequential(), nn.Linear(64, 4).requires_grad_(False), nn.ReLU(), nn.Dropout(0.5)],
    ids=["identity", "empty", "frozen", "relu", "dropout"],
)
def test_models_without_anything_to_train(model):
    with pytest.raises(MemScaleError, match="gradient"):
        memscale.profile(model, X)
    assert memscale.profile(model, X, evaluation=True).peak_bytes >= X.nbytes


def test_a_model_without_parameters_between_others():
    """Only the input has a gradient."""
    known = memscale.profile(nn.Identity(), X.clone().requires_grad_())
    assert known.units == ()
    assert known.peak_bytes >= X.nbytes


@pytest.mark.parametrize("loss", [3, "mse", torch.ones(1), [len]])
def test_a_loss_that_cannot_be_called(loss):
    with pytest.raises(TypeError, match="loss must be"):
        memscale.profile(mlp(), X, loss=loss)


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (lambda output: 1.0, "float"),
        (lambda output: None, "NoneType"),
        (lambda output: output, r"shape \(8, 10\)"),
        (lambda output: output.detach().sum(), "no gradient"),
    ],
)
def test_what_a_loss_must_return(loss, reason):
    with pytest.raises(MemScaleError, match=f"loss must return.*{reason}"):
        memscale.profile(mlp(), X, loss=loss)


def test_a_loss_function():
    target = torch.arange(8) % 16
    for loss in (
        lambda output: nn.functional.cross_entropy(output, target.to(output.device)),
        lambda output: output.logsumexp(-1).mean(),
        functools.partial(torch.sum),
    ):
        assert memscale.profile(mlp(), X, loss=loss).source == "static"


def test_a_loss_that_looks_at_values():
    known = memscale.profile(mlp(), X, loss=lambda output: output.sum() / output.abs().max().item())
    assert known.source == "empirical"


# ---- Arguments ----


@pytest.mark.parametrize("model", [None, "gpt2", nn.Linear, torch.ones(3), lambda x: x])
def test_no_model(model):
    with pytest.raises(TypeError, match="model must be"):
        memscale.profile(model, X)


@pytest.mark.parametrize("sample", [None, 3, "text", {1: X}, {X}, object()])
def test_no_sample(sample):
    with pytest.raises(TypeError, match="sample_input must be"):
        memscale.profile(mlp(), sample)


@pytest.mark.parametrize("optimizer", ["adamw", torch.optim.AdamW, 3, {}])
def test_no_optimizer(optimizer):
    with pytest.raises(TypeError, match="optimizer must be"):
        memscale.profile(mlp(), X, optimizer=optimizer)


@pytest.mark.parametrize("config", [{}, "fast", 3, memscale.Config])
def test_no_config(config):
    with pytest.raises(TypeError, match="config must be"):
        memscale.profile(mlp(), X, config=config)


@pytest.mark.parametrize("precision", ["int8", "", "BF16", 16, torch.bfloat16, ["fp32"], True])
def test_unknown_precisions(precision):
    with pytest.raises(ValueError, match="precision="):
        memscale.profile(mlp(), X, precision=precision)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "pure-bf16", "pure-fp16", None])
@pytest.mark.parametrize("device", ["cpu", "a100"])
def test_known_precisions(precision, device):
    known = memscale.profile(mlp(), X, precision=precision, device=device)
    assert known.parts["parameters"] * (2 if "pure" in str(precision) else 1) >= sum(
        p.nbytes for p in mlp().parameters()
    )


@pytest.mark.parametrize("device", [3, 1.5, ["cpu"], object(), True])
def test_wrong_types_of_devices(device):
    with pytest.raises(TypeError, match="device must be"):
        memscale.profile(mlp(), X, device=device)


@pytest.mark.parametrize("device", ["rtx9999", "", "gpu", "cuda:x", "cpu:x"])
def test_unknown_devices(device):
    with pytest.raises(ValueError, match="device|GPU"):
        memscale.profile(mlp(), X, device=device)


@pytest.mark.parametrize("device", [torch.device("mps"), torch.device("xpu"), torch.device("meta")])
def test_devices_without_predictions(device):
    with pytest.raises(MemScaleError, match="CPUs and CUDA GPUs"):
        memscale.profile(mlp(), X, device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda")])
def test_no_gpu_here(device):
    with pytest.raises(MemScaleError, match="there is no GPU here"):
        memscale.profile(mlp(), X, device=device)


@pytest.mark.parametrize("switch", ["evaluation", "shapes"])
@pytest.mark.parametrize("value", ["yes", 1, None])
def test_switches_are_true_or_false(switch, value):
    with pytest.raises(TypeError, match=f"{switch} must be True or False"):
        memscale.profile(mlp(), X, **{switch: value})


def test_wrapped_models_are_profiled_as_they_are_without(quiet_config, monkeypatch):
    model = mlp()
    outer = nn.Sequential(model, nn.Linear(10, 2))
    plain = [memscale.profile(m, X).to_json() for m in (model, outer)]
    memscale.wrap(model, quiet_config)
    assert [memscale.profile(m, X).to_json() for m in (model, outer)] == plain
    monkeypatch.setenv("MEMSCALE_NO_FORK", "1")  # in this process, the step of a wrapped model would be another
    with pytest.raises(MemScaleError, match="wrapped"):
        memscale.profile(model, X)
    memscale.detach(model)
    assert memscale.profile(model, X).peak_bytes > 0


@pytest.mark.parametrize("recompute", ["everything", ["0", "nothing"], "0"])
def test_unknown_units(recompute):
    with pytest.raises(ValueError, match="there is no layer|names of layers"):
        memscale.predict(mlp(), X, recompute=recompute)


def test_budgets_and_bands():
    predicted = memscale.predict(mlp(), X)
    assert predicted.fits
    assert predicted.low_bytes < predicted.peak_bytes < predicted.high_bytes
    assert sum(predicted.parts.values()) == predicted.peak_bytes
    tight = memscale.predict(mlp(), X, config=memscale.Config(memory_budget_gb=1e-4))
    assert not tight.fits
    assert tight.usable_bytes == 100_000


# ---- Optimizers, against the meter ----


class Unknown(torch.optim.Optimizer):
    """Somebody's: one moment, and a norm that it looks at."""

    def __init__(self, params, required, lr=1e-3):
        super().__init__(params, {"lr": lr})
        self.required = required

    @torch.no_grad()
    def step(self, closure=None):
        assert self.required == "this"
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["moment"] = torch.zeros_like(p)
                state["moment"].mul_(0.9).add_(p.grad / (p.grad.norm().item() + 1))
                p.sub_(state["moment"], alpha=group["lr"])


def grouped(parameters):
    every = list(parameters)
    return torch.optim.AdamW(
        [{"params": every[:3], "lr": 1e-3, "betas": (0.8, 0.9)}, {"params": every[3:6], "weight_decay": 0.0}]
    )


MAKERS = {
    "SGD": functools.partial(torch.optim.SGD, lr=1e-3),
    "SGD with momentum": functools.partial(torch.optim.SGD, lr=1e-3, momentum=0.9, nesterov=True),
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "AdamW, amsgrad": functools.partial(torch.optim.AdamW, amsgrad=True),
    "AdamW, maximize": functools.partial(torch.optim.AdamW, maximize=True),
    "AdamW, foreach": functools.partial(torch.optim.AdamW, foreach=True),
    "AdamW, one by one": functools.partial(torch.optim.AdamW, foreach=False),
    "AdamW, fused": functools.partial(torch.optim.AdamW, fused=True),
    "SGD, fused": functools.partial(torch.optim.SGD, lr=1e-3, momentum=0.9, fused=True),
    "Adagrad": torch.optim.Adagrad,
    "Adadelta": torch.optim.Adadelta,
    "Adamax": torch.optim.Adamax,
    "RMSprop": torch.optim.RMSprop,
    "RMSprop, centered": functools.partial(torch.optim.RMSprop, centered=True, momentum=0.9),
    "Rprop": torch.optim.Rprop,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "ASGD": torch.optim.ASGD,
    "groups": grouped,
    "unknown": functools.partial(Unknown, required="this"),
}
if hasattr(torch.optim, "Adafactor"):
    MAKERS["Adafactor"] = torch.optim.Adafactor


def wide():
    """Parameters count for more than anything else."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 64))


@pytest.mark.parametrize("name", MAKERS)
def test_optimizers(name):
    model = wide()
    optimizer = MAKERS[name](model.parameters())
    known = memscale.profile(model, zoo.floats(4, 256), optimizer=optimizer, loss=zoo.loss_of).simulate()
    with Meter() as meter:
        model, x = wide(), zoo.floats(4, 256)
        optimizer = MAKERS[name](model.parameters())
        for mark in ("first", "second", "steady"):
            with meter.mark(mark):
                zoo.loss_of(model(x)).backward()
                optimizer.step()
                optimizer.zero_grad()
                if name == "groups":
                    model.zero_grad()
    assert known.first_peak_bytes == pytest.approx(meter["first"].peak, rel=0.02)
    assert known.steady_peak_bytes == pytest.approx(meter["steady"].peak, rel=0.02)
    assert known.idle_bytes == pytest.approx(meter["steady"].after, rel=0.02)


def test_an_optimizer_for_another_model():
    with pytest.raises(MemScaleError, match="none of this model's parameters"):
        memscale.profile(mlp(), X, optimizer=torch.optim.AdamW(mlp().parameters()))


def test_an_optimizer_for_a_part_of_the_model():
    model = mlp()
    known = memscale.profile(model, X, optimizer=torch.optim.AdamW(model[3].parameters())).simulate()
    assert known.parts["optimizer_state"] == pytest.approx(2 * sum(p.nbytes for p in model[3].parameters()), rel=0.01)
    assert known.timeline[-1].parts["gradients"] == sum(p.nbytes for p in model.parameters())


def test_an_optimizer_that_was_used_and_scheduled():
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    fresh = memscale.profile(model, X, optimizer=optimizer).simulate()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model(X).sum().backward()
    optimizer.step()
    weight = model[0].weight.detach().clone()
    assert memscale.profile(model, X, optimizer=optimizer).simulate() == fresh
    assert torch.equal(model[0].weight, weight)
    scheduler.step()


def test_an_unknown_optimizer_with_a_scheduler_does_not_step():
    """The scheduler put a step on the instance that belongs to the real one."""
    model = mlp()
    optimizer = Unknown(model.parameters(), required="this")
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    called = []
    optimizer.register_step_post_hook(lambda *_: called.append(1))
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    weight = model[0].weight.detach().clone()
    assert memscale.profile(model, X, optimizer=optimizer).peak_bytes > 0
    assert torch.equal(model[0].weight, weight)
    assert called == []
    assert not optimizer.state


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.SparseAdam])
def test_optimizers_that_cannot_be_traced(kind):
    model = mlp()
    with pytest.raises(MemScaleError, match=f"a step of {kind.__name__} cannot be traced"):
        memscale.profile(model, X, optimizer=kind(list(model.parameters())))
