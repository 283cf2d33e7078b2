"""Hardware: devices and their rates, memory budgets, and measurements."""

from .._base import require as require
