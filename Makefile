# MemScale. `make demo` shows it, `make test` checks it; both set everything up by themselves.
#
#   make demo           train a small GPT-2 plain and wrapped, and compare
#   make test           C tests (plain, and with sanitizers) and Python tests
#   make test-long      what takes longer: large matrices, other processors, compilers and sanitizers, fuzzing
#   make test-ecosystem training with PEFT, trl, accelerate, Lightning, timm and diffusers, plain and wrapped
#   make test-gpu       what needs a GPU: equality and detach bit for bit, kernels under compute-sanitizer, the benchmark
#   make check          formatting, linters, types, order of includes and imports, exported symbols, header
#   make format         format all code
#   make wheel          an abi3 wheel under dist/
#
# PYTHON=... chooses the interpreter; a torch that it already has (such as a build with CUDA) is used.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ECOSYSTEM := build/ecosystem
CMAKE := $(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DMEMSCALE_PYTHON=OFF
CORES := $(shell getconf _NPROCESSORS_ONLN)
CTEST := $(BIN)/ctest --output-on-failure -j $(CORES)
PYTEST_OPTIONS := -n $(CORES) --dist worksteal --durations=20
PYTEST := $(BIN)/python -m pytest $(PYTEST_OPTIONS)
SOURCES := $(shell find include src python CMakeLists.txt pyproject.toml -type f -not -name '*.pyc' 2>/dev/null)
FUZZ_SECONDS ?= 10
MAKEFLAGS += --no-print-directory

.PHONY: help setup demo test test-c test-asan test-tsan test-python test-ecosystem test-long test-gpu check format wheel clean

help:
	@sed -n '2,13s/^# \{0,1\}//p' Makefile

$(VENV)/.requirements: requirements.txt tools/setup.sh
	@PYTHON='$(PYTHON)' sh tools/setup.sh
	@touch $@

$(VENV)/.package: $(VENV)/.requirements $(SOURCES)
	@echo "building and installing memscale"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --force-reinstall .
	@touch $@

setup: $(VENV)/.package

demo: setup
	@$(BIN)/python examples/demo.py $(DEMO_ARGS)

test: test-c test-asan test-tsan test-python

test-c: setup
	@$(CMAKE) -S . -B build/c >/dev/null
	@$(BIN)/cmake --build build/c
	@$(CTEST) --test-dir build/c

test-asan: setup
	@sh tools/with_sanitizer.sh address,undefined build/asan '$(CMAKE)' '$(CTEST)'

test-tsan: setup
	@sh tools/with_sanitizer.sh thread build/tsan '$(CMAKE)' '$(CTEST)' offload_stress

test-python: setup
	@$(PYTEST) -m "not long and not gpu" $(PYTEST_ARGS)

$(ECOSYSTEM)/.requirements: $(VENV)/.requirements tests/ecosystem/requirements.txt tools/setup_ecosystem.sh
	@sh tools/setup_ecosystem.sh $(ECOSYSTEM)
	@touch $@

test-ecosystem: setup $(ECOSYSTEM)/.requirements
	@$(ECOSYSTEM)/bin/python -m pytest $(PYTEST_OPTIONS) tests/ecosystem $(PYTEST_ARGS)

test-long: setup test test-ecosystem
	@sh tools/test_long.sh $(FUZZ_SECONDS) '$(CMAKE)' '$(CTEST)' '$(PYTEST) $(PYTEST_ARGS)'

test-gpu: setup
	@PATH='$(CURDIR)/$(BIN)':"$$PATH" sh tools/test_gpu.sh

check: setup
	@PATH='$(CURDIR)/$(BIN)':"$$PATH" sh tools/check.sh

format: setup
	@PATH='$(CURDIR)/$(BIN)':"$$PATH" sh tools/format.sh

wheel: setup
	@$(BIN)/python -m pip wheel --quiet --no-build-isolation --no-deps -w dist .
	@ls dist

clean:
	rm -rf build dist
