"""Models of many kinds, large enough that activations count in megabytes and small enough for a CPU.

The same kinds as in the zoo, whose models are too small to say anything of memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import nn

VOCAB, B, T = 512, 4, 96
IDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}


def tokens(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(3, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def floats(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gpt2(dropout: float = 0.1, **changes: Any) -> nn.Module:
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    settings = {"use_cache": False, **IDS, **drops, **changes}
    config = hf.GPT2Config(vocab_size=VOCAB, n_positions=T, n_embd=128, n_layer=3, n_head=4, **settings)
    config.loss_type = "ForCausalLM"
    return hf.GPT2LMHeadModel(config)


def _bert_like(kind: Any, model: Any, dropout: float, changes: dict[str, Any]) -> nn.Module:
    settings = {
        "vocab_size": VOCAB,
        "hidden_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "max_position_embeddings": T,
        "pad_token_id": 2,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }
    return model(kind(**{**settings, **changes}))


def bert(dropout: float = 0.1, **changes: Any) -> nn.Module:
    return _bert_like(hf.BertConfig, hf.BertForMaskedLM, dropout, changes)


def albert(dropout: float = 0.1, **changes: Any) -> nn.Module:
    """One block, called several times."""
    return _bert_like(hf.AlbertConfig, hf.AlbertForMaskedLM, dropout, {"embedding_size": 64, **changes})


def distilbert(dropout: float = 0.1, **changes: Any) -> nn.Module:
    config = hf.DistilBertConfig(
        vocab_size=VOCAB,
        dim=128,
        n_layers=3,
        n_heads=4,
        hidden_dim=256,
        max_position_embeddings=T,
        dropout=dropout,
        attention_dropout=dropout,
        pad_token_id=2,
        **changes,
    )
    return hf.DistilBertForMaskedLM(config)


def llama(dropout: float = 0.0, **changes: Any) -> nn.Module:
    settings = {"use_cache": False, **IDS, **changes}
    config = hf.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=256,
        max_position_embeddings=T,
        attention_dropout=dropout,
        **settings,
    )
    return hf.LlamaForCausalLM(config)


def mixtral(dropout: float = 0.0, **changes: Any) -> nn.Module:
    """A mixture of experts: routing depends on the data."""
    config = hf.MixtralConfig(
        vocab_size=VOCAB,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        num_local_experts=4,
        max_position_embeddings=T,
        attention_dropout=dropout,
        use_cache=False,
        **IDS,
        **changes,
    )
    return hf.MixtralForCausalLM(config)


def t5(dropout: float = 0.1, **changes: Any) -> nn.Module:
    config = hf.T5Config(
        vocab_size=VOCAB,
        d_model=128,
        d_kv=32,
        d_ff=256,
        num_layers=2,
        num_heads=4,
        dropout_rate=dropout,
        decoder_start_token_id=0,
        pad_token_id=2,
        eos_token_id=1,
        use_cache=False,
        **changes,
    )
    return hf.T5ForConditionalGeneration(config)


def whisper(dropout: float = 0.1, **changes: Any) -> nn.Module:
    """Encoder and decoder; the encoder's output feeds every block of the decoder."""
    config = hf.WhisperConfig(
        vocab_size=VOCAB,
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        num_mel_bins=40,
        max_source_positions=T,
        max_target_positions=T,
        dropout=dropout,
        decoder_start_token_id=0,
        use_cache=False,
        **IDS,
        **changes,
    )
    return hf.WhisperForConditionalGeneration(config)


def vit(dropout: float = 0.1, **changes: Any) -> nn.Module:
    drops = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    config = hf.ViTConfig(
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=256,
        image_size=64,
        patch_size=8,
        num_labels=10,
        **drops,
        **changes,
    )
    return hf.ViTForImageClassification(config)


def resnet() -> nn.Module:
    return hf.ResNetForImageClassification(
        hf.ResNetConfig(embedding_size=32, hidden_sizes=[32, 64], depths=[2, 2], layer_type="basic", num_labels=10)
    )


class Encoder(nn.Module):
    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(128, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 64)
        self.lstm = nn.LSTM(64, 96, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(96, VOCAB)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embedding(x))[0])


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 256),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(256, 256),
        nn.ReLU(inplace=True),
        nn.BatchNorm1d(256),
        nn.Linear(256, 256),
        nn.ReLU(inplace=True),
        nn.Linear(256, 16),
    )


class UNet(nn.Module):
    """Goes down, and up again with what it saw on the way down."""

    class Block(nn.Module):
        def __init__(self, n_in: int, n_out: int) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(n_in, n_out, 3, padding=1), nn.BatchNorm2d(n_out)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu_(self.norm(self.conv(x)))

    def __init__(self, n: int = 16) -> None:
        super().__init__()
        self.down = nn.ModuleList([UNet.Block(3, n), UNet.Block(n, 2 * n)])
        self.middle = UNet.Block(2 * n, 2 * n)
        self.up = nn.ModuleList([UNet.Block(4 * n, n), UNet.Block(2 * n, n)])
        self.head = nn.Conv2d(n, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.middle(x)
        for block in self.up:
            x = nn.functional.interpolate(x, scale_factor=2.0)
            x = block(torch.cat([x, skips.pop()], 1))
        return self.head(x)


class Tupled(nn.Module):
    """Blocks that pass a pair along, and return a tuple; there is no loss in it."""

    class Block(nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(n), nn.Linear(n, 2 * n), nn.Linear(2 * n, n)

        def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.down(nn.functional.gelu(self.up(self.norm(x))))
            return x + y, state + y.mean(1)

    def __init__(self, n: int = 128) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Tupled.Block(n) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> Any:
        state = torch.zeros_like(x[:, 0])
        for block in self.blocks:
            x, state = block(x, state)
        return x, state


class Structured(Tupled):
    """The same, returned as a structure."""

    @dataclasses.dataclass
    class Output:
        hidden: torch.Tensor
        state: torch.Tensor
        note: str = ""

    def forward(self, x: torch.Tensor) -> Any:
        return Structured.Output(*super().forward(x), note="done")


Batch = tuple[tuple[Any, ...], dict[str, Any]]


def lm() -> Batch:
    x = tokens(B, T)
    return (), {"input_ids": x, "labels": x}


def _seq2seq() -> Batch:
    return (), {"input_ids": tokens(B, T), "labels": tokens(B, T // 2, seed=2)}


def _image() -> Batch:
    return (), {"pixel_values": floats(B, 3, 64, 64), "labels": torch.arange(B)}


SIZES: dict[str, tuple[Callable[..., nn.Module], Callable[[], Batch]]] = {
    "gpt2": (gpt2, lm),
    "bert": (bert, lm),
    "llama": (llama, lm),
    "t5": (t5, _seq2seq),
    "vit": (vit, _image),
    "resnet": (resnet, _image),
    "albert": (albert, lm),
    "distilbert": (distilbert, lm),
    "mixtral": (mixtral, lm),
    "whisper": (whisper, lambda: ((), {"input_features": floats(B, 40, 2 * T), "labels": tokens(B, T // 2)})),
    "unet": (UNet, lambda: ((floats(B, 3, 64, 64),), {})),
    "encoder": (Encoder, lambda: ((floats(B, T, 128),), {})),
    "lstm": (Recurrent, lambda: ((tokens(B, T),), {})),
    "mlp": (mlp, lambda: ((floats(512, 64),), {})),
    "tuple": (Tupled, lambda: ((floats(B, T, 128),), {})),
    "dataclass": (Structured, lambda: ((floats(B, T, 128),), {})),
}


def make(name: str, **changes: Any) -> nn.Module:
    torch.manual_seed(0)
    return SIZES[name][0](**changes).train()


def batch_of(name: str) -> Batch:
    return SIZES[name][1]()


def loss_of(output: Any) -> torch.Tensor:
    """A model's own loss, or something that needs all of its output."""
    if isinstance(output, torch.Tensor):
        return output.float().pow(2).mean()
    if isinstance(getattr(output, "loss", None), torch.Tensor):
        return output.loss
    parts = output if isinstance(output, tuple) else (output.hidden, output.state)
    return parts[0].float().pow(2).mean() + parts[1].sum()
