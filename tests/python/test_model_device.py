"""A model that is analysed sees the device that it will run on, and what it creates or moves there is on it."""

import sys
import types

import pytest
import torch
from torch import nn

import memscale
import zoo

STATIC = memscale.Config(use_empirical_fallback=False)
KINDS = {"cpu": "cpu", "cuda": "h100"}
CONSTANT = torch.ones(64)


def seen(model, x):
    device = x.device
    assert device.type == model.kind
    assert model.linear.weight.device == device
    assert not x.is_meta
    assert x.is_cuda == (model.kind == "cuda")
    assert x.is_cpu == (model.kind == "cpu")
    assert x.get_device() == (0 if model.kind == "cuda" else -1)
    assert x.type() == ("torch.cuda.FloatTensor" if model.kind == "cuda" else "torch.FloatTensor")
    return model.linear(x)


def asked(model, x):
    if model.kind == "cuda":
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 1
        assert torch.cuda.current_device() == 0
        assert torch.cuda.get_device_capability() == (9, 0)
        assert torch.cuda.get_device_capability(x.device)[0] == torch.cuda.get_device_properties(0).major
        assert torch.cuda.is_bf16_supported()
        assert torch.cuda.memory_allocated() == 0
        assert torch.cuda.mem_get_info()[1] > 0
        torch.cuda.set_rng_state(torch.cuda.get_rng_state())
        with torch.cuda.device(0), torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.synchronize()
    return model.linear(x)


def on_device(tensor, x):
    assert tensor.device == x.device
    return tensor


CREATED = {
    "seen": seen,
    "asked": asked,
    "moved": lambda m, x: m.linear(x) + on_device(torch.arange(64).to(x.device), x),
    "created there": lambda m, x: m.linear(x) + on_device(torch.arange(64, device=x.device), x),
    "by name": lambda m, x: m.linear(x) + on_device(torch.zeros(64, device=m.kind), x),
    "like": lambda m, x: m.linear(x) + on_device(torch.ones_like(x), x) + x.new_zeros(64) + x.new_tensor([1.0]),
    "from numbers": lambda m, x: m.linear(x) * torch.tensor(2.0) + torch.tensor([1.0] * 64, device=x.device),
    "as another": lambda m, x: m.linear(x) + on_device(torch.zeros(64).to(x), x),
    "with a type": lambda m, x: m.linear(x.to(device=x.device, dtype=torch.float32)),
    "with a generator": lambda m, x: m.linear(x) + torch.randn(16, 64, device=x.device, generator=torch.Generator()),
    "and back": lambda m, x: m.linear(x).cpu().to(x.device),
    "indices": lambda m, x: m.linear(x)[[0, 2]] + m.linear(x)[torch.arange(2, device=x.device).cpu().numpy()],
}


class Model(nn.Module):
    def __init__(self, kind, forward):
        super().__init__()
        self.kind, self.of = kind, forward
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        return self.of(self, x)


def profile(kind, forward, x=None):
    batch = zoo.floats(16, 64) if x is None else x
    return memscale.profile(
        Model(kind, forward), batch, device=KINDS[kind], config=STATIC, loss=lambda output: output.sum()
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CREATED)
def test_the_target_is_where_it_runs(name, kind):
    before = {name: getattr(torch.cuda, name) for name in ("is_available", "get_rng_state", "Stream", "device")}
    assert profile(kind, CREATED[name]).source == "static"
    assert all(getattr(torch.cuda, name) is value for name, value in before.items())


def test_a_factory_without_a_device():
    """On a CPU it is the model's device and counts; for a GPU it is a real tensor on the host, which does not."""

    def forward(model, x):
        big = torch.zeros(1024, 1024)
        assert big.device.type == "cpu"
        return model.linear(x) * big.sum().to(x.device)

    def peak(kind, forward):
        return profile(kind, forward).simulate().steady_peak_bytes

    assert peak("cpu", forward) - peak("cpu", lambda m, x: m.linear(x)) > 3 << 20
    assert abs(peak("cuda", forward) - peak("cuda", lambda m, x: m.linear(x))) < 1 << 20


def test_a_constant_that_is_in_no_module():
    assert profile("cpu", lambda m, x: m.linear(x) + CONSTANT).source == "static"
    with pytest.raises(memscale.MemScaleError, match="device"):
        profile("cuda", lambda m, x: m.linear(x) + CONSTANT)  # it is on the CPU: it would not run either


def test_what_comes_back_to_the_host_does_not_count():
    def forward(model, x):
        model.last = [model.linear(x).detach().cpu() for _ in range(8)]
        return model.linear(x)

    x = zoo.floats(4096, 64)
    with_copies = profile("cuda", forward, x).simulate().steady_peak_bytes
    assert with_copies - profile("cuda", lambda m, x: m.linear(x), x).simulate().steady_peak_bytes < 3 * x.nbytes


def test_four_bit_layers(monkeypatch):
    """Layers of bitsandbytes by their class: packed weights stay packed, one at a time is unpacked to 16 bits."""

    class Linear4bit(nn.Linear):
        def __init__(self, n):
            super().__init__(n, n, bias=False)
            self.weight = nn.Parameter(torch.zeros(n * n // 2, 1, dtype=torch.uint8), requires_grad=False)
            self.compute_dtype = torch.bfloat16

        def forward(self, x):
            raise RuntimeError("this kernel takes no meta tensors")

    package = types.ModuleType("bitsandbytes.nn")
    package.Linear4bit = Linear4bit
    monkeypatch.setitem(sys.modules, "bitsandbytes.nn", package)
    n = 1024
    model = nn.Sequential(nn.Linear(n, n), *(Linear4bit(n) for _ in range(4)))
    known = memscale.profile(model, zoo.floats(8, n), device="h100", config=STATIC)
    simulated = known.simulate()
    assert simulated.timeline[0].parts["parameters"] == 4 * (n * n + n) + 4 * n * n // 2
    assert 2 * n * n <= simulated.steady_peak_bytes - simulated.idle_bytes
    with pytest.raises(RuntimeError, match="no meta tensors"):
        model(zoo.floats(8, n))


def test_inputs_keep_their_classes():
    class Batch(dict):
        pass

    def forward(model, batch):
        assert type(batch) is Batch
        assert batch.note == "kept"
        assert batch["x"].device.type == "cpu"
        return model.linear(batch["x"])

    batch = Batch(x=zoo.floats(16, 64))
    batch.note = "kept"
    assert profile("cpu", forward, (batch,)).source == "static"
    assert batch["x"].device.type == "cpu"
    assert not batch["x"].is_meta
