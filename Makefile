# Everything a fresh machine needs is done here: Python 3.11 with pip, and make, are all it takes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SECONDS ?= 600

.PHONY: demo test check containers bench soak fuzz vectors reference clean help

help:
	@echo "make demo    four nodes train a small model here and end with the same bits"
	@echo "make test    lint, types, layers, and all tests, those of containers last"
	@echo "make check   lint, types and layers only"
	@echo "make containers  the image and a swarm of containers, where there is an engine (7 minutes)"
	@echo "make bench   the benchmarks of docs/benchmarks.md"
	@echo "make soak    simulated networks under random faults and attacks, for SECONDS=600"
	@echo "make fuzz    decoders and the machine fed with anything, for SECONDS=600 each"

# torch first and pinned: whatever else is installed must not choose another build of it (constraints/README.md)
$(READY): pyproject.toml constraints/torch.txt constraints/ci.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r constraints/torch.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints/ci.txt -e '.[dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/sfnode swarm

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Two at a time, each with one thread, as with more they wait for each other's. Those that start processes
# one after the other: two at a time they take each other's time.
test: check
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not processes" -n 2 --dist loadfile
	$(BIN)/pytest -m processes
	$(MAKE) containers

# -s shows the sizes and times that it measures, -rs why it was skipped when there is no engine: in seconds then
containers: $(READY)
	nice $(BIN)/pytest -m containers -rs -s tests/containers

bench: $(READY)
	$(BIN)/python tests/bench/apply.py
	$(BIN)/python tests/bench/step.py
	$(BIN)/python tests/bench/stall.py
	$(BIN)/python tests/bench/network.py
	$(BIN)/python tests/bench/guest.py

soak: $(READY)
	$(BIN)/python -m sfnode.sim.soak --seconds $(SECONDS)

# with coverage as its guide where atheris is installed: .venv/bin/pip install -e '.[fuzz]'
fuzz: $(READY)
	for target in codec frames machine; do $(BIN)/python tests/fuzz/target.py $$target --seconds $(SECONDS) || exit 1; done

vectors: $(READY)
	$(BIN)/python protocol/vectors/generate.py

# docs/cli.md, after a change of the command line
reference: $(READY)
	$(BIN)/python scripts/reference.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
