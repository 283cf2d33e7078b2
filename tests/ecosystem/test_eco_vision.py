"""Models of timm, with dropped paths, and of diffusers, with and without their gradient checkpointing."""

import functools

import diffusers
import timm
import torch

import compare
import zoo

cases = compare.Cases()
BOTH = ("default", "everything")

# timm

IMAGES = ((zoo.floats(2, 3, 64, 64),), {})
TIMM = {
    "convnext": ("convnext_atto", {"depths": (2, 2, 3, 2), "dims": (8, 16, 24, 32), "drop_path_rate": 0.3}),
    "resnet": ("resnet18", {"layers": (2, 1, 1, 2), "channels": (8, 16, 24, 32), "drop_path_rate": 0.3}),
    "efficientnet": ("test_efficientnet", {"drop_path_rate": 0.3, "drop_rate": 0.2}),
    "vit": ("vit_tiny_patch16_224", {"img_size": 64, "depth": 3, "embed_dim": 24, "drop_path_rate": 0.3}),
    "swin": (
        "swin_tiny_patch4_window7_224",
        {
            "img_size": 64,
            "window_size": 4,
            "embed_dim": 12,
            "depths": (2, 2),
            "num_heads": (2, 4),
            "drop_path_rate": 0.3,
        },
    ),
    "regnet": ("regnetx_002", {"drop_path_rate": 0.3}),
}


def with_timm(training, name, checkpointing=False, **options):
    kind, settings = TIMM[name]
    model = timm.create_model(kind, pretrained=False, num_classes=4, **settings).train()
    model.set_grad_checkpointing(checkpointing)
    return compare.fit(training, model, IMAGES, **options)


for name in TIMM:
    modes = compare.WITH_SAMPLE if name in ("convnext", "vit") else compare.MODES
    cases.add(f"timm_{name}", functools.partial(with_timm, name=name), modes)
for name in ("convnext", "vit", "swin", "resnet"):
    cases.add(
        f"timm_{name}_checkpointing", functools.partial(with_timm, name=name, checkpointing=True), BOTH, recomputes=None
    )


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


cases.add("timm_convnext_bf16", functools.partial(with_timm, name="convnext", around=autocast), BOTH)
cases.add("timm_vit_bf16", functools.partial(with_timm, name="vit", around=autocast), BOTH)


@cases()
def timm_features(training):
    """Only the features of some stages are used."""
    kind, settings = TIMM["convnext"]
    model = timm.create_model(kind, pretrained=False, features_only=True, **settings).train()
    return compare.fit(training, model, IMAGES, loss_of=lambda features: sum(f.pow(2).mean() for f in features))


# diffusers


def unet():
    return diffusers.UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=8,
        attention_head_dim=2,
        norm_num_groups=4,
        dropout=0.1,
    )


def dit():
    return diffusers.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, num_layers=3, sample_size=8, patch_size=2,
        num_embeds_ada_norm=10, dropout=0.1,
    )  # fmt: skip


def autoencoder():
    return diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        sample_size=16,
    )


TIMES = torch.tensor([3, 7])
LATENTS = zoo.floats(2, 4, 8, 8)
DIFFUSERS = {
    "unet": (unet, {"sample": LATENTS, "timestep": TIMES, "encoder_hidden_states": zoo.floats(2, 5, 8)}),
    "dit": (dit, {"hidden_states": LATENTS, "timestep": TIMES, "class_labels": torch.tensor([1, 2])}),
    "autoencoder": (autoencoder, {"sample": zoo.floats(2, 3, 16, 16), "sample_posterior": True}),
}


def with_diffusers(training, name, checkpointing=False, **options):
    make, batch = DIFFUSERS[name]
    model = make().train()
    if checkpointing:
        model.enable_gradient_checkpointing()
    return compare.fit(training, model, ((), batch), loss_of=lambda output: output.sample.pow(2).mean(), **options)


for name in DIFFUSERS:
    cases.add(f"diffusers_{name}", functools.partial(with_diffusers, name=name), compare.WITH_SAMPLE)
    cases.add(f"diffusers_{name}_bf16", functools.partial(with_diffusers, name=name, around=autocast), BOTH)
    cases.add(
        f"diffusers_{name}_checkpointing",
        functools.partial(with_diffusers, name=name, checkpointing=True),
        BOTH,
        recomputes=None,
    )


@cases()
def diffusers_denoising(training):
    """The loop of diffusers' training scripts: noise of a scheduler, its own times for each step, an average."""
    model = unet().train()
    training.wrap(model)
    scheduler = diffusers.DDPMScheduler(num_train_timesteps=10)
    average = diffusers.training_utils.EMAModel(model.parameters(), decay=0.9)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = zoo.floats(2, 5, 8)
    for _ in range(3):
        noise, times = torch.randn(LATENTS.shape), torch.randint(0, 10, (2,))
        noisy = scheduler.add_noise(LATENTS, noise, times)
        predicted = model(noisy, times, text, return_dict=False)[0]
        loss = torch.nn.functional.mse_loss(predicted, noise)
        loss.backward()
        training.see(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        average.step(model.parameters())
    return {"model": model, "optimizer": optimizer, "average": average.shadow_params}


@cases.parametrize
def test_vision(run, tmp_path):
    run(tmp_path)
