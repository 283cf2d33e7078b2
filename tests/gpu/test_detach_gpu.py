"""detach on a GPU: everything is as it was, the allocator's limit and the memory included."""

import gc
import threading

import pytest
import torch

import memscale
import zoo
from memscale._hw import torch_allocator
from memscale._hw.torch_allocator import is_growing, read_settings
from memscale._run.torch_state import get_memory_fraction
from test_detach import check_after_training, equal, snapshot


def allocated():
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()  # they are returned before a plan is made
    return torch.cuda.memory_allocated()


@pytest.mark.parametrize("name", list(zoo.SMALL.names))
def test_detach_restores_everything(name, quiet_config):
    model = zoo.make(name).cuda()
    before = snapshot(model)
    memscale.wrap(model, quiet_config)
    memscale.detach(model)
    assert equal(before, snapshot(model))


@pytest.mark.parametrize("name", ["gpt2", "t5", "resnet", "mlp"])
@pytest.mark.parametrize("everything", [False, True], ids=["own plan", "everything recomputed"])
def test_after_training(name, everything, quiet_config):
    check_after_training(name, quiet_config, torch.device("cuda"), everything)


def test_all_memory_is_freed(quiet_config):
    model = zoo.make("gpt2").cuda()
    zoo.train(model, zoo.batch_of("gpt2"))
    model.zero_grad()
    before = allocated()
    for _ in range(3):
        memscale.wrap(model, quiet_config)
        zoo.train(model, zoo.batch_of("gpt2"))
        memscale.detach(model)
        model.zero_grad()
    assert allocated() == before


def test_no_growth_over_steps():
    model = zoo.everything_recomputed(zoo.make("gpt2").cuda())
    args, kwargs = zoo.move(zoo.batch_of("gpt2"), torch.device("cuda"), torch.float32)
    zoo.train(model, zoo.batch_of("gpt2"), steps=3)
    model.zero_grad()
    before = allocated()
    zoo.train(model, zoo.batch_of("gpt2"), steps=30)
    model.zero_grad()
    assert allocated() == before
    for _ in range(30):
        model(*args, **kwargs)  # forwards without a backward
    assert allocated() == before


GRANULE = 20 << 20  # by which segments grow: a cap is that much lower than its budget


def test_a_budget_caps_the_allocator_until_detach():
    model = zoo.make("gpt2").cuda()
    fraction, settings = get_memory_fraction(torch.device("cuda")), read_settings()
    total = torch.cuda.get_device_properties(0).total_memory
    memscale.wrap(model, memscale.Config(memory_budget_gb=2, enable_logging=False))
    assert get_memory_fraction(torch.device("cuda")) == pytest.approx((2e9 - GRANULE) / total, rel=1e-6)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
    zoo.train(model, zoo.batch_of("gpt2"))
    assert torch.cuda.memory_reserved() <= 2e9
    assert is_growing() is False  # nothing had to be done
    memscale.detach(model)
    assert get_memory_fraction(torch.device("cuda")) == fraction
    assert read_settings() == settings
    torch.empty(3 << 30, dtype=torch.uint8, device="cuda")


STRINGS = [
    "",
    "max_split_size_mb:128",
    "garbage_collection_threshold:0.6",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "max_split_size_mb:200,garbage_collection_threshold:0.8,roundup_power2_divisions:[64:8,>:2]",
    "expandable_segments:True,max_split_size_mb:64",
]


@pytest.mark.parametrize("text", STRINGS)
def test_settings_of_the_allocator(text):
    """Segments grow while layers are recomputed; every setting of the user's stays, and all of it comes back."""
    start = read_settings()
    torch_allocator._write(text)
    try:
        before = read_settings()
        model = zoo.make("gpt2").cuda()
        zoo.everything_recomputed(model)
        zoo.train(model, zoo.batch_of("gpt2"))
        during = read_settings()
        memscale.detach(model)
        assert during["expandable_segments"] is True
        assert torch_allocator._others(during) == torch_allocator._others(before)
        assert read_settings() == before
    finally:
        torch_allocator._write("expandable_segments:False")
        torch_allocator._write(start["PYTORCH_CUDA_ALLOC_CONF"])
    assert read_settings() == start


def test_two_budgets_and_the_users_own_limit():
    cuda = torch.device("cuda")
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.5)
    try:
        first, second = zoo.make("gpt2").cuda(), zoo.make("mlp").cuda()
        memscale.wrap(first, memscale.Config(memory_budget_gb=3, enable_logging=False))
        memscale.wrap(second, memscale.Config(memory_budget_gb=1, enable_logging=False))
        assert get_memory_fraction(cuda) == pytest.approx((1e9 - GRANULE) / total, rel=1e-6)
        memscale.detach(second)
        assert get_memory_fraction(cuda) == pytest.approx((3e9 - GRANULE) / total, rel=1e-6)
        memscale.detach(first)
        assert get_memory_fraction(cuda) == 0.5
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_without_a_budget_the_allocator_is_left_alone(quiet_config):
    fraction = get_memory_fraction(torch.device("cuda"))
    model = memscale.wrap(zoo.make("gpt2").cuda(), quiet_config)
    assert get_memory_fraction(torch.device("cuda")) == fraction
    memscale.detach(model)


def test_a_budget_that_fits_only_with_recomputation_is_kept():
    """The fastest plan within a budget: it trains, and what is reserved stays within."""
    torch.cuda.empty_cache()
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).cuda().train()
    x = torch.randn(64, 256, 256, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    model(x).pow(2).mean().backward()
    plain = torch.cuda.max_memory_allocated()
    model.zero_grad()
    torch.cuda.empty_cache()
    budget = 0.6 * plain
    memscale.wrap(model, memscale.Config(memory_budget_gb=budget / 1e9, enable_logging=False), sample_input=x)
    assert model._memscale_executor.plan.n_recomputed > 0
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        model(x).pow(2).mean().backward()
        model.zero_grad()
    assert torch.cuda.max_memory_reserved() <= budget
    memscale.detach(model)


def test_a_cap_dies_with_its_model():
    fraction = get_memory_fraction(torch.device("cuda"))
    model = memscale.wrap(zoo.make("mlp").cuda(), memscale.Config(memory_budget_gb=1, enable_logging=False))
    assert get_memory_fraction(torch.device("cuda")) < fraction
    del model
    gc.collect()
    assert get_memory_fraction(torch.device("cuda")) == fraction


def test_backward_runs_on_the_calling_thread_until_detach(quiet_config):
    def thread_of_backward(model):
        names = []
        args, kwargs = zoo.move(zoo.batch_of("gpt2"), torch.device("cuda"), torch.float32)
        output = model(*args, **kwargs)
        output.logits.register_hook(lambda gradient: names.append(threading.get_ident()))
        output.loss.backward()
        return names[0]

    model = zoo.make("gpt2").cuda()
    assert thread_of_backward(model) != threading.get_ident()
    memscale.wrap(model, quiet_config)
    assert thread_of_backward(model) == threading.get_ident()
    memscale.detach(model)
    assert thread_of_backward(model) != threading.get_ident()
