"""The host: its memory within the container's limit, and its cores."""

from __future__ import annotations

import json
from typing import Any

from .. import _core


def host() -> dict[str, Any]:
    """The host record of this machine."""
    record: dict[str, Any] = json.loads(_core.hw_detect(""))
    return record
