#!/bin/sh
# What `make test-long` runs beyond `make test`: test_long.sh FUZZ_SECONDS CMAKE CTEST
set -eu
seconds=$1 cmake=$2 ctest=$3

echo "== properties of plans and steps, many random ones"
MEMSCALE_PROP_N=20000 build/c/tests/memscale_prop
MEMSCALE_PROP_N=20000 build/c/tests/memscale_step_prop
MEMSCALE_PROP_N=2000 build/c/tests/memscale_chain_prop

echo "== ThreadSanitizer"
sh tools/with_sanitizer.sh thread build/tsan "$cmake" "$ctest"

if command -v clang >/dev/null 2>&1; then
    echo "== clang: AddressSanitizer and UndefinedBehaviorSanitizer"
    CC=clang sh tools/with_sanitizer.sh address,undefined build/clang-asan "$cmake" "$ctest"
else
    echo "skipped: clang is not installed"
fi

echo "== the same plans from every compiler"
wanted=$(build/c/tests/memscale_prop --hash)
for folder in build/asan build/tsan build/clang-asan; do
    if [ ! -x $folder/tests/memscale_prop ]; then continue; fi
    found=$($folder/tests/memscale_prop --hash)
    if [ "$found" != "$wanted" ]; then
        echo "FAILED: the hash of plans is $found in $folder, $wanted in build/c"
        exit 1
    fi
    echo "ok: $folder, $found"
done

for target in json hw rates host profile plan program; do
    echo "== fuzzing $target for $seconds s"
    build/asan/tests/fuzz_$target --seconds "$seconds" tests/fuzz/corpus/$target
done
