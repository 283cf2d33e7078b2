#!/bin/sh
# Format all code in place.
set -eu
git ls-files '*.c' '*.h' '*.cu' | xargs clang-format -i
ruff format --quiet .
ruff check --quiet --fix . || true
