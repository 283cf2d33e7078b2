"""torch's and Hugging Face's checkpointing inside of a model: analysed for a CPU and for a GPU that is not there."""

import itertools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import memscale
import zoo
from quick import _as_users_train, _one_thread  # noqa: F401
from test_predict import check
from zoo import LARGE

STATIC = memscale.Config(use_empirical_fallback=False)
WIDTH = 128


class Checkpointed(nn.Module):
    """Every block is checkpointed by torch."""

    def __init__(self, **options):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList([zoo.Block(WIDTH) for _ in range(4)])
        self.options = options

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, **self.options)
        return x


CASES = list(itertools.product((True, False), (True, False)))


@pytest.mark.parametrize(("reentrant", "rng"), CASES)
def test_on_the_cpu(reentrant, rng):
    options = {"use_reentrant": reentrant, "preserve_rng_state": rng}
    known = check(
        lambda: Checkpointed(**options),
        lambda: ((zoo.floats(4096, WIDTH),), {}),
        "fp32",
        "sgd",
        (False,),
        config=STATIC,
    )
    plain = nn.Sequential(nn.Linear(WIDTH, WIDTH), *(zoo.Block(WIDTH) for _ in range(4)))
    assert (
        known.simulate().steady_peak_bytes
        < memscale.profile(
            plain,
            zoo.floats(4096, WIDTH),
            optimizer=torch.optim.SGD(plain.parameters(), momentum=0.9),
            loss=zoo.loss_of,
        )
        .simulate()
        .steady_peak_bytes
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("reentrant", "rng"), CASES)
def test_for_a_gpu(reentrant, rng, precision):
    model = Checkpointed(use_reentrant=reentrant, preserve_rng_state=rng)
    known = memscale.profile(model, zoo.floats(64, WIDTH), device="h100", precision=precision, config=STATIC)
    assert known.source == "static"


def checkpointing(name, reentrant):
    model = LARGE.make(name)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()
    return model


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("name", ["gpt2", pytest.param("bert", marks=pytest.mark.long), "llama", "t5"])
def test_of_hugging_face(name, reentrant):
    check(lambda: checkpointing(name, reentrant), lambda: LARGE.batch_of(name), ways=(False, True), config=STATIC)
    args, kwargs = LARGE.batch_of(name)
    for precision in ("fp32", "bf16"):
        known = memscale.profile(
            checkpointing(name, reentrant), args or kwargs, device="h100", precision=precision, config=STATIC
        )
        assert known.source == "static"
