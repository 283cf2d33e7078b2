"""Architectures of transformers, timm and diffusers: how to build each, a batch and a loss, at two sizes.

Packages are imported when a model is built. CPU models take seconds, and their activations still outweigh what any rule
rounds; GPU models have widths and lengths that people train with.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import torchvision_ops  # noqa: F401  (transformers and timm import torchvision where it is installed)

Batch = tuple[tuple[Any, ...], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Size:
    """Sizes that all architectures share.

    Attributes:
        batch, length: of text.
        width, inner, layers, heads: of a transformer.
        vocab: tokens.
        image: edge of an image.
        channels: of the first convolution.
    """

    batch: int
    length: int
    width: int
    inner: int
    layers: int
    heads: int
    vocab: int
    image: int
    channels: int


SIZES = {
    "cpu": Size(batch=4, length=96, width=128, inner=256, layers=2, heads=4, vocab=512, image=64, channels=32),
    "gpu": Size(batch=8, length=512, width=768, inner=3072, layers=6, heads=12, vocab=8192, image=224, channels=64),
}


@dataclasses.dataclass(frozen=True)
class Architecture:
    """One architecture.

    Attributes:
        package: what must be installed for it.
        make: the model, given a size.
        batch: positional or named inputs on the CPU (never both), given a size.
    """

    package: str
    make: Callable[[Size], nn.Module]
    batch: Callable[[Size], Batch]

    def build(self, size: str = "cpu") -> nn.Module:
        """A model with the same weights each time, in training mode."""
        torch.manual_seed(0)
        return self.make(SIZES[size]).train()

    def batch_of(self, size: str = "cpu") -> Batch:
        torch.manual_seed(1)
        return self.batch(SIZES[size])


def loss_of(output: Any) -> torch.Tensor:
    """A model's own loss, or the mean square of what it returns."""
    loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    if not isinstance(output, torch.Tensor):
        output = output["sample"] if isinstance(output, dict) and "sample" in output else output[0]
    return output.float().pow(2).mean()


# ---- Batches ----


def _tokens(s: Size, length: int | None = None) -> torch.Tensor:
    return torch.randint(5, s.vocab, (s.batch, length or s.length))


def _text(s: Size) -> Batch:
    x = _tokens(s)
    return (), {"input_ids": x, "labels": x}


def _padded(s: Size) -> Batch:
    """Text of different lengths."""
    x, mask = _tokens(s), torch.ones(s.batch, s.length, dtype=torch.int64)
    mask[1:, -s.length // 6 :] = 0
    return (), {"input_ids": x, "labels": x, "attention_mask": mask}


def _pair(s: Size) -> Batch:
    """The input and the output of an encoder and a decoder."""
    return (), {"input_ids": _tokens(s), "labels": _tokens(s, s.length // 2)}


def _classes(s: Size) -> Batch:
    return (), {"input_ids": _tokens(s), "labels": torch.arange(s.batch) % 2}


def _pixels(s: Size) -> Batch:
    return (), {"pixel_values": torch.randn(s.batch, 3, s.image, s.image), "labels": torch.arange(s.batch) % 10}


def _image(s: Size) -> Batch:
    return (torch.randn(s.batch, 3, s.image, s.image),), {}


def _sound(s: Size) -> Batch:
    return (), {"input_features": torch.randn(s.batch, 80, 2 * s.length), "labels": _tokens(s, s.length // 2)}


def _wave(s: Size) -> Batch:
    return (), {"input_values": torch.randn(s.batch, 40 * s.length), "labels": _tokens(s, 8)}


# ---- transformers ----

_IDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}


def _layers(s: Size) -> dict[str, Any]:
    return {
        "hidden_size": s.width,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "intermediate_size": s.inner,
    }


def _hf(model: str, config: str, settings: Callable[[Size], dict[str, Any]]) -> Callable[[Size], nn.Module]:
    def make(s: Size) -> nn.Module:
        import transformers

        made: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**settings(s)))
        return made

    return make


def _lm(s: Size) -> dict[str, Any]:
    """What most configurations of language models have by these names."""
    sizes = {"vocab_size": s.vocab, "max_position_embeddings": s.length + 8}
    return {**_layers(s), **sizes, **_IDS, "use_cache": False}


def _text_model(model: str, config: str, batch: Any = _text, **more: Any) -> Architecture:
    return Architecture("transformers", _hf(model, config, lambda s: {**_lm(s), **more}), batch)


def _image_model(model: str, config: str, batch: Any = _pixels, **more: Any) -> Architecture:
    def settings(s: Size) -> dict[str, Any]:
        return {**_layers(s), "image_size": s.image, "patch_size": 8, "num_labels": 10, **more}

    return Architecture("transformers", _hf(model, config, settings), batch)


def _hf_model(model: str, config: str, settings: Callable[[Size], dict[str, Any]], batch: Any) -> Architecture:
    return Architecture("transformers", _hf(model, config, settings), batch)


def _bart_like(s: Size) -> dict[str, Any]:
    sides = {"layers": s.layers, "attention_heads": s.heads, "ffn_dim": s.inner}
    settings = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sides.items()}
    sizes = {"vocab_size": s.vocab, "d_model": s.width, "max_position_embeddings": s.length + 8}
    return {**settings, **sizes, **_IDS, "decoder_start_token_id": 0, "forced_eos_token_id": 1, "use_cache": False}


def _t5_like(s: Size) -> dict[str, Any]:
    sizes = {"vocab_size": s.vocab, "d_model": s.width, "d_kv": s.width // s.heads, "d_ff": s.inner}
    layers = {"num_layers": s.layers, "num_decoder_layers": s.layers, "num_heads": s.heads}
    return {**sizes, **layers, "decoder_start_token_id": 0, "pad_token_id": 2, "eos_token_id": 1, "use_cache": False}


def _whisper_like(s: Size) -> dict[str, Any]:
    more = {"num_mel_bins": 80, "max_source_positions": s.length, "max_target_positions": s.length}
    settings = {**_bart_like(s), **more}
    return {key: value for key, value in settings.items() if key not in ("max_position_embeddings",)}


def _wav2vec2_like(s: Size) -> dict[str, Any]:
    convolutions = {"conv_dim": (s.channels,) * 3, "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 3)}
    positions = {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "mask_time_prob": 0.0}
    return {**_layers(s), **convolutions, **positions, "vocab_size": s.vocab, "pad_token_id": 2}


def _clip(s: Size) -> dict[str, Any]:
    text = {**_layers(s), "vocab_size": s.vocab, "max_position_embeddings": s.length, **_IDS}
    vision = {**_layers(s), "image_size": s.image, "patch_size": 8}
    return {"text_config": text, "vision_config": vision, "projection_dim": s.width}


def _captions(s: Size) -> Batch:
    pixels = torch.randn(s.batch, 3, s.image, s.image)
    return (), {"input_ids": _tokens(s), "pixel_values": pixels, "return_loss": True}


def _detr(s: Size) -> dict[str, Any]:
    backbone = {
        "model_type": "resnet",
        "embedding_size": s.channels,
        "hidden_sizes": [s.channels, 2 * s.channels],
        "depths": [1, 1],
        "layer_type": "basic",
        "out_features": ["stage2"],
    }
    sides = {"layers": s.layers, "attention_heads": s.heads, "ffn_dim": s.inner}
    settings = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sides.items()}
    import transformers

    return {
        **settings,
        "d_model": s.width,
        "num_queries": 20,
        "use_timm_backbone": False,
        "use_pretrained_backbone": False,
        "backbone": None,
        "backbone_config": transformers.ResNetConfig(**backbone),
    }


def _mla(s: Size) -> dict[str, Any]:
    """Queries and keys are wider than values."""
    widths = {"qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
    ranks = {"kv_lora_rank": 64, "q_lora_rank": 96}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}
    dense = {"first_k_dense_replace": s.layers, "moe_intermediate_size": s.inner // 2}
    return {**_lm(s), **widths, **ranks, **experts, **dense, "num_key_value_heads": s.heads}


def _swin(s: Size) -> dict[str, Any]:
    stages = {"depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "embed_dim": s.channels}
    return {"image_size": s.image, "patch_size": 4, "num_labels": 10, **stages}


def _convnext(s: Size) -> dict[str, Any]:
    widths = [s.channels, 2 * s.channels]
    return {
        "num_channels": 3,
        "patch_size": 4,
        "num_stages": 2,
        "hidden_sizes": widths,
        "depths": [2, 2],
        "num_labels": 10,
    }


def _regnet(s: Size) -> dict[str, Any]:
    widths = [s.channels, 2 * s.channels]
    return {
        "embedding_size": s.channels,
        "hidden_sizes": widths,
        "depths": [2, 2],
        "groups_width": 16,
        "num_labels": 10,
    }


def _segformer(s: Size) -> dict[str, Any]:
    return {
        "num_encoder_blocks": 2,
        "depths": [2, 2],
        "sr_ratios": [4, 2],
        "hidden_sizes": [s.channels, 2 * s.channels],
        "patch_sizes": [7, 3],
        "strides": [4, 2],
        "num_attention_heads": [1, 2],
        "mlp_ratios": [4, 4],
        "decoder_hidden_size": s.width,
        "num_labels": 10,
    }


def _pixel_classes(s: Size) -> Batch:
    pixels = torch.randn(s.batch, 3, s.image, s.image)
    return (), {"pixel_values": pixels, "labels": torch.randint(0, 10, (s.batch, s.image, s.image))}


def _boxes(s: Size) -> Batch:
    pixels = torch.randn(s.batch, 3, s.image, s.image)
    return (), {"pixel_values": pixels, "pixel_mask": torch.ones(s.batch, s.image, s.image).long()}


# ---- timm and diffusers ----


def _timm(name: str, **more: Any) -> Architecture:
    def make(s: Size) -> nn.Module:
        import timm

        made: nn.Module = timm.create_model(name, num_classes=10, **more)
        return made

    return Architecture("timm", make, _image)


def _timm_at_image_size(name: str, **more: Any) -> Architecture:
    def make(s: Size) -> nn.Module:
        import timm

        made: nn.Module = timm.create_model(name, num_classes=10, img_size=s.image, **more)
        return made

    return Architecture("timm", make, _image)


def _unet(s: Size) -> nn.Module:
    import diffusers

    made: nn.Module = diffusers.UNet2DConditionModel(
        sample_size=s.image // 2,
        block_out_channels=(s.channels, 2 * s.channels),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        cross_attention_dim=s.width,
        attention_head_dim=16,
        norm_num_groups=8,
    )
    return made


def _noise(s: Size) -> Batch:
    edge = s.image // 2
    sample, text = torch.randn(s.batch, 4, edge, edge), torch.randn(s.batch, 16, s.width)
    return (sample, torch.arange(s.batch), text), {}


def _dit(s: Size) -> nn.Module:
    import diffusers

    made: nn.Module = diffusers.DiTTransformer2DModel(
        sample_size=s.image // 2,
        num_layers=s.layers,
        num_attention_heads=s.heads,
        attention_head_dim=s.width // s.heads,
        in_channels=4,
        out_channels=4,
        num_embeds_ada_norm=10,
    )
    return made


def _classed_noise(s: Size) -> Batch:
    edge = s.image // 2
    steps = torch.arange(s.batch)
    sample = torch.randn(s.batch, 4, edge, edge)
    return (), {"hidden_states": sample, "timestep": steps, "class_labels": steps % 10}


def _vae(s: Size) -> nn.Module:
    import diffusers

    made: nn.Module = diffusers.AutoencoderKL(
        block_out_channels=(s.channels, 2 * s.channels),
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        norm_num_groups=8,
        sample_size=s.image // 2,
    )
    return made


def _small_image(s: Size) -> Batch:
    return (torch.randn(s.batch, 3, s.image // 2, s.image // 2),), {}


_GROUPED = {"num_key_value_heads": 2}
_DEBERTA = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "norm_rel_ebd": "layer_norm",
    "position_buckets": 32,
}

ARCHITECTURES: dict[str, Architecture] = {
    "deberta-v2": _text_model(
        "DebertaV2ForMaskedLM", "DebertaV2Config", relative_attention=True, pos_att_type=["p2c", "c2p"]
    ),
    "deberta-v3": _text_model("DebertaV2ForMaskedLM", "DebertaV2Config", _padded, share_att_key=True, **_DEBERTA),
    "qwen3-moe": _text_model(
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        head_dim=32,
        **_GROUPED,
    ),
    "wav2vec2": _hf_model("Wav2Vec2ForCTC", "Wav2Vec2Config", lambda s: {**_wav2vec2_like(s), "layerdrop": 0.1}, _wave),
    "hubert": _hf_model("HubertForCTC", "HubertConfig", lambda s: {**_wav2vec2_like(s), "layerdrop": 0.0}, _wave),
    "longformer": _text_model(
        "LongformerForMaskedLM", "LongformerConfig", attention_window=32, max_position_embeddings=4096
    ),
    "clip": _hf_model("CLIPModel", "CLIPConfig", _clip, _captions),
    "siglip": _hf_model(
        "SiglipModel", "SiglipConfig", lambda s: {k: v for k, v in _clip(s).items() if "config" in k}, _captions
    ),
    "detr": _hf_model("DetrModel", "DetrConfig", _detr, _boxes),
    "modernbert": _text_model("ModernBertForMaskedLM", "ModernBertConfig", local_attention=32),
    "gemma2": _text_model("Gemma2ForCausalLM", "Gemma2Config", head_dim=32, sliding_window=32, **_GROUPED),
    "gemma3": _text_model("Gemma3ForCausalLM", "Gemma3TextConfig", head_dim=32, sliding_window=32, **_GROUPED),
    "phi": _text_model("PhiForCausalLM", "PhiConfig"),
    "phi3": _text_model("Phi3ForCausalLM", "Phi3Config", **_GROUPED),
    "mistral": _text_model("MistralForCausalLM", "MistralConfig", _padded, sliding_window=32, **_GROUPED),
    "falcon": _text_model("FalconForCausalLM", "FalconConfig", new_decoder_architecture=True, num_kv_heads=2),
    "bloom": _hf_model(
        "BloomForCausalLM",
        "BloomConfig",
        lambda s: {
            "vocab_size": s.vocab,
            "hidden_size": s.width,
            "n_layer": s.layers,
            "n_head": s.heads,
            "use_cache": False,
            **_IDS,
        },
        _text,
    ),
    "opt": _hf_model(
        "OPTForCausalLM", "OPTConfig", lambda s: {**_lm(s), "ffn_dim": s.inner, "word_embed_proj_dim": s.width}, _text
    ),
    "gpt-neox": _text_model("GPTNeoXForCausalLM", "GPTNeoXConfig"),
    "gpt-j": _hf_model(
        "GPTJForCausalLM",
        "GPTJConfig",
        lambda s: {
            "vocab_size": s.vocab,
            "n_positions": s.length,
            "n_embd": s.width,
            "n_layer": s.layers,
            "n_head": s.heads,
            "rotary_dim": 16,
            "use_cache": False,
            **_IDS,
        },
        _text,
    ),
    "qwen2": _text_model("Qwen2ForCausalLM", "Qwen2Config", **_GROUPED),
    "qwen3": _text_model("Qwen3ForCausalLM", "Qwen3Config", head_dim=32, **_GROUPED),
    "olmo2": _text_model("Olmo2ForCausalLM", "Olmo2Config", **_GROUPED),
    "deepseek-v3": _hf_model("DeepseekV3ForCausalLM", "DeepseekV3Config", _mla, _text),
    "deepseek-v3-padded": _hf_model("DeepseekV3ForCausalLM", "DeepseekV3Config", _mla, _padded),
    "mamba": _hf_model(
        "MambaForCausalLM",
        "MambaConfig",
        lambda s: {
            "vocab_size": s.vocab,
            "hidden_size": s.width,
            "num_hidden_layers": s.layers,
            "state_size": 8,
            "use_cache": False,
            **_IDS,
        },
        lambda s: ((), {"input_ids": _tokens(s, s.length // 4), "labels": _tokens(s, s.length // 4)}),
    ),
    "bart": _hf_model("BartForConditionalGeneration", "BartConfig", _bart_like, _pair),
    "pegasus": _hf_model("PegasusForConditionalGeneration", "PegasusConfig", _bart_like, _pair),
    "mbart-padded": _hf_model(
        "MBartForConditionalGeneration",
        "MBartConfig",
        _bart_like,
        lambda s: ((), {**_padded(s)[1], "labels": _tokens(s, s.length // 2)}),
    ),
    "mt5": _hf_model("MT5ForConditionalGeneration", "MT5Config", _t5_like, _pair),
    "electra": _text_model("ElectraForMaskedLM", "ElectraConfig", embedding_size=64),
    "roberta": _text_model("RobertaForSequenceClassification", "RobertaConfig", _classes, num_labels=2),
    "distilbert": _hf_model(
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        lambda s: {
            "vocab_size": s.vocab,
            "dim": s.width,
            "n_layers": s.layers,
            "n_heads": s.heads,
            "hidden_dim": s.inner,
            "max_position_embeddings": s.length,
            "pad_token_id": 2,
        },
        _padded,
    ),
    "xlnet": _hf_model(
        "XLNetLMHeadModel",
        "XLNetConfig",
        lambda s: {
            "vocab_size": s.vocab,
            "d_model": s.width,
            "n_layer": s.layers,
            "n_head": s.heads,
            "d_inner": s.inner,
            "use_mems_train": False,
            **_IDS,
        },
        _text,
    ),
    "funnel": _hf_model(
        "FunnelForMaskedLM",
        "FunnelConfig",
        lambda s: {
            "vocab_size": s.vocab,
            "block_sizes": [2, 2],
            "d_model": s.width,
            "n_head": s.heads,
            "d_head": s.width // s.heads,
            "d_inner": s.inner,
        },
        _text,
    ),
    "swin": _hf_model("SwinForImageClassification", "SwinConfig", _swin, _pixels),
    "swinv2": _hf_model("Swinv2ForImageClassification", "Swinv2Config", _swin, _pixels),
    "convnext": _hf_model("ConvNextForImageClassification", "ConvNextConfig", _convnext, _pixels),
    "regnet": _hf_model("RegNetForImageClassification", "RegNetConfig", _regnet, _pixels),
    "segformer": _hf_model("SegformerForSemanticSegmentation", "SegformerConfig", _segformer, _pixel_classes),
    "deit": _image_model("DeiTForImageClassification", "DeiTConfig"),
    "beit": _image_model("BeitForImageClassification", "BeitConfig", use_relative_position_bias=True),
    "dinov2": _image_model("Dinov2ForImageClassification", "Dinov2Config"),
    "videomae": _hf_model(
        "VideoMAEForVideoClassification",
        "VideoMAEConfig",
        lambda s: {**_layers(s), "image_size": s.image // 2, "patch_size": 8, "num_frames": 4, "num_labels": 10},
        lambda s: (
            (),
            {"pixel_values": torch.randn(s.batch, 4, 3, s.image // 2, s.image // 2), "labels": torch.arange(s.batch)},
        ),
    ),
    "mobilenet-v2": _hf_model(
        "MobileNetV2ForImageClassification",
        "MobileNetV2Config",
        lambda s: {"image_size": s.image, "num_labels": 10, "depth_multiplier": 0.5},
        _pixels,
    ),
    "whisper": _hf_model("WhisperForConditionalGeneration", "WhisperConfig", _whisper_like, _sound),
    "speech-to-text": _hf_model(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        lambda s: {**_whisper_like(s), "encoder_layerdrop": 0.1, "decoder_layerdrop": 0.1},
        _sound,
    ),
    "timm-vit": _timm_at_image_size("vit_tiny_patch16_224", depth=4, patch_size=8),
    "timm-efficientnet": _timm("efficientnet_b0", drop_path_rate=0.1),
    "timm-mobilenetv3": _timm("mobilenetv3_small_100"),
    "timm-resnext": _timm("resnext26ts"),
    "timm-convnext": _timm("convnext_atto"),
    "timm-regnet": _timm("regnety_002"),
    "timm-swin": _timm_at_image_size(
        "swin_tiny_patch4_window7_224", window_size=4, depths=(2, 2), embed_dim=32, num_heads=(2, 4)
    ),
    "timm-mixer": _timm_at_image_size("mixer_s32_224"),
    "diffusers-unet": Architecture("diffusers", _unet, _noise),
    "diffusers-dit": Architecture("diffusers", _dit, _classed_noise),
    "diffusers-vae": Architecture("diffusers", _vae, _small_image),
}
