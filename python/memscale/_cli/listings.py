"""The lists of GPUs and models that commands know by name: ``--list-gpus`` and ``--list-models``."""

from __future__ import annotations

import argparse
import json
from typing import Any

from .. import _core
from .._base.step_kinds import default_precision
from .._show.terminal import write
from .._show.text import size
from .model_registry import REGISTRY
from .options import wants_list


def show_list(arguments: argparse.Namespace) -> bool:
    """Show what is known, if that was asked for."""
    key = wants_list(arguments)
    if key is None:
        return False
    rows = gpu_rows() if key == "gpus" else model_rows()
    if arguments.json:
        write(json.dumps({key: rows}, indent=2))
        return True
    for row in rows:
        write(_gpu_line(row) if key == "gpus" else _model_line(row))
    return True


def gpu_rows() -> list[dict[str, Any]]:
    """The GPUs that are known."""
    return [
        {
            "key": row["key"],
            "name": row["name"],
            "memory_bytes": row["memory_bytes"],
            "capability": row["capability"],
            "precision": default_precision(row["capability"]),
        }
        for row in _core.gpu_models()
    ]


def model_rows() -> list[dict[str, Any]]:
    """The models that are known by name."""
    return [{"name": name, "class": e.model, "seq": e.length or None} for name, e in REGISTRY.items()]


def _gpu_line(row: dict[str, Any]) -> str:
    return f"{row['key']:<15} {size(row['memory_bytes']):>9}  {row['precision']}  {row['name']}"


def _model_line(row: dict[str, Any]) -> str:
    return f"{row['name']:<14} {row['seq'] or '-':>5}  {row['class']}"
