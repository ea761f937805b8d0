# Every target makes its own environment first: a fresh checkout needs no earlier step.

.DEFAULT_GOAL := help
.PHONY: help env check fix test test-all bench docs proto lock dist clean

PYTHON := .venv/bin/python
# Hundreds of processes import the same modules: compile each of them once.
unexport PYTHONDONTWRITEBYTECODE
# Which tests, and how: make test T="tests/unit -k clock" N=0
T ?=
N ?= 4
COMPILE := .venv/bin/uv pip compile --quiet --no-config --universal --python-version 3.11 \
	--generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

env: ## make or refresh .venv with the locked packages and the tools of the developers
	@SHOAL_DEV=1 ./shoal --version >/dev/null

check: env ## format, lint, types, import layers, generated files: changes nothing
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	.venv/bin/lint-imports --no-logo
	$(PYTHON) -m tools.generate --check
	$(PYTHON) -m tools.proto --check

fix: env ## format, repair what ruff can repair, regenerate
	$(PYTHON) -m ruff check --fix-only --quiet .
	$(PYTHON) -m ruff format .
	$(PYTHON) -m tools.generate
	$(PYTHON) -m tools.proto

test: env ## what every change must pass, with real servers; T="tests/unit -k name" picks, N=0 runs in one process
	$(PYTHON) -m pytest -n $(N) --dist worksteal -m "not exhaustive" $(T)

test-all: env ## all tests, also with second databases, storms, generators and all guides; T="-m exhaustive": only those
	$(PYTHON) -m pytest -n $(N) --dist worksteal $(T)

bench: env ## measure; T="name" picks one benchmark
	@if [ -d bench ]; then $(PYTHON) -m bench $(T); else echo "there is no benchmark yet: bench/ is empty"; fi

docs: env ## regenerate the reference pages and .env.example, and build the site into site/
	$(PYTHON) -m tools.generate
	$(PYTHON) -m tools.site

proto: env ## generate the Python stubs of proto/control.proto
	$(PYTHON) -m tools.proto

lock: env ## resolve the dependencies again and write the locks
	$(PYTHON) -m pip install --quiet uv
	$(PYTHON) -m tools.lock
	for name in containers mkdocs openapi-python-client packaging pywb schemathesis; do \
		$(COMPILE) --upgrade tests/support/$$name.in --output-file tests/support/$$name.lock; done
	npm update --prefix tests/support/node_tools --package-lock-only --ignore-scripts --omit-lockfile-registry-resolved

dist: env ## build the wheel and the source distribution into dist/
	rm -rf dist
	$(PYTHON) -m build --no-isolation --outdir dist

clean: ## remove .venv and every cache
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
