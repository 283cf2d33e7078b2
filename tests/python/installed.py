"""libmemscale as others get it: installed, moved elsewhere, and with the example in C built against it.

Each is built once for all workers. The tree is moved before anything uses it: if a path of the first place were
written anywhere, the rest would fail.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures import skip_without_tool

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/c"
SAMPLE = EXAMPLE / "gpt2_medium.json"


def tool(name):
    """A tool that was installed with this Python, or the system's."""
    sibling = Path(sys.executable).with_name(name)
    return str(sibling) if sibling.exists() else shutil.which(name) or skip_without_tool(f"{name} is not installed")


def run(*command, check=True, **environment):
    result = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, **{key: str(value) for key, value in environment.items()}},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert not check or result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
    return result


def cmake(source, build, *options):
    ninja = tool("ninja")
    run(tool("cmake"), "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", *options)
    run(tool("cmake"), "--build", build)


def made_once(tmp_path_factory, name, make):
    """`make(folder)` returns a path; the first worker that needs it moves it to a place where all of them find it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    result = shared / name
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            make(tmp_path_factory.mktemp(name)).rename(result)
    return result


@pytest.fixture(scope="session")
def prefix(tmp_path_factory):
    """The installed tree, without Python and tests."""

    def make(folder):
        first, build = folder / "first", folder / "build"
        cmake(ROOT, build, "-DMEMSCALE_PYTHON=OFF", "-DMEMSCALE_TESTS=OFF", f"-DCMAKE_INSTALL_PREFIX={first}")
        run(tool("cmake"), "--install", build)
        shutil.rmtree(build)
        return first

    return made_once(tmp_path_factory, "installed", make)


@pytest.fixture(scope="session")
def library(prefix):
    """The folder of the libraries."""
    return next(prefix.glob("lib*/**/libmemscale.so")).parent


@pytest.fixture(scope="session")
def plan_file(prefix, tmp_path_factory):
    """The example, built with find_package."""

    def make(folder):
        cmake(EXAMPLE, folder, f"-DCMAKE_PREFIX_PATH={prefix}")
        return folder / "plan_file"

    return made_once(tmp_path_factory, "plan_file", make)
