"""Lightning: its Trainer drives the loop, and a LightningModule's forward is often never called."""

import functools
import logging
import warnings

import lightning
import torch

import compare
import zoo

cases = compare.Cases()
BOTH = ("default", "everything")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(lightning.LightningModule):
    """Automatic optimization; the training step calls self(...)."""

    def __init__(self, model, training):
        super().__init__()
        self.model = model
        self.see = training.see

    def forward(self, ids):
        return self.model(ids, labels=ids)

    def training_step(self, batch, index):
        return self.seen(self(batch[0]).loss)

    def seen(self, loss):
        self.see(loss)
        return loss

    def validation_step(self, batch, index):
        self.see(self.model(batch[0], labels=batch[0]).loss)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class CallsModel(Module):
    """The training step calls self.model, so forward is never called."""

    def training_step(self, batch, index):
        return self.seen(self.model(batch[0], labels=batch[0]).loss)


class Manual(Module):
    """Manual optimization with two optimizers."""

    def __init__(self, model, training):
        super().__init__(model, training)
        self.automatic_optimization = False

    def training_step(self, batch, index):
        loss = self.seen(self(batch[0]).loss)
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()

    def configure_optimizers(self):
        parameters = list(self.parameters())
        return [torch.optim.SGD(parameters[:5], lr=1e-2), torch.optim.AdamW(parameters[5:], lr=1e-2)]


class Scheduled(CallsModel):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def fit(training, kind, name="gpt2", inner=False, **options):
    """inner: is the model inside the LightningModule wrapped, or the whole?"""
    model = zoo.make(name, use_cache=False) if name == "llama" else zoo.make(name)
    module = kind(model, training)
    training.wrap(module.model if inner else module)
    data = torch.utils.data.TensorDataset(zoo.tokens(12, 12))
    loader = torch.utils.data.DataLoader(data, batch_size=2, shuffle=True)
    settings = {"max_steps": 3, "limit_val_batches": 0, **options}
    trainer = lightning.Trainer(
        accelerator="cpu",
        default_root_dir=training.folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **settings,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the data loader has no workers, and the like
        trainer.fit(module, loader, loader)
    optimizers = [optimizer.state_dict() for optimizer in trainer.optimizers]
    module.trainer = None
    return {"model": module, "optimizers": optimizers}


for name, case in {
    "automatic": functools.partial(fit, kind=Module),
    "automatic_llama": functools.partial(fit, kind=Module, name="llama"),
    "calls_model": functools.partial(fit, kind=CallsModel),
    "calls_model_inner": functools.partial(fit, kind=CallsModel, inner=True),
    "manual": functools.partial(fit, kind=Manual),
    "accumulation": functools.partial(fit, kind=Module, accumulate_grad_batches=2),
    "clipping": functools.partial(fit, kind=CallsModel, gradient_clip_val=0.1),
}.items():
    cases.add(name, case)
for name, case in {
    "manual_inner": functools.partial(fit, kind=Manual, inner=True),
    "clipping_by_value": functools.partial(fit, kind=Module, gradient_clip_val=1e-3, gradient_clip_algorithm="value"),
    "bf16": functools.partial(fit, kind=Module, precision="bf16-mixed"),
    "bf16_calls_model": functools.partial(fit, kind=CallsModel, precision="bf16-mixed", name="llama"),
    "schedule": functools.partial(fit, kind=Scheduled),
    "validation": functools.partial(fit, kind=CallsModel, limit_val_batches=1, val_check_interval=1, max_steps=3),
}.items():
    cases.add(name, case, BOTH)


@cases.parametrize
def test_lightning(run, tmp_path):
    run(tmp_path)
