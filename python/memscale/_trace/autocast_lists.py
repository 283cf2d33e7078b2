"""What autocast does to torch's functions on a kind of device: its lists, as functions that Python calls.

Written from torch's documented behaviour ("Automatic Mixed Precision package", the operator lists); which of these
operators this torch handles is asked of its dispatcher.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as nnf

PLACES = (torch, torch.Tensor, nnf, torch._C._nn, torch._C._VariableFunctions, torch._C._fft, torch._C._linalg)

# What autocast computes in 16 bits, and what in the widest type of its inputs. Everything else that it handles, it
# computes in 32 bits.
_LOW = {
    "cuda": "addbmm addmm addmv addr baddbmm bmm chain_matmul linalg_multi_dot conv1d conv2d conv3d conv_transpose1d "
    "conv_transpose2d conv_transpose3d conv_tbc convolution _convolution einsum gru_cell lstm_cell rnn_tanh_cell "
    "rnn_relu_cell linear linalg_vecdot matmul mm mv prelu scaled_dot_product_attention "
    "_scaled_dot_product_flash_attention cudnn_convolution cudnn_convolution_transpose",
    "cpu": "addbmm addmm baddbmm bmm conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc "
    "_convolution linear linalg_vecdot matmul mm prelu scaled_dot_product_attention _addmm_activation "
    "_native_multi_head_attention mkldnn_rnn_layer",
}
_WIDEST = {
    "cuda": "addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot vdot",
    "cpu": "cat index_copy stack",
}
# What it computes in 32 bits from operands as they are.
_INTO_FLOAT = {"cuda": "cumprod cumsum linalg_matrix_norm linalg_vector_norm prod sum", "cpu": ""}
# Other names that Python has for them, or functions that lead there.
_ALIASES = {
    "matmul": "__matmul__ __rmatmul__",
    "mm": "tensordot inner chain_matmul multi_dot linalg_multi_dot",
    "bmm": "einsum",
    "pow": "__pow__ __rpow__",
    "reciprocal": "__rdiv__ __rtruediv__",
    "softmax": "softmin",
    "nll_loss": "nll_loss_nd",
}


def functions_of(names: set[str], handled: set[str] | None = None) -> set[Any]:
    others = set().union(*(_ALIASES[name].split() for name in names & _ALIASES.keys()))
    names = names | (others - (handled or set()))
    return {getattr(place, name) for name in names for place in PLACES if hasattr(place, name)}


TO_LOW, TO_FLOAT, TO_WIDEST, INTO = range(4)


@functools.cache
def autocast_lists(kind: str) -> dict[Any, int]:
    """The functions that autocast computes in 16 bits, in 32 bits, in the widest type of their inputs, and in 32 bits
    without a copy of them."""
    key = f"Autocast{kind.upper()}"
    known = torch._C._dispatch_has_kernel_for_dispatch_key
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    handled = {name[6:].split(".")[0] for name in names if known(name, key)}
    low, widest = handled & set(_LOW[kind].split()), handled & set(_WIDEST[kind].split())
    lists = dict.fromkeys(functions_of(widest, handled), TO_WIDEST)
    lists.update(dict.fromkeys(functions_of(handled - low - widest, handled), TO_FLOAT))
    lists.update(dict.fromkeys(functions_of(low, handled), TO_LOW))
    lists.update(dict.fromkeys(functions_of(handled & set(_INTO_FLOAT[kind].split()), handled), INTO))
    return lists
