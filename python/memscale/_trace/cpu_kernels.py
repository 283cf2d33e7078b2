"""What shapes alone do not tell of a kernel on a CPU, as a name that ``ops.c`` knows.

oneDNN computes convolutions in the layout of their inputs, and a gradient in another one is copied first. Other kernels
copy what is not contiguous.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch

_CONVOLUTION = torch.ops.aten.convolution.default
_BACKWARD = torch.ops.aten.convolution_backward.default
_COPYING = {
    getattr(torch.ops.aten, name).default
    for name in (
        "_softmax",
        "_log_softmax",
        "_softmax_backward_data",
        "_log_softmax_backward_data",
        "native_layer_norm",
        "native_layer_norm_backward",
        "embedding_dense_backward",
    )
}
BY_LAYOUT = {_CONVOLUTION, _BACKWARD} | _COPYING
_SMALL = 20480  # elements of an input that torch does not hand to oneDNN
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def copying_name(func: Any, args: Any) -> str | None:
    """The name of an operation that copies operands which are not contiguous, also on a GPU; None: it copies none."""
    if func not in _COPYING:
        return None
    copied = [str(i) for i, t in enumerate(args[:2]) if isinstance(t, torch.Tensor) and not t.is_contiguous()]
    return f"{func}.copies{''.join(copied)}" if copied else None


def kernel_name(func: Any, args: Any, n_threads: int) -> str | None:
    """The operation's name with its kernel, or None: the name is enough. The analysis itself may have one thread only;
    what counts is how many the step will have."""
    if func in _COPYING:
        return copying_name(func, args)
    if func is _CONVOLUTION:
        data, weight, bias, stride, padding, dilation, transposed, output_padding, groups = args
    elif func is _BACKWARD:
        _, data, weight, _, stride, padding, dilation, transposed, output_padding, groups, _ = args
        bias = None
    else:
        return None
    last = is_channels_last(data, weight)
    if transposed or not (data.dtype == torch.float32 or (data.dtype == torch.bfloat16 and last)):
        return None
    options = (stride, padding, dilation, False, output_padding, groups)
    backend = torch._C._select_conv_backend(_stand_in(data), _stand_in(weight), _stand_in(bias), *options)
    kernel = _kernel(str(backend), data, weight, [*stride, *padding], groups)
    if kernel == "cpu_direct" and n_threads > 1 and (data.shape[0] > 1 or data.numel() > _SMALL):
        kernel = "cpu_last" if last else "cpu_blocked"  # as torch chooses then
    if not _has_wide_blocks():
        kernel += "_by8"
    if not _is_laid_out(data, last):
        kernel += "_gathered"
    if func is _CONVOLUTION:
        return f"aten.convolution.{kernel}"
    copies = "" if _is_laid_out(args[0], last) else "_copied"
    strides = "_strided" if any(step > 1 for step in stride) else ""
    weights_only = "" if args[-1][0] else "_weights"
    return f"aten.convolution_backward.{kernel}{strides}{copies}{weights_only}"


@functools.cache
def _has_wide_blocks() -> bool:
    """Does oneDNN compute in blocks of 16 channels, with AVX-512, or in blocks of 8?"""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", os.environ.get("DNNL_MAX_CPU_ISA", "ALL")).upper()
    supported = getattr(torch.cpu, "_is_avx512_supported", lambda: torch.backends.cpu.get_cpu_capability() == "AVX512")
    return limit.startswith(("ALL", "DEFAULT", "AVX512", "AVX10")) and bool(supported())


def _kernel(backend: str, data: Any, weight: Any, steps: list[int], groups: int) -> str:
    if backend.endswith(("Slow2d", "Slow3d", "SlowDilated2d", "SlowDilated3d")):
        pointwise = all(n == 1 for n in weight.shape[2:]) and set(steps) <= {0, 1}
        return "cpu_direct" if pointwise else "cpu_columns"
    layout = "cpu_last" if is_channels_last(data, weight) else "cpu_blocked"
    return f"{layout}_depthwise" if groups > 1 and weight.shape[1] == 1 else layout


def _stand_in(tensor: Any) -> Any:
    """A real tensor of the same shape without its memory."""
    return None if tensor is None else torch.zeros(1, dtype=tensor.dtype).expand(tensor.shape)


def is_channels_last(*tensors: Any) -> bool:
    """Does one of them have its channels last, and is not contiguous either way?"""
    return any(not _is_laid_out(tensor, False) and _is_laid_out(tensor, True) for tensor in tensors)


def _is_laid_out(tensor: Any, channels_last: bool) -> bool:
    if not channels_last:
        return bool(tensor.is_contiguous())
    memory_format = _FORMATS.get(tensor.dim())
    return memory_format is not None and bool(tensor.is_contiguous(memory_format=memory_format))
