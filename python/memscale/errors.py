"""The exceptions and the warning category of MemScale."""

from ._core import BudgetError, MemScaleError


class MemScaleWarning(UserWarning):
    """Something that MemScale could not do, while training goes on."""


MemScaleWarning.__module__ = "memscale"

__all__ = ["BudgetError", "MemScaleError", "MemScaleWarning"]
