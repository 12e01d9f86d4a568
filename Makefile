PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3,$(shell command -v $(name))))
BIN := .venv/bin

.PHONY: install demo test check clean

install: .venv/installed

# torch and torchvision first and as a pair: see constraints.txt. lvis, the oracle of AP in the tests,
# without its dependencies: see pyproject.toml.
.venv/installed: pyproject.toml constraints.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: install it, or say make PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,photographs,dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps lvis
	touch $@

demo: install
	$(BIN)/rncdl demo

# A worker takes about a GB, and beyond 16 of them the slowest tests decide.
test: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 16 --dist worksteal

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache
