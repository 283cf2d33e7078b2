#!/bin/sh
# What `make test-long` runs beyond `make test`: test_long.sh FUZZ_SECONDS CMAKE CTEST
set -eu
seconds=$1 cmake=$2 ctest=$3

echo "== properties of plans and steps, many random ones"
MEMSCALE_PROP_N=20000 build/c/tests/memscale_prop
MEMSCALE_PROP_N=20000 build/c/tests/memscale_step_prop

echo "== ThreadSanitizer"
sh tools/with_sanitizer.sh thread build/tsan "$cmake" "$ctest"

if command -v clang >/dev/null 2>&1; then
    echo "== clang: AddressSanitizer and UndefinedBehaviorSanitizer"
    CC=clang sh tools/with_sanitizer.sh address,undefined build/clang-asan "$cmake" "$ctest"
else
    echo "skipped: clang is not installed"
fi

for target in json hw rates host profile plan program; do
    echo "== fuzzing $target for $seconds s"
    build/asan/tests/fuzz_$target --seconds "$seconds" tests/fuzz/corpus/$target
done
