# `make` alone says what there is. Every target sets up what it needs by itself.
.DEFAULT_GOAL := help
.PHONY: help long-check setup lock lock-check versions-check test check soak model-check mutation-check kill-check cluster-check kafka-check security-check fuzz demo diagrams figures options bench format docs clean

BIN := .venv/bin
# Setup notes here which Java to use when the one on the PATH would not do.
JAVA := . scripts/java_env.sh;
# Most of the time tests wait (for a process to die, for a checkpoint), so more of them run at once than there are cores.
TEST_PROCESSES := 3

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Virtual environment with pinned dependencies in .venv, and Java 17+ (quick when nothing changed)
	@bash scripts/setup.sh

lock: ## requirements.lock for what pyproject.toml asks for now, for every supported Python; ARGS=--upgrade for newer versions
	@bash scripts/lock.sh $(ARGS)

lock-check: ## Whether requirements.lock fits pyproject.toml, and no version contradicts another
	@bash scripts/lock.sh --check

versions-check: ## Set-up and a WordCount with a kill on each supported Python, from nothing (some minutes each); ARGS="3.12 3.13"
	@bash scripts/versions_check.sh $(ARGS)

demo: setup ## One slot of a WordCount killed, once with standbys, once with rollback; results compared with Spark SQL
	@$(JAVA) $(BIN)/flinkplus demo

test: setup ## Format, lint, types, import rule and tests (all but `make long-check`): what CI runs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@$(JAVA) set -x; $(BIN)/python -m tests.java_classes & $(BIN)/mypy && wait $$!
	@export NO_MKDOCS_2_WARNING=1; set -x; $(BIN)/lint-imports --no-logo & $(BIN)/mkdocs build --quiet && wait $$!
	@$(JAVA) set -x; $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal -m "not long" --durations=15

check: test ## The same as test

long-check: setup ## The tests that `make test` leaves out: variants of what it shows, cuts of longer checks, more examples of properties
	@$(JAVA) $(BIN)/python -m tests.java_classes
	@$(JAVA) set -x; TEST_EXAMPLES=2 $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal -m "long or hypothesis"

soak: setup ## 100,000 simulated histories of the protocol (about 20 minutes of one core); see docs/simulation.md
	$(BIN)/python -m tests.simulation --seeds 100000 --shrink

model-check: setup ## Every order of deliveries in a small job, a failure at every point; five minutes at most
	$(BIN)/python -m tests.simulation.exhaustive --minutes 5

mutation-check: setup ## Every deliberate fault in the protocol, found out by the simulator within 2,000 histories
	$(BIN)/python -m tests.simulation.mutation_check

kill-check: setup ## SIGKILL at every point of every kind of checkpoint, with every recovery; output compared (about 10 minutes)
	@mkdir -p results
	@$(JAVA) $(BIN)/python -m tests.kills --json results/kills.json

cluster-check: setup ## Drills on a cluster in namespaces: hosts, networks and drivers that fail in every way (root; about 20 minutes)
	@$(JAVA) set -x; $(BIN)/python -m pytest -q -s tests/cluster/check_*.py

kafka-check: setup ## The Kafka tests, all of them, against KAFKA_SERVERS, else apache/kafka in Docker, else the broker of `make long-check`
	@$(JAVA) set -ex; if [ -z "$$KAFKA_SERVERS" ] && docker info >/dev/null 2>&1; then \
	    docker compose --profile kafka up --detach --wait kafka; export KAFKA_SERVERS=127.0.0.1:9092; fi; \
	$(BIN)/python -m pytest tests/unit/sources/kafka tests/unit/sinks/kafka $(addprefix tests/integration/test_kafka_,broker.py jobs.py sink.py)

security-check: setup ## Attacks on a job, each of which must fail; a part of them is in `make test`
	@$(JAVA) set -x; $(BIN)/python -m pytest -q tests/security $(addprefix tests/integration/test_,signatures.py open_ports.py security.py)

fuzz: setup ## Ten minutes of mutated input for every decoder; see docs/security.md
	$(BIN)/python -m tests.fuzz --seconds 600

diagrams: setup ## docs/state-diagrams.md, written anew from what the machines of the protocol do
	$(BIN)/python -m tests.diagrams --write

docs: setup ## The documents as a site in build/site (open index.html); broken links are errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

figures: setup ## docs/figures.md, written again from docs/results
	$(BIN)/python -m experiments.figures

options: setup ## docs/options.md, written again from flinkplus/config.py
	$(BIN)/python -m tests.options_page --write

bench: setup ## Throughput, checkpoint cost and memory; printed and written to results/bench.json
	@mkdir -p results
	@$(JAVA) $(BIN)/python -m experiments.bench --json results/bench.json

format: setup ## Format the code and mend what the linter can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## Remove what setup, tests and runs have made (not the results)
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis spark-warehouse metastore_db
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
