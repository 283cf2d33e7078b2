#!/bin/sh
# Build the C tests with a sanitizer and run them: with_sanitizer.sh SANITIZERS FOLDER CMAKE CTEST [TEST]
# With TEST, that one alone: the program memscale_TEST.
# A compiler without the sanitizer is skipped; with MEMSCALE_REQUIRE_TOOLS=1 that is a failure.
set -eu
sanitizers=$1 folder=$2 cmake=$3 ctest=$4
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'int main(void) { return 0; }' > "$probe/probe.c"
if ! ${CC:-cc} -fsanitize="$sanitizers" -o "$probe/probe" "$probe/probe.c" 2>/dev/null || ! "$probe/probe"; then
    if [ "${MEMSCALE_REQUIRE_TOOLS:-0}" = 1 ]; then
        echo "FAILED: ${CC:-cc} has no working -fsanitize=$sanitizers here"
        exit 1
    fi
    echo "skipped: ${CC:-cc} has no working -fsanitize=$sanitizers here"
    exit 0
fi
$cmake -S . -B "$folder" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DMEMSCALE_SANITIZE="$sanitizers" >/dev/null
if [ $# -gt 4 ]; then
    .venv/bin/cmake --build "$folder" --target "memscale_$5"
    $ctest --test-dir "$folder" -R "^$5\$"
else
    .venv/bin/cmake --build "$folder"
    $ctest --test-dir "$folder"
fi
