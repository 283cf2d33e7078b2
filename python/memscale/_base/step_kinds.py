"""The precisions and optimizers that a step may have, by name. Knows nothing of torch but names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from .. import _core


class Precision(NamedTuple):
    """How a step computes, in names of torch's types."""

    autocast: str | None  # None: autocast is off
    dtype: str | None  # that the model is converted to; None: it stays as it is


PRECISIONS: dict[str, Precision] = {
    "fp32": Precision(None, None),
    "bf16": Precision("bfloat16", None),
    "fp16": Precision("float16", None),
    "pure-bf16": Precision(None, "bfloat16"),
    "pure-fp16": Precision(None, "float16"),
}


def has_precision(capability: int, name: str) -> bool:
    """Does a GPU of this compute capability have this precision in hardware?"""
    if name.endswith("bf16"):
        return _core.capability_has_bf16(capability)
    return _core.capability_has_fp16(capability) if name.endswith("fp16") else True


def default_precision(capability: int) -> str:
    """What a GPU is best trained in: the fastest type that it has."""
    return next(name for name in ("bf16", "fp16", "fp32") if has_precision(capability, name))


def pure_half(capability: int) -> str | None:
    """The precision of a model that is converted to 16 bits; None: the GPU has no such type."""
    return next((name for name in ("pure-bf16", "pure-fp16") if has_precision(capability, name)), None)


_LEARNING_RATE = {"lr": 1e-3}


@dataclasses.dataclass(frozen=True)
class OptimizerKind:
    """One kind of optimizer.

    Attributes:
        class_name: its class in ``torch.optim``.
        options: what it is made with.
        fused: it updates in one kernel, without temporaries.
        has_lists: on a GPU torch updates lists of tensors at once by default, with temporaries of that size.
        n_moments: tensors of state for each parameter; None: it depends on shapes.
    """

    class_name: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fused: bool = False
    has_lists: bool = True
    n_moments: int | None = None


OPTIMIZERS: dict[str, OptimizerKind] = {
    "adamw": OptimizerKind("AdamW", n_moments=2),
    "adamw-fused": OptimizerKind("AdamW", fused=True, has_lists=False, n_moments=2),
    "adam": OptimizerKind("Adam", n_moments=2),
    "sgd": OptimizerKind("SGD", _LEARNING_RATE, n_moments=0),
    "sgd-momentum": OptimizerKind("SGD", {**_LEARNING_RATE, "momentum": 0.9}, n_moments=1),
    "adafactor": OptimizerKind("Adafactor", {"foreach": False}, has_lists=False),  # in torch from 2.5 on
}
DEFAULT_OPTIMIZER = "adamw"


def fused_kind(name: str) -> str | None:
    """The same optimizer without temporaries, where there is one and this is not it."""
    kind = OPTIMIZERS.get(name)
    if kind is None or not kind.has_lists:
        return None
    return next((n for n, other in OPTIMIZERS.items() if other.fused and other.class_name == kind.class_name), None)


def makes_state(name: str) -> bool:
    """Does an optimizer of this name have tensors of state for each parameter?"""
    kind = OPTIMIZERS.get(name)
    return kind is not None and kind.n_moments != 0


def optimizer_call(name: str) -> str:
    """How an optimizer of this name is made."""
    kind = OPTIMIZERS[name]
    options = {key: value for key, value in kind.options.items() if key != "lr"}
    options |= {"fused": True} if kind.fused else {}
    arguments = ", ".join(["...", *(f"{key}={value}" for key, value in options.items())])
    return f"torch.optim.{kind.class_name}({arguments})"


def precision_call(name: str) -> str:
    """How a step is made to compute in the precision of this name."""
    precision = PRECISIONS[name]
    return f"model.to(torch.{precision.dtype})" if precision.dtype else f"autocast to torch.{precision.autocast}"


def name_of(optimizer: Any) -> str | None:
    """The name of an optimizer that exists; None: it has none."""
    kind = kind_of(optimizer)
    if kind is None:
        return None
    is_fused = any(group.get("fused") for group in optimizer.param_groups)
    names = [name for name, other in OPTIMIZERS.items() if other.class_name == kind.class_name]
    exact = [name for name in names if OPTIMIZERS[name].options == kind.options]
    return next((name for name in exact if OPTIMIZERS[name].fused == is_fused), exact[0])


def kind_of(optimizer: Any) -> OptimizerKind | None:
    """The row of an optimizer that exists; None: it is not one of torch's, or has no row."""
    classes = {c.__name__ for c in type(optimizer).__mro__ if c.__module__.startswith("torch.optim")}
    has_momentum = any(group.get("momentum", 0) for group in optimizer.param_groups)
    for kind in OPTIMIZERS.values():
        if kind.class_name in classes and bool(kind.options.get("momentum", 0)) == has_momentum:
            return kind
    return None
