"""What is installed, every way to build the example in C with it, and what the example prints and exits with."""

import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from fixtures import skip_without_tool
from installed import EXAMPLE, ROOT, SAMPLE, cmake, run, tool

SYSTEM_LIBRARIES = re.compile(r"(libc|libm|libdl|libpthread|ld-linux.*)\.so")
FITS = ("--gpu", "rtx3090", "--budget", 9)
DOES_NOT_FIT = ("--gpu", "rtx3090", "--budget", 6)


def needed(path):
    return re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", path).stdout)


def flags_of(pc, static=False):
    """The answer of pkg-config, read from its file."""
    variables, fields = {"pcfiledir": str(pc.parent)}, {}
    for line in pc.read_text().splitlines():
        name, mark, value = re.match(r"([\w.]*)\s*([=:]?)\s*(.*)", line).groups()
        value = re.sub(r"\$\{(\w+)\}", lambda match: variables[match[1]], value)
        (variables if mark == "=" else fields)[name] = value
    words = ["Cflags", "Libs", *(["Libs.private"] if static else [])]
    return shlex.split(" ".join(fields[word] for word in words))


def with_static(flags):
    """Linkers prefer the shared library; this names the other, as examples/c/README.md does."""
    return ["-l:libmemscale.a" if word == "-lmemscale" else word for word in flags]


def compile_with(flags, program, compiler=None):
    strict = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror")
    run(compiler or os.environ.get("CC", "cc"), *strict, "-o", program, EXAMPLE / "plan_file.c", *flags)


def assert_works(program, **environment):
    assert run(program, SAMPLE, *FITS, **environment).stdout.startswith("A step needs ")


def assert_is_static(program):
    assert [name for name in needed(program) if not SYSTEM_LIBRARIES.match(name)] == []
    assert_works(program)


# The installed tree


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


# Building the example


def test_build_with_cmake(plan_file):
    assert "libmemscale.so.0" in needed(plan_file)
    assert_works(plan_file)


def test_build_with_cmake_and_the_static_library(prefix, tmp_path):
    cmake(EXAMPLE, tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}", "-DPLAN_FILE_STATIC=ON")
    assert_is_static(tmp_path / "plan_file")


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_build_with_the_pkg_config_file(library, tmp_path, compiler):
    pc = library / "pkgconfig/memscale.pc"
    compile_with(flags_of(pc), tmp_path / "shared", tool(compiler))
    assert "libmemscale.so.0" in needed(tmp_path / "shared")
    assert_works(tmp_path / "shared", LD_LIBRARY_PATH=library)
    compile_with(with_static(flags_of(pc, static=True)), tmp_path / "static", tool(compiler))
    assert_is_static(tmp_path / "static")


def test_build_with_pkg_config(library, tmp_path):
    if shutil.which("pkg-config") is None:
        skip_without_tool("pkg-config is not installed")

    def flags(*options):
        words = ("pkg-config", *options, "--cflags", "--libs", "memscale")
        return shlex.split(run(*words, PKG_CONFIG_PATH=library / "pkgconfig").stdout)

    compile_with(flags(), tmp_path / "shared")
    assert "libmemscale.so.0" in needed(tmp_path / "shared")
    assert_works(tmp_path / "shared", LD_LIBRARY_PATH=library)
    compile_with(with_static(flags("--static")), tmp_path / "static")
    assert_is_static(tmp_path / "static")


def test_it_loses_no_memory(library, tmp_path):
    flags = with_static(flags_of(library / "pkgconfig/memscale.pc", static=True))
    program = tmp_path / "plan_file"
    compile_with(["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", *flags], program)
    broken = tmp_path / "broken.json"
    broken.write_text('{"memscale_profile": 4}')
    for code, words in [
        (0, (SAMPLE, *FITS)),
        (0, (SAMPLE, *FITS, "--json")),
        (0, (SAMPLE, "--budget", 100)),
        (0, ("--help",)),
        (1, (broken,)),
        (1, (SAMPLE, "--hardware", broken)),
        (1, (SAMPLE, "--gpu", "none of these")),
        (1, (tmp_path,)),
        (2, ()),
        (3, (SAMPLE, *DOES_NOT_FIT)),
    ]:
        result = run(program, *words, check=False, ASAN_OPTIONS="detect_leaks=1")
        assert result.returncode == code, result.stderr
        assert "Sanitizer" not in result.stderr


# What the example prints


def actions(output):
    """The column "action" of each layer."""
    table = output.partition("closest alternative\n")[2]
    return [re.split(r" {2,}", line)[1] for line in table.splitlines()]


def test_it_fits_as_it_is(plan_file):
    result = run(plan_file, SAMPLE, "--gpu", "rtx3090", "--budget", 20)
    assert result.stderr == ""
    assert actions(result.stdout) == ["keep"] * 29
    assert "A step needs 11.3 GB when nothing is done and 11.3 GB with this plan" in result.stdout


def test_it_fits_by_recomputing(plan_file):
    result = run(plan_file, SAMPLE, *FITS)
    assert result.stderr == ""
    assert len(actions(result.stdout)) == 29
    assert "keep" in actions(result.stdout)
    assert any(action.startswith("recompute") for action in actions(result.stdout))
    assert "A step needs 11.3 GB when nothing is done and 8.58 GB with this plan" in result.stdout


def test_it_does_not_fit(plan_file):
    result = run(plan_file, SAMPLE, *DOES_NOT_FIT, "--json", check=False)
    assert (result.returncode, result.stdout) == (3, "")
    assert "No plan fits 6.00 GB" in result.stderr
    least = int(re.search(r"the smallest reachable peak is (\d+) bytes", result.stderr)[1])
    margin = least / 63  # a plan leaves 1/64 of the budget free
    budget = ("--gpu", "rtx3090", "--budget")
    assert run(plan_file, SAMPLE, *budget, (least + margin) / 1e9 + 1e-6).returncode == 0
    assert run(plan_file, SAMPLE, *budget, (least + margin) / 1e9 - 1e-6, check=False).returncode == 3


def test_the_hardware_of_a_record(plan_file, tmp_path):
    """Without --gpu the plan is for the host: that of the record, or this one."""
    record = {
        "memscale_hw": 1,
        "memory_total_bytes": 64 << 30,
        "memory_limit_bytes": 20_000_000_000,
        "memory_available_bytes": 18_000_000_000,
        "page_bytes": 4096,
        "n_cores": 8,
        "n_cores_online": 16,
        "n_numa_nodes": 1,
        "cgroup_version": 2,
        "gpus": [],
    }
    (tmp_path / "hardware.json").write_text(json.dumps(record))
    plan = json.loads(run(plan_file, SAMPLE, "--json", "--hardware", tmp_path / "hardware.json").stdout)
    assert plan["budget_bytes"] == 17_000_000_000
    this = run(plan_file, SAMPLE, "--json", check=False)
    assert this.returncode in (0, 3)
    assert (this.returncode == 0) == ('"memscale_plan"' in this.stdout) == (this.stderr == "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "JSON"),
        ('{"memscale_profile": 5}', "version 5"),
        ('{"memscale_profile": 4}', "resident_bytes"),
        (None, "profile.json cannot be read: No such file"),
    ],
)
def test_profiles_that_cannot_be_read(plan_file, tmp_path, text, words):
    if text is not None:
        (tmp_path / "profile.json").write_text(text)
    result = run(plan_file, tmp_path / "profile.json", check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert words in result.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--gpu", "rtx3091"), 'no GPU "rtx3091" is known; the closest is "rtx3090"'),
        (("--hardware", SAMPLE), "gpt2_medium.json: "),
        (("--hardware", "/nowhere"), "/nowhere cannot be read: No such file"),
    ],
)
def test_other_errors(plan_file, options, words):
    result = run(plan_file, SAMPLE, *options, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert words in result.stderr


def test_a_plan_that_cannot_be_written(plan_file):
    result = run("sh", "-c", f"{shlex.quote(str(plan_file))} {SAMPLE} --gpu rtx3090 > /dev/full", check=False)
    assert result.returncode == 1
    assert "the plan cannot be written: No space left" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "a profile is needed"),
        (("a", "b"), "only one profile"),
        ((SAMPLE, "--budget"), "requires an argument"),
        ((SAMPLE, "--budget", "x"), "--budget x: a number of GB is needed, above 0"),
        ((SAMPLE, "--budget", "0"), "--budget 0: a number of GB is needed, above 0"),
        ((SAMPLE, "--budget", "nan"), "--budget nan"),
        ((SAMPLE, "--budget", "1e10"), "--budget 1e10"),
        ((SAMPLE, "--host-memory", "-1"), "--host-memory -1: a number of GB is needed, 0 or more"),
        ((SAMPLE, "--mode", "bold"), "the modes are conservative, balanced and aggressive"),
        ((SAMPLE, "--colour"), "unrecognized option"),
    ],
)
def test_wrong_usage(plan_file, arguments, words):
    result = run(plan_file, *arguments, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert words in result.stderr
    assert "usage: plan_file PROFILE [--gpu NAME]" in result.stderr


def test_help(plan_file):
    result = run(plan_file, "--help")
    assert result.stdout.startswith("usage: plan_file PROFILE")
    known = set(re.findall(r'\{"([\w-]+)", (?:required|no)_argument', (EXAMPLE / "plan_file.c").read_text()))
    assert len(known) == 8
    assert {f"--{name}" for name in known - {"help"}} == set(re.findall(r"^  (--[\w-]+)", result.stdout, re.MULTILINE))
