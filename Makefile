# `make help` lists what there is to do. Each target installs what it needs into .venv by itself.

PYTHON ?= python3
# For pip, such as an --extra-index-url that has PyTorch's CPU build, a tenth of the default's size.
PIP_EXTRA_ARGS ?=
# Models for `make serve`.
MODELS ?= .cache/models
# A tritonserver, its binary or folder, for `make test-host`.
TRITON ?=
# For the commands themselves: make test ARGS='tests/backend -k plan', make serve ARGS='--http-port 0'.
ARGS ?=

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
RUN := $(VENV)/bin/python
PIP = $(RUN) -m pip install $(PIP_EXTRA_ARGS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# For what imports ONNX Runtime without this package: the demo's export, rivals of benchmarks.
export ORT_DISABLE_TELEMETRY := 1

EXTRAS_run := server,onnx,openvino,torch,text,generation,structure,image,openai,tools,import,demo
EXTRAS_bench := $(EXTRAS_run),test
EXTRAS_test := $(EXTRAS_bench)
EXTRAS_check := check

# Wheels that a test reads and nothing installs: torch_npu cannot be imported without CANN.
WHEELS := .cache/wheels
NPU_SOURCES := $(WHEELS)/.torch_npu
NPU_VERSIONS := 2.7.1 2.8.0 2.9.0 2.10.0 2.11.0 2.12.0 2.13.0 2.14.0

.PHONY: help setup check fix test test-all test-encoders test-front test-server wheels bench bench-quick trust findings demo serve image wheel clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.run $(VENV)/.test $(VENV)/.check ## install everything into .venv

check: $(VENV)/.check ## lint, types, layers, spelling, container files, known vulnerabilities
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/codespell
	$(VENV)/bin/validate-pyproject pyproject.toml
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml
	$(VENV)/bin/hadolint deploy/Dockerfile
	$(VENV)/bin/kubernetes-validate --quiet deploy/kubernetes/*.yaml
	$(RUN) deploy/audit.py
	$(VENV)/bin/check-jsonschema --schemafile deploy/kserve/servingruntime.schema.json deploy/kserve/runtime.yaml
	@find backend frontend tools -name '*.py' -exec wc -l {} + | awk '$$2 != "total" && $$1 > 600 { print "warning: " $$2 " has " $$1 " lines: are these several files?" }'

fix: $(VENV)/.check ## mend what ruff can mend by itself
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# Three files at a time, on two cores, too: half of a test is waiting for processes. In the order of
# tests/tiers.py: the longest first, so that none is left alone at the end.
TESTS = $(RUN) -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder --durations 20 --junit-xml

test: $(VENV)/.test $(NPU_SOURCES) ## what a change needs tested, with the real server
	$(TESTS) build/test.xml -m "not long" $(ARGS)

test-all: $(VENV)/.test $(NPU_SOURCES) ## every test: the long tier builds, installs and replays whole things, too
	$(TESTS) build/test-all.xml $(ARGS)

test-encoders: $(VENV)/.test ## the backend's tests where text generation, API and tools are not installed
	GE_ABSENT=ge_text,ge_openai,ge_tools $(RUN) -m pytest -m "not long" tests/backend $(ARGS)

test-front: $(VENV)/.test ## the API's tests where nothing else of ours is installed: those that need more are skipped
	GE_ABSENT=ge_backend,ge_text,ge_tools $(RUN) -m pytest tests/frontend $(ARGS)

test-server: $(VENV)/.test ## the tests with the real server; without one they fail
	GE_REQUIRE=server $(RUN) -m pytest tests/server $(ARGS)

test-host: $(VENV)/.test ## the same against TRITON=/path, an installation; prints a line for docs/releases.md
	@test -n "$(TRITON)" || { echo "say make test-host TRITON=/path/to/tritonserver"; exit 2; }
	GE_HOST_TABLE=1 GE_TRITONSERVER=$(TRITON) $(RUN) -m pytest $(or $(ARGS),tests/server)

wheels: | $(RUN) ## fetch every torch_npu that a test can read, 270 MB; nothing is installed
	@mkdir -p $(WHEELS)
	@for version in $(NPU_VERSIONS); do $(FETCH_NPU) torch_npu==$$version; done

bench: $(VENV)/.bench ## measure against other ways to serve the same model, and how servers start
	$(RUN) -m benchmarks.bench_serving $(ARGS)
	$(RUN) -m benchmarks.bench_start

bench-quick: $(VENV)/.bench ## a few minutes of that: one mix, short windows
	$(RUN) -m benchmarks.bench_serving --quick $(ARGS)

trust: $(VENV)/.test ## let things go wrong under load, and print what became of the requests
	$(RUN) -m benchmarks.trust --soak 120 $(ARGS)
	$(RUN) -m pytest -q tests/contract/test_npu_faults.py
	GE_HOSTILE_MESSAGES=20000 $(RUN) -m pytest -q tests/backend/executor/server/test_hostile.py

findings: ## where libraries behave otherwise than one would guess, run again: ten minutes
	PYTHON=$(PYTHON) findings/run.sh $(ARGS)

demo: $(VENV)/.run ## a page of sentences through a real encoder on the real server
	$(RUN) -m demo $(ARGS)

serve: $(VENV)/.run ## serve the small models of model_repository until ^C, for client_examples
	$(RUN) model_repository/make.py --into $(MODELS)
	$(RUN) -m ge_tools.main serve --model-repository $(MODELS) --openai-port 9000 $(ARGS) \
	  -- --model-control-mode=explicit --load-model='*'

image: $(VENV)/.test ## build the container image from public packages and try it; needs podman
	$(RUN) -m deploy.image $(ARGS)

wheel: $(VENV)/.test ## build the wheel and the source archive into dist/
	$(RUN) -m build --outdir dist

clean: ## remove .venv and everything that can be made again
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf build dist backend/ge/*.egg-info ge-report.html
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp per set of extras, so that a second run installs nothing.
$(VENV)/.%: pyproject.toml constraints.txt requirements-server.txt requirements-demo.txt | $(RUN)
	@echo "installing $(EXTRAS_$*) into $(VENV); the first time this takes minutes"
	@$(PIP) -c constraints.txt -e '.[$(EXTRAS_$*)]' | $(PROGRESS)
	@$(if $(findstring server,$(EXTRAS_$*)),$(PIP) --no-deps -r requirements-server.txt | $(PROGRESS))
	@$(if $(findstring demo,$(EXTRAS_$*)),$(PIP) --no-deps -r requirements-demo.txt | $(PROGRESS))
	@touch $@

# Where it cannot be had, its test skips, and the next run tries again. The sources are the same for
# every Python.
FETCH_NPU = $(RUN) -m pip download $(PIP_EXTRA_ARGS) --quiet --retries 1 --timeout 20 --no-deps \
  --only-binary :all: --python-version 3.11 --platform manylinux_2_28_x86_64 -d $(WHEELS)
$(NPU_SOURCES): constraints-npu.txt | $(RUN)
	@mkdir -p $(@D)
	@if $(FETCH_NPU) -c constraints-npu.txt torch_npu; then touch $@; \
	else echo "torch_npu's wheel cannot be fetched; the test that reads it will skip"; fi

# One line per file that pip fetches or builds.
PROGRESS := sed -unE '/^ *(Downloading|Building|Installing collected|ERROR)/ { s/^ */  /; \
  s/(Installing collected packages).*/\1/; p }'

$(RUN):
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "Python 3.10 or \
	newer is needed, this is " + sys.version.split()[0] + "; say make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
