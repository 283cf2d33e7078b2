#!/bin/sh
# What `make test-long` runs after `make test`: test_long.sh FUZZ_SECONDS CMAKE CTEST PYTEST
# It prints what each part does and how long it took; all of it takes at most an hour on two cores.
set -eu
seconds=$1 cmake=$2 ctest=$3 pytest=$4

part() { # part NAME COMMAND...
    name=$1
    shift
    echo "== $name"
    start=$(date +%s)
    "$@"
    echo "-- $name: $(($(date +%s) - start)) s"
}

properties() {
    MEMSCALE_PROP_N=20000 build/c/tests/memscale_prop
    MEMSCALE_PROP_N=20000 build/c/tests/memscale_step_prop
    MEMSCALE_PROP_N=2000 build/c/tests/memscale_chain_prop
}

with_tsan() {
    sh tools/with_sanitizer.sh thread build/tsan "$cmake" "$ctest"
    MEMSCALE_OFFLOAD_N=1000000 build/tsan/tests/memscale_offload_stress
}

with_clang() {
    if command -v clang >/dev/null 2>&1; then
        CC=clang sh tools/with_sanitizer.sh address,undefined build/clang-asan "$cmake" "$ctest"
    elif [ "${MEMSCALE_REQUIRE_TOOLS:-0}" = 1 ]; then
        echo "FAILED: clang is not installed"
        return 1
    else
        echo "skipped: clang is not installed"
    fi
}

same_plans() {
    wanted=$(build/c/tests/memscale_prop --hash)
    for folder in build/asan build/tsan build/clang-asan; do
        if [ ! -x $folder/tests/memscale_prop ]; then continue; fi
        found=$($folder/tests/memscale_prop --hash)
        if [ "$found" != "$wanted" ]; then
            echo "FAILED: the hash of plans is $found in $folder, $wanted in build/c"
            return 1
        fi
        echo "ok: $folder, $found"
    done
}

fuzz() {
    for target in json hw rates host profile plan program; do
        build/asan/tests/fuzz_$target --seconds "$seconds" tests/fuzz/corpus/$target
    done
}

# Whatever the processor: plans in C, what commands list and estimate (no step runs), documents, rules, what is installed.
without_kernels() {
    for name in abi c_plans check_boundary check_c_rules check_imports check_vocabulary cli_plan estimate golden index \
        install one_answer planning units; do
        [ -f tests/python/test_$name.py ] || echo "no file: tests/python/test_$name.py" >&2
        echo "--ignore=tests/python/test_$name.py"
    done
}

part "Python: large matrices of models, random models, all golden plans" $pytest -m "long and not gpu"
part "Python: the suite on a processor with AVX2 alone" \
    env ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 $pytest -m "not long and not gpu" $(without_kernels)
part "Python: equality and predictions with torch's kernels for any processor" \
    env ATEN_CPU_CAPABILITY=default $pytest tests/python/test_equality.py tests/python/test_traps.py \
    tests/python/test_conditions.py tests/python/test_long.py tests/python/test_predict.py -m "not long and not gpu"
part "C: properties of plans and steps, many random ones" properties
part "C: ThreadSanitizer, and a million calls of the offload engine" with_tsan
part "C: clang's AddressSanitizer and UndefinedBehaviorSanitizer" with_clang
part "C: the same plans from every compiler" same_plans
part "C: fuzzing, $seconds s for each target" fuzz
