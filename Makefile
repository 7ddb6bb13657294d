# The two commands of the README are `make up` and `make test`; each needs only Python 3.11+, make and git.
PYTHON ?= python3
BIN := .venv/bin
TORCH_PYTHON ?= $(CURDIR)/$(BIN)/python
PARTS := contract agent simulator collector rules dashboards cli

.PHONY: help up test test-systemd bench-diagnosis check fix setup lock docs wheel bundle deb release clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | column -t -s "$$(printf '\t')"

up: setup ## run collector, rules, page and this host's agent; ARGS="--simulate 16" passes flags on
	@$(BIN)/gpuwarden up $(ARGS)

test: setup check ## everything that must pass before a change lands
	$(BIN)/pytest $(or $(ARGS),--numprocesses auto --maxprocesses 4 --dist worksteal)

test-systemd: setup ## install, break, upgrade and remove both parts on a Debian that boots in a container (root)
	$(BIN)/pytest -m systemd tests/systemd $(ARGS)

bench-diagnosis: setup ## record real training loops on this machine (root, quiet, 50 minutes a seed) and judge the diagnosis; TORCH_PYTHON has PyTorch, ARGS="--seeds 1,2,3"
	$(BIN)/python -m bench.diagnosis.record --python $(TORCH_PYTHON) $(ARGS)
	$(BIN)/python -m bench.diagnosis.search --python $(TORCH_PYTHON)
	$(BIN)/python -m bench.diagnosis.judge

check: setup ## lint, format, types, import contracts
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --quiet --check
	$(BIN)/mypy --no-error-summary
	$(BIN)/lint-imports --no-logo

fix: setup ## let ruff mend what it can, and format
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

setup: .venv/.setup-stamp ## create .venv and install the locked versions (done once)

.venv/.setup-stamp: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "gpuwarden needs Python 3.11 or newer, and $(PYTHON) is %s: set PYTHON=/path/to/python3.11" % sys.version.split()[0])'
	@$(PYTHON) -m venv .venv || { echo "make setup: $(PYTHON) cannot create a virtual environment (Debian: apt install python3-venv)"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $@

lock: setup ## resolve pyproject.toml into requirements.lock again
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra dev --generate-hashes \
		--no-header --no-emit-index-url --output-file requirements.lock pyproject.toml

docs: setup ## regenerate the generated pages under docs/
	$(BIN)/python -m docs.generate

wheel: setup ## build the wheel into dist/
	$(BIN)/python -m build --wheel --no-isolation

bundle: setup ## build the offline bundles of a GPU host and a collector host into dist/
	$(BIN)/python release/bundle.py

deb: bundle ## build the Debian packages into dist/
	$(BIN)/python release/deb.py dist/*.pyz

release: setup ## build wheel, bundles, Debian packages and SHA256SUMS into dist/, the same bytes each time
	$(BIN)/python release/release.py

clean: ## remove the virtual environment and caches
	rm -rf .venv dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
