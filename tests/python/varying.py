"""Models whose inputs vary in more than a batch and a length, and batches of random sizes for them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

Batch = dict[str, Any]


class Pictures(nn.Module):
    """A small convolutional network that takes images of any height and width."""

    def __init__(self, width: int, n_blocks: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(self._block(width) for _ in range(n_blocks))
        self.head = nn.Linear(width, 10)

    @staticmethod
    def _block(width: int) -> nn.Module:
        first, second = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        return nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU(), second)

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.stem(pixels)
        for block in self.blocks:
            x = x + block(x)
        return nn.functional.cross_entropy(self.head(x.mean((2, 3))), labels)


class Messages(nn.Module):
    """What the neighbours of each node send to it, added up."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width))
        self.update = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        sent = self.message(torch.cat([x[edges[0]], x[edges[1]]], -1))
        received = torch.zeros_like(x).index_add(0, edges[1], sent)
        return torch.relu(self.update(torch.cat([x, received], -1)))


class Graphs(nn.Module):
    """A graph network. A batch is one large graph of many small ones."""

    def __init__(self, width: int, n_layers: int) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.layers = nn.ModuleList(Messages(width) for _ in range(n_layers))
        self.head = nn.Linear(width, 1)

    def forward(
        self, nodes: torch.Tensor, edges: torch.Tensor, graph_of: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        x = self.embed(nodes)
        for layer in self.layers:
            x = layer(x, edges)
        pooled = x.new_zeros(labels.shape[0], x.shape[1]).index_add(0, graph_of, x)
        return nn.functional.mse_loss(self.head(pooled)[:, 0], labels)


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and its batches: ``batch(chooser, largest)``, of sizes up to ``largest``."""

    make: Callable[[], nn.Module]
    batch: Callable[[random.Random, int], Batch]
    largest: int


def sequences(chooser: random.Random, largest: int, batch: int = 4, n_words: int = 256) -> Batch:
    """Tokens in, tokens out: two lengths."""
    source, target = (chooser.randint(largest // 6, largest) for _ in range(2))
    ids, labels = torch.randint(3, n_words, (batch, source)), torch.randint(3, n_words, (batch, target))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def pictures(chooser: random.Random, largest: int, batch: int = 4) -> Batch:
    """Images of any height and width."""
    height, width = (chooser.randint(largest // 3, largest) for _ in range(2))
    return {"pixels": torch.randn(batch, 3, height, width), "labels": torch.randint(0, 10, (batch,))}


def graphs(chooser: random.Random, largest: int) -> Batch:
    """Some graphs, each with some nodes, and edges between all of them."""
    n_nodes = [chooser.randint(4, 12) for _ in range(chooser.randint(largest // 24, largest // 12))]
    total = sum(n_nodes)
    return {
        "nodes": torch.randn(total, 8),
        "edges": torch.randint(0, total, (2, chooser.randint(2 * total, 4 * total))),
        "graph_of": torch.repeat_interleave(torch.arange(len(n_nodes)), torch.tensor(n_nodes)),
        "labels": torch.randn(len(n_nodes)),
    }


def t5(width: int = 64, n_layers: int = 3) -> nn.Module:
    sizes = {"d_model": width, "d_kv": width // 4, "d_ff": 2 * width, "num_layers": n_layers, "num_heads": 4}
    config = transformers.T5Config(**sizes, vocab_size=256, decoder_start_token_id=0, use_cache=False)
    return transformers.T5ForConditionalGeneration(config).train()


def bart() -> nn.Module:
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    sizes = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
    config = transformers.BartConfig(**heads, **sizes, vocab_size=256, max_position_embeddings=512, use_cache=False)
    return transformers.BartForConditionalGeneration(config).train()


CASES = {
    "t5": Case(t5, sequences, 60),
    "images": Case(lambda: Pictures(16, 4).train(), pictures, 72),
    "graphs": Case(lambda: Graphs(32, 4).train(), graphs, 96),
}
