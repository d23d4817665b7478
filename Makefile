# `make sweep` and `make test` set up .venv by themselves; with an NVIDIA GPU they install the extras `gpu` and `baselines`
# (wheels only), else a CPU torch.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
EXTRAS := $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu,baselines || echo cpu)
STAMP := $(VENV)/.installed-$(EXTRAS)
TOOLS := $(VENV)/.tools-$(EXTRAS)
OLD_TRITON := 3.6.0
OLD_TRITON_DIR := .triton-$(OLD_TRITON)
XLSTM := 2.0.6
COMPILING := $(wildcard tests/kernels/*/test_*compile.py) tests/kernels/test_step.py tests/kernels/hopper/test_hopper_source.py
# Every process imports torch: what Python has compiled of it is kept, whatever the environment says.
CACHED := env -u PYTHONDONTWRITEBYTECODE
XLSTM_DIR := .xlstm-$(XLSTM)
comma := ,

.PHONY: sweep tools test test-gpu compile check clean help baselines-mamba2 baselines-compiled
.DEFAULT_GOAL := sweep

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-19s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

sweep: $(STAMP) ## set up, then the main job: sweep, tables, plots
	$(CACHED) $(PY) -m tflabench sweep $(ARGS)

tools: $(TOOLS) ## set up alone, with what tests need

test: $(TOOLS) $(OLD_TRITON_DIR)/.installed $(XLSTM_DIR)/.installed check ## set up, then lint, types and the tests that need no GPU
	$(CACHED) TFLABENCH_OLD_TRITON=$(OLD_TRITON_DIR) TFLABENCH_XLSTM=$(XLSTM_DIR) $(PY) -m pytest -m "not gpu" -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-gpu: $(TOOLS) ## the tests that need an NVIDIA GPU
	$(PY) -m pytest -m gpu $(ARGS)

compile: $(TOOLS) $(OLD_TRITON_DIR)/.installed ## every variant of the kernels through both Tritons, without a GPU: ten minutes
	$(CACHED) TFLABENCH_COMPILE=all TFLABENCH_OLD_TRITON=$(OLD_TRITON_DIR) $(PY) -m pytest -n 2 --dist loadfile $(COMPILING) $(ARGS)

check: $(TOOLS) ## lint, format and types alone
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright

# Makes .venv with extras of the package. What is imported is compiled then: most of what these bring never is.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is too old: tflabench needs Python 3.11 or newer (make PYTHON=/path/to/python3.11)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q --upgrade 'pip>=24'
	$(PY) -m pip install -q --no-compile -e '.[$(EXTRAS),report$(1)]'
	@touch $@
endef

$(STAMP): pyproject.toml
	$(call install)

# With what lint, types and tests need besides: the main job does without.
$(TOOLS): pyproject.toml
	$(call install,$(comma)dev)
	@touch $(STAMP)

baselines-mamba2: $(STAMP) ## mamba-ssm without its compiled scan: Mamba 2 runs in Triton; a few seconds
	$(PY) -m pip install -q setuptools wheel
	MAMBA_FORCE_BUILD=TRUE MAMBA_SKIP_CUDA_BUILD=TRUE $(PY) -m pip install --no-deps --no-build-isolation mamba-ssm==2.3.2.post1

baselines-compiled: $(STAMP) ## FlashAttention 2, Mamba, causal-conv1d: needs nvcc, and up to an hour
	$(PY) -m pip install -q setuptools wheel ninja
	$(PY) -m pip uninstall -q -y mamba-ssm # the one without its compiled scan would do for pip
	$(PY) -m pip install --no-build-isolation -e '.[baselines-compiled]'

# A second Triton, the oldest supported, for the compile-only tests.
$(OLD_TRITON_DIR)/.installed: | $(TOOLS)
	$(PY) -m pip install -q --no-compile --no-deps --target $(OLD_TRITON_DIR) triton==$(OLD_TRITON)
	@touch $@

# NX-AI's packages for the tests of the integrations. Elsewhere than .venv, where they would change what sweeps select
# and which xLSTM transformers builds.
$(XLSTM_DIR)/.installed: | $(TOOLS)
	$(PY) -m pip install -q --no-compile --no-deps --target $(XLSTM_DIR) xlstm==$(XLSTM) mlstm_kernels==2.0.6
	@touch $@

clean: ## remove .venv, the second Triton, other packages for tests and what tools cache
	rm -rf $(VENV) .triton-* .xlstm-* .pytest_cache .ruff_cache *.egg-info
