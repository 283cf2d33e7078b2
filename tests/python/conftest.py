"""The fixtures of these tests; they are shared with tests/gpu."""

from fixtures import _measured, _repeatable, no_warnings, quiet_config, recomputed  # noqa: F401
