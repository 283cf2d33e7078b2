"""The first promise on a GPU: wrapped training equals plain training bit for bit, with deterministic algorithms."""

import threading
import warnings

import pytest
import torch

import memscale
import zoo

PRECISIONS = ["fp32", "autocast", "bf16"]


def make(name, precision="fp32"):
    model = zoo.make(name).cuda()
    return model.bfloat16() if precision == "bf16" else model


def train(model, name, precision="fp32", **options):
    return zoo.train(model, zoo.batch_of(name), autocast=precision == "autocast", **options)


def gradients(model):
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def forward(model, name, seed=7):
    first = next(model.parameters())
    args, kwargs = zoo.move(zoo.batch_of(name), first.device, first.dtype)
    torch.manual_seed(seed)
    return zoo.loss_of(model(*args, **kwargs))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", list(zoo.SMALL.names))
def test_every_unit_recomputed_equals_plain(name, precision, recomputed, no_warnings):
    warnings.filterwarnings("ignore", message="RNN module weights")  # torch's own, about a model that was cast
    plain = train(make(name, precision), name, precision)
    zoo.assert_same(plain, train(make(name, precision), name, precision), "plain against itself")
    model = zoo.everything_recomputed(make(name, precision))
    zoo.assert_same(plain, train(model, name, precision))
    excluded = {unit.name: unit.excluded for unit in model._memscale_executor._units if unit.excluded}
    assert recomputed or excluded
    if name not in ("lstm", "skips"):  # cuDNN's dropout; blocks that change their inputs
        assert len(set(recomputed)) >= 2


@pytest.mark.parametrize("name", ["gpt2", "t5", "resnet", "whisper"])
def test_settled_plan_equals_plain(name, quiet_config):
    plain = train(make(name), name)
    model = memscale.wrap(make(name), quiet_config)
    zoo.assert_same(plain, train(model, name))
    assert model._memscale_executor.plan is not None


@pytest.mark.parametrize("name", ["gpt2", "llama", "resnet"])
def test_accumulation(name):
    plain = train(make(name), name, accumulate=3)
    zoo.assert_same(plain, train(zoo.everything_recomputed(make(name)), name, accumulate=3))


@pytest.mark.parametrize("name", ["gpt2", "t5", "resnet", "whisper"])
def test_retain_graph_twice(name):
    def run(model):
        loss = forward(model, name)
        found = []
        for keep in (True, True, False):
            loss.backward(retain_graph=keep)
            found.append(gradients(model))
        return loss.detach(), found

    zoo.assert_same(run(make(name)), run(zoo.everything_recomputed(make(name))))


def test_double_backward():
    def run(model):
        model.set_attn_implementation("eager")
        loss = forward(model, "gpt2")
        first = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        sum(g.pow(2).sum() for g in first).backward()
        return loss.detach(), [g.detach() for g in first], gradients(model)

    zoo.assert_same(run(make("gpt2")), run(zoo.everything_recomputed(make("gpt2"))))


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_two_forwards_and_partial_backward(name):
    def run(model):
        first, second = forward(model, name), forward(model, name, seed=8)
        last = list(model.parameters())[-1:]
        some = torch.autograd.grad(first, last, retain_graph=True)
        second.backward()
        first.backward()
        return some, gradients(model)

    zoo.assert_same(run(make(name)), run(zoo.everything_recomputed(make(name))))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_on_another_stream(precision):
    """Forward and backward on a stream of the user's, next to work on the default one."""

    def run(model):
        stream = torch.cuda.Stream()
        noise = torch.randn(2048, 2048, device="cuda")
        for _ in range(10):
            noise = noise @ noise / 50
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            record = train(model, "gpt2", precision)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        return record

    zoo.assert_same(run(make("gpt2", precision)), run(zoo.everything_recomputed(make("gpt2", precision))))


def test_units_on_different_streams():
    """Blocks run on streams of their own; backward follows them there, and so must a recomputation."""

    class Streams(torch.nn.Module):
        def __init__(self):
            super().__init__()
            parts = [(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)) for _ in range(4)]
            self.blocks = torch.nn.ModuleList([torch.nn.Sequential(*part) for part in parts])
            self.streams = [torch.cuda.Stream() for _ in range(2)]

        def forward(self, x):
            for i, block in enumerate(self.blocks):
                stream = self.streams[i % 2]
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    x = x + torch.nn.functional.dropout(block(x), 0.1, self.training)
                torch.cuda.current_stream().wait_stream(stream)
            return x

    def run(wrap):
        torch.manual_seed(0)
        model = Streams().cuda()
        model = wrap(model)
        x = torch.randn(4096, 64, device="cuda")
        found = []
        for _ in range(5):
            torch.manual_seed(7)
            model(x).pow(2).mean().backward()
            found.append(gradients(model))
            model.zero_grad()
        torch.cuda.synchronize()
        return found

    zoo.assert_same(run(lambda m: m), run(zoo.everything_recomputed))


@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_backward_from_a_second_thread(name):
    def run(model):
        found = []
        for _ in range(3):
            loss = forward(model, name)
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join()
            found.append(gradients(model))
            model.zero_grad()
        return found

    zoo.assert_same(run(make(name)), run(zoo.everything_recomputed(make(name))))


def test_backward_without_engine_threads():
    def run(model):
        with torch.autograd.set_multithreading_enabled(False):
            return train(model, "gpt2")

    zoo.assert_same(run(make("gpt2")), run(zoo.everything_recomputed(make("gpt2"))))


def test_two_models_in_two_threads():
    def run(wrap):
        models = [wrap(make("encoder")) for _ in range(2)]  # their dropout draws from one generator: off
        for model in models:
            for module in model.modules():
                if isinstance(module, torch.nn.Dropout):
                    module.p = 0.0
                if isinstance(module, torch.nn.MultiheadAttention):
                    module.dropout = 0.0
        threads = [
            threading.Thread(target=lambda m=m: forward(m, "encoder").backward()) for m in models for _ in (1, 2)
        ]
        for thread in threads[::2]:
            thread.start()
        for thread in threads[::2]:
            thread.join()
        return [gradients(model) for model in models]

    zoo.assert_same(run(lambda m: m), run(zoo.everything_recomputed))


def test_no_synchronisation():
    """A steady wrapped step never waits for the GPU."""
    model = zoo.everything_recomputed(make("encoder"))  # transformers' models look at their tokens
    train(model, "encoder", steps=2)
    (x,), _ = zoo.move(zoo.batch_of("encoder"), torch.device("cuda"), torch.float32)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the mode is a prototype
            model(x).pow(2).mean().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_generator_of_the_gpu_is_noted_as_numbers():
    """Drawing between forward and backward, and another seed, change nothing."""

    def run(model):
        loss = forward(model, "gpt2")
        torch.rand(17, device="cuda")
        torch.cuda.manual_seed(123)
        torch.rand(5, device="cuda")
        before = torch.cuda.get_rng_state()
        loss.backward()
        assert torch.equal(before, torch.cuda.get_rng_state())
        return gradients(model)

    zoo.assert_same(run(make("gpt2")), run(zoo.everything_recomputed(make("gpt2"))))


class Noisy(zoo.Block):
    """A block that draws from generators of its own, on both devices."""

    def __init__(self):
        super().__init__()
        self.on_gpu = torch.Generator("cuda").manual_seed(3)
        self.more = [torch.Generator().manual_seed(4)]

    def forward(self, x):
        noise = torch.rand(x.shape, device=x.device, generator=self.on_gpu)
        return super().forward(x + noise) * torch.rand((), generator=self.more[0]).item()


def test_generators_that_modules_own(recomputed, no_warnings):
    records = []
    for wrap in (lambda model: model, zoo.everything_recomputed):
        torch.manual_seed(0)
        model = wrap(zoo.Chain(Noisy).train().cuda())
        record = zoo.train(model, ((zoo.floats(4, 16),), {}))
        records.append([record, [(b.on_gpu.get_state(), b.more[0].get_state()) for b in model.blocks]])
    zoo.assert_same(*records)
    assert len([name for name in recomputed if name.startswith("blocks.")]) == 9
