# make demo, make test, make bench, make lint: each installs what is missing, builds, and runs.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
BUILD := build/wheel
JOBS ?= $(shell nproc)

.PHONY: help demo demo-distributed test test-cpp test-python bench lint build dev system sanitize docs clean

help:
	@echo "make demo   train and sample a small GPT on device neuron"
	@echo "make demo-distributed   train over 4 simulated cores (FSDP2 and tensor parallelism)"
	@echo "make test   the whole test suite (C++ and Python)"
	@echo "make bench  benchmarks against CPU eager, as a table and JSON"
	@echo "make lint   layers, formatting, ruff"
	@echo "make dev    build in place (editable) for work on the sources"

# --- What the machine needs ------------------------------------------------------------------
system:
	@tools/install_system_packages.sh

$(VENV)/.ready: pyproject.toml
	@echo "== Python environment in $(VENV)"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install -q --upgrade "pip<27" 
	@$(PY) -m pip install -q torch==2.13.0 numpy "scikit-build-core>=0.10" cmake ninja pybind11 \
	  pytest hypothesis expecttest scipy tqdm
	@$(PY) -c "import os; os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD']='0'; import torch; assert torch.__version__.split('+')[0] == '2.13.0', torch.__version__"
	@touch $@

# --- Building ---------------------------------------------------------------------------------
build: system $(VENV)/.ready
	@echo "== Building torch_neuronx (the first build takes some minutes)"
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) \
	  $(PY) -m pip install -q --no-build-isolation --no-deps --force-reinstall . \
	  --config-settings=build-dir=$(BUILD) --config-settings=cmake.define.NEURON_TESTS=ON

dev: system $(VENV)/.ready
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cmake -G Ninja -S . -B build/dev -DNEURON_TESTS=ON \
	  -DPython3_EXECUTABLE=$(CURDIR)/$(PY) >/dev/null
	@$(VENV)/bin/ninja -C build/dev -j$(JOBS) _C nrt_sim
	@$(PY) tools/dev_install.py build/dev

# --- Running ----------------------------------------------------------------------------------
demo: build
	@$(PY) examples/train_gpt.py --device neuron

demo-distributed: build
	@OMP_NUM_THREADS=1 $(VENV)/bin/torchrun --nproc-per-node 4 examples/train_distributed.py --tp 2

test: build test-cpp test-python

test-cpp:
	@echo "== C++ tests"
	@$(VENV)/bin/ninja -C $(BUILD) -j$(JOBS) neuron_tests
	@$(VENV)/bin/ctest --test-dir $(BUILD) --output-on-failure

test-python:
	@echo "== Python tests"
	@$(PY) -m pip install -q jax==0.10.2 jaxlib==0.10.2
	@NEURON_BUILD_DIR=$(CURDIR)/$(BUILD) $(PY) -m pytest tests

bench: build
	@$(PY) benchmarks/run.py
	@$(PY) benchmarks/ops.py
	@$(PY) benchmarks/collectives.py

lint: $(VENV)/.ready
	@$(PY) tools/check_layers.py
	@$(PY) -m pip install -q ruff
	@$(VENV)/bin/ruff check python tests examples benchmarks tools
	@$(VENV)/bin/ruff format --check python tests examples benchmarks tools
	@if command -v clang-format-19 >/dev/null; then \
	  git ls-files 'neuron/*.cpp' 'neuron/*.h' | xargs clang-format-19 --dry-run -Werror; \
	else echo "clang-format-19 is not installed; formatting not checked"; fi

# C++ layers below torch under address and thread sanitizers.
sanitize: system $(VENV)/.ready
	@for kind in asan tsan; do \
	  PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cmake --preset $$kind && \
	  $(VENV)/bin/ninja -C build/$$kind -j$(JOBS) neuron_tests && \
	  $(VENV)/bin/ctest --test-dir build/$$kind --output-on-failure || exit 1; done

docs: build
	@$(PY) tools/gen_env_docs.py > docs/env.md
	@$(PY) tools/gen_op_coverage.py > docs/op-coverage.md

clean:
	rm -rf build dist
