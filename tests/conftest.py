"""Fixtures for every suite of tests: the real broker, the mock broker, a real daemon, ``--long``."""

from __future__ import annotations

import faulthandler
import gc
import itertools
import os
import tempfile
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.ledger import Ledger
from sidecar.tools.testing.mock_broker import MockBroker
from tests.skipped_tests import reasons_of

_serial = itertools.count(1)

# A busy machine is no finding: no example is judged by its time.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The inner loop tries fewer examples; make test has all of them.
settings.register_profile("quick", settings.get_profile("patient"), max_examples=20)
settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the long forms of slow suites too")


LONG_SECONDS: Final = 7200
END_SECONDS: Final = 120


def pytest_configure(config: pytest.Config) -> None:
    if "not slow" in config.option.markexpr:
        settings.load_profile("quick")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # A long test that began last would leave the other CPUs idle.
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if config.getoption("--long"):
        for item in items:
            item.add_marker(pytest.mark.timeout(LONG_SECONDS))
        return
    skip = pytest.mark.skip(reason="long form: run with --long")
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(skip)


def pytest_collection_finish() -> None:
    """Thousands of items live to the end: the collector need not walk them again and again (a tenth of CPU time)."""
    gc.collect()
    gc.freeze()


MEASURED_BY: Final = "COVERAGE_PROCESS_CONFIG"
"""coverage.py sets this variable, and a child process that finds it measures itself."""
UNMEASURED: Final = frozenset({"cluster", "integration", "scenarios"})
"""Folders whose daemons do not measure themselves: they run what other folders' tests have measured, and measuring is
a third of a process's CPU time. Elsewhere the marker ``unmeasured`` says so of single tests."""
MEASURED_STILL: Final = frozenset({"test_doctor_walks.py"})
_measured_by = os.environ.get(MEASURED_BY)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Coverage of child processes, decided before the first fixture of a test starts one."""
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    is_of_folder = folder in UNMEASURED and item.path.name not in MEASURED_STILL
    if is_of_folder or item.get_closest_marker("unmeasured"):
        os.environ.pop(MEASURED_BY, None)
    elif _measured_by is not None:
        os.environ[MEASURED_BY] = _measured_by


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """``make test`` names what failed, and counts what was skipped, once more at its very end: the one place that a cut
    log still shows.
    """
    if hasattr(terminalreporter.config, "workerinput"):
        return
    kept = os.environ.get("SKIPPED_TESTS")
    if kept is not None:
        with Path(kept).open("a") as file:
            file.writelines(f"{each}\n" for each in reasons_of(terminalreporter.getreports("skipped")))
    kept = os.environ.get("FAILED_TESTS")
    if kept is None:
        return
    failed = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
    with Path(kept).open("a") as file:
        for report in failed:
            # Of a chain of exceptions the last one is the reason.
            crash = getattr(report.longrepr, "reprcrash", None)
            *_, last_line = report.longreprtext.strip().splitlines() or [""]
            reason = last_line if crash is None else crash.message
            file.write(f"FAILED {report.nodeid}: E {' '.join(reason.split())[:300]}\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A captured line with half of a surrogate pair would end pytest-xdist's worker: a report travels as UTF-8."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections
    ]
    return report


def pytest_unconfigure() -> None:
    """A thread or a child that keeps this process from its end after the last test is shown, and ends with it."""
    faulthandler.dump_traceback_later(END_SECONDS, exit=True)


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    """One real Apache Kafka for the whole run; tests take topics of their own from ``new_topic``."""
    with KafkaCluster(light=True) as cluster:
        yield cluster


@pytest.fixture
def new_topic(kafka: KafkaCluster) -> NewTopic:
    """``new_topic(partitions=6, **config)`` creates a topic that no other test uses; its name."""

    def create(partitions: int = 6, **config: str) -> str:
        name = f"topic-{next(_serial)}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        kafka.create_topics({name: partitions}, config=settings)
        return name

    return create


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A folder whose path is short enough for sockets. Ask for it before a daemon, which needs it until its end."""
    with tempfile.TemporaryDirectory(prefix="ks-", dir="/tmp", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture
def start_daemon() -> Iterator[StartDaemon]:
    """``start_daemon(bootstrap_servers, **arguments of SidecarDaemon)``; all is removed after the test."""
    started: list[SidecarDaemon] = []

    def start(bootstrap_servers: str, *, wait: bool = True, **arguments: object) -> SidecarDaemon:
        settings = arguments.pop("settings", None)
        assert settings is None or isinstance(settings, Mapping)
        daemon = SidecarDaemon(bootstrap_servers, settings=settings, **arguments)  # type: ignore[arg-type]
        started.append(daemon)
        if wait:
            daemon.start()
        else:
            daemon.spawn()
        return daemon

    yield start
    for daemon in started:
        daemon.remove()


@pytest.fixture
def daemon(kafka: KafkaCluster, start_daemon: StartDaemon) -> SidecarDaemon:
    """A daemon with two workers on the real broker, taking records."""
    return start_daemon(kafka.bootstrap_servers)


@pytest.fixture(scope="session")
def mock_broker() -> Iterator[MockBroker]:
    """librdkafka's mock cluster: quick, no Java, and no judge of order or de-duplication."""
    with MockBroker({"smoke": 6}) as broker:
        yield broker


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()
