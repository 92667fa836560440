# Every target sets itself up on a fresh machine: a virtual environment in .venv, then its job.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo docs test tests soak nightly lint audit clean

demo: $(STAMP)
	$(BIN)/askew bench mini --methods source,coal,teacher --seeds 1 --out demo-runs

docs: $(STAMP)
	$(BIN)/python docs/site/build.py

tests soak nightly: export OMP_NUM_THREADS = 1
# Compiled once, and not by every process anew, also where a container forbids it.
tests soak nightly: export PYTHONDONTWRITEBYTECODE =

# Side by side: tests leave a part of two cores idle.
test: $(STAMP)
	$(MAKE) -j 2 lint tests

tests: $(STAMP)
	$(BIN)/pytest -n 2 --dist worksteal -m "not soak"

soak: $(STAMP)
	$(BIN)/pytest -m soak

nightly: $(STAMP)
	ASKEW_TEST_RANDOM_KILLS=1000 ASKEW_TEST_STRIDE=1 $(BIN)/pytest -m soak tests/soak

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

audit:
	$(PYTHON) .ci/audit.py

clean:
	rm -rf .venv .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist demo-runs

# The stamp comes last, so an interrupted set-up is done again; `venv` mends a folder that is half there.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "askew needs Python 3.11 or later: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv .venv
ifdef LOCKED
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
else
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,timm,onnx,parquet,ray,slurm,datasets,optuna,tracking,hub,docs]'
endif
	@touch $@
