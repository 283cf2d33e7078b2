"""The check of imports finds planted violations, and none in the package as it is."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def law():
    spec = importlib.util.spec_from_file_location("check_imports", ROOT / "tools/check_imports.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and the like look themselves up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def package(tmp_path):
    """A small package that keeps the law."""
    for folder in ("_base", "_show", "_trace", "_cli"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("")
    (tmp_path / "_core.pyi").write_text("version: str\n")
    (tmp_path / "errors.py").write_text("from ._core import version\n")
    (tmp_path / "plans.py").write_text(
        "from ._show.words import words\nfrom .errors import version\n\n\nclass Plan: ...\n"
    )
    (tmp_path / "_base/checks.py").write_text("from ..errors import version\n")
    (tmp_path / "_trace/tracer.py").write_text("from .._base import checks\nfrom .._base.checks import version\n")
    (tmp_path / "_show/words.py").write_text(
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from ..plans import Plan\n\n\ndef words(): ...\n"
    )
    return tmp_path


def test_the_package_keeps_the_law(law, package):
    assert law.check_package(ROOT / "python/memscale") == []
    assert law.check_package(package) == []
    assert law.main() == 0


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("_base/checks.py", "from .._trace.tracer import version", "_base may not import _trace"),
        ("_base/checks.py", "from .. import plans", "_base may not import plans"),
        ("_show/words.py", "from ..plans import Plan", "_show may not import plans"),
        ("_base/checks.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..plans import Plan",
         "_base may not import plans"),
        ("_trace/tracer.py", "def late():\n    from ..errors import version", "an import inside late()"),
        ("_trace/tracer.py", "def late():\n    import json", "an import inside late()"),
        ("_trace/tracer.py", "import importlib\nimportlib.import_module('torch')", "loads a module by name"),
        ("_trace/tracer.py", "from .._base.checks import _hidden", "_hidden is a private name of _base.checks"),
        ("_trace/tracer.py", "from .._base import checks\nchecks._hidden", "checks._hidden is a private name"),
        ("_trace/tracer.py", "from memscale.errors import version", "imported relatively"),
        ("_trace/tracer.py", "from .. import version", "import it from its module"),
        ("extra.py", "", "extra is not in the law"),
        ("_trace/values.py", "from .tracer import version", "an import cycle: _trace.tracer -> _trace.values"),
    ],
)  # fmt: skip
def test_what_is_planted_is_found(law, package, file, text, words):
    (package / file).write_text(f"{text}\n")
    if "cycle" in words:
        (package / "_trace/tracer.py").write_text("from .values import version\n")
    problems = law.check_package(package)
    assert any(words in problem for problem in problems), problems


def test_private_attributes(law, package):
    (package / "_base/checks.py").write_text("class A:\n    def __init__(self):\n        self._inner = 1\n")
    (package / "_trace/tracer.py").write_text("def look(a):\n    return a._inner, a._other\n")
    assert law.check_package(package) == [
        "_trace/tracer.py:2: _inner is a private attribute of a class of another module"
    ]


def test_optional_packages_may_be_imported_late(law, package):
    (package / "_trace/tracer.py").write_text("def late():\n    import transformers\n")
    assert law.check_package(package) == []


def test_lengths_and_names(law, tmp_path, monkeypatch):
    monkeypatch.setattr(law, "ROOT", tmp_path)
    for path, n_lines in (("tools/a.py", 450), ("tools/b.py", 451), ("tests/c.py", 900), ("bench/a.py", 1)):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("pass\n" * n_lines)
    paths = [path.relative_to(tmp_path) for path in sorted(tmp_path.rglob("*.py"))]
    assert law.check_files(paths) == [
        "tools/a.py: bench/a.py has the same name",
        "tools/b.py: 451 lines, at most 450",
    ]
