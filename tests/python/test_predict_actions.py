"""Plans with kept results and offloaded layers: what is predicted on the CPU, against the meter."""

import array

import pytest
import torch
from torch import nn

import memscale
import zoo
from memscale._base.vocabulary import ACTIONS
from meter import Meter
from quick import _as_users_train, _one_thread  # noqa: F401
from test_predict import TOLERANCE, skip_unknown_bf16
from zoo import LARGE

NUMBERS = {row.identifier: i for i, row in enumerate(ACTIONS)}
MIXTURES = {
    "pointwise": ["recompute_pointwise"],
    "pointwise mixed": ["recompute_pointwise", "recompute", "keep", "offload", "recompute_pointwise"],
    "pointwise offloaded": ["offload_pointwise"],
    "pointwise offloaded here and there": ["offload_pointwise", "recompute", "offload_pointwise", "keep", "offload"],
    "products": ["recompute_except_products"],
    "both": ["recompute_except_both"],
    "offload": ["offload"],
    "blocking": ["offload_blocking"],
    "inputs": ["recompute_offload"],
    "inputs blocking": ["recompute_offload_blocking"],
    "mixed": ["offload", "keep", "recompute_except_both", "recompute"],
    "sparse": ["recompute_except_products", "offload", "keep", "keep", "keep"],
    "inputs mixed": ["recompute_offload", "keep", "recompute_except_both", "recompute_offload", "offload"],
}
N_STEPS = 5  # the first is checked, in the second results are compared
EAGER = {"attn_implementation": "eager"}
QUICK = [
    *(("gpt2", {}, "fp32", mixture) for mixture in MIXTURES),
    ("gpt2", {}, "bf16", "both"),
    ("gpt2", {}, "bf16", "pointwise"),
    ("llama", {}, "fp32", "pointwise"),
    ("llama", {}, "bf16", "pointwise offloaded"),
    ("t5", {}, "fp32", "pointwise offloaded"),
    ("bert", {}, "bf16", "pointwise offloaded here and there"),
    ("llama", {}, "bf16", "pointwise mixed"),
    ("t5", {}, "fp32", "pointwise"),
    ("bert", {}, "fp32", "pointwise mixed"),
    ("gpt2", {}, "bf16", "blocking"),
    ("bert", {}, "bf16", "products"),
    ("llama", {}, "fp32", "both"),
    ("llama", EAGER, "fp32", "both"),
    ("llama", {}, "fp32", "inputs"),
    ("t5", {}, "fp32", "inputs"),
    ("bert", {}, "bf16", "inputs mixed"),
    ("llama", {}, "bf16", "offload"),
    ("t5", {}, "fp32", "products"),
    ("resnet", {}, "fp32", "both"),
    ("albert", {}, "fp32", "products"),
    ("distilbert", {}, "fp32", "sparse"),
    ("whisper", {}, "fp32", "mixed"),
    ("encoder", {}, "fp32", "products"),
]
# Known to be too high: a layer that is called several times in a row, whose calls leave together; a U-Net, and a
# ResNet, whose layers are recomputed here and there; casts of weights where some layers are recomputed and others are
# not; and a chain of linear layers where one of those in between is recomputed and another offloaded, whatever is done
# to the rest.
TOO_HIGH = {
    ("albert", "offload"),
    ("albert", "blocking"),
    ("unet", "sparse"),
    ("unet", "inputs mixed"),
    ("albert", "mixed"),
    ("distilbert", "mixed"),
    ("mlp", "pointwise mixed"),
    ("albert", "pointwise offloaded"),
    ("albert", "pointwise offloaded here and there"),
    ("mlp", "pointwise offloaded here and there"),
    ("resnet", "pointwise offloaded here and there"),
}
LONG = [
    (name, {}, precision, mixture)
    for name in LARGE.names
    for precision in ("fp32", "bf16")
    for mixture in MIXTURES
    if (name, {}, precision, mixture) not in QUICK and (name, mixture) not in TOO_HIGH
]


def simulate(profile, actions):
    """The steps of a plan with these actions, which layers have in turn."""
    numbers = array.array("i", [NUMBERS[actions[i % len(actions)]] for i in range(len(profile.units))])
    return profile.core.simulate(profile.device, actions=numbers.tobytes(), limit_bytes=0, flags=0)


def measure(build, batch, actions, precision, schedule=None):
    with Meter() as meter:
        model = build()
        args, kwargs = batch()
        zoo.wrap_with(model, actions, schedule)
        updater = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
        for step in range(N_STEPS):
            with meter.mark(f"step {step}"):
                with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                    loss = zoo.loss_of(model(*args, **kwargs))
                loss.backward()
                del loss
                updater.step()
                updater.zero_grad()
        memscale.detach(model)
    return meter


def check(name, changes, precision, mixture):
    if precision == "bf16":
        skip_unknown_bf16()

    def build():
        return LARGE.make(name, **changes)

    def batch():
        return LARGE.batch_of(name)

    model = build()
    args, kwargs = batch()
    updater = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    known = memscale.profile(model, args or kwargs, optimizer=updater, loss=zoo.loss_of, precision=precision)
    del model, updater
    actions = MIXTURES[mixture]
    simulated = simulate(known, actions)
    predicted = known.predict({unit.name: actions[i % len(actions)] for i, unit in enumerate(known.units)})
    with zoo.plain_or_skip(autocast=precision == "bf16"):
        meter = measure(build, batch, MIXTURES[mixture], precision, simulated["schedule"])
    steady, highest = meter[f"step {N_STEPS - 1}"].peak, max(meter[f"step {n}"].peak for n in range(1, N_STEPS))
    assert simulated["steady_peak_bytes"] == pytest.approx(steady, rel=TOLERANCE), meter.at_peak(f"step {N_STEPS - 1}")
    assert predicted.needed_bytes >= (1 - TOLERANCE) * highest  # also of the step that compares
    if "offload" in mixture or mixture == "blocking":
        assert simulated["host_bytes"] > 0
    return simulated


@pytest.mark.parametrize(("name", "changes", "precision", "mixture"), QUICK)
def test_peaks(name, changes, precision, mixture):
    check(name, changes, precision, mixture)


@pytest.mark.long
@pytest.mark.parametrize(("name", "changes", "precision", "mixture"), LONG)
def test_peaks_of_every_model(name, changes, precision, mixture):
    check(name, changes, precision, mixture)


class Gate(nn.Module):
    """Behind its largest product only a buffer is saved, more than once."""

    def __init__(self, n=256):
        super().__init__()
        self.norm, self.up, self.wide, self.down = (
            nn.LayerNorm(n),
            nn.Linear(n, 2 * n),
            nn.Linear(2 * n, 4 * n),
            nn.Linear(n, n),
        )
        self.register_buffer("mask", torch.rand(4 * n))

    def forward(self, x):
        h = self.wide(nn.functional.gelu(nn.functional.gelu(self.up(self.norm(x)))))
        h = h * self.mask + h.roll(1, -1) * self.mask + h.roll(2, -1) * self.mask
        return x + self.down(h[..., : x.shape[-1]].tanh())


def test_a_result_goes_when_its_recomputation_is_over():
    """Not when the tensors that were saved behind it are gone."""

    def build():
        torch.manual_seed(0)
        return zoo.Chain(Gate, 5)

    def batch():
        return (zoo.floats(4, 256, 256),), {}

    model, actions = build(), ["recompute_except_products"]
    updater = torch.optim.AdamW(model.parameters())
    known = memscale.profile(model, batch()[0], optimizer=updater, loss=zoo.loss_of)
    del model, updater
    meter = measure(build, batch, actions, "fp32")
    simulated = simulate(known, actions)
    assert simulated["steady_peak_bytes"] == pytest.approx(meter[f"step {N_STEPS - 1}"].peak, rel=0.005)


def test_kept_results_take_memory_and_save_time():
    """Of GPT-2's layers, where products take longer than the host needs to find their results."""
    model = LARGE.make("gpt2", dropout=0.0)
    _, kwargs = LARGE.batch_of("gpt2")
    known = memscale.profile(model, {key: value.repeat(32, 1) for key, value in kwargs.items()})
    actions = ("recompute", "recompute_except_attention", "recompute_except_products", "recompute_except_both", "keep")
    steps = [simulate(known, [action]) for action in actions]
    peaks, times = ([step[key] for step in steps] for key in ("steady_peak_bytes", "step_ns"))
    assert sorted(set(peaks)) == peaks
    assert times[0] > times[1] > times[3] > times[4]
    assert times[0] > times[2] > times[3]


def test_the_host_takes_time_to_find_results():
    """Where there is next to nothing to compute, keeping results only costs time."""
    model, ((ids,), _) = zoo.make("gpt2", dropout=0.0), zoo.batch_of("gpt2")
    known = memscale.profile(model, {"input_ids": ids, "labels": ids})
    whole, kept = (simulate(known, [action])["step_ns"] for action in ("recompute", "recompute_except_both"))
    assert kept > whole


class Keeps(nn.Module):
    """A model that holds what its layers are given: until its forward is over, or for its caller."""

    def __init__(self, returns):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.returns = nn.Linear(64, 64), returns
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)) for _ in range(6)])

    def forward(self, x):
        x, seen = self.stem(x), []
        for block in self.blocks:
            seen.append(x)
            x = x + block(x)
        return (x, tuple(seen)) if self.returns else x + sum(seen)


@pytest.mark.parametrize("returns", [False, True])
def test_inputs_that_the_model_holds_stay(returns):
    def loss_of(output):
        return (output[0] if returns else output).pow(2).mean()

    model = Keeps(returns)
    updater = torch.optim.SGD(model.parameters())
    known = memscale.profile(model, (zoo.floats(4096, 64),), optimizer=updater, loss=loss_of)
    del model, updater
    simulated = simulate(known, ["recompute_offload"])
    with Meter() as meter:
        model, x = Keeps(returns), zoo.floats(4096, 64)
        zoo.wrap_with(model, ["recompute_offload"], simulated["schedule"])
        for step in range(N_STEPS):
            with meter.mark(f"step {step}"):
                loss_of(model(x)).backward()
                model.zero_grad()
    assert simulated["steady_peak_bytes"] == pytest.approx(meter[f"step {N_STEPS - 1}"].peak, rel=0.01)
