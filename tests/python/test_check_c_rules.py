"""The checks of includes and of the core's sources find planted violations, and none in the sources as they are."""

import importlib.util
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = "src/sim/planted.c"
HEADER = "include/memscale/memscale.h"


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"tools/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path):
    """A small repository that keeps the rules."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    for file, text in (
        ("src/common/text.h", ""),
        ("src/plan/plan.h", ""),
        (SOURCE, '#include "../common/text.h"\n'),
        (HEADER, "/* The version. Cannot fail. */\nMS_API int ms_version(void);\n"),
    ):
        plant(tmp_path, file, text)
    return tmp_path


def plant(tree, file, text):
    (tree / file).parent.mkdir(parents=True, exist_ok=True)
    (tree / file).write_text(text)
    subprocess.run(["git", "-C", str(tree), "add", "-A"], check=True)


@pytest.fixture
def includes(tree, monkeypatch, capsys):
    check = load("check_includes")
    monkeypatch.setattr(check, "ROOT", tree)
    return lambda: (check.main(), capsys.readouterr().out)


@pytest.fixture
def source(tree, monkeypatch):
    check = load("check_source")
    monkeypatch.setattr(check, "ROOT", tree)
    return lambda: check.forbidden_calls() + check.undocumented() + check.unclear_words() + check.merge_leftovers()


def test_a_tree_that_keeps_the_rules(includes, source):
    assert includes()[0] == 0
    assert source() == []


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        (SOURCE, '#include "../plan/plan.h"', "sim may not include plan"),
        (SOURCE, '#include "missing.h"', "missing.h does not exist"),
        (SOURCE, "#include <Python.h>", "neither Python, torch nor CUDA"),
        (SOURCE, "static double share;", "floating point where decisions are made"),
        ("src/other/planted.c", "", "folder other is not in the law"),
        ("src/plan/text.h", "", "files share a name"),
        ("python/memscale/_core/bind/py_plan.c", '#include "recompute.h"', "bind may not include recompute.h"),
        ("python/memscale/_core/new/py_new.c", "", "new is not in the law"),
    ],
)
def test_planted_includes_are_found(tree, includes, file, text, words):
    plant(tree, file, f"{text}\n")
    status, output = includes()
    assert status == 1
    assert words in output


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        (SOURCE, 'printf("text");', "the core may not call this"),
        (SOURCE, "/* The copy runs behind the step. */", '"behind": write "after"'),
        ("python/memscale/planted.py", '"""What stands here."""', '"stands": write "is"'),
        (HEADER, "MS_API int ms_version(void);", "ms_version is not documented"),
        (HEADER, "/* The version. */\nMS_API int ms_version(void);", "ms_version does not say how it can fail"),
        (HEADER, "/* Errors: MS_E_IO. */\nMS_API ms_status ms_load(void);", "ms_load must be MS_NODISCARD"),
        ("notes.md", "<" * 7 + " ours", "notes.md:1:"),
    ],
)
def test_planted_sources_are_found(tree, source, file, text, words):
    plant(tree, file, f"{text}\n")
    (problem,) = source()
    assert words in problem
