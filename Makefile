# Two commands are all a stranger needs: `make demo` and `make test`. Both make their own virtual environment.
VENV   ?= .venv
PYTHON ?= $(shell bash tools/find_python.sh)
BIN    := $(VENV)/bin
TORCH  ?= torch==2.13.0

.PHONY: demo serve test test-together test-all lint format bench loadtest docs clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.server
	@$(BIN)/rose demo

serve: $(VENV)/.server
	@$(BIN)/rose serve

# As many at a time as there are cores, from two to four, where nothing is timed: tests wait for servers to start.
WORKERS ?= $(shell n=$$(nproc); echo $$((n < 2 ? 2 : n > 4 ? 4 : n)))

# Types are checked meanwhile; then, with nothing beside them, the tests of what is timed. Only files that hold such are
# read: the others import for seconds.
test: $(VENV)/.dev
	@$(MAKE) --no-print-directory --jobs=2 lint test-together
	@$(BIN)/pytest -m "alone and not slow" $$(grep -lr --include='*.py' mark.alone tests/server)

# In order of their folders: servers' tests first, whose files take long, and unit tests fill up the end.
test-together: $(VENV)/.dev
	@$(BIN)/pytest -m "not alone and not slow" --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

test-all: $(VENV)/.all lint
	@$(BIN)/pytest

lint: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# Whole-path CPU throughput beside sentence-transformers, in one run.
bench: $(VENV)/.dev
	@$(BIN)/python loadtests/cpu_throughput.py

docs: $(VENV)/.dev
	@$(BIN)/python tools/config_reference.py
	@$(BIN)/python -m mkdocs build --strict

# Bulk jobs alone, queries at rising rates and beside bulk jobs, a day of all traffic in a minute, against a server of
# its own; a report.
loadtest: $(VENV)/.all
	@$(BIN)/python loadtests/loadtest.py mix --rates 5,10,20,40,60,5+bulk,20+bulk --document-words 20

$(VENV)/.server: pyproject.toml tools/find_python.sh tools/install.sh
	@bash tools/install.sh "$(PYTHON)" "$(VENV)" "$(TORCH)" server
	@touch $@

$(VENV)/.dev: pyproject.toml tools/find_python.sh tools/install.sh
	@bash tools/install.sh "$(PYTHON)" "$(VENV)" "$(TORCH)" server,gateway,tracing,dev,deploy,docs
	@touch $(VENV)/.server $@

$(VENV)/.all: $(VENV)/.dev
	@bash tools/install.sh "$(PYTHON)" "$(VENV)" "$(TORCH)" server,gateway,tracing,dev,deploy,docs,loadtest
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
