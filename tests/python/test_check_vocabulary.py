"""The check of names and figures finds planted violations, and none in the sources as they are."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
C_FILE, PYTHON_FILE = "src/plan/explain.c", "python/memscale/plans.py"


@pytest.fixture(scope="module")
def check():
    spec = importlib.util.spec_from_file_location("check_vocabulary", ROOT / "tools/check_vocabulary.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(check, tmp_path):
    """A small source tree with the tables of the library."""
    for path in (*check.TABLES, *check.FIGURES):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text((ROOT / path).read_text())
    (tmp_path / "src/plan").mkdir()
    return tmp_path


def test_the_sources_have_one_place_for_each(check):
    names = check.table_names([(ROOT / table).read_text() for table in check.TABLES])
    assert {"recompute except attention", "tiled loss", "tile_loss", "optimizer state", "optimizer_step"} <= names
    assert {"optimizer step (first)", "in the first optimizer step"} <= names
    assert check.check_tree(ROOT) == []
    assert check.main() == 0


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (C_FILE, 'put("tiled loss");'),
        (C_FILE, 'put("%s: optimizer state\\n", name);'),
        (C_FILE, 'static const char *const names[] = {"forward", "optimizer_step"};'),
        (PYTHON_FILE, 'TEXT = "recompute except products"'),
        (PYTHON_FILE, 'TEXT = f"library workspaces: {n}"'),
        (PYTHON_FILE, 'PLACE = "in the optimizer step"'),
        ("python/memscale/_show/bars.py", 'KEYS = ("optimizer_step",)'),
        ("python/memscale/_core/module.c", 'char *name = "offloaded gradients";'),
    ],
)
def test_a_second_name_is_found(check, tree, file, text):
    (tree / file).parent.mkdir(parents=True, exist_ok=True)
    (tree / file).write_text(f"{text}\n")
    (problem,) = check.check_tree(tree)
    assert problem.startswith(f"{file}:1: ")
    assert "is a name of a table in C" in problem


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (C_FILE, 'put("%.1f GB", bytes / 1e9);'),
        (C_FILE, 'put("%" PRId64 " ms", ns / 1000000);'),
        (C_FILE, 'put("%lldkB", n);'),
        (PYTHON_FILE, 'TEXT = f"{n / 1e9:.1f} GB"'),
        (PYTHON_FILE, 'TEXT = f"{n}MB of {name}"'),
        (PYTHON_FILE, 'TEXT = "%.1f ms" % t'),
        (PYTHON_FILE, 'TEXT = "{:.1f} s".format(t)'),
        (PYTHON_FILE, 'TEXT = str(n) + " GB"'),
    ],
)
def test_a_second_format_is_found(check, tree, file, text):
    (tree / file).write_text(f"{text}\n")
    (problem,) = check.check_tree(tree)
    assert problem.startswith(f"{file}:1: ")
    assert "puts a unit after a number" in problem


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (C_FILE, '/* "tiled loss", or "%d GB" */\n#include "tile_loss"\nchar c = \'"\', *text = "of %d layers";'),
        (C_FILE, 'put("parameters, gradients and optimizer state are %s of it", text);'),
        (PYTHON_FILE, '"""Of the optimizer state, in f"{n} GB"."""\n\n\ndef f():\n    """tiled loss"""\n'),
        (PYTHON_FILE, 'TEXT = f"{n} GPUs, {n} Bs, {n} layer{plural}s", "NVIDIA A100 80GB PCIe"'),
        (PYTHON_FILE, 'add("--budget", metavar="GB", help="GB of memory")'),
        ("python/memscale/_show/bars.py", 'KEYS = ("optimizer_state",)'),
    ],
)
def test_ordinary_strings_are_allowed(check, tree, file, text):
    (tree / file).write_text(f"{text}\n")
    assert check.check_tree(tree) == []
