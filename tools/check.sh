#!/bin/sh
# Static checks. A tool that is not installed is skipped by name; with MEMSCALE_REQUIRE_TOOLS=1, as in .ci/run which
# installs them all, that is a failure.
set -u
failed=0

step() { # step NAME TOOL COMMAND...
    name=$1 tool=$2
    shift 2
    if ! command -v "$tool" >/dev/null 2>&1; then
        if [ "${MEMSCALE_REQUIRE_TOOLS:-0}" = 1 ]; then
            echo "FAILED: $name ($tool is not installed)"
            failed=1
        else
            echo "skipped: $name ($tool is not installed)"
        fi
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
    for compiler in "cc -std=c11 -x c" "c++ -std=c++11 -x c++" "c++ -std=c++17 -x c++"; do
        for part in "" -DMS_EXPERIMENTAL; do
            echo '#include <memscale/memscale.h>' |
                $compiler $part -Iinclude -Wall -Wextra -Wpedantic -Werror -fsyntax-only - || return 1
        done
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

boundary() { build_plain && python tools/check_boundary.py build/plain/python; }

stable_abi() {
    build_plain && abi3audit --strict --assume-minimum-abi3 3.10 build/plain/python/memscale/_core.abi3.so
}

mkdir -p build
step "order of includes" python python tools/check_includes.py
step "order of imports" python python tools/check_imports.py
step "one place for names and figures" python python tools/check_vocabulary.py
step "silence, documentation and words of the core" python python tools/check_source.py
step "public header as C and C++" c++ header_alone
step "exported symbols and libraries" nm exports
step "boundary between Python and C" python boundary
step "stable ABI of Python 3.10" abi3audit stable_abi
step "build with clang, warnings as errors" clang build_clang
step "clang-format" clang-format format_c
step "clang-tidy" clang-tidy tidy
step "cppcheck" cppcheck cppcheck --quiet --std=c11 --error-exitcode=1 --enable=warning,portability,performance --inline-suppr -DMS_EXPERIMENTAL -Iinclude src
step "ruff check" ruff ruff check .
step "ruff format" ruff ruff format --check .
step "mypy" mypy mypy
exit $failed
