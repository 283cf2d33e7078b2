"""The executor: attaches a plan to a model, runs it, and takes it off again."""

from .._base import require as require
