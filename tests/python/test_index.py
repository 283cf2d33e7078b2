"""tests/README.md names every file of tests, and only files that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
INDEX = (TESTS / "README.md").read_text()
PACKAGE = ROOT / "python" / "memscale"


def named(pattern):
    return set(re.findall(rf"`({pattern})`", INDEX))


def test_what_is_named_exists():
    paths = named(r"tests/[\w./]+")
    assert len(paths) > 30
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_every_file_of_python_tests_is_named():
    files = [*TESTS.glob("python/*.py"), *TESTS.glob("gpu/test_*.py"), *TESTS.glob("ecosystem/test_*.py")]
    files += [*TESTS.glob("prop/*_prop.c")]
    missing = {str(path.relative_to(ROOT)) for path in files} - named(r"tests/[\w./]+")
    assert missing - {"tests/python/conftest.py"} == set()


def test_files_of_c_tests_mirror_sources_or_are_named():
    exceptions = named(r"\w+/test_\w+\.c")
    for path in TESTS.glob("unit/*/test_*.c"):
        folder, name = path.parent.name, path.name
        source = ROOT / "src" / folder / name.removeprefix("test_")
        mirrored = source.exists() or source.with_suffix(".h").exists()
        assert mirrored != (f"{folder}/{name}" in exceptions), path


def test_every_folder_of_the_package_is_named():
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert "_core" in folders
    assert folders <= named(r"_\w+")
