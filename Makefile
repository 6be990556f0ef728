# Every job of the project. `make test PYTHON=python3.12` uses another interpreter for a new .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.installed-core
TEST := $(VENV)/.installed-test
COMPILE := $(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-header --no-annotate

# Byte code and compiled kernels stay out of the tree; kernels are compiled anew when any file with one changes, which
# the cache itself would not notice of a function in another file.
export PYTHONDONTWRITEBYTECODE := 1
export NUMBA_CACHE_DIR := $(CURDIR)/$(VENV)/numba/$(shell grep -rl --include=*.py njit src | sort | xargs cat | cksum | cut -d " " -f 1)

.PHONY: demo test coverage lint bench reproduce soak docs pictures lock dist clean
.DELETE_ON_ERROR:

demo: $(CORE)
	$(BIN)/hushrec demo

test: $(TEST)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 -p no:cacheprovider

# Branch coverage; complete for what guards a person's ratings.
coverage: export COVERAGE_FILE := $(VENV)/coverage
coverage: $(TEST)
	$(BIN)/python -m pytest -n 2 --max-worker-restart 0 -p no:cacheprovider --cov --cov-report=
	$(BIN)/coverage report
	$(BIN)/coverage report --fail-under=100 --include='*/budget/*,*/mechanisms/*,*/client.py,*/messages.py,*/randomness.py,*/server.py,*/masked/secagg/*,*/masked/*_round.py'

lint: $(TEST)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(TEST)
	$(BIN)/python -m pip install --quiet --no-build-isolation -e '.[bench]'
	$(BIN)/python benchmarks/run.py

# Everything on ML-100K (Task 1 with 22 curves and 30 splits, Task 2, mixed budgets, the literal algorithm) on two cores;
# records and page in $(VENV)/reproduced. Interrupted, it goes on where it was.
reproduce: $(CORE)
	for name in task1-ml-100k task2-ml-100k mixed-budgets literal; do \
	    test -f $(VENV)/reproduced/$$name/experiment.json || \
	    $(BIN)/hushrec experiment experiments/$$name.toml --jobs 2 --resume --out $(VENV)/reproduced || exit 1; \
	done
	$(BIN)/hushrec report $(VENV)/reproduced --out $(VENV)/reproduced/report.html

# The long form of every fault; with HUSHREC_SOAK_RECORDS=benchmarks/records it keeps what was shown.
soak: $(TEST)
	$(BIN)/python -m pytest -m soak -o faulthandler_timeout=0 -p no:cacheprovider tests
	HUSHREC_FUZZ=long $(BIN)/python -m pytest -o faulthandler_timeout=0 -p no:cacheprovider tests/test_data_fuzz.py

# Brings generated parts of the pages up to date, then builds the site: open site/index.html.
docs: $(TEST)
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/snippets.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Pictures of both pages, drawn by their tests in Chromium, and the figures of docs/pages.md: a record of benchmarks/records.
pictures: $(TEST)
	HUSHREC_PICTURES=1 $(BIN)/python -m pytest -p no:cacheprovider -k "for_everyone or hundred_thousand or both_pages" tests/test_dashboard_browser.py tests/test_device_browser.py

# Resolves the newest versions into both locks; no address goes into them.
lock: $(TEST)
	$(BIN)/python -m pip install --quiet uv
	printf 'hatchling\neditables\n' | $(COMPILE) --upgrade --extra report --extra service \
	    --output-file requirements.lock pyproject.toml -
	printf 'hatchling\neditables\n' | $(COMPILE) --upgrade --extra report --extra service --extra docs --extra test \
	    --constraints requirements.lock \
	    --output-file requirements-test.lock pyproject.toml -

# Wheel and sdist in dist/, and the notes of the version from CHANGELOG.md beside them.
dist: $(CORE)
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/python docs/release_notes.py > dist/NOTES.md

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache

$(CORE): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "hushrec needs Python 3.11 or newer, but '$(PYTHON)' is not: install one and name it, as in 'make PYTHON=python3.12 $(MAKECMDGOALS)'." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(TEST): $(CORE) requirements-test.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock -r requirements-test.lock
	@touch $@
