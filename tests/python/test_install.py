"""libmemscale as others get it: installed, moved elsewhere, and used by the example in C.

The installed tree is built once, from a configuration without Python and tests, and moved before anything uses it: if
a path of the first place were written anywhere, the rest would fail.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/c"
SAMPLE = EXAMPLE / "gpt2_medium.json"
SYSTEM_LIBRARIES = re.compile(r"(libc|libm|libdl|libpthread|ld-linux.*)\.so")


def tool(name):
    """A tool that was installed beside this Python, or the system's."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name) or pytest.skip(f"{name} is not installed")


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


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("install")
    first, moved = folder / "first", folder / "moved"
    options = ("-DMEMSCALE_PYTHON=OFF", "-DMEMSCALE_TESTS=OFF", f"-DCMAKE_INSTALL_PREFIX={first}")
    cmake(ROOT, folder / "build", *options)
    run(tool("cmake"), "--install", folder / "build")
    shutil.rmtree(folder / "build")
    return first.rename(moved)


@pytest.fixture(scope="module")
def library(prefix):
    return next(prefix.glob("lib*/**/libmemscale.so")).parent


@pytest.fixture(scope="module")
def decide(prefix, tmp_path_factory):
    """The example, built with find_package."""
    build = tmp_path_factory.mktemp("decide")
    cmake(EXAMPLE, build, f"-DCMAKE_PREFIX_PATH={prefix}")
    return build / "plan_file"


def needed(path):
    return re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", path).stdout)


def flags_of(pc, static=False):
    """What pkg-config would say, from the file itself."""
    variables, fields = {"pcfiledir": str(pc.parent)}, {}
    for line in pc.read_text().splitlines():
        name, mark, value = re.match(r"([\w.]*)\s*([=:]?)\s*(.*)", line).groups()
        value = re.sub(r"\$\{(\w+)\}", lambda match: variables[match[1]], value)
        (variables if mark == "=" else fields)[name] = value
    words = ["Cflags", "Libs", *(["Libs.private"] if static else [])]
    return shlex.split(" ".join(fields[word] for word in words))


def compile_with(flags, program, *more):
    run(os.environ.get("CC", "cc"), "-std=c11", "-Wall", "-Wextra", "-Werror", "-o", program, EXAMPLE / "plan_file.c",
        *flags, *more)  # fmt: skip


def test_what_is_installed(prefix, library):
    files = {str(path.relative_to(prefix)) for path in prefix.rglob("*") if not path.is_dir()}
    lib = library.relative_to(prefix)
    version = re.search(r'MS_VERSION_STRING "(.*)"', (ROOT / "include/memscale/memscale.h").read_text())[1]
    package = {path for path in files if path.startswith(f"{lib}/cmake/memscale/")}
    assert {Path(path).name for path in package} >= {"memscaleConfig.cmake", "memscaleConfigVersion.cmake"}
    assert files - package == {
        "include/memscale/memscale.h",
        "include/memscale/memscale_errors.h",
        f"{lib}/libmemscale.a",
        f"{lib}/libmemscale.so",
        f"{lib}/libmemscale.so.0",
        f"{lib}/libmemscale.so.{version}",
        f"{lib}/pkgconfig/memscale.pc",
    }
    for path in package | {f"{lib}/pkgconfig/memscale.pc"}:
        assert "/first" not in (prefix / path).read_text()


def test_the_library_needs_libc_alone(library):
    assert [name for name in needed(library / "libmemscale.so") if not SYSTEM_LIBRARIES.match(name)] == []
    assert "SONAME" in run("readelf", "-d", library / "libmemscale.so").stdout
    linked = run("ldd", library / "libmemscale.so").stdout
    assert "not found" not in linked
    assert not re.search("torch|cuda|python|stdc", linked)


def test_build_by_the_pkg_config_file(library, tmp_path):
    pc = library / "pkgconfig/memscale.pc"
    compile_with(flags_of(pc), tmp_path / "decide")
    assert "libmemscale.so.0" in needed(tmp_path / "decide")
    run(tmp_path / "decide", SAMPLE, "--budget", 100, LD_LIBRARY_PATH=library)


def test_build_by_pkg_config(library, tmp_path):
    if shutil.which("pkg-config") is None:
        pytest.skip("pkg-config is not installed")
    folder = library / "pkgconfig"
    flags = run("pkg-config", "--cflags", "--libs", "memscale", PKG_CONFIG_PATH=folder).stdout
    compile_with(shlex.split(flags), tmp_path / "decide")
    run(tmp_path / "decide", SAMPLE, "--budget", 100, LD_LIBRARY_PATH=library)
    static = run("pkg-config", "--static", "--libs", "memscale", PKG_CONFIG_PATH=folder).stdout.split()
    assert {"-ldl", "-lpthread"} <= set(static)


def test_build_with_the_static_library(prefix, library, tmp_path):
    flags = flags_of(library / "pkgconfig/memscale.pc", static=True)
    flags = [str(library / "libmemscale.a") if word == "-lmemscale" else word for word in flags]
    compile_with(flags, tmp_path / "by_hand")
    cmake(EXAMPLE, tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}", "-DPLAN_FILE_STATIC=ON")
    for program in (tmp_path / "by_hand", tmp_path / "build/decide"):
        assert [name for name in needed(program) if not SYSTEM_LIBRARIES.match(name)] == []
        run(program, SAMPLE, "--budget", 100)


def actions(output):
    return re.findall(r"^\S+ +(keep|recompute) +[\d.]+  (.*)$", output, re.MULTILINE)


def test_it_fits_as_it_is(decide):
    result = run(decide, SAMPLE, "--budget", 100)
    assert result.stderr == ""
    assert {action for action, _ in actions(result.stdout)} == {"keep"}
    assert "17.407 GB -> 17.407 GB" in result.stdout
    assert "slowdown 0.0 %" in result.stdout


def test_it_fits_by_recomputing(decide):
    result = run(decide, SAMPLE, "--budget", 10)
    found = actions(result.stdout)
    assert len(found) == 29
    assert ("recompute", "saves") in found
    assert ("keep", "not needed") in found
    before, after = map(float, re.search(r"peak +([\d.]+) GB -> ([\d.]+) GB", result.stdout).groups())
    assert before > 10 >= after
    assert float(re.search(r"slowdown ([\d.]+) %", result.stdout)[1]) > 0


def test_it_does_not_fit(decide):
    result = run(decide, SAMPLE, "--budget", 6, check=False)
    assert result.returncode == 3
    least = float(re.search(r"smallest reachable peak is ([\d.]+) GB", result.stdout)[1])
    assert run(decide, SAMPLE, "--budget", least + 0.001).returncode == 0


def test_the_budget_of_this_machine(decide):
    result = run(decide, SAMPLE, check=False)
    assert result.returncode in (0, 3)
    assert re.search(r"^host +[\d.]+ GB usable of [\d.]+ GB, \d+ cores$", result.stdout, re.MULTILINE)
    assert "budget" in result.stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "JSON"),
        ('{"memscale_profile": 3}', "version 3"),
        ('{"memscale_profile": 1}', "state_bytes"),
        (None, "cannot read"),
    ],
)
def test_profiles_that_cannot_be_read(decide, tmp_path, text, words):
    if text is not None:
        (tmp_path / "profile.json").write_text(text)
    result = run(decide, tmp_path / "profile.json", check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert words in result.stderr


@pytest.mark.parametrize("words", [(), ("a", "b"), (SAMPLE, "--budget"), (SAMPLE, "--budget", "x"), ("--help",)])
def test_wrong_usage(decide, words):
    result = run(decide, *words, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert "usage: decide PROFILE.json [--budget GB]" in result.stderr
