"""Pointwise programs: the reference next to torch, the kernel's source next to the reference, and layers that use
programs on the host."""

import contextlib
import ctypes
import shutil
import subprocess

import pytest
import torch
import torch.nn.functional as nnf
from torch import nn

import memscale
import zoo
from fixtures import skip_without_tool
from graphs import chain
from memscale import _core
from memscale._hw import gpu
from memscale._run import offloading, recomputation
from programs import CAST, DTYPES, EXACT, FUNCTIONS, KINDS, assert_same_bits, chain_of, inputs_of, program_of

# What NVRTC has and a C++ compiler has not.
SHIM = """
#include <cmath>
#include <cstring>
#define __CUDACC__ 1
#define __device__
#define __forceinline__ inline
#define __global__
struct Dim { unsigned x, y, z; };
static thread_local Dim blockIdx, blockDim, threadIdx;
static float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
static unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
static float __fadd_rn(float a, float b) { return a + b; }
static float __fsub_rn(float a, float b) { return a - b; }
static float __fmul_rn(float a, float b) { return a * b; }
static float __fdiv_rn(float a, float b) { return a / b; }
"""
DRIVER = """
extern "C" void run(ms__pw_args args, unsigned n_blocks, unsigned n_threads) {
    blockDim.x = n_threads;
    for (blockIdx.x = 0; blockIdx.x < n_blocks; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < n_threads; threadIdx.x++) ms_pointwise_kernel(args);
}
"""


class Args(ctypes.Structure):
    _fields_ = [("inputs", ctypes.c_uint64 * 4), ("output", ctypes.c_uint64)]
    _fields_ += [("n", ctypes.c_uint64), ("is_aligned", ctypes.c_uint64)]


def run(dtypes, ops, inputs, dtype):
    out = torch.full_like(inputs[0], float("nan"), dtype=dtype)
    _core.pointwise(dtypes, ops, tuple(t.data_ptr() for t in inputs), out.data_ptr(), out.numel())
    return out


CASES = [(name, dtype) for name in EXACT for dtype in DTYPES]


@pytest.mark.parametrize(
    ("name", "dtype"), [c for c in CASES if "scalar" not in c[0] or c[1] is torch.float32], ids=str
)
def test_the_reference_is_torchs(name, dtype):  # a CPU rounds numbers to 16 bits first
    function, n_inputs, _ = FUNCTIONS[name]
    inputs = inputs_of(dtype, n_inputs)
    expected = function(*inputs)
    assert_same_bits(run(*program_of(name, dtype), inputs, expected.dtype), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["relu", "tanh", "sigmoid", "silu", "gelu", "gelu_tanh"])
def test_the_reference_is_near_to_torchs(name, dtype):
    function, n_inputs, _ = FUNCTIONS[name]
    inputs = [x[x.isfinite() & (x.abs() < 1e4)] for x in inputs_of(dtype, n_inputs)]
    exact = function(*(x.double() for x in inputs))
    made = run(*program_of(name, dtype), inputs, dtype).double()
    assert bool(((made - exact).abs() <= exact.abs() * 2 * torch.finfo(dtype).eps + 1e-6).all())


@pytest.mark.parametrize("to", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_casts_are_torchs(dtype, to):
    [x] = inputs_of(dtype, 1)
    made = run((DTYPES.index(dtype),), ((CAST, DTYPES.index(to), 0, -1, 0.0),), [x], to)
    assert_same_bits(made, x.to(to))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A program's kernel, compiled for the host."""
    if shutil.which("c++") is None:
        skip_without_tool("there is no C++ compiler")
    folder = tmp_path_factory.mktemp("programs")

    def compile_source(dtypes, ops):
        name = folder / f"{len(list(folder.iterdir()))}"
        name.with_suffix(".cc").write_text(SHIM + _core.pointwise_source(dtypes, ops) + DRIVER)
        command = ["c++", "-std=c++17", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-shared", "-fPIC", "-w"]
        subprocess.run([*command, str(name.with_suffix(".cc")), "-o", str(name)], check=True)
        return ctypes.CDLL(str(name)).run

    return compile_source


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_source_is_the_reference(dtype, compiled):
    names = [name for name in FUNCTIONS if FUNCTIONS[name][1] == 1]
    number, ops = DTYPES.index(dtype), []
    for name in names:  # each on the same input, all added up
        first = len(ops)
        moved = (
            (op[0], op[1], *(first + k if k > 0 else k for k in op[2:4]), op[4]) for op in program_of(name, dtype)[1]
        )
        ops.extend(moved)
        if first:
            ops.append((KINDS.index("add"), number, first, len(ops), 0.0))
    ops = tuple(ops[:32])
    inputs = [inputs_of(dtype, 1)[0][:20011]]
    expected = run((number,), ops, inputs, dtype)
    kernel = compiled((number,), ops)
    for n, is_aligned in ((20011, 1), (20011, 0), (1, 1), (0, 0), (4, 1)):
        out = torch.zeros(n, dtype=dtype)
        kernel(Args((ctypes.c_uint64 * 4)(*[inputs[0].data_ptr()] * 4), out.data_ptr(), n, is_aligned), 79, 64)
        assert_same_bits(out, expected[:n])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_chain_of_several_types(dtype, compiled):
    dtypes, ops, function = chain_of(dtype)
    x = torch.randn(1003).to(dtype)
    assert torch.equal(run(dtypes, ops, [x], torch.float32), function(x))
    out = torch.zeros(1003)
    compiled(dtypes, ops)(Args((ctypes.c_uint64 * 4)(*[x.data_ptr()] * 4), out.data_ptr(), 1003, 1), 2, 128)
    assert torch.equal(out, function(x))


BAD = {
    "no inputs": ((), ((0, 0, 0, -1, 0.0),)),
    "no operations": ((0,), ()),
    "an unknown type": ((3,), ((0, 0, 0, -1, 0.0),)),
    "an unknown kind": ((0,), ((len(KINDS), 0, 0, 0, 0.0),)),
    "a later operand": ((0,), ((9, 0, 0, 1, 0.0),)),
    "an operand below -1": ((0,), ((9, 0, 0, -2, 0.0),)),
    "a result of an unknown type": ((0,), ((9, -1, 0, 0, 0.0),)),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_programs_are_refused(name):
    dtypes, ops = BAD[name]
    with pytest.raises(ValueError, match="pointwise program"):
        _core.pointwise_source(dtypes, ops)
    with pytest.raises(ValueError, match="pointwise program"):
        _core.pointwise(dtypes, ops, (0,) * len(dtypes), 0, 0)


def test_too_much_is_refused():
    with pytest.raises(ValueError, match="at most 4 inputs and 32"):
        _core.pointwise_source((0,) * 5, ((0, 0, 0, -1, 0.0),))
    with pytest.raises(ValueError, match="one address for each input"):
        _core.pointwise((0,), ((0, 0, 0, -1, 0.0),), (), 0, 0)
    with pytest.raises(ValueError, match="no memory"):
        _core.pointwise((0,), ((0, 0, 0, -1, 0.0),), (1,), 0, 5)


# ---- Layers ----


class Chain(nn.Module):
    """Functions that the host computes as torch does; but for what they begin with, nothing has to be held."""

    def __init__(self):
        super().__init__()
        self.fc, self.proj = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x):
        h = nnf.hardtanh(self.fc(x))
        a = h * h
        b = (a * h).abs() * 0.5
        c = (b + 1.0) * a
        return x + self.proj(c - h)


def steps_of(model, dtype, n=4):
    found = []
    for step in range(n):
        torch.manual_seed(step)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is not None):
            loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        found.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
        model.zero_grad()
    return found


def layer_of(function, fuser=True):
    """A layer around a function of a tensor that a product made."""
    product = nn.Linear(8, 8)
    return _core.PointwiseLayer("x", lambda x: function(product(x)).sum(), least_bytes=1, fuser=fuser), product


def compare(function, shapes, fuser=True):
    """Gradients of the layer and of the function itself, for inputs of these shapes one after the other."""
    layer, product = layer_of(function, fuser)
    for shape in shapes:
        x = torch.randn(*shape, requires_grad=True)
        layer(x).backward()
        found, x.grad = x.grad, None
        function(product(x)).sum().backward()
        assert torch.equal(found, x.grad)
    return layer.trusts


def parts(h):
    """Slices of results lie in memory in order, and are not the results."""
    a = h * h
    return a[2:4] * a[4:6] * torch.abs(a[2:4] * 3.0)


def bits(h):
    """The same memory in another type is another tensor."""
    a = (h * h).float()
    mask = a.view(torch.int32) > 0
    b = torch.where(mask, a, a * 2.0)
    return b * (a.view(torch.int32).view(torch.float32) * a)


def other_lengths(h):
    a = h * 2.0
    return a.view(-1)[:16] * a.reshape(-1)[:16] * (a * a).flatten()[:16]


@pytest.mark.parametrize("function", [parts, bits, other_lengths])
def test_views_are_not_what_they_are_views_of(function):
    assert "never" not in compare(function, [(6, 8)] * 3)


@pytest.mark.parametrize("fuser", [True, None], ids=["programs", "functions"])
def test_two_states_of_one_tensor(fuser):
    """What was made before a change in place does not follow from what is there after it."""
    scale = [1.0]

    def function(h):
        a = h * 1.0
        b = -a
        if scale[0] != 1.0:
            a.mul_(scale[0])
        s = a.sin()
        d = a + 2.0
        return (d + b).sin() + s

    layer, product = layer_of(function, fuser)
    for scale[0] in (1.0, 1.0, 2.0, 1.0, 3.0):
        x = torch.randn(6, 8, requires_grad=True)
        layer(x).backward()
        found, x.grad = x.grad, None
        function(product(x)).sum().backward()
        assert torch.equal(found, x.grad)


def test_numbers_that_change_make_no_programs_without_end():
    layer, product = layer_of(lambda h: (torch.abs(h * 2.0) * scale) * h)
    for step in range(40):
        scale = 1.0 + step
        x = torch.randn(6, 8, requires_grad=True)
        layer(x).backward()
        found, x.grad = x.grad, None
        h = product(x)
        ((torch.abs(h * 2.0) * scale) * h).sum().backward()
        assert torch.equal(found, x.grad)
    assert len(layer.trusts) <= 20


def test_what_begins_with_something_that_is_gone_begins_later():
    def function(h):
        h = h + 1.0  # what it was made of is not held
        c = torch.abs(h)
        d = c * 2.0
        return torch.sin(d)

    assert compare(function, [(6, 8)] * 2) == ["equal"]


def test_casts_that_do_nothing():
    for n in range(18):

        def function(h, n=n):
            for _ in range(n):
                h = h * 1.0
            a = h * 2.0
            a = a.to(a.dtype)
            return a * a * h

        assert compare(function, [(6, 8)] * 2)


@pytest.mark.parametrize("fuser", [True, None], ids=["programs", "functions"])
@pytest.mark.parametrize("outer", [True, False], ids=["offloaded", "kept"])
def test_a_change_after_it_was_saved_is_an_error(outer, fuser):
    """As it is in plain torch, also where other hooks hold what is left."""

    def function(h):
        b = h * 2.0
        c = torch.sin(b)
        b.mul_(3.0)
        return c

    layer, _ = layer_of(function, fuser)
    x = torch.randn(6, 8, requires_grad=True)

    def pack(tensor):
        return tensor.detach(), tensor._version

    def unpack(packed):
        assert packed[0]._version == packed[1]
        return packed[0]

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack) if outer else contextlib.nullcontext():
        loss = layer(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_outer_hooks_that_fail():
    """The forward raises what they raise; a backward on what is left has what it needs, or says what it lacks."""
    n_calls = [0]

    def pack(tensor):
        n_calls[0] += 1
        if n_calls[0] == fails_at:
            raise MemoryError
        return tensor.detach()

    for fails_at in range(1, 20):
        n_calls[0] = 0
        layer, _ = layer_of(lambda h: torch.abs(h * 2.0) * (h * h))
        x = torch.randn(6, 8, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            try:
                layer(x)
            except MemoryError:
                continue
        assert fails_at > n_calls[0]


def test_strides_of_one_element_are_any():
    """A tensor of one row is contiguous, whatever the stride of its rows."""

    def function(h):
        a = (h[:, :4] * 1.5).T.T if len(h) > 1 else torch.as_strided(h * 1.5, (1, 4), (99, 1)) * 1.0
        return a * a * torch.abs(a)

    compare(function, [(5, 8), (1, 8), (5, 8), (1, 8)])


def test_what_is_elsewhere_is_not_computed_by_a_gpu():
    """Tensors on the CPU in a layer of a model on a GPU: their functions are called again, as without NVRTC."""

    def function(h):
        a = h * 2.0
        return a * torch.tanh(a) * (a * a)

    assert compare(function, [(6, 8)] * 2, gpu.get()) == compare(function, [(6, 8)] * 2, None)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
def test_offloaded_layers_move_what_is_left(dtype, monkeypatch):
    monkeypatch.setattr(recomputation, "POINTWISE", {"least_bytes": 1, "fuser": True})
    monkeypatch.setattr(offloading, "OPTIONS", {"least_bytes": 1, "delay_ns": 100_000, "seed": 1})
    moved = {}
    for action in ("offload", "offload_pointwise"):
        plain, model = chain(Chain), zoo.wrap_with(chain(Chain), [action])
        for a, b in zip(steps_of(plain, dtype), steps_of(model, dtype)):
            assert all(torch.equal(x, y) for x, y in zip(a, b))
        stats = memscale.executor_of(model)._offloading.stats()
        moved[action] = stats["put_bytes"]
        assert (stats["n_groups"], stats["used_bytes"], stats["n_pending"]) == (0, 0, 0)
    assert 0 < moved["offload_pointwise"] < 0.5 * moved["offload"]


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
def test_layers_are_equal_and_drop_what_follows(dtype, monkeypatch):
    monkeypatch.setattr(recomputation, "POINTWISE", {"least_bytes": 1, "fuser": True})
    plain, model = chain(Chain), zoo.wrap_with(chain(Chain), ["recompute_pointwise"])
    for a, b in zip(steps_of(plain, dtype), steps_of(model, dtype)):
        assert all(torch.equal(x, y) for x, y in zip(a, b))
    layers = [unit.pointwise.trusts for unit in memscale.executor_of(model)._units]
    assert all(layer.count("equal") >= 3 and "never" not in layer for layer in layers)
