"""What torch itself offers around a model: hooks, transforms, parametrizations, optimizers and loops of all kinds."""

import contextlib
import copy
import functools

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import compare
import zoo

cases = compare.Cases()
BOTH = ("default", "everything")
BATCH = ((zoo.floats(4, 16),), {})


def fit(training, model, **options):
    return compare.fit(training, model, BATCH, **options)


def loop(training, model, optimizers, step):
    """A loop of three steps with losses; step(i) trains."""
    training.wrap(model)
    for i in range(3):
        training.see(step(i))
    return {"model": model, "optimizers": optimizers}


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


# Saved tensors, transforms, compilers


@cases(modes=compare.WITH_SAMPLE, recomputes=False)
def saved_tensors_hooks_around(training):
    packed = []

    def pack(tensor):
        packed.append(tuple(tensor.shape))
        return tensor

    def around():
        return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)

    return {**fit(training, zoo.Chain(zoo.Block), around=around), "packed": packed}


@cases(recomputes=False)
def save_on_cpu_around(training):
    return fit(training, zoo.Chain(zoo.Block), around=torch.autograd.graph.save_on_cpu)


@cases(recomputes=False)
def saved_tensors_hooks_inside(training):
    class Block(zoo.Block):
        def forward(self, x):
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float()):
                return super().forward(x)

    return fit(training, zoo.Chain(Block))


@cases()
def functional_call(training):
    model = zoo.Chain(zoo.Block)
    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(weights.values(), lr=0.1)

    def step(i):
        loss = zoo.loss_of(torch.func.functional_call(model, weights, BATCH[0]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return {**loop(training, model, [optimizer], step), "weights": weights}


@cases(recomputes=False)
def gradients_by_transform(training):
    """torch.func.grad and vmap allow no hooks."""

    class Quiet(zoo.Block):
        def forward(self, x):
            return x + self.b(torch.relu(self.a(x)))

    model = zoo.Chain(Quiet)
    optimizer = sgd(model)
    weights = dict(model.named_parameters())

    def loss_of(weights, row):
        return zoo.loss_of(torch.func.functional_call(model, weights, (row.unsqueeze(0),)))

    def step(i):
        gradients = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0))(weights, BATCH[0][0])
        for name, p in weights.items():
            p.grad = gradients[name].mean(0)
        optimizer.step()
        return weights["blocks.0.a.weight"].sum()

    return loop(training, model, [optimizer], step)


@cases(modes=BOTH)
def compiled_block(training):
    """One block is compiled; the others are recomputed."""
    torch._dynamo.reset()
    model = zoo.Chain(zoo.Block)
    model.blocks[1] = torch.compile(model.blocks[1], backend="eager")
    return fit(training, model)


@cases(modes=BOTH)
def block_compiled_in_place(training):
    torch._dynamo.reset()
    model = zoo.Chain(zoo.Block)
    model.blocks[1].compile(backend="eager")
    return fit(training, model)


@cases(refused="compile")
def compiled_model(training):
    torch._dynamo.reset()
    return fit(training, torch.compile(zoo.Chain(zoo.Block), backend="eager"))


@cases()
def data_parallel_without_gpus(training):
    """It calls the model as it is; copies for several GPUs are refused (tests/python/test_traps.py)."""
    return fit(training, nn.DataParallel(zoo.Chain(zoo.Block)))


@cases(modes=BOTH)
def scripted_part(training):
    model = zoo.Chain(zoo.Block)
    model.blocks[1] = torch.jit.trace(nn.Linear(16, 16), BATCH[0][0])
    return fit(training, model)


# Parametrizations


def parametrized(training, change, cached=False):
    model = zoo.Chain(zoo.Block)
    for block in model.blocks:
        change(block.a)
    around = parametrize.cached if cached else contextlib.nullcontext
    return fit(training, model, around=around)


class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).transpose(-1, -2)


def symmetric(layer):
    parametrize.register_parametrization(layer, "weight", Symmetric())


for name, change in {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "old_weight_norm": torch.nn.utils.weight_norm,
    "old_spectral_norm": torch.nn.utils.spectral_norm,
}.items():
    cases.add(name, functools.partial(parametrized, change=change))
cases.add("parametrize_cached", functools.partial(parametrized, change=symmetric, cached=True))
cases.add("weight_norm_cached", functools.partial(parametrized, change=parametrizations.weight_norm, cached=True), BOTH)


@cases()
def pruned(training):
    model = zoo.Chain(zoo.Block)
    for block in model.blocks:
        prune.l1_unstructured(block.a, "weight", amount=0.3)
    return fit(training, model)


# Hooks of users


@cases(modes=compare.WITH_SAMPLE)
def forward_hooks_that_change_outputs(training):
    model = zoo.Chain(zoo.Block)
    for block in model.blocks:
        block.register_forward_hook(lambda module, args, output: output * 0.5 + 1)
        block.a.register_forward_hook(lambda module, args, output: output.tanh())
    model.register_forward_hook(lambda module, args, output: output + args[0])
    return fit(training, model)


@cases()
def forward_pre_hooks_that_change_inputs(training):
    model = zoo.Chain(zoo.Block)
    for block in model.blocks:
        block.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    return fit(training, model)


@cases()
def an_adapter_in_a_hook(training):
    """Modules outside of the model, called by its hooks, are trained too."""
    model = zoo.Chain(zoo.Block)
    adapters = nn.ModuleList([nn.Linear(16, 16) for _ in model.blocks])
    for block, adapter in zip(model.blocks, adapters):
        block.register_forward_hook(lambda module, args, output, adapter=adapter: output + adapter(args[0]))
    optimizer = torch.optim.AdamW([*model.parameters(), *adapters.parameters()], lr=1e-2)

    def step(i):
        loss = zoo.loss_of(model(*BATCH[0]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return {**loop(training, model, [optimizer], step), "adapters": adapters}


@cases()
def backward_hooks(training):
    model = zoo.Chain(zoo.Block)
    seen = []
    for block in model.blocks:
        block.register_full_backward_hook(lambda module, wanted, given: seen.append(given[0].sum().item()))
    next(model.parameters()).register_hook(lambda gradient: gradient * 2)
    next(model.parameters()).register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum().item()))
    return {**fit(training, model), "seen": seen}


@cases()
def hooks_for_every_module(training):
    """Global hooks see each module as often as without MemScale."""
    model = zoo.Chain(zoo.Block)
    calls = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, output: calls.append(type(module).__name__) if module is model else None
    )
    try:
        return {**fit(training, model), "calls": calls}
    finally:
        handle.remove()


# Loops


@cases()
def accumulation(training):
    model = zoo.Chain(zoo.Block)
    optimizer = sgd(model)

    def step(i):
        losses = []
        for k in range(3):
            losses.append(zoo.loss_of(model(zoo.floats(4, 16, seed=3 * i + k))) / 3)
            losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses)

    return loop(training, model, [optimizer], step)


@cases()
def zeroed_gradients(training):
    model = zoo.Chain(zoo.Block)
    optimizer = sgd(model)

    def step(i):
        optimizer.zero_grad(set_to_none=False)
        loss = zoo.loss_of(model(*BATCH[0]))
        loss.backward()
        optimizer.step()
        return loss

    return loop(training, model, [optimizer], step)


@cases()
def lbfgs(training):
    model = zoo.Chain(functools.partial(nn.Linear, 16, 16))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = zoo.loss_of(model(*BATCH[0]))
        loss.backward()
        return loss

    return loop(training, model, [optimizer], lambda i: optimizer.step(closure))


@cases()
def scaled_gradients(training):
    model = zoo.Chain(zoo.Block)
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1)

    def step(i):
        with torch.autocast("cpu", torch.float16):
            loss = zoo.loss_of(model(*BATCH[0]))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss

    return {**loop(training, model, [optimizer], step), "scaler": scaler.state_dict()}


@cases()
def several_optimizers(training):
    """One for each part, and one that steps every other time."""
    model = zoo.Chain(zoo.Block)
    optimizers = [
        torch.optim.AdamW(model.blocks[0].parameters(), lr=1e-2),
        torch.optim.SGD(model.blocks[1].parameters(), lr=0.1),
        torch.optim.Adagrad(model.blocks[2].parameters(), lr=0.1),
    ]

    def step(i):
        loss = zoo.loss_of(model(*BATCH[0]))
        loss.backward()
        for k, optimizer in enumerate(optimizers):
            if k < 2 or i % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
        return loss

    return loop(training, model, optimizers, step)


@cases()
def two_models_in_turn(training):
    """A generator and a discriminator, each wrapped."""
    makes, judges = zoo.Chain(zoo.Block), nn.Sequential(zoo.Chain(zoo.Block), nn.Linear(16, 1))
    training.wrap(makes)
    training.wrap(judges)
    optimizers = [torch.optim.Adam(model.parameters(), lr=1e-3) for model in (makes, judges)]
    for i in range(3):
        made = makes(torch.randn(4, 16))
        real = zoo.floats(4, 16, seed=i)
        judged = judges(real).mean() - judges(made.detach()).mean()
        judged.backward()
        optimizers[1].step()
        fooled = judges(made).mean()
        fooled.backward()
        optimizers[0].step()
        training.see(judged, fooled)
        for optimizer in optimizers:
            optimizer.zero_grad()
    return {"makes": makes, "judges": judges, "optimizers": optimizers}


@cases()
def average_by_copy(training):
    """An exponential average, as a copy of the wrapped model that is evaluated."""
    model = zoo.make("resnet")
    training.wrap(model)
    average = copy.deepcopy(model).eval()
    batch = zoo.batch_of("resnet")[1]
    optimizer = sgd(model)
    for _ in range(3):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for p, q in zip(average.parameters(), model.parameters()):
                p.lerp_(q, 0.5)
            training.see(loss, average(**batch).loss)
    return {"model": model, "average": average, "optimizer": optimizer}


@cases()
def average_of_torch(training):
    model = zoo.Chain(zoo.Block)
    training.wrap(model)
    average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    optimizer = sgd(model)
    for _ in range(3):
        loss = zoo.loss_of(model(*BATCH[0]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
        training.see(loss)
    return {"model": model, "average": average, "optimizer": optimizer}


@cases()
def training_and_evaluation_in_turn(training):
    model = zoo.make("llama")
    ids = zoo.tokens(2, 12)
    optimizer = sgd(model)

    def step(i):
        with torch.no_grad():
            evaluated = model.eval()(ids, labels=ids).loss
        loss = model.train()(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack([evaluated, loss])

    return loop(training, model, [optimizer], step)


@cases(modes=BOTH)
def generation_between_steps(training):
    model = zoo.make("llama")
    ids = zoo.tokens(2, 12)
    optimizer = sgd(model)

    def step(i):
        loss = model.train()(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return model.eval().generate(ids, max_new_tokens=4, do_sample=True)

    return loop(training, model, [optimizer], step)


@cases()
def batches_of_many_sizes(training):
    model = zoo.make("llama", use_cache=False)
    training.wrap(model)
    optimizer = sgd(model)
    for n, length in ((2, 12), (4, 12), (1, 7), (3, 20)):
        ids = zoo.tokens(n, length)
        loss = model(ids, labels=ids).loss
        loss.backward()
        training.see(loss)
        optimizer.step()
        optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer}


@cases()
def second_gradients(training):
    """A penalty on the gradient with respect to the input."""
    model = zoo.Chain(zoo.Block)
    optimizer = sgd(model)

    def step(i):
        x = zoo.floats(4, 16).requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        loss = gradient.pow(2).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return loop(training, model, [optimizer], step)


@cases(modes=BOTH)
def anomaly_detection(training):
    return fit(training, zoo.Chain(zoo.Block), around=torch.autograd.detect_anomaly)


# Parameters


@cases()
def frozen_first_layers(training):
    model = zoo.make("bert")
    model.bert.embeddings.requires_grad_(False)
    model.bert.encoder.layer[0].requires_grad_(False)
    return compare.fit(training, model, zoo.batch_of("bert"))


@cases()
def frozen_but_the_head(training):
    """Nothing is saved in the layers that are frozen."""
    model = zoo.make("vit")
    model.requires_grad_(False)
    model.classifier.requires_grad_(True)
    return compare.fit(training, model, zoo.batch_of("vit"))


@cases(modes=BOTH)
def frozen_model_trains_its_input(training):
    model = zoo.Chain(zoo.Block).requires_grad_(False)
    x = zoo.floats(4, 16).requires_grad_()
    optimizer = torch.optim.SGD([x], lr=0.1)

    def step(i):
        loss = zoo.loss_of(model(x))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return {**loop(training, model, [optimizer], step), "input": x}


@cases()
def thawed_while_training(training):
    model = zoo.Chain(zoo.Block)
    model.blocks[0].requires_grad_(False)
    optimizer = sgd(model)

    def step(i):
        if i == 1:
            model.blocks[0].requires_grad_(True)
        loss = zoo.loss_of(model(*BATCH[0]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return loop(training, model, [optimizer], step)


@cases()
def tied_weights(training):
    model = zoo.Chain(zoo.Block)
    model.blocks[2].a.weight = model.blocks[0].a.weight
    model.blocks[1].b = model.blocks[0].b
    return fit(training, model)


@cases(modes=BOTH)
def optimizer_in_backward(training):
    """Each parameter is stepped as soon as its gradient is there."""
    model = zoo.Chain(zoo.Block)
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step_one(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step_one)

    def step(i):
        loss = zoo.loss_of(model(*BATCH[0]))
        loss.backward()
        return loss

    return loop(training, model, list(optimizers.values()), step)


@cases.parametrize
def test_torch(run, tmp_path):
    run(tmp_path)
