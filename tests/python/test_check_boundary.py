"""The check of the boundary finds planted violations, and none in the extension as it is."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from memscale import _core

ROOT = Path(__file__).parents[2]
STUB = """
from typing import TypedDict
version: str
Row = tuple[str, int]
class Link(TypedDict):
    rate: int
class Plan:
    count: int
    def __init__(self, a: int, b: int, c: int, d: int, e: int, f: int) -> None: ...
    def at(self, batch: int, /) -> Plan: ...
def short(a: int, b: int, c: int, /, d: int, e: int, f: int, *, g: int, h: int) -> None: ...
"""


@pytest.fixture(scope="module")
def check():
    spec = importlib.util.spec_from_file_location("check_boundary", ROOT / "tools/check_boundary.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def built():
    module = ModuleType("built")
    module.version, module.short = "1", len
    module.Plan = type("Plan", (), {"count": 0, "at": len})
    return module


def test_the_extension_is_as_declared(check):
    text = check.DECLARATIONS.read_text()
    assert check.check_lengths(text) == []
    assert check.check_names(check.declared_names(text), check.built_names(_core)) == []
    assert check.main() == 0


def test_what_is_allowed(check):
    assert check.check_lengths(STUB) == []
    assert check.check_names(check.declared_names(STUB), check.built_names(built())) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def long(a, b, c, d, e, f, g): ...", "long takes 7 positional arguments"),
        ("def long(a, b, c, d, /, e, f, g, *, h): ...", "long takes 7 positional arguments"),
        ("class A:\n    def long(self, a, b, c, d, e, f, g, /): ...", "A.long takes 7 positional arguments"),
        ("class A:\n    @classmethod\n    def long(cls, a, b, c, d, e, f, g): ...", "A.long takes 7 positional"),
    ],
)
def test_long_calls_are_found(check, text, words):
    (problem,) = check.check_lengths(text)
    assert words in problem


def test_names_of_one_side_are_found(check):
    module = built()
    del module.version
    module.extra = 1
    module.Plan = type("Plan", (), {"at": len, "cost": len})
    assert check.check_names(check.declared_names(STUB), check.built_names(module)) == [
        "version is declared and not in the module",
        "extra is in the module and not declared",
        "Plan.count is declared and not in the module",
        "Plan.cost is in the module and not declared",
    ]


def test_without_an_extension_names_are_not_compared(check, tmp_path, capsys):
    assert check.main(str(tmp_path)) == 0
    assert "not compared" in capsys.readouterr().out
