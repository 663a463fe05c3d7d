# Two commands on a machine that has python3 and make: `make demo` and `make test`. `make help` lists the rest.

PYTHON ?= python3
UV_VERSION := 0.13.9
BIN := .venv/bin
STAMP := .venv/.installed
UV := $(BIN)/python -m uv
PYTEST := $(BIN)/python -m pytest --durations=25
PROCESSES ?= 4
export DSEC_TEST_PATIENCE ?= 3
# Where this is set, each of the many processes that a run starts compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE
# In a process that only waits, the threads of a numerical library wait busily.
export OPENBLAS_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help venv demo demo-kube test test-fast test-long test-kube lint format lock fault-points screenshots kube kube-down kube-programs prometheus clean
.SILENT:

help: ## This list
	awk 'BEGIN {FS = ":.*## "; printf "usage: make TARGET\n\n"} /^[a-z%-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## Create .venv from requirements.lock (again only when the lock or pyproject.toml changed)

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "DSec needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) -V 2>&1 | head -1). Point to one with: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "'$(PYTHON)' lacks the venv module. Install it with: apt install python3-venv (then run make again)" >&2; exit 1; }
	test -x $(BIN)/python || { echo "[1/4] creating .venv"; $(PYTHON) -m venv .venv; }
	$(BIN)/python -m uv --version 2>/dev/null | grep -q '^uv $(UV_VERSION)\b' || { \
	  echo "[2/4] installing uv $(UV_VERSION)"; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION); }
	echo "[3/4] installing the locked dependencies (about 1 GB the first time)"
	$(UV) pip sync --quiet --python $(BIN)/python --compile-bytecode --require-hashes requirements.lock
	echo "[4/4] installing DSec itself"
	$(UV) pip install --quiet --python $(BIN)/python --no-deps -e .
	touch $@

demo: venv ## A run waits for its GPUs, gets them, gives way and resumes: watch it (≤ 4 min)
	$(BIN)/dsec demo

demo-kube: venv ## The same story in pods on a real Kubernetes control plane (built once with Go)
	$(BIN)/dsec demo --kubernetes

test: kube-programs prometheus ## Everything but the tests that take minutes; the lint runs inside it
	DSEC_TEST_SECOND_TRY=1 $(PYTEST) -n $(PROCESSES) -m "not long"

test-fast: lint ## About a minute: lint, and the tests that need no server
	$(PYTEST) -n 2 -m "not slow and not long"

test-long: kube-programs prometheus ## Everything, the tests that take minutes included
	$(PYTEST) -n $(PROCESSES)

lint: venv ## ruff, mypy and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: venv ## Format the sources
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format .

lock: venv ## Resolve pyproject.toml again into requirements.lock
	$(UV) pip compile --quiet --generate-hashes --no-emit-index-url --extra dev pyproject.toml -o requirements.lock

fault-points: venv ## Write tests/crash/points.json from the names in the source
	$(BIN)/python tools/fault_points.py --write

screenshots: venv ## Pictures of a running demo into docs/images/ (needs Debian's chromium)
	$(BIN)/python tools/screenshots.py

kube: venv ## Start a real Kubernetes control plane here (built once with Go, about 7 minutes)
	$(BIN)/python -m dsec_deployments.control_plane up

kube-down: venv ## Stop it and leave nothing
	$(BIN)/python -m dsec_deployments.control_plane down --purge

kube-programs: venv ## Build its programs where they are missing; says so in one line where it cannot
	$(BIN)/python -m dsec_deployments.control_plane build

prometheus: venv ## Get Prometheus for the tests, from Debian's package; says so in one line where it cannot
	$(BIN)/python -m tools.prometheus_programs

test-kube: kube-programs ## The tests on a real Kubernetes control plane, but for those that take minutes (≤ 20 min)
	DSEC_KUBERNETES=required $(PYTEST) -n $(PROCESSES) --dist loadfile -m "not long" \
	  tests/workers/clusters/kubernetes tests/deployments/control_plane tests/deployments/kubernetes \
	  tests/deployments/test_up_on_kubernetes.py tests/fakes tests/crash/test_outposts.py

bench-%: venv ## One benchmark, for example: make bench-dispatch
	$(BIN)/python -m benchmarks.$*

clean: ## Remove .venv, caches and .dsec (run history included)
	if [ -x $(BIN)/dsec ] && [ -d .dsec ]; then $(BIN)/dsec down || true; fi
	rm -rf .venv .dsec build dist *.egg-info .ruff_cache .mypy_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
