# Two commands do everything on a fresh machine with Python 3.11 or newer: `make demo` and `make test`.
# Everything is installed into .venv with the versions of constraints.txt; models go into the user's model cache.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Set TORCH=cpu where the PyTorch wheel index is reachable: a CPU-only torch, 4 GB smaller.
TORCH ?=
UV_FLAGS := $(if $(TORCH),--torch-backend=$(TORCH))

.PHONY: help demo test setup models generate check lint types contract format bench constraints clients conformance clean

help: ## Show the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: setup models ## Stream the example in, ask its questions, show the trace
	$(BIN)/python examples/demo.py

test: setup models ## Run the whole test suite
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

setup: $(STAMP) ## Make the virtual environment

$(STAMP): pyproject.toml constraints.txt clients/python/pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt $(UV_FLAGS) --editable . --group dev --group milvus-server
	touch $(STAMP)

models: setup ## Put the default models into the model cache
	$(BIN)/clag models pull

generate: setup ## Regenerate everything that is made from proto/
	$(BIN)/python tools/generate.py

check: lint types contract ## Everything CI checks beside the tests

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

contract: setup ## Lint and format of proto/, generated code is current, no breaking change
	$(BIN)/python tools/check_contract.py

format: setup ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clients: setup ## Generate, build and test the clients whose toolchain is there
	@for script in clients/*/build.sh; do \
		language=$$(basename $$(dirname $$script)); \
		case $$language in \
			go) tool=go ;; typescript) tool=npm ;; rust) tool=cargo ;; java) tool=mvn ;; cpp) tool=cmake ;; csharp) tool=dotnet ;; \
			*) tool=sh ;; \
		esac; \
		if command -v $$tool >/dev/null; then echo "== $$language"; ./$$script || exit 1; \
		else echo "== $$language: left out, there is no $$tool"; fi; \
	done

conformance: setup ## Hold every client that is built to the same behaviour
	$(BIN)/python -m tests.conformance --present-only

bench: setup models ## Measure ingest and retrieval
	$(BIN)/python -m bench ingest
	$(BIN)/python -m bench retrieve

constraints: setup ## Choose newer versions of everything
	$(BIN)/uv pip compile --quiet --upgrade --no-header --no-annotate \
		--python-version 3.11 --no-emit-package clag-client --group dev --group milvus-server --output-file constraints.txt pyproject.toml

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis third_party
