#!/bin/sh
# Static checks. A tool that is not installed is skipped by name; .ci/run installs them all.
set -u
failed=0

step() { # step NAME TOOL COMMAND...
    name=$1 tool=$2
    shift 2
    if ! command -v "$tool" >/dev/null 2>&1; then
        echo "skipped: $name ($tool is not installed)"
        return
    fi
    if "$@" > build/check.log 2>&1; then
        echo "ok: $name"
    else
        echo "FAILED: $name"
        cat build/check.log
        failed=1
    fi
}

format_c() { git ls-files '*.c' '*.h' '*.cu' | xargs clang-format --dry-run -Werror; }

tidy() {
    python tools/compile_commands.py build/tidy || return 1
    git ls-files 'src/*.c' 'python/*.c' 'examples/*.c' | xargs -P 2 -n 4 clang-tidy --quiet -p build/tidy
}

header_alone() {
    for compiler in "cc -std=c11 -x c" "c++ -std=c++11 -x c++"; do
        echo '#include <memscale/memscale.h>' | $compiler -Iinclude -Wall -Wextra -Wpedantic -Werror -fsyntax-only - || return 1
    done
}

build_clang() {
    CC=clang cmake -S . -B build/clang -G Ninja -DPython3_EXECUTABLE="$(command -v python)" >/dev/null && cmake --build build/clang
}

build_plain() {
    cmake -S . -B build/plain -G Ninja -DPython3_EXECUTABLE="$(command -v python)" -DMEMSCALE_TESTS=OFF >/dev/null &&
        cmake --build build/plain
}

exports() { build_plain && python tools/check_exports.py build/plain; }

stable_abi() {
    build_plain && abi3audit --strict --assume-minimum-abi3 3.10 build/plain/python/memscale/_core.abi3.so
}

mkdir -p build
step "include law" python python tools/check_includes.py
step "size and silence of the core" python python tools/check_source.py
step "public header as C and C++" c++ header_alone
step "exported symbols and libraries" nm exports
step "stable ABI of Python 3.10" abi3audit stable_abi
step "build with clang, warnings as errors" clang build_clang
step "clang-format" clang-format format_c
step "clang-tidy" clang-tidy tidy
step "cppcheck" cppcheck cppcheck --quiet --std=c11 --error-exitcode=1 --enable=warning,portability,performance --inline-suppr -Iinclude src
step "ruff check" ruff ruff check .
step "ruff format" ruff ruff format --check .
step "mypy" mypy mypy
exit $failed
