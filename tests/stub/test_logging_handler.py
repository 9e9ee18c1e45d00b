"""TopicHandler: lines become records, and neither a daemon that is away nor the handler itself holds anybody up."""

from __future__ import annotations

import logging
import logging.config
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_stub.logging_handler import TopicHandler
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import FakeDaemon


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    made = logging.getLogger("application.under.test")
    made.setLevel(logging.DEBUG)
    made.propagate = False
    yield made
    for handler in list(made.handlers):
        made.removeHandler(handler)
        handler.close()
    made.propagate = True


def lines(daemon: FakeDaemon) -> list[Any]:
    return [record for submit in daemon.received for record in submit.records]


def test_a_line_becomes_a_record_with_its_time_level_and_logger(
    logger: logging.Logger, daemon: FakeDaemon
) -> None:
    handler = TopicHandler("logs", run_dir=daemon.run_dir, max_block_ms=5_000)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.info("it began with %s", "é\ud800")
    try:
        raise ValueError("broken")
    except ValueError:
        logger.exception("it ended")
    handler.flush()
    first, second = lines(daemon)
    assert first[1] == "INFO it began with é\\ud800".encode()
    assert first[2] == [["level", b"INFO"], ["logger", b"application.under.test"]]
    assert abs(first[4] - time.time() * 1e3) < 60_000
    assert second[1].startswith(b"ERROR it ended\nTraceback") and second[1].endswith(b"ValueError: broken")
    assert handler.dropped == 0


def test_no_text_loses_its_line(logger: logging.Logger, daemon: FakeDaemon) -> None:
    """A lone surrogate, as in the name of a file that is not UTF-8, can be in every text of a log record."""
    handler = TopicHandler("logs", run_dir=daemon.run_dir, max_block_ms=5_000)
    logger.addHandler(handler)
    record = logging.LogRecord("plugin.\udcff", logging.INFO, "file", 1, "line \udcff", (), None)
    record.levelname = "LEVEL\udcff"
    logger.handle(record)
    handler.flush()
    (line,) = lines(daemon)
    assert line[1] == b"line \\udcff"
    assert line[2] == [["level", b"LEVEL\\udcff"], ["logger", b"plugin.\\udcff"]]


def test_it_can_be_named_in_a_configuration(daemon: FakeDaemon) -> None:
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "handlers": {
                "kafka": {
                    "class": "client_stub.logging_handler.TopicHandler",
                    "topic": "logs",
                    "level": "WARNING",
                    "run_dir": str(daemon.run_dir),
                    "max_block_ms": 5_000,
                }
            },
            "loggers": {"configured": {"handlers": ["kafka"], "propagate": False}},
        }
    )
    configured = logging.getLogger("configured")
    (handler,) = configured.handlers
    configured.info("too quiet")
    configured.warning("loud")
    handler.close()
    configured.warning("late")
    configured.removeHandler(handler)
    assert [record[1] for record in lines(daemon)] == [b"loud"]
    assert isinstance(handler, TopicHandler) and handler.dropped == 1


def test_without_a_daemon_one_line_waits_and_the_others_do_not(
    logger: logging.Logger, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handler = TopicHandler("logs", run_dir=run_dir, max_block_ms=300, close_timeout_s=0)
    logger.addHandler(handler)
    began = time.monotonic()
    logger.warning("first")
    waited = time.monotonic() - began
    assert waited > 0.25
    for _ in range(1_000):
        logger.warning("more")
    assert time.monotonic() - began < 500 * waited, "a thousand waits in vain"
    assert handler.dropped == 1_001
    said = [each.getMessage() for each in caplog.records if "were dropped" in each.getMessage()]
    assert len(said) == 1 and said[0].startswith("1 log lines for topic logs were dropped: No kafka-sidecar")
    fake = FakeDaemon(run_dir)
    try:
        eventually(lambda: logger.warning("at last") or lines(fake))
        handler.flush()
        assert {record[1] for record in lines(fake)} == {b"at last"}
    finally:
        fake.stop()


def test_neither_its_own_logger_nor_a_formatter_that_logs_ends_in_a_circle(
    logger: logging.Logger, daemon: FakeDaemon
) -> None:
    class Talkative(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            logger.info("formatting")
            return super().format(record)

    handler = TopicHandler("logs", run_dir=daemon.run_dir, max_block_ms=5_000)
    handler.setFormatter(Talkative())
    logger.addHandler(handler)
    for name in ("client_stub", "client_stub.deeper"):
        own = logging.getLogger(name)
        own.addHandler(handler)
        own.error("about itself")
        own.removeHandler(handler)
    logger.info("once")
    handler.flush()
    assert [record[1] for record in lines(daemon)] == [b"once"]
    assert handler.dropped == 1


def test_a_line_that_cannot_be_formatted_goes_to_loggings_own_error_hook(
    logger: logging.Logger, daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = TopicHandler("logs", run_dir=daemon.run_dir, max_block_ms=5_000)
    handler.setFormatter(logging.Formatter("%(levelname)d"))
    logger.addHandler(handler)
    logger.info("text")
    assert "--- Logging error ---" in capsys.readouterr().err
    with pytest.raises(ValueError, match="close_timeout_s"):
        TopicHandler("logs", close_timeout_s=-1)


def test_a_forked_child_sends_its_own_lines_and_counts_its_own_drops(
    logger: logging.Logger, daemon: FakeDaemon
) -> None:
    handler = TopicHandler("logs", run_dir=daemon.run_dir, max_block_ms=5_000)
    logger.addHandler(handler)
    logger.info("parent")
    handler.flush()
    handler.dropped = 7
    child = os.fork()
    if not child:
        logger.info("child")
        handler.flush()
        os._exit(handler.dropped)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert {record[1] for record in lines(daemon)} == {b"parent", b"child"}
    assert handler.dropped == 7
