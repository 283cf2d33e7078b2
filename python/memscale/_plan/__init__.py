"""From settings, device and profile to a plan."""

from .._base import require as require
