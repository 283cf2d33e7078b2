"""Pointwise programs next to the functions of torch that they stand for."""

import torch
import torch.nn.functional as nnf

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # by enum ms_pointwise_dtype
KINDS = ("cast", "neg", "abs", "relu", "tanh", "sigmoid", "silu", "gelu", "gelu_tanh", "add", "sub", "mul", "div")
CAST = KINDS.index("cast")
_SCALAR = -1


def _of(kind, a, b=_SCALAR, scalar=0.0):
    return lambda dtype: (KINDS.index(kind), dtype, a, b, scalar)


# What torch computes, from how many inputs, and the operations of the program.
FUNCTIONS = {
    "neg": (torch.neg, 1, (_of("neg", 0),)),
    "abs": (torch.abs, 1, (_of("abs", 0),)),
    "relu": (nnf.relu, 1, (_of("relu", 0),)),
    "tanh": (torch.tanh, 1, (_of("tanh", 0),)),
    "sigmoid": (torch.sigmoid, 1, (_of("sigmoid", 0),)),
    "silu": (nnf.silu, 1, (_of("silu", 0),)),
    "gelu": (nnf.gelu, 1, (_of("gelu", 0),)),
    "gelu_tanh": (lambda x: nnf.gelu(x, approximate="tanh"), 1, (_of("gelu_tanh", 0),)),
    "add": (torch.add, 2, (_of("add", 0, 1),)),
    "sub": (torch.sub, 2, (_of("sub", 0, 1),)),
    "mul": (torch.mul, 2, (_of("mul", 0, 1),)),
    "div": (torch.div, 2, (_of("div", 0, 1),)),
    "add_scalar": (lambda x: x + 0.1, 1, (_of("add", 0, scalar=0.1),)),
    "sub_scalar": (lambda x: x - 0.1, 1, (_of("sub", 0, scalar=0.1),)),
    "rsub_scalar": (lambda x: 1.3 - x, 1, (_of("sub", _SCALAR, 0, 1.3),)),
    "mul_scalar": (lambda x: 0.044715 * x, 1, (_of("mul", 0, scalar=0.044715),)),
    "div_scalar": (
        lambda x: x / 3.7,
        1,
        (_of("mul", 0, scalar=(1.0 / torch.tensor(3.7, dtype=torch.float32)).item()),),
    ),
    "square": (torch.square, 1, (_of("mul", 0, 0),)),
    "pow_2": (lambda x: torch.pow(x, 2.0), 1, (_of("mul", 0, 0),)),
    "pow_3": (lambda x: torch.pow(x, 3.0), 1, (_of("mul", 0, 0), _of("mul", 1, 0))),
}
# Those that a CPU computes to the same bits in every build of torch: no series, no products that it may join, no zeros
# of either sign.
EXACT = ("neg", "abs", "add", "sub", "mul", "div", "add_scalar", "rsub_scalar", "mul_scalar")


def program_of(name, dtype):
    """Types of the inputs, and operations."""
    _, n_inputs, ops = FUNCTIONS[name]
    number = DTYPES.index(dtype)
    return (number,) * n_inputs, tuple(op(number) for op in ops)


def inputs_of(dtype, n_inputs, n=1 << 18):
    """All values of 16 bits, or many of 32: of usual sizes, and any bits at all (NaN, infinity, denormal numbers)."""
    draw = torch.Generator().manual_seed(5)
    found = []
    for _ in range(n_inputs):
        if dtype is torch.float32:
            usual = torch.randn(n, generator=draw) * torch.logspace(-6, 2, n)
            any_bits = torch.randint(-(2**31), 2**31, (n,), generator=draw).to(torch.int32).view(dtype)
            found.append(torch.cat([usual, any_bits]))
        else:
            every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
            found.append(torch.cat([every[torch.randperm(len(every), generator=draw)] for _ in range(4)]))
    return found


def chain_of(dtype):
    """A chain of several functions in several types: program and function."""
    number = DTYPES.index(dtype)
    ops = ((0, 0, 0, -1, 0.0), (11, 0, 1, 1, 0.0), (11, 0, 2, -1, 0.25), (11, number, 0, -1, 0.5), (9, 0, 3, 4, 0.0))
    return (number,), ops, lambda x: 0.25 * (x.float() * x.float()) + 0.5 * x


def assert_same_bits(a, b):
    """NaNs may differ in their bits: that of a cast is torch's own on older devices."""
    same = (a == b) & (torch.signbit(a) == torch.signbit(b)) | (a.isnan() & b.isnan())
    assert a.dtype == b.dtype
    assert bool(same.all()), (int((~same).sum()), a[~same][:5], b[~same][:5])
