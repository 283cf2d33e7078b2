"""The precisions that steps are traced in, and which of them a GPU has. Uses names of torch's types, not torch."""

from __future__ import annotations

from typing import NamedTuple

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
