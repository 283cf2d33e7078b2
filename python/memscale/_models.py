"""Models by name, for estimates and benchmarks: configurations of transformers, and what a batch for them looks like.

Nothing is downloaded: a model is made from its configuration, on the meta device or with random weights.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .errors import MemScaleError

Batch = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A model of the registry.

    Attributes:
        config: the configuration class of transformers.
        model: the model class.
        sizes: what the configuration is made with.
        length: the default length of a sequence; 0 for images.
    """

    config: str
    model: str
    sizes: dict[str, Any]
    length: int = 512


def _gpt2(width: int, layers: int, heads: int) -> Entry:
    return Entry("GPT2Config", "GPT2LMHeadModel", {"n_embd": width, "n_layer": layers, "n_head": heads})


def _bert(width: int, layers: int, heads: int) -> Entry:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return Entry("BertConfig", "BertForMaskedLM", {**sizes, "intermediate_size": 4 * width}, 128)


def _llama(width: int, layers: int, heads: int, kv_heads: int, inner: int, vocab: int, tied: bool = False) -> Entry:
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
        "max_position_embeddings": 131072,
    }
    return Entry("LlamaConfig", "LlamaForCausalLM", sizes, 2048)


def _t5(width: int, inner: int, layers: int, heads: int) -> Entry:
    sizes = {"d_model": width, "d_ff": inner, "num_layers": layers, "num_heads": heads}
    return Entry("T5Config", "T5ForConditionalGeneration", {**sizes, "decoder_start_token_id": 0}, 256)


def _vit(width: int, layers: int, heads: int, patch: int = 16) -> Entry:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "patch_size": patch}
    return Entry("ViTConfig", "ViTForImageClassification", {**sizes, "intermediate_size": 4 * width}, 0)


REGISTRY: dict[str, Entry] = {
    "gpt2": _gpt2(768, 12, 12),
    "gpt2-medium": _gpt2(1024, 24, 16),
    "gpt2-large": _gpt2(1280, 36, 20),
    "gpt2-xl": _gpt2(1600, 48, 25),
    "bert-base": _bert(768, 12, 12),
    "bert-large": _bert(1024, 24, 16),
    "llama-1b": _llama(2048, 16, 32, 8, 8192, 128256, tied=True),
    "llama-3b": _llama(3072, 28, 24, 8, 8192, 128256, tied=True),
    "llama-7b": _llama(4096, 32, 32, 32, 11008, 32000),
    "llama-8b": _llama(4096, 32, 32, 8, 14336, 128256),
    "t5-small": _t5(512, 2048, 6, 8),
    "t5-base": _t5(768, 3072, 12, 12),
    "t5-large": _t5(1024, 4096, 24, 16),
    "vit-base": _vit(768, 12, 12),
    "vit-large": _vit(1024, 24, 16),
    "vit-huge": _vit(1280, 32, 16, 14),
}


def transformers() -> Any:
    """The package; raises MemScaleError with advice where it is missing."""
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise MemScaleError(
            "models by name or by configuration file come from transformers, which is not installed "
            "(pip install transformers). module:function needs nothing but torch."
        ) from error


def make_config(name: str) -> Any:
    """The configuration of a model of the registry, or of a configuration file."""
    if name in REGISTRY:
        entry = REGISTRY[name]
        return getattr(transformers(), entry.config)(**entry.sizes, use_cache=False)
    if name.endswith(".json") or Path(name).is_dir():
        return _read_config(Path(name))
    close = difflib.get_close_matches(name, REGISTRY, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    raise MemScaleError(
        f"there is no model '{name}'.{hint} Known: {', '.join(REGISTRY)}; or give a transformers configuration file "
        "(config.json), or module:function."
    )


def _read_config(path: Path) -> Any:
    path = path / "config.json" if path.is_dir() else path
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MemScaleError(f"cannot read the configuration {path}: {error}") from error
    if not isinstance(settings, dict) or not isinstance(settings.get("model_type"), str):
        raise MemScaleError(f"{path} is not a configuration of transformers: it has no model_type")
    kind = settings.pop("model_type")
    try:
        config = transformers().AutoConfig.for_model(kind, **settings)
    except (ValueError, KeyError, TypeError) as error:
        raise MemScaleError(f"transformers does not take the configuration {path}: {error}") from error
    if hasattr(config, "use_cache"):
        config.use_cache = False
    return config


def _model_class(config: Any, name: str) -> Any:
    """The class of the registry, else the first that the configuration names, else by task."""
    package = transformers()
    if name in REGISTRY:
        return getattr(package, REGISTRY[name].model)
    for architecture in getattr(config, "architectures", None) or []:
        if hasattr(package, architecture):
            return getattr(package, architecture)
    for task in ("CausalLM", "Seq2SeqLM", "MaskedLM", "ImageClassification", "SequenceClassification"):
        mapping = getattr(package, f"MODEL_FOR_{_upper(task)}_MAPPING", None)
        if mapping is not None and type(config) in mapping:
            return mapping[type(config)]
    raise MemScaleError(f"transformers has no trainable model for '{config.model_type}'; give module:function")


def _upper(task: str) -> str:
    names = {"CausalLM": "CAUSAL_LM", "Seq2SeqLM": "SEQ_TO_SEQ_CAUSAL_LM", "MaskedLM": "MASKED_LM"}
    names |= {"ImageClassification": "IMAGE_CLASSIFICATION", "SequenceClassification": "SEQUENCE_CLASSIFICATION"}
    return names[task]


def make_model(name: str, device: str = "meta", dtype: torch.dtype = torch.float32) -> nn.Module:
    """A model by its name or configuration file, in training mode. On the meta device it takes no memory."""
    config = make_config(name)
    model_class = _model_class(config, name)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # so that no copy in another type is made first
    try:
        with torch.device(device):
            model: nn.Module = model_class(config)
    finally:
        torch.set_default_dtype(before)
    return model.to(dtype).train()


def default_length(name: str, config: Any) -> int:
    """A sensible length of a sequence for this model."""
    known = REGISTRY[name].length if name in REGISTRY else 512
    return int(min(known, getattr(config, "max_position_embeddings", known) or known))


def make_batch(config: Any, batch: int, length: int, device: str = "meta", dtype: torch.dtype = torch.float32) -> Batch:
    """Inputs and labels for a model with this configuration. For the meta device indices are on the CPU: a model may
    look at their values."""
    if hasattr(config, "image_size") and not hasattr(config, "vocab_size"):
        side = config.image_size if isinstance(config.image_size, int) else config.image_size[0]
        pixels = torch.empty(batch, config.num_channels, side, side, device=device, dtype=dtype)
        if device != "meta":
            pixels.normal_()
        return {"pixel_values": pixels, "labels": torch.zeros(batch, dtype=torch.int64, device=device)}
    ids = torch.arange(batch * length).remainder(config.vocab_size - 1).add(1).reshape(batch, length)
    ids = ids if device == "meta" else ids.to(device)
    return {"input_ids": ids, "labels": ids.clone()}
