"""Fixtures of the stub's tests: a short run directory, the scripted daemon, a producer, ``eventually``."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from client_stub import Producer
from tests.patience import PATIENCE_S
from tests.stub.fake_daemon import FakeDaemon


def eventually(condition: Callable[[], Any], seconds: float = PATIENCE_S) -> Any:
    """Poll ``condition`` until it is true and return its value; fails the test after ``seconds``."""
    deadline = time.monotonic() + seconds
    tick = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, "the condition did not come true in time"
        tick.wait(0.002)


@pytest.fixture(autouse=True)
def lines_of_this_test_only(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A future of an earlier test's loop may be collected in this one, and asyncio then logs that nobody asked it."""

    def is_not_asyncios(record: logging.LogRecord) -> bool:
        return record.name != "asyncio"

    caplog.handler.addFilter(is_not_asyncios)
    yield
    caplog.handler.removeFilter(is_not_asyncios)


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A directory whose socket paths fit into 107 bytes, which pytest's tmp_path does not promise."""
    path = Path(tempfile.mkdtemp(prefix="ks-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def daemon(run_dir: Path) -> Iterator[FakeDaemon]:
    fake = FakeDaemon(run_dir)
    yield fake
    fake.stop()


@pytest.fixture
def producer(daemon: FakeDaemon) -> Iterator[Producer]:
    made = Producer(daemon.run_dir, "test", max_block_ms=5_000)
    yield made
    made.close(0)
