"""The fixtures of these tests; those of fixtures.py are shared with tests/gpu."""

from fixtures import _repeatable, _watched, no_warnings, quiet_config, recomputed  # noqa: F401
from installed import library, plan_file, prefix  # noqa: F401
