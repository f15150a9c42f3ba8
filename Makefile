# decoder2vec: every target does its own set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# the CPU build; any torch >= 2.6 works, but it must be installed before what depends on it
TORCH ?= torch==2.13.0
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
INSTALL ?= $(PIP) --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-oldest test-newest soak lint types bench docs site wheel clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: $(READY)  ## build .venv with the package and .venv/bin/d2v in it

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) "$(TORCH)"
	$(INSTALL) --editable ".[dev]"
	$(INSTALL) --no-deps "mteb>=2.23,<3"  # docs/guide/mteb.md says why
	$(INSTALL) --only-binary :all: pytrec-eval-terrier 2>/dev/null \
	  || $(BIN)/python -m decoder2vec.evaluation.trec_metrics
	@touch $(READY)

demo: $(READY)  ## find the best layer of a real model, embed, search: about a minute on two cores
	$(BIN)/d2v demo --out demo-out

test: $(READY)  ## run the tests, a file on each core (tiny models, no network beyond the package index)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow and not soak" -n auto --dist loadfile

test-slow: $(READY)  ## also run the tests that need real models
	$(BIN)/python -m pytest -m "not soak"

# the tests with other versions of the dependencies, in environments of their own
test-oldest:  ## run the tests with the oldest dependencies that pyproject.toml allows (needs uv)
	$(MAKE) test VENV=.venv-oldest TORCH="torch>=2.9" \
	  INSTALL="uv pip install --quiet --python .venv-oldest --resolution lowest-direct --only-binary pystemmer"

test-newest:  ## run the tests with the newest dependencies that pyproject.toml allows
	rm -rf .venv-newest
	$(MAKE) test VENV=.venv-newest TORCH=torch INSTALL='$$(PIP)'

soak: $(READY)  ## every write fails, every file is damaged, 3,000 processes are killed: hours on two cores
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m soak

lint: $(READY)  ## ruff: rules and format
	$(BIN)/ruff check src tests bench experiments docs
	$(BIN)/ruff format --check src tests bench experiments docs

types: $(READY)  ## mypy on the package
	$(BIN)/mypy

BENCHES := start_up against_sentence_transformers all_layers gemm_share layerwise_training training_memory teacher_vectors \
  fewer_layers suffix_training suffix_runs adapter_training text_objectives pruned_speed busy_machine intrinsic_dimension exact_search indexing lexical matching serving evaluation_suite cpu_dtypes small_calls reranking
# measured in CPU seconds of one thread, which other processes on the machine do not affect
CPU_BENCHES := adapter_training text_objectives cpu_dtypes

bench: $(READY)  ## measure the speed claims on this machine; results go to bench/results
	@mkdir -p bench/results
	@set -e; output=$$(mktemp); trap 'rm -f "$$output"' EXIT; for name in $(BENCHES); do \
	  case " $(CPU_BENCHES) " in *" $$name "*) options=--cpu;; *) options=;; esac; \
	  echo "== $$name $$options"; $(BIN)/python bench/$$name.py $$options > "$$output"; cat "$$output"; \
	  tail -n 1 "$$output" > bench/results/$$name.json; done

docs: $(READY)  ## write the generated parts of docs/: architecture, CLI, API, supported models
	$(BIN)/python docs/generate.py
	D2V_WRITE_DOCS=1 $(BIN)/python -m pytest -q tests/backbone/test_families.py

SITE := $(VENV)/.site
$(SITE): $(READY)
	$(INSTALL) --editable ".[docs]"
	@touch $(SITE)

site: $(SITE)  ## build the documentation site in site/ and check it for dead links
	$(BIN)/mkdocs build --strict --quiet
	$(BIN)/linkchecker --no-status --no-warnings --check-extern --ignore-url '^https?://' site/index.html

wheel: $(READY)  ## build the wheel in dist/
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

clean:  ## remove the virtual environment and outputs
	rm -rf $(VENV) .venv-oldest .venv-newest demo-out out site dist
