"""torch's own activation checkpointing inside a wrapped model: every form of it trains as without MemScale."""

import functools

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

import compare
import zoo

cases = compare.Cases()
BATCH = ((zoo.floats(4, 16),), {})


class Checkpointed(nn.Module):
    """Blocks with dropout, each called through a checkpoint."""

    def __init__(self, **options):
        super().__init__()
        self.blocks = nn.ModuleList([zoo.Block() for _ in range(3)])
        self.options = options

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, **self.options)
        return x


def fit(training, model):
    return compare.fit(training, model, BATCH)


def first_needs_gradient(training, **options):
    """Reentrant checkpoints need an input that needs a gradient."""
    model = Checkpointed(**options)
    args = (zoo.floats(4, 16).requires_grad_(),)
    return {**compare.fit(training, model, (args, {})), "input": args[0]}


cases.add("reentrant", functools.partial(first_needs_gradient, use_reentrant=True), compare.WITH_SAMPLE)
cases.add(
    "reentrant_without_random_state",
    functools.partial(first_needs_gradient, use_reentrant=True, preserve_rng_state=False),
)


@cases(modes=compare.WITH_SAMPLE, recomputes=False)
def non_reentrant(training):
    return fit(training, Checkpointed(use_reentrant=False))


@cases(recomputes=False)
def without_random_state(training):
    class Block(zoo.Block):
        def forward(self, x):
            return x + self.b(torch.relu(self.a(x)))

    model = Checkpointed(use_reentrant=False, preserve_rng_state=False)
    model.blocks = nn.ModuleList([Block() for _ in range(3)])
    return fit(training, model)


@cases(recomputes=False)
def without_determinism_check(training):
    return fit(training, Checkpointed(use_reentrant=False, determinism_check="none"))


@cases(recomputes=False)
def nested(training):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = zoo.Block(), zoo.Block()

        def forward(self, x):
            x = checkpoint(self.first, x, use_reentrant=False)
            return checkpoint(self.second, x, use_reentrant=False)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.pairs = nn.ModuleList([Pair() for _ in range(3)])

        def forward(self, x):
            for pair in self.pairs:
                x = checkpoint(pair, x, use_reentrant=False)
            return x

    return fit(training, Model())


def keep_products(ctx, op, *args, **kwargs):
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if op in products else CheckpointPolicy.PREFER_RECOMPUTE


@cases(recomputes=False)
def selective(training):
    contexts = functools.partial(create_selective_checkpoint_contexts, keep_products)
    return fit(training, Checkpointed(use_reentrant=False, context_fn=contexts))


@cases(recomputes=False)
def without_early_stop(training):
    class Model(Checkpointed):
        def forward(self, x):
            with set_checkpoint_early_stop(False):
                return super().forward(x)

    return fit(training, Model(use_reentrant=False))


@cases(recomputes=False)
def with_keywords(training):
    class Scaled(zoo.Block):
        def forward(self, x, *, scale, mask=None):
            y = super().forward(x) * scale
            return y if mask is None else y * mask

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Scaled() for _ in range(3)])

        def forward(self, x):
            mask = torch.rand(x.shape) > 0.5
            for i, block in enumerate(self.blocks):
                x = checkpoint(block, x, use_reentrant=False, scale=1.0 + i, mask=mask)
            return x

    return fit(training, Model())


@cases()
def sequential(training):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([zoo.Block() for _ in range(4)])

        def forward(self, x):
            return checkpoint_sequential(self.blocks, 2, x, use_reentrant=False)

    return fit(training, Model())


@cases()
def inside_blocks(training):
    """The block itself is not checkpointed, but a part of it."""

    class Block(zoo.Block):
        def __init__(self):
            super().__init__()
            self.inner = zoo.Block()

        def forward(self, x):
            return checkpoint(self.inner, super().forward(x), use_reentrant=False)

    return fit(training, zoo.Chain(Block))


@cases(recomputes=False)
def around_the_model(training):
    model = zoo.Chain(zoo.Block)
    training.wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = zoo.loss_of(checkpoint(model, *BATCH[0], use_reentrant=False))
        loss.backward()
        training.see(loss)
        optimizer.step()
        optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer}


@cases(recomputes=False)
def under_autocast(training):
    model = Checkpointed(use_reentrant=False)
    return compare.fit(training, model, BATCH, around=lambda: torch.autocast("cpu", torch.bfloat16))


def checkpointed_transformer(training, name, **options):
    model = zoo.make(name, use_cache=False) if name == "llama" else zoo.make(name)
    model.gradient_checkpointing_enable(**options)
    return compare.fit(training, model, zoo.batch_of(name))


for name in ("gpt2", "llama", "bert", "t5"):
    cases.add(f"transformers_{name}", functools.partial(checkpointed_transformer, name=name))
cases.add(
    "transformers_reentrant",
    functools.partial(checkpointed_transformer, name="llama", gradient_checkpointing_kwargs={"use_reentrant": True}),
    ("default", "everything"),
)


@cases.parametrize
def test_checkpoint(run, tmp_path):
    run(tmp_path)
