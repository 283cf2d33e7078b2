"""Models by name, for estimates and benchmarks: configurations of transformers, and what a batch for them looks like.

Nothing is downloaded: a model is made from its configuration, on the meta device or with random weights.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .._trace.meta_values import MAX_ELEMENTS
from ..errors import MemScaleError

Batch = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class RegisteredModel:
    """A model of the registry.

    Attributes:
        config: the configuration class of transformers.
        model: the model class.
        sizes: what the configuration is made with.
        length: the default length of a sequence (of what is generated, for speech); 0 for images.
    """

    config: str
    model: str
    sizes: dict[str, Any]
    length: int = 512


def _gpt2(width: int, layers: int, heads: int) -> RegisteredModel:
    return RegisteredModel("GPT2Config", "GPT2LMHeadModel", {"n_embd": width, "n_layer": layers, "n_head": heads})


def _bert(width: int, layers: int, heads: int) -> RegisteredModel:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return RegisteredModel("BertConfig", "BertForMaskedLM", {**sizes, "intermediate_size": 4 * width}, 128)


def _decoder(
    family: str, width: int, layers: int, heads: int, kv_heads: int, inner: int, **more: Any
) -> RegisteredModel:
    """A decoder as Llama made them: rotary positions, gated MLP, heads that share keys and values."""
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "tie_word_embeddings": False,
    }
    return RegisteredModel(f"{family}Config", f"{family}ForCausalLM", {**sizes, **more}, 2048)


def _llama(
    width: int, layers: int, heads: int, kv_heads: int, inner: int, vocab: int, tied: bool = False
) -> RegisteredModel:
    more = {"vocab_size": vocab, "tie_word_embeddings": tied, "max_position_embeddings": 131072}
    return _decoder("Llama", width, layers, heads, kv_heads, inner, **more)


def _qwen(
    width: int, layers: int, heads: int, kv_heads: int, inner: int, vocab: int, tied: bool = False
) -> RegisteredModel:
    more = {"vocab_size": vocab, "tie_word_embeddings": tied, "max_position_embeddings": 32768}
    return _decoder("Qwen2", width, layers, heads, kv_heads, inner, **more)


def _opt(width: int, layers: int, heads: int) -> RegisteredModel:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "ffn_dim": 4 * width}
    return RegisteredModel("OPTConfig", "OPTForCausalLM", {**sizes, "word_embed_proj_dim": width})


def _t5(width: int, inner: int, layers: int, heads: int) -> RegisteredModel:
    sizes = {"d_model": width, "d_ff": inner, "num_layers": layers, "num_heads": heads}
    return RegisteredModel("T5Config", "T5ForConditionalGeneration", {**sizes, "decoder_start_token_id": 0}, 256)


def _vit(width: int, layers: int, heads: int, patch: int = 16) -> RegisteredModel:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "patch_size": patch}
    return RegisteredModel("ViTConfig", "ViTForImageClassification", {**sizes, "intermediate_size": 4 * width}, 0)


def _two_sided(family: str, layers: int, length: int, **more: Any) -> RegisteredModel:
    """An encoder and a decoder of the same size, 768 wide."""
    sizes: dict[str, Any] = {"d_model": 768}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": layers, f"{side}_attention_heads": 12, f"{side}_ffn_dim": 3072}
    return RegisteredModel(f"{family}Config", f"{family}ForConditionalGeneration", {**sizes, **more}, length)


_ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
_MISTRAL = {"vocab_size": 32768, "max_position_embeddings": 32768, "sliding_window": None}
_PHI_2 = {"vocab_size": 51200, "max_position_embeddings": 2048, "partial_rotary_factor": 0.4}
_PHI_3 = {"vocab_size": 32064, "max_position_embeddings": 4096}

REGISTRY: dict[str, RegisteredModel] = {
    "gpt2": _gpt2(768, 12, 12),
    "gpt2-medium": _gpt2(1024, 24, 16),
    "gpt2-large": _gpt2(1280, 36, 20),
    "gpt2-xl": _gpt2(1600, 48, 25),
    "bert-base": _bert(768, 12, 12),
    "bert-large": _bert(1024, 24, 16),
    "distilbert": RegisteredModel("DistilBertConfig", "DistilBertForMaskedLM", {}, 128),
    "roberta-base": RegisteredModel("RobertaConfig", "RobertaForMaskedLM", _ROBERTA, 128),
    "llama-1b": _llama(2048, 16, 32, 8, 8192, 128256, tied=True),
    "llama-3b": _llama(3072, 28, 24, 8, 8192, 128256, tied=True),
    "llama-7b": _llama(4096, 32, 32, 32, 11008, 32000),
    "llama-8b": _llama(4096, 32, 32, 8, 14336, 128256),
    "mistral-7b": _decoder("Mistral", 4096, 32, 32, 8, 14336, **_MISTRAL),
    "qwen-0.5b": _qwen(896, 24, 14, 2, 4864, 151936, tied=True),
    "qwen-1.5b": _qwen(1536, 28, 12, 2, 8960, 151936, tied=True),
    "qwen-7b": _qwen(3584, 28, 28, 4, 18944, 152064),
    "opt-125m": _opt(768, 12, 12),
    "opt-1.3b": _opt(2048, 24, 32),
    "phi-2": _decoder("Phi", 2560, 32, 32, 32, 10240, **_PHI_2),
    "phi-3-mini": _decoder("Phi3", 3072, 32, 32, 32, 8192, **_PHI_3),
    "t5-small": _t5(512, 2048, 6, 8),
    "t5-base": _t5(768, 3072, 12, 12),
    "t5-large": _t5(1024, 4096, 24, 16),
    "bart-base": _two_sided("Bart", 6, 256, vocab_size=50265),
    "whisper-small": _two_sided("Whisper", 12, 448, vocab_size=51865),
    "vit-base": _vit(768, 12, 12),
    "vit-large": _vit(1024, 24, 16),
    "vit-huge": _vit(1280, 32, 16, 14),
}

# Which class of transformers to take where a configuration names none, by task, the most specific first: decoders
# that are part of another model are listed under CAUSAL_LM as well.
_TASKS = (
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "MASKED_LM",
    "CAUSAL_LM",
    "IMAGE_CLASSIFICATION",
    "SEQUENCE_CLASSIFICATION",
)
# What batches can be made for, by the end of a class' name, and the shape of the labels there.
_KINDS = {
    "LMHeadModel": "tokens",
    "ForCausalLM": "tokens",
    "ForMaskedLM": "tokens",
    "ForConditionalGeneration": "tokens",
    "ForTokenClassification": "classes",
    "ForSequenceClassification": "samples",
    "ForImageClassification": "samples",
}
_POSITIONS = ("wpe", "position_embeddings", "embed_positions", "position_embedding")


def transformers() -> Any:
    """The package; raises MemScaleError with advice where it is missing."""
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise MemScaleError(
            "models by name or by configuration file come from transformers, which is not installed "
            "(pip install transformers). module:function needs nothing but torch."
        ) from error


# Configurations


def is_file(name: str) -> bool:
    """Does this name a configuration file, or the folder of one?"""
    return name not in REGISTRY and name != "" and (name.endswith(".json") or Path(name).is_dir())


def make_config(name: str) -> Any:
    """The configuration of a model of the registry, or of a configuration file."""
    if name in REGISTRY:
        entry = REGISTRY[name]
        return getattr(transformers(), entry.config)(**entry.sizes, use_cache=False)
    if is_file(name):
        return _read_config(Path(name))
    close = difflib.get_close_matches(name, REGISTRY, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    if "/" in name and not hint:
        hint = " Nothing is downloaded: of a model of the hub, give its config.json."
    raise MemScaleError(
        f"there is no model '{name}'.{hint} Known are {', '.join([*REGISTRY][:4])} and others (memscale estimate "
        "--list-models); or give a config.json of transformers, or module:function"
    )


def _read_config(path: Path) -> Any:
    path = path / "config.json" if path.is_dir() else path
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MemScaleError(f"cannot read the configuration {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise MemScaleError(f"cannot read the configuration {path}: it is not JSON ({error})") from error
    if not isinstance(settings, dict) or not isinstance(settings.get("model_type"), str):
        raise MemScaleError(f"{path} is not a configuration of transformers: it has no model_type")
    package = transformers()
    kind = settings.pop("model_type")
    if kind not in package.CONFIG_MAPPING:
        raise MemScaleError(f"{path}: transformers {package.__version__} knows no model_type '{kind}'")
    try:
        config = package.AutoConfig.for_model(kind, **settings)
    except Exception as error:  # each class checks in its own way
        raise MemScaleError(f"transformers does not take the configuration {path}: {one_line(error)}") from error
    if hasattr(config, "use_cache"):
        config.use_cache = False
    if getattr(config, "is_encoder_decoder", False) and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = getattr(config, "pad_token_id", None) or 0
    return config


# Models


def _model_class(config: Any, name: str) -> Any:
    """The class of the registry, else the first that the configuration names and that has a loss, else by task."""
    package = transformers()
    if name in REGISTRY:
        return getattr(package, REGISTRY[name].model)
    for architecture in getattr(config, "architectures", None) or []:
        model_class = getattr(package, str(architecture), None)
        if not (isinstance(model_class, type) and issubclass(model_class, nn.Module)):
            continue
        if _has_batch(config, model_class):
            return model_class
        if not model_class.__name__.endswith("Model"):  # a model without a head gets one; other heads need other labels
            raise MemScaleError(f"{name}: no batch can be made for {architecture}; give module:function")
    for task in _TASKS:
        mapping = getattr(package, f"MODEL_FOR_{task}_MAPPING", None)
        candidates = mapping[type(config)] if mapping is not None and type(config) in mapping else ()
        for model_class in candidates if isinstance(candidates, tuple) else (candidates,):
            if _has_batch(config, model_class):
                return model_class
    raise MemScaleError(f"{name}: no batch can be made for models of type '{config.model_type}'; give module:function")


def _has_batch(config: Any, model_class: Any) -> bool:
    """Can make_batch make one for it?"""
    if _kind_of(model_class) is None:
        return False
    if model_class.main_input_name == "pixel_values":
        return takes_images(config, model_class)
    if model_class.main_input_name == "input_features":
        return _takes_speech(config)
    return model_class.main_input_name == "input_ids" and _vocabulary(config) > 0


def _kind_of(model_class: type) -> str | None:
    """The shape of its labels; None: that is not known, or it takes none."""
    name = model_class.__name__
    known = next((kind for end, kind in _KINDS.items() if name.endswith(end)), None)
    return known if known and "labels" in inspect.signature(model_class.forward).parameters else None  # type: ignore[attr-defined]


def make_model(name: str, device: str = "meta", dtype: torch.dtype = torch.float32) -> nn.Module:
    """A model by its name or configuration file, in training mode. On the meta device it takes no memory."""
    config = make_config(name)
    model_class = _model_class(config, name)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # so that no copy in another type is made first
    try:
        with torch.device(device):
            model: nn.Module = model_class(config)
    except Exception as error:
        if name in REGISTRY:
            raise
        raise MemScaleError(f"transformers cannot make a model from {name}: {one_line(error)}") from error
    finally:
        torch.set_default_dtype(before)
    return model.to(dtype).train()


def one_line(error: BaseException) -> str:
    """What was raised, in one line that is not too long."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 300 else f"{text[:297]}..."


# Batches


def takes_images(config: Any, model_class: Any = None) -> bool:
    """Does the model take images? Judged by its configuration and, if known, its class."""
    if model_class is not None and model_class.main_input_name != "pixel_values":
        return False
    return hasattr(config, "num_channels") and (model_class is not None or not hasattr(config, "vocab_size"))


def _takes_speech(config: Any) -> bool:
    return hasattr(config, "num_mel_bins") and hasattr(config, "max_source_positions")


def _vocabulary(config: Any) -> int:
    """The number of tokens; 0 if it takes none."""
    size = getattr(config, "vocab_size", None) or getattr(config.get_text_config(), "vocab_size", None)
    return size if isinstance(size, int) else 0


def default_length(name: str, config: Any) -> int:
    """A sensible length of a sequence for a model that takes them."""
    length = REGISTRY[name].length if name in REGISTRY else 512
    limits = [getattr(config, limit, None) for limit in ("max_position_embeddings", "max_target_positions")]
    return int(min([length, *(limit for limit in limits if isinstance(limit, int) and limit > 0)]))


def max_length(model: nn.Module) -> int | None:
    """The longest sequence that its position embeddings allow; a trace on meta tensors cannot check it. None: any."""
    rows = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2] in _POSITIONS:
            unused = 0 if module.padding_idx is None else module.padding_idx + 1  # RoBERTa counts from there
            rows.append(module.num_embeddings - (getattr(module, "offset", 0) or unused))
    return min(rows, default=None)


def make_batch(
    config: Any,
    batch: int,
    length: int,
    device: str = "meta",
    dtype: torch.dtype = torch.float32,
    model_class: type | None = None,
) -> Batch:
    """Inputs and labels for a model with this configuration. For the meta device indices are on the CPU: a model may
    look at their values."""
    kind = "tokens" if model_class is None else _kind_of(model_class)
    if takes_images(config, model_class):
        side = getattr(config, "image_size", 224)  # a convolutional network takes any
        side = side if isinstance(side, int) else side[0]
        pixels = _noise((batch, config.num_channels, side, side), device, dtype)
        return {"pixel_values": pixels, "labels": torch.zeros(batch, dtype=torch.int64, device=device)}
    if device == "meta" and batch * length > MAX_ELEMENTS:
        raise MemScaleError(f"a batch of {batch} x {length} tokens is too large: the limit is {MAX_ELEMENTS} tokens")
    ids = torch.arange(batch * length).remainder(max(_vocabulary(config) - 1, 1)).add(1).reshape(batch, length)
    ids = ids if device == "meta" else ids.to(device)
    if _takes_speech(config):
        frames = 2 * config.max_source_positions
        return {"input_features": _noise((batch, config.num_mel_bins, frames), device, dtype), "labels": ids}
    if kind == "samples":
        return {"input_ids": ids, "labels": _classes(config, batch, ids.device)}
    return {"input_ids": ids, "labels": ids.clone() if kind == "tokens" else torch.zeros_like(ids)}


def _noise(shape: tuple[int, ...], device: str, dtype: torch.dtype) -> torch.Tensor:
    noise = torch.empty(shape, device=device, dtype=dtype)
    return noise if device == "meta" else noise.normal_()


def _classes(config: Any, batch: int, device: torch.device) -> torch.Tensor:
    """Labels of whole samples: classes, or numbers where there is one output, or several truths at once."""
    if config.problem_type == "multi_label_classification":
        return torch.zeros(batch, config.num_labels, device=device)
    is_number = config.problem_type == "regression" or config.num_labels == 1
    return torch.zeros(batch, dtype=torch.float32 if is_number else torch.int64, device=device)
