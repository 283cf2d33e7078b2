"""What a target device does differently from the meta device: autocast, attention kernels, fused dropout.

Written from torch's documented behaviour ("Automatic Mixed Precision package", the operator lists), for tensors that
have no device of that kind. A function mode sees what Python calls; functions that torch has in Python are run
without their check for overrides, so that the functions they call are seen as well. Where tensors are, and which
device an argument names, is in ``places.py``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as nnf
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode

from .._base.storages import KEPT_FUNCTIONS
from .._core import tensors_in
from .autocast_lists import INTO, TO_FLOAT, TO_LOW, autocast_lists, functions_of
from .cpu_kernels import is_channels_last
from .meta_values import UnknownValueError, Values
from .places import Places


@dataclasses.dataclass(frozen=True)
class Target:
    """Where and how a step runs.

    Attributes:
        kind: ``"cuda"`` or ``"cpu"``.
        capability: of the GPU, as 10 * major + minor.
        autocast: the dtype of autocast around forward and loss, or None.
        dtype: what the model is converted to, or None: it stays as it is.
        fuses: are chains of pointwise functions computed again as one kernel?
        name, memory_bytes, n_multiprocessors: of the GPU, for models that ask; 0: unknown. The last is the number of
            threads of a CPU; 0: as many as torch has now.
    """

    kind: str = "cuda"
    capability: int = 80
    autocast: torch.dtype | None = None
    dtype: torch.dtype | None = None
    fuses: bool = False
    name: str = "GPU"
    memory_bytes: int = 0
    n_multiprocessors: int = 0


_ATTENTION = nnf.scaled_dot_product_attention
_CROSS_ENTROPY = torch._C._nn.cross_entropy_loss
_SOFTMAX = getattr(torch, "_safe_softmax", torch.softmax)  # of attention: zeros where everything is masked
_DROPOUTS = {nnf.dropout, torch.dropout}
_ENGINE = {torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad}

# Losses whose sum is in the memory of all that was summed up.
_ROOMY_LOSSES = functions_of({"mse_loss", "smooth_l1_loss", "soft_margin_loss"})
# Recurrent layers of libraries: what they keep for backward is only known from a run.
_RECURRENT = {
    "cuda": functions_of({"lstm", "gru", "rnn_tanh", "rnn_relu"}),
    "cpu": functions_of({"lstm"}) if torch.backends.mkldnn.is_available() else set(),
}

_PYTHON = ("torch.nn.functional", "torch.functional")
_QUESTIONS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
_NO = {name: lambda *_: False for name in _QUESTIONS}
_bodies: dict[Any, Callable[..., Any] | None] = {}


def _without_override_check(function: Any) -> Callable[..., Any] | None:
    """The body of a function that torch has in Python, without its check for overrides."""
    if function not in _bodies:
        _bodies[function] = None
        of_python = getattr(function, "__module__", None) in _PYTHON or function in (*_ENGINE, torch.Tensor.norm)
        of_python = of_python and isinstance(function, types.FunctionType)
        if of_python and any(name in function.__code__.co_names for name in _QUESTIONS):
            scope = {**function.__globals__, **_NO}
            twin = types.FunctionType(
                function.__code__, scope, function.__name__, function.__defaults__, function.__closure__
            )
            twin.__kwdefaults__ = function.__kwdefaults__
            _bodies[function] = twin
    return _bodies[function]


def _dropout_of(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *_: Any, **__: Any
) -> float:
    """The rate of dropout of these arguments of attention."""
    return dropout_p


_Handler = Callable[[Any, Any, Any], Any]


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


class Rules(TorchFunctionMode):  # type: ignore[misc]
    """Runs operations on meta tensors as they would run on the target device.

    One instance is active through a whole step, its backward included, and whether autocast is on is asked at every
    call: a model may enter and leave it, and a recomputation in backward restores it.
    """

    def __init__(
        self,
        target: Target,
        values: Values | None = None,
        ignore: Callable[[Any], None] | None = None,
        begin_function: Callable[[int], None] | None = None,
        end_function: Callable[[Any], None] | None = None,
    ) -> None:
        super().__init__()
        self.target = target
        self.begin_function = begin_function or (lambda _: None)  # of those whose results may be kept
        self.end_function = end_function or (lambda _: None)
        self.is_inside = False  # a function: what it calls in turn is not seen by a layer that keeps results
        values = values or Values()
        if target.n_multiprocessors:
            values.n_threads = target.n_multiprocessors
        self.places = Places(target.kind, values, ignore or (lambda _: None))
        self.lists = autocast_lists(target.kind)
        self.handlers: dict[Any, _Handler] = {}
        self.casts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # autocast's cache of weights
        self.backward_in_autocast = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        handler = self.handlers.get(func)
        if handler is None:
            handler = self._handler_of(func)
            if func in KEPT_FUNCTIONS:
                handler = functools.partial(self._in_function, handler)
            self.handlers[func] = handler
        if kwargs is None:
            return handler(func, args, {})
        if "device" in kwargs:
            kwargs = self.places.with_device(kwargs)
        return handler(func, args, kwargs)

    def _handler_of(self, func: Any) -> _Handler:
        handler: _Handler | None = self.places.handler_of(func)
        if handler is not None:
            return handler
        on_gpu = self.target.kind == "cuda"
        if func in _DROPOUTS and on_gpu:
            return lambda func, args, kwargs: _dropout(func, *args, **kwargs)
        if func in _ENGINE or _without_override_check(func) is not None:
            return self._run_inside
        if func is _CROSS_ENTROPY and on_gpu:
            return self._cross_entropy
        if func in _RECURRENT[self.target.kind]:
            return _refuse_recurrent
        if func is _ATTENTION:
            return self._attend
        if func in _ROOMY_LOSSES:
            return self._roomy_loss
        if func is torch.group_norm and not on_gpu:
            return self._group_norm
        return self._cast_and_run if func in self.lists else _run

    def _in_function(self, handler: _Handler, func: Any, args: Any, kwargs: Any) -> Any:
        """Its result may be kept, unless it draws from a generator that does not tell how many numbers."""
        if self.is_inside or (func is _ATTENTION and self.target.kind != "cuda" and _dropout_of(*args, **kwargs) > 0):
            return handler(func, args, kwargs)
        self.is_inside, result = True, None
        self.begin_function(KEPT_FUNCTIONS[func])
        try:
            result = handler(func, args, kwargs)
        finally:
            self.is_inside = False
            self.end_function(result)
        return result

    def _run_inside(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What it calls is seen too: of a function in Python, and of what runs in backward."""
        was_inside = self.is_inside
        if func in _ENGINE:
            self.backward_in_autocast = torch.is_autocast_enabled(self.target.kind)
        else:
            self.is_inside = True
        try:
            with self:
                return (_without_override_check(func) or func)(*args, **kwargs)
        finally:
            self.is_inside = was_inside

    def _cast_and_run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if torch.is_autocast_enabled(self.target.kind):
            args, kwargs = self._autocast(func, args, kwargs)
        return func(*args, **kwargs)

    def _attend(self, func: Any, args: Any, kwargs: Any) -> Any:
        if torch.is_autocast_enabled(self.target.kind):
            args, kwargs = self._autocast(func, args, kwargs)
        return self._attention(*args, **kwargs)

    def _roomy_loss(self, func: Any, args: Any, kwargs: Any) -> Any:
        result = self._cast_and_run(func, args, kwargs)
        if result.dim() == 0 and result.is_meta:
            result._memory = torch.empty(torch.broadcast_shapes(*(t.shape for t in args[:2])), device="meta")
        return result

    def _group_norm(self, func: Any, args: Any, kwargs: Any) -> Any:
        """On a CPU, an input with channels last stays as it is; everywhere else torch makes it contiguous first."""
        if func in self.lists and torch.is_autocast_enabled("cpu"):
            args, kwargs = self._autocast(func, args, kwargs)
        data = args[0]
        if not data.is_meta or not is_channels_last(data):
            return func(*args, **kwargs)
        names = ("num_groups", "weight", "bias", "eps")
        given = {"weight": None, "bias": None, "eps": 1e-5, **dict(zip(names, args[1:])), **kwargs}
        sizes = (data.shape[0], data.shape[1], data[0, 0].numel(), given["num_groups"])
        return torch.native_group_norm(data, given["weight"], given["bias"], *sizes, given["eps"])[0]

    # Autocast

    def forget_casts(self) -> None:
        self.casts.clear()

    @contextlib.contextmanager
    def recomputation(self) -> Iterator[None]:
        """A recomputation restores the autocast of its first run, whose cache of weights is gone, unless backward
        runs inside of an autocast block."""
        casts = self.casts
        if not self.backward_in_autocast:
            self.casts = {}
        try:
            yield
        finally:
            self.casts = casts

    def _autocast(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments as autocast hands them on."""
        kind = self.lists[func]
        if kind == TO_LOW:
            dtype = torch.get_autocast_dtype(self.target.kind)
            last_first = [self._cast(value, dtype) for value in reversed(args)]  # as compilers evaluate arguments
            return tuple(reversed(last_first)), self._cast(kwargs, dtype)
        if kind == INTO:
            narrow = isinstance(args[0], torch.Tensor) and args[0].dtype in (torch.float16, torch.bfloat16)
            return args, {**kwargs, "dtype": torch.float32} if narrow and kwargs.get("dtype") is None else kwargs
        if kind == TO_FLOAT:
            wide = kwargs.get("dtype") is None
        else:
            wide = torch.float32 in {t.dtype for t in tensors_in((args, kwargs))}
        return (self._to_float(args), self._to_float(kwargs)) if wide else (args, kwargs)

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, torch.Tensor):
            return self._cast_tensor(value, dtype)
        if isinstance(value, (tuple, list)):
            return type(value)(self._cast(v, dtype) for v in value)
        if isinstance(value, dict):
            return {key: self._cast(v, dtype) for key, v in value.items()}
        return value

    def _cast_tensor(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if not tensor.is_floating_point() or tensor.dtype in (dtype, torch.float64) or not tensor.is_meta:
            return tensor
        is_cached = tensor.is_leaf and tensor.requires_grad and tensor.dtype == torch.float32 and not tensor._is_view()
        if not is_cached or not torch.is_autocast_cache_enabled():
            return tensor.to(dtype)
        if id(tensor) not in self.casts:
            with torch.enable_grad():  # a cast that is first wanted without gradients serves later calls with them
                self.casts[id(tensor)] = (tensor, tensor.to(dtype))
        return self.casts[id(tensor)][1]

    def _to_float(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            narrow = value.dtype in (torch.float16, torch.bfloat16) and value.is_meta
            return value.float() if narrow else value
        if isinstance(value, (tuple, list)):
            return type(value)(self._to_float(v) for v in value)
        if isinstance(value, dict):
            return {key: self._to_float(v) for key, v in value.items()}
        return value

    def _cross_entropy(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        if not torch.is_autocast_enabled("cuda"):
            return func(*args, **kwargs)  # type: ignore[no-any-return]
        return self._low_cross_entropy(*args, **kwargs)

    def _low_cross_entropy(
        self, input: torch.Tensor, target: torch.Tensor, weight: Any = None, *rest: Any, **named: Any
    ) -> torch.Tensor:
        """Its softmax is given the dtype of the input, so autocast leaves that alone; the loss is in 32 bits."""
        if target.is_floating_point() or named.get("label_smoothing", rest[2] if len(rest) > 2 else 0.0):
            return torch._C._nn.cross_entropy_loss(self._to_float(input), target, weight, *rest, **named)  # type: ignore[no-any-return]
        reduction, ignored = (*rest, 1, -100)[:2] if len(rest) > 1 else (rest[0] if rest else 1, -100)
        logs = torch.log_softmax(input, 1 if input.dim() > 1 else 0, dtype=input.dtype)
        options = (named.get("reduction", reduction), named.get("ignore_index", ignored))
        return torch._C._nn.nll_loss_nd(self._to_float(logs), target, weight, *options)  # type: ignore[no-any-return]

    # Attention

    def _attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if self.target.kind == "cpu":
            kind = _kernel_of_cpu(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
        else:
            kind = self._kernel(query, key, value, attn_mask, enable_gqa)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = _bias(attn_mask, query.dtype)
        if kind == "math":
            return self._math(query, key, value, attn_mask, dropout_p, is_causal, scale)
        if kind == "flash_for_cpu":
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # type: ignore[no-any-return]
                query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
            )[0]
        if kind == "cudnn":
            return torch.ops.aten._scaled_dot_product_cudnn_attention(  # type: ignore[no-any-return]
                query, key, value, attn_mask, query.requires_grad, dropout_p, is_causal, False, scale=scale
            )[0]
        if kind == "efficient" or attn_mask is not None:
            if attn_mask is not None:
                attn_mask = attn_mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))
            return torch.ops.aten._scaled_dot_product_efficient_attention(  # type: ignore[no-any-return]
                query, key, value, attn_mask, query.requires_grad, dropout_p, is_causal, scale=scale
            )[0]
        return torch.ops.aten._scaled_dot_product_flash_attention(  # type: ignore[no-any-return]
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]

    def _math(
        self, query: Any, key: Any, value: Any, mask: Any, dropout: float, is_causal: bool, scale: float | None
    ) -> torch.Tensor:
        """Attention without a fused kernel, step by step as torch does it: 16 bits are computed in 32, and a tensor
        that has a name here lives as long as in torch."""
        wide_query, wide_key, wide_value = (self._to_float(t) for t in (query, key, value))
        root = (query.size(-1) ** -0.5 if scale is None else abs(scale)) ** 0.5
        scaled = wide_query * root
        if is_causal:
            mask = _bias(torch.ones(query.size(-2), key.size(-2), dtype=torch.bool, device="meta").tril(), scaled.dtype)
        every_key, every_value = wide_key, wide_value
        if key.dim() > 2 and key.size(-3) != query.size(-3):
            n = query.size(-3) // key.size(-3)
            every_key, every_value = wide_key.repeat_interleave(n, -3), wide_value.repeat_interleave(n, -3)
        scores = torch.matmul(scaled, every_key.transpose(-2, -1) * root)
        if mask is not None:
            scores.add_(mask)
        scores = _SOFTMAX(scores, -1)
        if dropout > 0:
            scores = (
                _dropout(torch.dropout, scores, dropout, True)
                if self.target.kind == "cuda"
                else torch.dropout(scores, dropout, True)
            )
        _returned = scores.to(query.dtype)  # torch returns them too, and they are not used
        return torch.matmul(scores, every_value).to(query.dtype)

    def _kernel(self, query: Any, key: Any, value: Any, mask: Any, gqa: bool) -> str:
        """The kernel that torch chooses on a GPU."""
        grouped = gqa and key.size(-3) != query.size(-3)
        operands = [t for t in (query, key, value, mask) if t is not None]
        if query.dim() != 4 or any(t.stride(-1) != 1 and t.size(-1) > 1 for t in operands):
            return "math"
        if mask is not None and mask.requires_grad:  # only one kernel has gradients of the mask
            return "math" if grouped else "efficient"
        capability, narrow = self.target.capability, query.dtype in (torch.float16, torch.bfloat16)
        widths = (query.size(-1), value.size(-1))
        if widths[0] != widths[1]:  # as in multi-head latent attention: no flash kernel takes that
            if narrow and capability >= 90 and max(widths) <= 256 and all(width % 8 == 0 for width in widths):
                return "cudnn"
            aligned = all(width % (8 if narrow else 4) == 0 for width in widths)
            return "efficient" if aligned and not grouped else "math"
        if narrow and capability >= (80 if mask is None else 90):  # from 90 on it is cuDNN's
            return "flash"
        return "math" if grouped else "efficient"


def _refuse_recurrent(func: Any, args: Any, kwargs: Any) -> Any:
    raise UnknownValueError("only a run tells what a library keeps for the backward of a recurrent layer")


def _kernel_of_cpu(query: Any, key: Any, value: Any, mask: Any, dropout: float, is_causal: bool, gqa: bool) -> str:
    """The kernel that torch chooses on the CPU: torch is asked, with small tensors of the same kind."""
    n_rows, n_columns = query.size(-2), key.size(-2)

    def small(tensor: Any) -> Any:
        if tensor is None:
            return None
        shape = [min(n, 2) if i == 0 or n in (n_rows, n_columns) else n for i, n in enumerate(tensor.shape)]
        return torch.empty(shape, dtype=tensor.dtype, requires_grad=tensor.requires_grad)

    options = {"enable_gqa": True} if gqa else {}
    with torch.utils._python_dispatch._disable_current_modes():
        chosen = torch._fused_sdp_choice(
            small(query), small(key), small(value), small(mask), dropout, is_causal, **options
        )
    return "flash_for_cpu" if chosen == SDPBackend.FLASH_ATTENTION.value else "math"


def _bias(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask of truth values as one that is added, as the kernels want it."""
    allowed, hidden = (torch.scalar_tensor(value, dtype=dtype, device="meta") for value in (0.0, float("-inf")))
    return torch.where(mask, allowed, hidden)


def _dropout(func: Any, input: torch.Tensor, p: float = 0.5, *rest: Any, **named: Any) -> torch.Tensor:
    training = named.pop("training", rest[0] if rest else True)
    inplace = named.pop("inplace", rest[1] if len(rest) > 1 else False)
    if named.pop("train", training) is False or not 0 < p < 1 or inplace or input.numel() == 0:
        return func(input, p, training, inplace) if func is nnf.dropout else func(input, p, training)
    return torch.native_dropout(input, p, True)[0]
