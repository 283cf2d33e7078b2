"""One training step of a model as a trace, on tensors without memory wherever that is possible."""

from .._base import require as require
