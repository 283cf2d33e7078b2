"""Autocast as the model has it: entered or left inside of forward, for a CPU and for a GPU that is not there."""

import contextlib

import pytest
import torch
from torch import nn

import memscale
import zoo
from memscale._trace import tracer as _trace
from memscale._trace.target import Target
from quick import _as_users_train, _one_thread  # noqa: F401
from test_predict import check, made, skip_unknown_bf16
from zoo import LARGE

STATIC = memscale.Config(use_empirical_fallback=False)
KINDS = {"cpu": "cpu", "cuda": "h100"}


class Inside(nn.Module):
    """Enters autocast in its forward, as accelerate does, and converts the outputs."""

    def __init__(self, model, kind="cpu"):
        super().__init__()
        self.model, self.kind = model, kind

    def forward(self, *args, **kwargs):
        with torch.autocast(self.kind, torch.bfloat16):
            output = self.model(*args, **kwargs)
        output["logits"] = output["logits"].float()
        return output


class Outside(nn.Module):
    """A part of it leaves autocast again."""

    def __init__(self, kind):
        super().__init__()
        self.first, self.second, self.kind = nn.Linear(64, 256), nn.Linear(256, 64), kind

    def forward(self, x):
        hidden = self.first(x)
        with torch.autocast(x.device.type, enabled=False):
            assert not torch.is_autocast_enabled(self.kind)
            hidden = self.second(hidden.float())
        return hidden


def peak(model, batch, device, precision="fp32"):
    args, kwargs = batch
    return memscale.profile(model, args or kwargs, device=device, precision=precision, config=STATIC).simulate()


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_entered_in_forward_predicts_what_is_measured(name):
    skip_unknown_bf16()
    check(lambda: Inside(LARGE.make(name)), lambda: LARGE.batch_of(name), config=STATIC)


@pytest.mark.parametrize("kind", KINDS)
def test_left_in_forward(kind):
    batch = ((zoo.floats(256, 64),), {})
    left = peak(Outside(kind), batch, KINDS[kind], "bf16")
    stayed = peak(nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 64)), batch, KINDS[kind], "bf16")
    assert left.parts["activations"] > stayed.parts["activations"]


@pytest.mark.parametrize("kind", KINDS)
def test_both_ways_of_asking_agree(kind):
    """`precision=` enters autocast as a model would."""

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([zoo.Block(64) for _ in range(3)])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x.float().pow(2).mean()

    class Within(Around):
        def forward(self, x):
            with torch.autocast(kind, torch.bfloat16):
                return super().forward(x)

    def traced(cls, autocast):
        torch.manual_seed(0)
        tracer = _trace.Tracer(cls(), Target(kind, 90, autocast))
        return made(tracer.static((zoo.floats(128, 64),), {}, lambda loss: loss, None, recompute=True))

    assert traced(Around, torch.bfloat16) == traced(Within, None)


def test_weights_are_cast_once_in_a_block():
    """The cache of casts lives as long as the outermost autocast block."""

    class Twice(nn.Module):
        def __init__(self, together):
            super().__init__()
            self.linear, self.together = nn.Linear(64, 64, bias=False), together

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16) if self.together else contextlib.nullcontext():
                for _ in range(2):
                    with torch.autocast("cpu", torch.bfloat16):
                        x = self.linear(x)
            return x.float().sum()

    def casts(together):
        tracer = _trace.Tracer(Twice(together), Target("cpu", 0))
        counts = made(tracer.static((zoo.floats(128, 64),), {}, lambda loss: loss, None))
        return sum(
            n for (phase, repeated, name, size), n in counts.items() if name == "_to_copy" and size == 64 * 64 * 2
        )

    assert casts(True) == 1
    assert casts(False) == 2
