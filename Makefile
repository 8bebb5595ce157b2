# Every target sets up .venv by itself, and again whenever pyproject.toml or constraints.txt change.
#   make install ORT=cpu     use the wheel onnxruntime instead of onnxruntime-gpu; later targets keep the choice
#   make install PYTHON=...  the interpreter that creates .venv

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq
COPY := $(VENV)/installed-copy

# The choice sticks, so that `make test` after `make install ORT=cpu` does not switch back.
CHOSEN := $(shell cat $(VENV)/ort-choice 2>/dev/null)
ifeq ($(shell uname -s),Darwin)
  DEFAULT_ORT := cpu
else
  DEFAULT_ORT := cuda
endif
ORT ?= $(or $(CHOSEN),$(DEFAULT_ORT))
ifeq ($(filter $(ORT),cpu cuda),)
  $(error ORT is '$(ORT)'; expected cpu or cuda)
endif
OTHER_WHEEL := $(if $(filter cpu,$(ORT)),onnxruntime-gpu,onnxruntime)
STAMP := $(VENV)/installed-$(ORT)

# One thread per test process: two processes with two threads each fight over two cores. And bytecode is kept, even
# where the shell says otherwise: without it every process rewrites the assertions of all tests anew, for seven seconds.
TEST_ENV := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=
# Each process takes half of the files, so that their fixtures are made once, and then work from the other.
PYTEST_ARGS ?= -n 2 --dist worksteal

.DEFAULT_GOAL := help
# Tests of other versions than those of constraints.txt: export, run, verify, the operator, the server, the commands.
VERSIONS_INSTALL := '.[cpu,export,train,serve]' pytest pytest-xdist hypothesis scipy h2
VERSIONS_TESTS := $(addprefix tests/,ops/test_accuracy.py exporters/test_checkpoint_export.py runtime/test_session.py \
  verification/test_comparing.py quantization/test_activations.py serving/rest/test_routes.py \
  serving/rest/test_uvicorn.py serving/rest/test_hostile_clients.py serving/grpc/test_server.py cli/test_main.py \
  cli/test_run.py cli/test_export.py)
# Other versions deprecate other things, and that is not what these tests are about.
VERSIONS_ARGS := -W default::DeprecationWarning -W default::FutureWarning -W default::PendingDeprecationWarning

.PHONY: help install demo test test-fast test-long test-gpu test-ray test-browser test-runtimes test-lowest test-newest fuzz lint docs bench bench-check bench-serving clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

install: $(STAMP) ## create .venv with everything in it (ORT=cpu for the CPU wheel of ONNX Runtime)
	@echo "$(VENV) is ready; ONNX Runtime: $(ORT)"

demo: $(STAMP) ## train a skipless OSA transformer on handwritten digits, export, inspect, verify and run it, on the CPU
	$(BIN)/osa train digits --out runs/digits --force
	$(BIN)/osa export runs/digits --out runs/digits-onnx --force
	$(BIN)/osa inspect runs/digits-onnx --graph runs/digits-onnx.png
	$(BIN)/python examples/read_digits.py runs/digits-onnx
	$(BIN)/osa verify runs/digits-onnx --against runs/digits --certify --html runs/digits-report.html

test: $(STAMP) ## run all tests (12 minutes on two cores)
	$(TEST_ENV) $(BIN)/python -m pytest $(PYTEST_ARGS)

test-fast: $(STAMP) ## run the tests that take little time, for the loop of an edit (1 minute on two cores)
	$(TEST_ENV) $(BIN)/python -m pytest $(PYTEST_ARGS) -m "not slow and not long and not ray"

test-long: $(STAMP) ## run the tests that `make test` leaves out: all sabotaged and 200 honest artifacts (half an hour)
	$(TEST_ENV) $(BIN)/python -m pytest $(PYTEST_ARGS) -m long

test-gpu: $(STAMP) ## run the tests that need a CUDA device, and fail if there is none
	$(TEST_ENV) OSA_REQUIRE_GPU=1 $(BIN)/python -m pytest -m gpu tests

test-ray: $(STAMP) ## run all tests with Ray Serve, the long ones too, in .venv-ray
	$(TEST_ENV) $(BIN)/python -m pytest -m "ray or not ray" tests/serving_ray

test-browser: $(STAMP) ## package a model that reads digits as a page, and drive it in CHROMIUM (/usr/bin/chromium)
	@test -d runs/mnist/checkpoint || { $(BIN)/osa data fetch mnist && \
	  $(BIN)/osa train mnist --out runs/mnist --patch-size 7 --epochs 3; }
	$(BIN)/osa export runs/mnist --out runs/mnist-web --target webgpu --force
	$(BIN)/osa package web runs/mnist-web --out examples/browser/page --samples mnist \
	  --title "Digits without skip connections" --force
	cd examples/browser && npm ci --silent && npm test

test-runtimes: $(STAMP) ## run the exported models in every runtime of docs/runtimes.md, and write it (.venv-runtimes; 10 minutes)
	$(BIN)/python runtimes/matrix.py

test-lowest test-newest: test-%: .venv-%/installed
	$(TEST_ENV) .venv-$*/bin/python -m pytest $(PYTEST_ARGS) $(VERSIONS_ARGS) $(VERSIONS_TESTS)

test-lowest: ## run the main tests with the oldest dependencies that pyproject.toml allows, in .venv-lowest
test-newest: ## run the main tests with the newest ones, in .venv-newest

fuzz: $(STAMP) ## send many random requests to the server, different ones each time (EXAMPLES=500 per call)
	$(TEST_ENV) OSA_FUZZ_EXAMPLES=$(or $(EXAMPLES),500) $(BIN)/python -m pytest tests/serving/rest/test_fuzz.py

lint: $(STAMP) ## check style, layers and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@# mypy and import-linter cannot follow the mapping of cli/ and exporters/, so they read an installed copy.
	@rm -rf $(COPY) build
	@$(PIP) install --no-deps --no-build-isolation --target $(COPY) .
	@rm -rf build
	cd $(COPY) && ../bin/lint-imports --no-logo --no-cache --config ../../pyproject.toml
	cd $(COPY) && ../bin/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p osa_runtime

docs: $(STAMP) .venv-docs/installed ## build the documentation as a site in build/site, and check its links (20 seconds)
	$(BIN)/python docs/assemble.py
	.venv-docs/bin/zensical build --strict --clean

bench: $(STAMP) ## measure the operator and whole models against every alternative, into benchmarks/results (25 minutes)
	@for script in $(filter-out benchmarks/check.py benchmarks/%serving.py,$(wildcard benchmarks/*.py)); do \
	  echo "== $$script"; $(BIN)/python "$$script" || exit 1; \
	done

bench-check: $(STAMP) ## fail if a ratio has become worse than in benchmarks/baseline.json by more than 15 % (3 minutes)
	$(BIN)/python benchmarks/check.py

bench-serving: $(STAMP) ## measure our server, Triton, KServe and MLServer under load (installs them; 15 minutes)
	$(TEST_ENV) $(BIN)/python benchmarks/serving.py

clean: ## remove .venv and the other environments, caches and build folders; trained models in runs/ stay
	rm -rf .venv .venv-* build dist ./*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/pip:  # ensurepip comes last, so this exists only when the venv is complete
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml constraints.txt | $(BIN)/pip
	@rm -f $(VENV)/installed-cpu $(VENV)/installed-cuda
	@# The two wheels of ONNX Runtime share their files: removing one breaks the other, so both go.
	@if $(PIP) show $(OTHER_WHEEL) >/dev/null 2>&1; then \
	  echo "switching ONNX Runtime to $(ORT)"; $(PIP) uninstall -y onnxruntime onnxruntime-gpu; fi
	@echo "installing osa-runtime and its tested dependencies into $(VENV); the first time takes a few minutes"
	@$(PIP) install -c constraints.txt setuptools
	@$(PIP) install -c constraints.txt -e '.[$(ORT),export,train,serve,dev]'
	@echo $(ORT) > $(VENV)/ort-choice
	@touch $@

.venv-docs/installed: constraints.txt
	@echo "installing what builds the site into .venv-docs"
	@rm -rf .venv-docs && $(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -m pip -qq install -c constraints.txt zensical mkdocstrings-python
	@touch $@

.venv-lowest/installed .venv-newest/installed: .venv-%/installed: pyproject.toml constraints.txt
	@echo "installing the $* dependencies into .venv-$*; this takes a few minutes"
	@rm -rf .venv-$* && $(PYTHON) -m venv .venv-$*
	@# Both have the torch of constraints.txt: the export reads private parts of it, and pip would take the newest one
	@# with gigabytes of CUDA libraries. For the lowest, "numpy>=1.26" becomes numpy==1.26.
	@grep '^torch==' constraints.txt > .venv-$*/constraints.txt
	@if [ $* = lowest ]; then grep -oE '"[a-z0-9-]+(\[[a-z,]+\])?>=[0-9.]+' pyproject.toml | tr -d '"' \
	  | sed -E 's/\[.*\]//; s/>=/==/' | sort -u >> .venv-$*/constraints.txt; fi
	@.venv-$*/bin/python -m pip -qq install -c .venv-$*/constraints.txt -e $(VERSIONS_INSTALL)
	@# beyond the range of pyproject.toml, too: tests/serving/rest/test_uvicorn.py fails there, and says what to do
	@if [ $* = newest ]; then .venv-newest/bin/python -m pip -qq install --upgrade uvicorn 2>/dev/null; fi
	@touch $@
