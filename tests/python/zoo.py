"""Small models of many kinds, with a batch and a loss for each, and training that records what must match."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import nn

import memscale
from memscale.plans import Plan

VOCAB = 64
IDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}


def tokens(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(3, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def floats(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gpt2(**changes: Any) -> nn.Module:
    settings = {"use_cache": False, **IDS, **changes}
    config = hf.GPT2Config(vocab_size=VOCAB, n_positions=32, n_embd=32, n_layer=3, n_head=4, **settings)
    config.loss_type = "ForCausalLM"
    return hf.GPT2LMHeadModel(config)


def bert() -> nn.Module:
    return hf.BertForMaskedLM(
        hf.BertConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=32,
            pad_token_id=2,
        )
    )


def llama(**changes: Any) -> nn.Module:
    return hf.LlamaForCausalLM(
        hf.LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
            attention_dropout=0.1,
            **IDS,
            **changes,
        )
    )


def t5() -> nn.Module:
    return hf.T5ForConditionalGeneration(
        hf.T5Config(
            vocab_size=VOCAB,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            decoder_start_token_id=0,
            pad_token_id=2,
            eos_token_id=1,
            use_cache=False,
        )
    )


def vit() -> nn.Module:
    return hf.ViTForImageClassification(
        hf.ViTConfig(
            hidden_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=64,
            image_size=16,
            patch_size=4,
            num_labels=4,
            hidden_dropout_prob=0.1,
            attention_probs_dropout_prob=0.1,
        )
    )


def resnet() -> nn.Module:
    return hf.ResNetForImageClassification(
        hf.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[2, 3], layer_type="basic", num_labels=4, num_channels=3
        )
    )


def albert() -> nn.Module:
    """One block, called several times."""
    return hf.AlbertForMaskedLM(
        hf.AlbertConfig(
            vocab_size=VOCAB,
            embedding_size=16,
            hidden_size=32,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=32,
            hidden_dropout_prob=0.1,
            attention_probs_dropout_prob=0.1,
            pad_token_id=2,
        )
    )


def mixtral() -> nn.Module:
    """A mixture of experts: routing depends on the data."""
    return hf.MixtralForCausalLM(
        hf.MixtralConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=32,
            num_local_experts=4,
            max_position_embeddings=64,
            attention_dropout=0.1,
            **IDS,
        )
    )


def whisper() -> nn.Module:
    """Encoder and decoder; the encoder's output feeds every block of the decoder."""
    return hf.WhisperForConditionalGeneration(
        hf.WhisperConfig(
            vocab_size=VOCAB,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            num_mel_bins=8,
            max_source_positions=16,
            max_target_positions=32,
            dropout=0.1,
            decoder_start_token_id=0,
            **IDS,
        )
    )


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 16)
        self.lstm = nn.LSTM(16, 32, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(32, VOCAB)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embedding(x))[0])


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 32),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(32, 32),
        nn.ReLU(inplace=True),
        nn.BatchNorm1d(32),
        nn.Linear(32, 4),
    )


class UNet(nn.Module):
    """Skips travel in a list that blocks push to and pop from: blocks that change their inputs."""

    class Down(nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(n, n, 3, padding=1), nn.BatchNorm2d(n)

        def forward(self, x: torch.Tensor, skips: list[torch.Tensor]) -> torch.Tensor:
            skips.append(x)
            return torch.relu_(self.norm(self.conv(x)))

    class Up(nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2 * n, n, 3, padding=1)

        def forward(self, x: torch.Tensor, skips: list[torch.Tensor]) -> torch.Tensor:
            return torch.nn.functional.gelu(self.conv(torch.cat([x, skips.pop()], 1)))

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([UNet.Down(3) for _ in range(2)])
        self.middle = nn.ModuleList([nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.GELU()) for _ in range(2)])
        self.up = nn.ModuleList([UNet.Up(3) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips: list[torch.Tensor] = []
        for block in self.down:
            x = block(x, skips)
        for block in self.middle:
            x = block(x)
        for block in self.up:
            x = block(x, skips)
        return x


class Block(nn.Module):
    """A residual block with dropout; subclasses change one thing."""

    def __init__(self, n: int = 16) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(n, n), nn.Linear(n, n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.b(nn.functional.dropout(torch.relu(self.a(x)), 0.1, self.training))


class Chain(nn.Module):
    def __init__(self, block: Callable[[], nn.Module], n: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([block() for _ in range(n)])

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        for block in self.blocks:
            x = block(x, *args, **kwargs)
        return x


Batch = tuple[tuple[Any, ...], dict[str, Any]]


def _lm() -> Batch:
    x = tokens(2, 12)
    return (x,), {"labels": x}


def _seq2seq() -> Batch:
    return (), {"input_ids": tokens(2, 10), "labels": tokens(2, 7, seed=2)}


def _image() -> Batch:
    return (), {"pixel_values": floats(2, 3, 16, 16), "labels": torch.tensor([0, 3])}


ZOO: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batch]]] = {
    "gpt2": (gpt2, _lm),
    "bert": (bert, _lm),
    "llama": (llama, _lm),
    "t5": (t5, _seq2seq),
    "vit": (vit, _image),
    "resnet": (resnet, _image),
    "encoder": (Encoder, lambda: ((floats(2, 10, 32),), {})),
    "lstm": (Recurrent, lambda: ((tokens(2, 10),), {})),
    "mlp": (mlp, lambda: ((floats(6, 16),), {})),
    "albert": (albert, _lm),
    "mixtral": (mixtral, _lm),
    "whisper": (whisper, lambda: ((), {"input_features": floats(2, 8, 32), "labels": tokens(2, 7)})),
    "unet": (UNet, lambda: ((floats(2, 3, 8, 8),), {})),
}


def make(name: str) -> nn.Module:
    torch.manual_seed(0)
    return ZOO[name][0]().train()


def batch_of(name: str) -> Batch:
    return ZOO[name][1]()


def move(batch: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """A batch on another device; floating-point inputs in another type."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, dtype) if batch.is_floating_point() else batch.to(device)
    if isinstance(batch, dict):
        return {key: move(value, device, dtype) for key, value in batch.items()}
    return tuple(move(value, device, dtype) for value in batch)


def loss_of(output: Any) -> torch.Tensor:
    if isinstance(output, torch.Tensor):
        return output.float().pow(2).mean()
    return output.loss


def everything_recomputed(model: nn.Module, **config: Any) -> nn.Module:
    """Wrap with a plan that recomputes every unit, through JSON as a user would."""
    settings = memscale.Config(enable_logging=False, **config)
    memscale.wrap(model, settings)
    text = model._memscale_executor.plan.to_json()  # the lean start: everything
    memscale.detach(model)
    return memscale.wrap(model, settings, plan=Plan.from_json(text))


def train(
    model: nn.Module, batch: Batch, steps: int = 3, autocast: bool = False, accumulate: int = 1, seed: int = 7
) -> dict[str, Any]:
    """Train a few steps where the model is; losses, gradients, parameters, buffers and random state at the end."""
    first = next(model.parameters())
    args, kwargs = copy.deepcopy(batch) if first.device.type == "cpu" else move(batch, first.device, first.dtype)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    torch.manual_seed(seed)
    record: dict[str, Any] = {"losses": [], "gradients": []}
    for _ in range(steps):
        for _ in range(accumulate):
            with torch.autocast(first.device.type, torch.bfloat16, enabled=autocast):
                loss = loss_of(model(*args, **kwargs))
            loss.backward()
            record["losses"].append(loss.detach().clone())
        record["gradients"].append({n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()})
        optimizer.step()
        optimizer.zero_grad()
    record["state"] = {name: value.clone() for name, value in model.state_dict().items()}
    record["random"] = torch.get_rng_state()
    if first.is_cuda:
        record["random of the GPU"] = torch.cuda.get_rng_state(first.device)
    return record


def assert_same(a: Any, b: Any, where: str = "") -> None:
    """Equal bit for bit, in nested records."""
    if isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor), where
        assert a.dtype == b.dtype, where
        assert a.shape == b.shape, where
        same = torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())
        assert same, f"{where}: differs by {(a.double() - b.double()).abs().max()}"
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b)):
            assert_same(x, y, f"{where}[{i}]")
    else:
        assert a == b, where
