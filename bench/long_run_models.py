"""The models of long_run.py, from configurations with random weights, and batches of random sizes for them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from torch import nn

transformers.logging.set_verbosity_error()

Batch = dict[str, torch.Tensor]
PAD, IMAGE, START, END = 0, 3, 4, 5  # tokens with a meaning; text has those above


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of a model and its batches: `share` is what share of the range a batch takes, 1 the largest."""

    batch: int
    least: int  # tokens of text
    most: int
    width: int
    n_layers: int
    n_heads: int
    n_words: int
    most_images: int = 0  # of each sequence
    vision_width: int = 0
    n_vision_layers: int = 0
    image_pixels: int = 0  # height and width, at most

    def length(self, share: float) -> int:
        return self.least + round(share * (self.most - self.least))


@dataclasses.dataclass(frozen=True)
class Model:
    make: Callable[[Sizes], nn.Module]
    batch: Callable[[Sizes, Callable[[], float]], Batch]  # shares come from the function
    blocks: tuple[str, ...]  # beginnings of the names of repeated layers
    sizes: dict[str, Sizes]  # by type of device


def gpt2(s: Sizes) -> nn.Module:
    sizes = {"n_embd": s.width, "n_layer": s.n_layers, "n_head": s.n_heads, "n_positions": s.most}
    ids = {"bos_token_id": None, "eos_token_id": None}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=s.n_words, use_cache=False, **sizes, **ids))


def text(s: Sizes, n: int) -> torch.Tensor:
    return torch.randint(END + 1, s.n_words, (n,))


def tokens(s: Sizes, share: Callable[[], float]) -> Batch:
    length = s.length(share())
    ids = torch.stack([text(s, length) for _ in range(s.batch)])
    return {"input_ids": ids, "labels": ids}


def padded(sequences: list[torch.Tensor]) -> Batch:
    """With their labels: text alone counts."""
    ids = nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=PAD)
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": ids.masked_fill(ids <= END, -100)}


def language(s: Sizes) -> dict[str, Any]:
    return {
        "hidden_size": s.width,
        "intermediate_size": 2 * s.width,
        "num_hidden_layers": s.n_layers,
        "num_attention_heads": s.n_heads,
        "num_key_value_heads": s.n_heads,
        "vocab_size": s.n_words,
        "max_position_embeddings": 8192,
        "use_cache": False,
    }


_PATCH = 14


def llava(s: Sizes) -> nn.Module:
    vision = transformers.CLIPVisionConfig(
        hidden_size=s.vision_width,
        intermediate_size=4 * s.vision_width,
        num_hidden_layers=s.n_vision_layers,
        num_attention_heads=s.vision_width // 32,
        image_size=s.image_pixels,
        patch_size=_PATCH,
    )
    words = transformers.LlamaConfig(**language(s))
    config = transformers.LlavaConfig(vision_config=vision, text_config=words, image_token_index=IMAGE)
    return transformers.LlavaForConditionalGeneration(config)


def images_and_text(s: Sizes, share: Callable[[], float]) -> Batch:
    """Some images, all of one size, before the text of each sequence; at least one in a batch."""
    counts = [round(share() * s.most_images) for _ in range(s.batch)]
    counts[0] = max(counts[0], 1)
    n_tokens = (s.image_pixels // _PATCH) ** 2
    sequences = [torch.cat([torch.full((n * n_tokens,), IMAGE), text(s, s.length(share()))]) for n in counts]
    return {**padded(sequences), "pixel_values": torch.randn(sum(counts), 3, s.image_pixels, s.image_pixels)}


def qwen(s: Sizes) -> nn.Module:
    vision = {
        "depth": s.n_vision_layers,
        "hidden_size": s.vision_width,
        "intermediate_size": 4 * s.vision_width,
        "num_heads": s.vision_width // 32,
        "out_hidden_size": s.width,
        "patch_size": _PATCH,
        "window_size": 4 * _PATCH,
        "fullatt_block_indexes": [s.n_vision_layers - 1],
    }
    part = s.width // s.n_heads // 8
    rope = {"type": "mrope", "rope_type": "default", "mrope_section": [2 * part, part, part]}
    config = transformers.Qwen2_5_VLConfig(
        vision_config=vision,
        text_config={**language(s), "rope_scaling": rope, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": PAD},
        image_token_id=IMAGE,
        video_token_id=2,
        vision_start_token_id=START,
        vision_end_token_id=END,
    )
    return transformers.Qwen2_5_VLForConditionalGeneration(config)


def images_of_any_size(s: Sizes, share: Callable[[], float]) -> Batch:
    """Images of any height and width, before the text of each sequence. Four patches become one token."""
    most, sequences, grids = s.image_pixels // _PATCH // 2, [], []
    for i in range(s.batch):
        parts = []
        for _ in range(max(round(share() * s.most_images), i == 0)):
            height, width = (1 + round(share() * (most - 1)) for _ in range(2))
            grids.append([1, 2 * height, 2 * width])
            parts += [torch.tensor([START]), torch.full((height * width,), IMAGE), torch.tensor([END])]
        sequences.append(torch.cat([*parts, text(s, s.length(share()))]))
    n_patches = sum(height * width for _, height, width in grids)
    batch = padded(sequences)
    batch["mm_token_type_ids"] = (batch["input_ids"] == IMAGE).int()
    pixels = torch.randn(n_patches, 3 * 2 * _PATCH * _PATCH)
    return {**batch, "pixel_values": pixels, "image_grid_thw": torch.tensor(grids)}


_SMALL = Sizes(4, 16, 192, 192, 4, 4, 512)
_SMALL_VISION = Sizes(2, 16, 128, 128, 4, 4, 512, 3, 64, 3, 84)
_VISION = Sizes(4, 64, 1024, 1024, 12, 16, 32000, 4, 768, 8, 224)

MODELS = {
    "gpt2": Model(gpt2, tokens, ("transformer.h.",), {"cpu": _SMALL, "cuda": Sizes(4, 64, 2048, 1024, 24, 16, 50257)}),
    "llava": Model(
        llava,
        images_and_text,
        ("model.language_model.layers.", "model.vision_tower."),
        {"cpu": _SMALL_VISION, "cuda": _VISION},
    ),
    "qwen2.5-vl": Model(
        qwen,
        images_of_any_size,
        ("model.language_model.layers.", "model.visual.blocks."),
        {"cpu": _SMALL_VISION, "cuda": _VISION},
    ),
}
