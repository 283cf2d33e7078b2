"""Pointwise programs on a GPU: the bits of torch's functions, one after the other, and layers that use them."""

import pytest
import torch
import torch.nn.functional as nnf
from torch import nn

import memscale
import zoo
from memscale import _core
from memscale._hw import gpu
from memscale._run import recomputation
from programs import CAST, DTYPES, FUNCTIONS, assert_same_bits, chain_of, inputs_of, program_of


def run(dtypes, ops, inputs, dtype):
    out = torch.full_like(inputs[0], float("nan"), dtype=dtype)
    addresses = tuple(tensor.data_ptr() for tensor in inputs)
    stream = torch.cuda.current_stream().cuda_stream
    _core.pointwise(dtypes, ops, addresses, out.data_ptr(), out.numel(), (gpu.get(), out.device.index, stream))
    return out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_torchs(name, dtype):
    function, n_inputs, _ = FUNCTIONS[name]
    inputs = [tensor.cuda() for tensor in inputs_of(dtype, n_inputs)]
    expected = function(*inputs)
    assert_same_bits(run(*program_of(name, dtype), inputs, expected.dtype), expected)


@pytest.mark.parametrize("to", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_casts_are_torchs(dtype, to):
    [x] = inputs_of(dtype, 1)
    number = DTYPES.index(to)
    made = run((DTYPES.index(dtype),), ((CAST, number, 0, -1, 0.0),), [x.cuda()], to)
    assert_same_bits(made, x.cuda().to(to))


@pytest.mark.parametrize("off", range(5))
@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 1023, 1024, 1025, 100003])
def test_any_number_of_elements_anywhere(n, off):
    x = torch.randn(n + off, device="cuda", dtype=torch.bfloat16)[off:]
    around = torch.full((n + off + 8,), 7.0, device="cuda")
    dtypes, ops, function = chain_of(torch.bfloat16)
    stream = torch.cuda.current_stream().cuda_stream
    out = around[off : off + n]
    _core.pointwise(dtypes, ops, (x.data_ptr(),), out.data_ptr(), n, (gpu.get(), 0, stream))
    assert torch.equal(out, function(x))
    assert bool((around[:off] == 7).all())
    assert bool((around[off + n :] == 7).all())


class Gelu(nn.Module):
    """As in GPT-2: what seven functions save follows from what they began with."""

    def __init__(self):
        super().__init__()
        self.fc, self.proj = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        h = self.fc(x)
        return x + self.proj(0.5 * h * (1.0 + torch.tanh(0.8 * (h + 0.044715 * torch.pow(h, 3.0)))))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(64, 256), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(nnf.silu(self.gate(x)) * self.up(x))


class Erf(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.proj = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.proj(nnf.gelu(self.fc(x)))


def train(block, wrap, dtype):
    torch.manual_seed(0)
    model = nn.Sequential(*(block() for _ in range(3)), nn.Linear(64, 1)).cuda()
    if wrap:
        zoo.wrap_with(model, ["recompute_pointwise"])
    optimizer, found = torch.optim.AdamW(model.parameters()), []
    for step in range(3):
        torch.manual_seed(step)
        x = torch.randn(32, 16, 64, device="cuda")
        with torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
            loss = model(x).square().mean()
        loss.backward()
        found.append([loss.detach().clone(), *(p.grad.clone() for p in model.parameters())])
        optimizer.step()
        optimizer.zero_grad()
    made = [unit.pointwise.trusts for unit in memscale.executor_of(model)._units] if wrap else []
    if wrap:
        memscale.detach(model)
    return found, made


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("block", "n"), [(Gelu, 4), (Gated, 2), (Erf, 1)])
def test_layers_are_equal_and_drop_what_follows(block, n, dtype, monkeypatch):
    monkeypatch.setattr(recomputation, "POINTWISE", {"least_bytes": 1})
    plain, _ = train(block, False, dtype)
    made, trusts = train(block, True, dtype)
    for expected, found in zip(plain, made):
        assert all(torch.equal(a, b) for a, b in zip(expected, found))
    assert all("never" not in layer for layer in trusts)
    assert all(len(layer) >= n for layer in trusts[:3])
