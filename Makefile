# Needs Python 3.11 or later, Rust, a C toolchain and make. The targets set up all the rest, inside
# this directory.
#
#   make demo     runs the main job: a year of flights through Spark, checked against Spark SQL
#   make test     runs all tests
#   make check    all that must pass before a commit: format, lint, types, stubs, tests, examples
#
# `make help` lists every target. Another Python: make test PYTHON=python3.12

PYTHON ?= python3
DEMO_ARGS ?=
PYTEST_ARGS ?=
PYTEST_WORKERS ?= 3
CONTENDER_ARGS ?=
SOAK_ACTIONS ?= 10000000
SOAK_RUNS ?= 10000
NIGHTLY ?= nightly
MIRI_TESTS ?= flow:: control::scheduler control::slow_calls control::waits observe:: sync:: \
	--skip every_ --skip further_subjects
THREAD_SANITIZER_TESTS ?=
STRESS_ARGS ?=
FAULTS_ARGS ?=
REPORT_ARGS ?=
BENCH_PYTHON_ARGS ?=
BENCH_SPARK_ARGS ?=
BENCH_PIPELINES_ARGS ?=
export BATCHQUEUE_TEST_MATRIX ?=
SPARK_VERSIONS_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
TARGET := $(or $(CARGO_TARGET_DIR),target)
RUST_SOURCES := Cargo.toml Cargo.lock pyproject.toml $(shell find src -name '*.rs')
PYTHON_SOURCES := $(shell find python -type f ! -name '*.pyc' ! -name '*.so')

# uv downloads and unpacks in parallel, so it is faster than pip; it is given pip's index. pyspark
# comes as sources and is packed into a wheel only to be unpacked again: its 400 MB stay uncompressed.
# uwsgi comes as sources too: what its tests need of it compiles in a third of the time.
INSTALL = UWSGI_PROFILE=pyonly APPEND_CFLAGS=-O0 UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$${PIP_INDEX_URL:-$$($(BIN)/pip config get global.index-url 2> /dev/null)}}" \
	$(BIN)/uv pip install --require-hashes --no-build-isolation --config-settings-package=pyspark:--build-option=--compression=stored

# libtest has no deadline: this runner names the test that does not end, and ends it.
WATCHED = --config 'target."cfg(all())".runner = ["$(PYTHON)", "scripts/deadline.py"]'

# Many of the Python tests wait, so that two cores have work for three workers. No workers:
# make test-python PYTEST_WORKERS=0
WORKERS = -n $(PYTEST_WORKERS) --no-loadscope-reorder --max-worker-restart=0

# A soak run lasts longer than a test may.
WITHOUT_DEADLINE := --timeout=0 --override-ini=faulthandler_timeout=0

DOCS_TESTS := tests/python/docs

# maturin installs into the environment that VIRTUAL_ENV names; nothing of the caller's own may leak
# in.
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport CONDA_PREFIX PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-rust loom loom-full states test-python test-docs test-cluster postgres redis kafka soak soak-rust soak-python soak-groups miri thread-sanitizer stress check format lint types stubs check-stubs \
	faults bench bench-python bench-spark bench-commit-limit bench-registry bench-groups bench-pipelines contenders report wheel cluster-wheel lock clean require-python require-headers require-toolchain require-components

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

demo: require-toolchain ## run the main job; options: make demo DEMO_ARGS="--rows 20000"
	@$(MAKE) --no-print-directory --jobs=2 $(VENV)/demo-requirements $(VENV)/installed
	$(BIN)/batchqueue demo $(DEMO_ARGS)

test: require-python require-toolchain ## run all tests: the three that follow, with the seconds of each
	+@MAKE="$(MAKE)" $(PYTHON) scripts/stages.py test

.PHONY: test-all
test-all: require-python require-toolchain ## every case of every matrix, slow tests, loom-full, faults, spark-versions; hours
	+@MAKE="$(MAKE)" $(PYTHON) scripts/stages.py test-all

test-rust: require-python require-toolchain ## unit, integration and documentation tests of the core
	cargo test --locked $(WATCHED) --features arrow

LOOM = RUSTFLAGS="--cfg loom" BATCHQUEUE_TEST_DEADLINE_S=$${BATCHQUEUE_TEST_DEADLINE_S:-600} \
	cargo test --locked $(WATCHED) --profile local --target-dir $(TARGET)/loom

loom: require-python require-toolchain ## the protocols in loom's scheduler and in a model of their states, within the bounds
	$(LOOM) --lib -- loom
	$(LOOM) --test states

# The build alone, which `make test` makes while the tests of the core wait.
.PHONY: loom-build
loom-build: require-python require-toolchain
	$(LOOM) --lib --test states --no-run

states: export BATCHQUEUE_STATES := 4000000
states: export BATCHQUEUE_TEST_DEADLINE_S := 3600
states: require-python require-toolchain ## all states of that model; two minutes, 4 GB
	$(LOOM) --test states -- --nocapture

loom-full: export BATCHQUEUE_LOOM_FULL := 1
loom-full: export LOOM_MAX_DURATION := 600
loom-full: export BATCHQUEUE_TEST_DEADLINE_S := 3600
loom-full: loom ## the same with one preemption more than the bounds, ten minutes for each model; hours

# What `test-python` needs, made before it and beside the tests of the core.
.PHONY: test-environment
test-environment: $(VENV)/requirements $(VENV)/installed $(TARGET)/local-wheel $(TARGET)/spark-classes.jsa
	@scripts/postgres.sh --if-possible
	@scripts/redis.sh --if-possible
	@$(BIN)/python scripts/kafka.py --if-possible

test-python: test-environment ## everything in Python; options: make test-python PYTEST_ARGS="-k order"
	$(BIN)/python -m pytest $(WORKERS) --ignore=$(DOCS_TESTS) $(PYTEST_ARGS)

test-docs: test-environment ## the examples of the pages and docstrings, links, and the wheel that the README installs
	$(BIN)/python -m pytest $(WORKERS) $(DOCS_TESTS) $(PYTEST_ARGS)

postgres: ## the PostgreSQL server that tests start: bring one from the packages of Debian or Ubuntu, where there is none
	scripts/postgres.sh

redis: ## the Redis server that tests start, likewise
	scripts/redis.sh

kafka: $(VENV)/requirements $(VENV)/installed ## the Kafka broker that a test starts, and Spark's package for Kafka
	$(BIN)/python scripts/kafka.py

test-cluster: test-environment ## all tests on Spark clusters of real processes, the slow ones too; options as above
	BATCHQUEUE_TEST_MATRIX=all $(BIN)/python -m pytest -m "slow or not slow" tests/python/spark/cluster $(PYTEST_ARGS)

.PHONY: spark-versions
spark-versions: $(VENV)/requirements $(VENV)/installed ## Spark tests with pyspark 3.5 to 4.3, into docs/spark/versions.md; half an hour, 5 GB
	@scripts/postgres.sh --if-possible
	$(BIN)/python scripts/spark_versions.py --page docs/spark/versions.md $(SPARK_VERSIONS_ARGS)

soak: soak-rust soak-python soak-groups ## the three that follow

soak-rust: require-toolchain ## ten million random actions on the core; fewer: make soak-rust SOAK_ACTIONS=1000000
	BATCHQUEUE_MODEL_ACTIONS=$(SOAK_ACTIONS) cargo test --locked --release --test it model:: -- --nocapture

soak-python: $(VENV)/requirements $(VENV)/installed ## ten million random actions of several threads; fewer: make soak-python SOAK_ACTIONS=1000000
	BATCHQUEUE_SOAK_ACTIONS=$(SOAK_ACTIONS) $(BIN)/python -m pytest $(WITHOUT_DEADLINE) -s tests/python/core/model/test_model_threads.py

soak-groups: $(VENV)/requirements $(VENV)/installed ## ten thousand random runs of the protocol of groups; fewer: make soak-groups SOAK_RUNS=1000
	BATCHQUEUE_GROUPS_RUNS=$(SOAK_RUNS) $(BIN)/python -m pytest $(WITHOUT_DEADLINE) $(WORKERS) tests/python/groups/model tests/python/groups/redis/test_same_scripts.py

# Both need a nightly toolchain: rustup toolchain install nightly --component miri,rust-src
miri: ## unit tests of the core in Miri: undefined behaviour, data races; five minutes; needs nightly Rust
	cargo +$(NIGHTLY) miri test --locked --lib --target-dir $(TARGET)/miri -- $(MIRI_TESTS)

# The standard library is instrumented as well: without that, its locks would look like races.
thread-sanitizer: ## the integration tests of the core under ThreadSanitizer; five minutes; needs nightly Rust
	RUSTFLAGS="-Zsanitizer=thread" cargo +$(NIGHTLY) test --locked -Zbuild-std \
		--target $$(rustc -vV | sed -n 's/^host: //p') --target-dir $(TARGET)/thread-sanitizer \
		--test it -- --test-threads=2 $(THREAD_SANITIZER_TESTS)

stress: $(VENV)/requirements $(VENV)/installed ## five minutes of everything together; options: make stress STRESS_ARGS="--seconds 60 --seed 7"
	$(BIN)/python tests/python/support/stress.py $(STRESS_ARGS)

check: lint check-stubs types test test-docs ## the one command before a commit

format: require-components $(VENV)/requirements ## write the house format into all sources
	cargo fmt
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/ruff format

lint: require-components $(VENV)/requirements ## format, lint, imports between rooms, English, and the places of switches, changing nothing
	cargo fmt --check
	cargo clippy --locked --all-targets -- -D warnings
	RUSTFLAGS="--cfg loom" cargo clippy --locked --lib --tests --test states --target-dir $(TARGET)/loom -- -D warnings
	PYO3_PYTHON=$(CURDIR)/$(BIN)/python cargo clippy --locked --all-targets --features python -- -D warnings
	for bench in contenders/rust python/floor; do \
		cargo update --workspace --locked --quiet --manifest-path benches/$$bench/Cargo.toml || exit 1; done
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	PYTHONPATH=python $(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/python scripts/core_layers.py
	$(BIN)/python scripts/prose.py
	$(BIN)/python scripts/faults/switches.py

types: $(VENV)/requirements $(VENV)/installed ## type-check the package and the programs of docs, and the stubs against the built module
	$(BIN)/mypy --strict
	$(BIN)/mypy --strict docs/examples
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright
	$(BIN)/python -m mypy.stubtest batchqueue._core

stubs: $(TARGET)/stubs/batchqueue/_core.pyi ## write python/batchqueue/_core.pyi anew
	cmp -s $< python/batchqueue/_core.pyi || cp $< python/batchqueue/_core.pyi

check-stubs: $(TARGET)/stubs/batchqueue/_core.pyi ## the committed stubs are those of the built module
	@diff -u python/batchqueue/_core.pyi $< || { echo "make: _core.pyi is out of date; write it with: make stubs" >&2; exit 1; }

faults: $(VENV)/requirements $(VENV)/installed ## turn off one rule after the other, and see its tests go red; a part: FAULTS_ARGS="--part 1/4"
	$(BIN)/python scripts/faults/run.py $(FAULTS_ARGS)

bench: require-toolchain ## every figure that has a bound, five minutes; needs no Python
	cargo bench --locked

contenders: require-toolchain ## batchqueue beside other queues; options: make contenders CONTENDER_ARGS="--quick"
	$(PYTHON) benches/contenders/run.py $(CONTENDER_ARGS)

bench-python: $(VENV)/installed-release $(TARGET)/wheel ## from Python, beside other queues, into docs/figures/python.md; three minutes
	$(BIN)/python benches/python/run.py --page docs/figures/python.md $(BENCH_PYTHON_ARGS)
	$(BIN)/python benches/python/held_up.py --picture docs/guide/slow-handlers.png
	$(BIN)/python benches/python/batching.py --picture docs/guide/batching.png
	$(BIN)/python benches/python/registry.py

bench-spark: $(VENV)/requirements $(VENV)/installed-release ## the Spark sink beside Spark alone, into docs/figures/spark.md; ten minutes
	$(BIN)/python benches/spark/run.py --page docs/figures/spark.md $(BENCH_SPARK_ARGS)

bench-commit-limit: $(VENV)/requirements $(VENV)/installed-release ## how many bytes of commit messages a driver takes; three minutes
	$(BIN)/python benches/spark/commit_limit.py

bench-registry: $(VENV)/installed-release ## what 20,000 types cost, and 100,000 sessions that come and go; two minutes
	$(BIN)/python benches/python/registry.py

bench-groups: $(VENV)/requirements $(VENV)/installed-release kafka ## partition groups on its own Redis and Kafka, into docs/figures/groups.md; ten minutes
	@scripts/redis.sh
	PYTHONPATH=tests/python/support $(BIN)/python benches/groups/run.py --page docs/figures/groups.md $(BENCH_GROUPS_ARGS)

bench-pipelines: $(VENV)/requirements $(VENV)/installed-release ## pipelines in one process and on Spark, into docs/figures/pipelines.md; half an hour
	$(BIN)/python benches/pipelines/run.py --page docs/figures/pipelines.md $(BENCH_PIPELINES_ARGS)

report: require-toolchain $(VENV)/requirements ## all benches and contenders into docs/figures/benchmarks.md; 40 minutes
	$(BIN)/python scripts/report.py $(REPORT_ARGS)

wheel: $(TARGET)/wheel ## build dist/*.whl

cluster-wheel: $(VENV)/requirements | require-toolchain ## one wheel for Linux from glibc 2.17 on, audited and tried; minutes
	$(BIN)/python scripts/cluster_wheel.py

lock: ## pin the development set and the demo's in requirements-*.lock
	rm -rf $(TARGET)/lock-venv
	$(PYTHON) -m venv $(TARGET)/lock-venv
	$(TARGET)/lock-venv/bin/pip install --quiet uv==0.13.8
	$(TARGET)/lock-venv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
		--custom-compile-command "make lock" --output-file requirements-dev.lock requirements-dev.in
	$(TARGET)/lock-venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --constraint requirements-dev.lock \
		--custom-compile-command "make lock" --output-file requirements-demo.lock requirements-demo.in

clean: ## remove all that the targets made
	rm -rf $(VENV) $(TARGET) dist python/batchqueue/_core*.so

# What follows is made once, and again only when what it depends on has changed.

# Three steps: the build tools, so that packages which come as sources are built with pinned ones and
# the core can be compiled meanwhile; what the demo needs; and what developers need besides.
$(VENV)/build-tools: requirements-demo.lock | require-python
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) \
		|| { echo "make: $(PYTHON) cannot make environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@awk '/^[a-z]/ { keep = /^(pip|setuptools|maturin|uv)==/ } keep' $< > $(VENV)/build-tools.txt
	$(BIN)/python -m pip install --require-hashes -r $(VENV)/build-tools.txt
	@touch $@

$(VENV)/demo-requirements: $(VENV)/build-tools
	$(INSTALL) -r requirements-demo.lock
	@touch $@

$(VENV)/requirements: requirements-dev.lock $(VENV)/demo-requirements | require-headers
	$(INSTALL) -r requirements-dev.lock
	@touch $@

$(VENV)/installed: $(VENV)/build-tools $(RUST_SOURCES) | require-toolchain
	$(BIN)/maturin develop --profile local --locked
	@rm -f $(VENV)/installed-release
	@touch $@

# The same with the core of a release, for all that measures.
$(VENV)/installed-release: $(VENV)/build-tools $(RUST_SOURCES) | require-toolchain
	$(BIN)/maturin develop --release --locked
	@rm -f $(VENV)/installed
	@touch $@

$(TARGET)/wheel: $(VENV)/requirements $(RUST_SOURCES) $(PYTHON_SOURCES) README.md LICENSE | require-toolchain
	rm -rf dist
	$(BIN)/maturin build --release --strip --compression-level 9 --locked --out dist
	@touch $@

# A wheel with the core that is built already, for the tests that install one.
$(TARGET)/local-wheel: $(VENV)/installed $(PYTHON_SOURCES) README.md LICENSE
	rm -rf $@
	$(BIN)/maturin build --profile local --locked --out $@
	@touch $@

# Spark's classes as Java has loaded them, which halves the time in which a test's Spark starts.
$(TARGET)/spark-classes.jsa: $(VENV)/requirements tests/python/support/java_machines.py | $(VENV)/installed
	$(BIN)/python tests/python/support/java_machines.py
	@touch $@

$(TARGET)/stubs/batchqueue/_core.pyi: $(VENV)/requirements $(VENV)/installed
	$(BIN)/maturin generate-stubs --profile local --locked --interpreter $(BIN)/python --out $(TARGET)/stubs
	$(BIN)/ruff format --quiet --no-cache --config pyproject.toml $@

require-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "make: $(PYTHON) must be Python 3.11 or later; name another: make PYTHON=python3.12" >&2; exit 1; }

require-headers:
	@$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' \
		|| { echo "make: Python.h not found, which uwsgi is compiled with; on Debian and Ubuntu: apt install python3-dev" >&2; exit 1; }

require-toolchain:
	@command -v cargo > /dev/null || { echo "make: cargo not found; install Rust: see rustup.rs" >&2; exit 1; }
	@command -v cc > /dev/null || { echo "make: cc not found; install a C toolchain, like gcc or clang" >&2; exit 1; }

require-components: require-toolchain
	@cargo fmt --version > /dev/null 2>&1 || { echo "make: rustfmt not found: rustup component add rustfmt" >&2; exit 1; }
	@cargo clippy --version > /dev/null 2>&1 || { echo "make: clippy not found: rustup component add clippy" >&2; exit 1; }
