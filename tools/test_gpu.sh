#!/bin/sh
# Everything that needs a GPU, on a machine without network: builds with plain cmake, no pip, no .venv.
#
#   sh tools/test_gpu.sh [RESULTS_FOLDER]     python3 must have torch (with CUDA), transformers and pytest
#
# Builds the library, the extension and the C tests; runs the C tests, the GPU tests, the kernels under
# compute-sanitizer where it is installed, `memscale doctor` and `calibrate`, and the benchmark. Figures go to RESULTS_FOLDER.
set -eu
cd "$(dirname "$0")/.."
results=${1:-build/gpu/results}
python=${PYTHON:-python3}
generator=$(command -v ninja >/dev/null 2>&1 && echo Ninja || echo "Unix Makefiles")
cmake -S . -B build/gpu -G "$generator" -DPython3_EXECUTABLE="$(command -v "$python")" >/dev/null
cmake --build build/gpu -j
mkdir -p "$results"
PYTHONPATH=$PWD/build/gpu/python
MEMSCALE_CACHE_DIR=$PWD/build/gpu/cache
HF_HUB_OFFLINE=1
MEMSCALE_REQUIRE_GPU=1
export PYTHONPATH MEMSCALE_CACHE_DIR HF_HUB_OFFLINE MEMSCALE_REQUIRE_GPU

echo "== C tests"
ctest --test-dir build/gpu --output-on-failure -Q && echo passed
echo "== memscale doctor"
"$python" -m memscale env
"$python" -m memscale doctor
"$python" -m memscale doctor --json > "$results/doctor.json"
"$python" -m memscale calibrate --output "$results/calibration.json"
echo "== GPU tests"
"$python" -m pytest tests/gpu -q -p no:cacheprovider --tb=short
if command -v compute-sanitizer >/dev/null 2>&1; then
    for tool in memcheck racecheck initcheck synccheck; do
        echo "== compute-sanitizer $tool over the kernel tests"
        compute-sanitizer --tool $tool --target-processes all --error-exitcode 9 build/gpu/tests/memscale_gpu_tests kernel
    done
else
    echo "skipped: compute-sanitizer is not installed"
fi
echo "== benchmarks"
build/gpu/tests/bench_offload | tee "$results/offload.json"
"$python" bench/recompute.py --json "$results/recompute.json"
