# SPDX-License-Identifier: Apache-2.0
# Targets for a checkout. Each sets up what it needs: start with `make demo` or `make test`.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

BIN := .venv/bin
SEED ?=
JSON ?=
SECONDS ?= 60
AT_ONCE ?= 2
VERSION ?= 0.1.0
IMAGES ?= broker operator verifier etcd
JOBS ?= 5
SEEDS ?= 1000
FIRST ?= 0
ORDER ?= 0

# Compiled ahead: with PYTHONDONTWRITEBYTECODE set, every broker that a test or the demo starts would compile itself.
.PHONY: setup
setup: ## create .venv with the pinned dependencies; installs python3-venv and Java 17 by apt if missing
	@scripts/setup
	@$(BIN)/python -m compileall -q broker/src operator/src verifier/src tests

.PHONY: demo
demo: setup ## three regions, a year of New York's flights, one region killed; SEED=n, JSON=1
	@$(BIN)/python demo/run.py $(if $(JSON),--json) $(if $(SEED),--seed $(SEED))

# Tests of real brokers wait more than they compute, so five files at a time keep two processors busy; tests/conftest.py
# says in which order. With PYTHONDONTWRITEBYTECODE cleared pytest keeps the test modules it compiles: every worker needs
# all of them.
.PHONY: test
test: setup ## unit, simulation, integration and scenario tests, JOBS=5 files at a time
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder \
	    tests/simulation tests/scenarios tests/integration tests/unit

# These tests wait for Java most of the time, so two files at a time; each process has a Pulsar or bookies of its own.
WAITING := -n 2 --dist loadfile --no-loadscope-reorder -rs --durations=10 --durations-min=5

.PHONY: interop
interop: setup ## the official Go and Java clients, an Apache Pulsar as a region; INTEROP_PULSAR_URL: a Pulsar to compare with
	@if command -v java && command -v mvn; then scripts/pulsar $(MERIDIAN_PULSAR); fi >/dev/null
	@$(BIN)/python -m pytest $(WAITING) tests/interop $(if $(INTEROP_PULSAR_URL),tests/integration/test_protocol_answers.py)

.PHONY: bookkeeper
bookkeeper: setup ## ledgers on real bookies; needs Java 17, and Maven to fetch 123 MB of jars once
	@scripts/bookkeeper $(MERIDIAN_BOOKKEEPER)
	@$(BIN)/python -m pytest $(WAITING) tests/bookkeeper

.PHONY: s3
s3: setup ## ledgers offloaded to a real S3 server; needs Go, to build the server once (two to three minutes of CPU)
	@scripts/s3
	@$(BIN)/python -m pytest -rs tests/s3

.PHONY: check
check: setup ## lint, format, types, import contracts, circles of files, generated files
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@scripts/types
	@$(BIN)/lint-imports
	@$(BIN)/python -m pytest -q tests/unit/house/test_imports.py
	@scripts/generated check

.PHONY: simulate
simulate: setup ## simulated regions: SEEDS=1000 from FIRST=0 in ORDER=0, property tests with more examples; BUGS=1 also hunts every planted bug
	@PYTHONPATH=tests $(BIN)/python -m simulation --first $(FIRST) --seeds $(SEEDS) --order $(ORDER) --jobs $$(nproc)
	@PYTHONPATH=tests $(BIN)/python -m simulation --world brokers --first $(FIRST) --seeds $(SEEDS) --order $(ORDER) --jobs $$(nproc)
	@PYTHONPATH=tests $(BIN)/python -m simulation --world divided --first $(FIRST) --seeds $(SEEDS) --order $(ORDER) --jobs $$(nproc)
	@SYNC_SEEDS=$(SEEDS) $(BIN)/python -m pytest -q -n $$(nproc) tests/unit/metadata/test_sync_world.py \
	    tests/unit/replication/test_snapshot_world.py
	@EXAMPLES=500 $(BIN)/python -m pytest -q -n $$(nproc) --dist load -m hypothesis \
	    tests/unit/{metadata/test_etcd_together.py,operator,replication,topics,verifier}
	@if [ -n "$(BUGS)" ]; then SIMULATE_BUGS=1 $(BIN)/python -m pytest -s tests/simulation/test_planted_bugs.py; fi

.PHONY: fuzz
fuzz: setup ## hostile bytes, clients and HTTP requests for SECONDS=60 at each of five targets, AT_ONCE=2 at a time
	@FUZZ_SECONDS=$(SECONDS) $(BIN)/python -m pytest -n $(AT_ONCE) --dist load tests/fuzz

.PHONY: bench
bench: setup ## run every bench/*/run and compare the figures with their targets
	@for run in bench/*/run; do echo "== $$run"; "$$run"; done

# `bookkeeper`, for regions on BookKeeper, needs Maven to fetch 123 MB of jars once.
.PHONY: images
images: ## container images, tagged VERSION=0.1.0, built with what e2e/cluster finds; IMAGES=bookkeeper
	@for image in $(IMAGES); do \
	    e2e/cluster build "meridian-$$image:$(VERSION)" "images/$$image/Dockerfile"; \
	done

.PHONY: crds
crds: setup ## regenerate the custom resource definitions from the operator's models
	@$(BIN)/python -m meridian_operator.api.crd crds
	@cp crds/*.yaml helm/meridian-operator/files/crds/

.PHONY: charts
charts: ## lint and render the charts; needs helm
	@for region in us-east us-west eu-central; do \
	    helm lint --strict helm/meridian-region -f "examples/kubernetes/$$region.yaml" --set external.host=192.0.2.1; \
	done
	@helm lint --strict helm/meridian-operator
	@helm lint --strict helm/meridian-verifier -f examples/kubernetes/verifier.yaml

.PHONY: e2e
e2e: setup ## a failover on a real Kubernetes cluster (see e2e/cluster for which); exit 2 without one
	@$(BIN)/python -m pytest -x -p no:xdist --timeout 1500 --durations=0 --durations-min=5 e2e

.PHONY: docs
docs: setup ## regenerate the generated files
	@scripts/generated write

.PHONY: test-fresh
test-fresh: ## the two commands of the README in a new Debian system (needs root and debootstrap; not part of test)
	@tests/fresh/run

.PHONY: clean
clean: ## remove caches and what the demo and tests left; keeps .venv
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache data demo-data reports
	@find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

.PHONY: help
help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14
