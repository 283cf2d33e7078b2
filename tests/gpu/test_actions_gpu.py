"""All actions in random mixtures on a GPU: equal bit for bit to the plain run, with dropout, in five steps."""

import random
import warnings

import pytest
import torch
from torch import nn

import memscale
import zoo
from memscale._base.vocabulary import ACTIONS
from memscale._run import offloading, recomputation

RUNNABLE = [action.identifier for action in ACTIONS if action.is_runnable]


@pytest.fixture(autouse=True)
def _small_tensors_too(monkeypatch):
    monkeypatch.setattr(offloading, "OPTIONS", {"least_bytes": 1})
    monkeypatch.setattr(recomputation, "POINTWISE", {"least_bytes": 1})


def mixed(model, seed):
    """A plan with random actions, whose tensors leave and come back at random times."""
    draw = random.Random(seed)
    n = len(zoo.plan_of(model, ["keep"]).entries)
    schedule = [(draw.randint(0, 4), draw.randint(0, 4)) for _ in range(n)]
    return zoo.wrap_with(model, [draw.choice(RUNNABLE) for _ in range(n)], schedule)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("precision", ["fp32", "autocast"])
@pytest.mark.parametrize("name", list(zoo.SMALL.names))
def test_every_architecture(name, precision, seed):
    warnings.filterwarnings("ignore", category=memscale.MemScaleWarning)

    def run(wrap):
        model = zoo.make(name).cuda()
        if wrap:
            mixed(model, seed)
        return zoo.train(model, zoo.batch_of(name), steps=5, autocast=precision == "autocast")

    zoo.assert_same(run(False), run(True))


def train(model, batch, loss_of, steps=5):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    found = []
    torch.manual_seed(3)
    for _ in range(steps):
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(model(**batch))
        loss.backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        found.append((loss.detach().clone(), gradients))
        optimizer.step()
        optimizer.zero_grad()
    return found


def lora():
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"])
    model = peft.get_peft_model(zoo.make("llama"), config).cuda().train()
    ids = zoo.tokens(4, 16).cuda()
    return model, {"input_ids": ids, "labels": ids}, lambda output: output.loss


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        diffusers = pytest.importorskip("diffusers")
        self.unet = diffusers.UNet2DConditionModel(
            sample_size=16, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=32, norm_num_groups=8,
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
            attention_head_dim=4, dropout=0.1,
        )  # fmt: skip

    def forward(self, sample, text):
        return self.unet(sample, torch.tensor([3, 7], device=sample.device), text).sample


def denoiser():
    torch.manual_seed(0)
    model = Denoiser().cuda().train()
    return model, {"sample": torch.randn(2, 4, 16, 16).cuda(), "text": torch.randn(2, 5, 32).cuda()}, torch.mean


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("make", [lora, denoiser])
def test_models_of_others(make, seed):
    warnings.filterwarnings("ignore", category=memscale.MemScaleWarning)
    wanted = train(*make())
    model, batch, loss_of = make()
    mixed(model, seed)
    zoo.assert_same(wanted, train(model, batch, loss_of))
