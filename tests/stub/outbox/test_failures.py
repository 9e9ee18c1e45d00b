"""Failures that nobody asked about are seen: in the log, by on_error, in the number that flush() returns."""

from __future__ import annotations

import asyncio
import logging

import pytest

from client_stub import AsyncProducer, Producer, errors
from client_stub.contract.wire import LocalCode, OutcomeKind, SubmitFlag
from client_stub.outbox.failures import GRACE_MS, ROWS_MAX, Failures
from client_stub.outbox.outbox import Outbox
from client_stub.outbox.submission import BulkPart, Submission
from client_stub.session.away_log import QUIET_MS, AwayLog
from client_stub.system.minute_limit import MINUTE_MS
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import Client, FakeDaemon, Submit

FORBIDDEN = 29


def failed(topic: str, count: int = 1, code: int = FORBIDDEN) -> Submission:
    """A submission of send(), all of whose records have failed."""
    outbox = Outbox(max_block_ms=0, connect_timeout_ms=0, path="nowhere")
    submission = Submission(outbox.waiters, topic, None, 0, 0)
    submission.flags = SubmitFlag.WANT_INDEXES
    submission.count = count
    submission.seal(b"x")
    submission.fail(errors.error_for(code, f"Not authorized to access topics: [{topic}]"))
    return submission


def test_a_line_for_each_topic_and_error_at_its_time(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures(None)
    failures.add(failed("a", 3), 0)
    assert failures.has_lines and failures.tick(0) == GRACE_MS
    assert failures.tick(GRACE_MS) == MINUTE_MS
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        "3 records of topic a failed and nobody asked about them: TOPIC_AUTHORIZATION_FAILED: Not authorized to access "
        "topics: [a] (not persisted). Ask result(), or give on_delivery or Producer(on_error=...)."
    )
    caplog.clear()
    for number in range(50):
        failures.add(failed("a"), GRACE_MS + number)
    failures.add(failed("a", code=LocalCode.EXPIRED), GRACE_MS)
    failures.tick(3 * GRACE_MS)
    assert [record.getMessage()[:20] for record in caplog.records] == ["1 record of topic a "]
    failures.tick(GRACE_MS + MINUTE_MS)
    assert caplog.records[-1].getMessage().startswith("50 records of topic a failed")
    assert failures.tick(GRACE_MS + 3 * MINUTE_MS) is None and not failures.has_lines


def test_a_caller_that_asks_within_the_grace_gets_no_line(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures(None)
    submission = failed("a")
    failures.add(submission, 0)
    assert isinstance(submission.wait_for(0, 0)[0], errors.TopicAuthorizationFailed)
    assert failures.tick(GRACE_MS) is None
    assert caplog.records == []


def test_many_topics_share_one_line_beyond_the_bound(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures(None)
    for number in range(ROWS_MAX + 7):
        failures.add(failed(f"t{number}"), 0)
    failures.add(failed(f"t{ROWS_MAX}", code=LocalCode.EXPIRED), 0)
    failures.close()
    lines = caplog.messages
    assert len(lines) == ROWS_MAX + 1
    assert [line.split(" failed")[0] for line in lines[:-1]] == [
        f"1 record of topic t{number}" for number in range(ROWS_MAX)
    ]
    assert lines[-1].startswith(
        f"8 records of topic t{ROWS_MAX} and 6 others failed and nobody asked about them: for example "
    )


def test_a_burst_of_topics_is_a_few_lines_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """200 refused topics were 200 lines at once, and again in each interval."""
    failures = Failures(None)
    logged = []
    for minute in range(3):
        before = len(caplog.records)
        for second in range(0, 60, 10):
            now_ms = minute * MINUTE_MS + second * 1e3
            for number in range(200):
                failures.add(failed(f"t{number}"), now_ms - GRACE_MS)
            failures.tick(now_ms)
        logged.append(len(caplog.records) - before)
    assert logged == [ROWS_MAX + 1] * 3
    failures.close()
    assert sum(int(line.split(" record")[0]) for line in caplog.messages) == 3 * 6 * 200, "none is left out"


def test_records_that_a_close_has_left_hide_no_other_failure(caplog: pytest.LogCaptureFixture) -> None:
    """Their number is in a line of its own; both shared a row, which then was not logged."""
    failures = Failures(None)
    for number in range(ROWS_MAX + 1):
        failures.add(failed(f"t{number}"), 0)
    failures._log.left_is_reported = True
    for number in range(ROWS_MAX + 2):
        failures.add(failed(f"t{number}", code=LocalCode.CANCELLED), 0)
    failures.close()
    assert len(caplog.messages) == ROWS_MAX + 1
    assert caplog.messages[-1].startswith(f"1 record of topic t{ROWS_MAX} failed")


def _refuse(client: Client, submit: Submit, daemon: FakeDaemon) -> None:
    daemon.outcome(client, submit, kind=OutcomeKind.FAILED, code=FORBIDDEN)


def test_fire_and_forget_leaves_a_line_at_close(daemon: FakeDaemon, caplog: pytest.LogCaptureFixture) -> None:
    daemon.deliver = lambda client, submit: _refuse(client, submit, daemon)
    with caplog.at_level(logging.WARNING, "client_stub"), Producer(daemon.run_dir) as producer:
        producer.send("forbidden", b"x")
    assert [record.getMessage() for record in caplog.records if "topic forbidden failed" in record.message]


def test_a_callback_or_a_question_is_enough(daemon: FakeDaemon, caplog: pytest.LogCaptureFixture) -> None:
    daemon.deliver = lambda client, submit: _refuse(client, submit, daemon)
    seen: list[object] = []
    with Producer(daemon.run_dir) as producer:
        producer.send("a", b"x", on_delivery=lambda error, metadata: seen.append(error))
        with pytest.raises(errors.TopicAuthorizationFailed):
            producer.send("b", b"x").result(10)
        with pytest.raises(errors.TopicAuthorizationFailed):
            producer.send_many("c", [(None, b"x")]).result(10)
    assert len(seen) == 1
    assert not [record for record in caplog.records if "nobody asked" in record.getMessage()]


def test_on_error_takes_the_place_of_the_log(daemon: FakeDaemon, caplog: pytest.LogCaptureFixture) -> None:
    daemon.deliver = lambda client, submit: _refuse(client, submit, daemon)
    seen: list[tuple[str, str, int]] = []

    def on_error(error: errors.SidecarError, topic: str, count: int) -> None:
        seen.append((error.name, topic, count))
        raise RuntimeError("a callback's own fault")

    with Producer(daemon.run_dir, on_error=on_error) as producer:
        producer.send("a", b"x")
        eventually(lambda: seen)
        producer.send("a", b"y")
    assert seen == [("TOPIC_AUTHORIZATION_FAILED", "a", 1)] * 2
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["An on_error callback failed; the producer continues."] * 2


def test_flush_returns_how_many_failed_since_the_last_one(daemon: FakeDaemon) -> None:
    daemon.deliver = lambda client, submit: _refuse(client, submit, daemon)

    async def on_a_loop() -> list[int]:
        async with AsyncProducer(daemon.run_dir) as producer:
            future = await producer.send("a", b"x")
            counts = [await producer.flush(10), await producer.flush(10)]
            assert isinstance(future.exception(), errors.TopicAuthorizationFailed)
            return counts

    with Producer(daemon.run_dir, on_error=lambda *_: None) as producer:
        for _ in range(3):
            producer.send("a", b"x")
        assert [producer.flush(10), producer.flush(10)] == [3, 0]
        producer.send("a", b"x")
        assert producer.flush(10) == 1
    assert asyncio.run(on_a_loop()) == [1, 0]


def test_away_before_anything_is_queued_promises_no_records(caplog: pytest.LogCaptureFixture) -> None:
    """The first send of a process waits for a daemon itself; a line about 0 bytes of records puzzled."""
    away = AwayLog("/run/kafka-sidecar/control.sock")
    away.away("nobody listens there.", 0, 0)
    away.away("nobody listens there.", 0, QUIET_MS)
    assert caplog.messages == [
        "The kafka-sidecar daemon at /run/kafka-sidecar/control.sock has been away for 1 s: nobody listens there. "
        "Sends wait for it."
    ]


def test_away_and_back_are_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "client_stub")
    away = AwayLog("/run/kafka-sidecar/control.sock")
    away.away("nobody listens there.", 0, 0)
    away.back(QUIET_MS / 2)
    away.away("nobody listens there.", 10, 1_000)
    for now_ms in range(1_000, 6_000, 100):
        away.away("nobody listens there.", 10, float(now_ms))
    assert away.is_away
    away.back(6_000)
    assert [record.getMessage() for record in caplog.records] == [
        "The kafka-sidecar daemon at /run/kafka-sidecar/control.sock has been away for 1 s: nobody listens there. "
        "Records wait, 10 bytes so far.",
        "The kafka-sidecar daemon at /run/kafka-sidecar/control.sock is back after 5 s.",
    ]
    away.away("gone", 10, 10_000)
    away.away("gone", 10, 10_000 + QUIET_MS)
    away.away("gone", 10, 10_000 + QUIET_MS + MINUTE_MS)
    assert len(caplog.records) == 4


def test_a_producer_says_that_its_daemon_is_away(
    daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "client_stub")
    producer = Producer(daemon.run_dir)
    producer.send("a", b"x").result(10)
    daemon.stop()
    delivery = producer.send("a", b"y")
    eventually(lambda: [record for record in caplog.records if "been away" in record.getMessage()])
    successor = FakeDaemon(daemon.run_dir, worker_epoch=7)
    delivery.result(20)
    eventually(lambda: [record for record in caplog.records if "is back" in record.getMessage()])
    producer.close()
    successor.stop()


def test_flush_raises_no_bulk_failure_that_was_asked_about_after_it_happened(daemon: FakeDaemon) -> None:
    daemon.deliver = lambda client, submit: _refuse(client, submit, daemon)
    with Producer(daemon.run_dir, on_error=lambda *_: None) as producer:
        asked, forgotten = producer.send_many("a", [(None, b"x")]), producer.send_many("b", [(None, b"y")])
        eventually(lambda: asked.done() and forgotten.done())
        assert isinstance(asked.first_error, errors.TopicAuthorizationFailed)
        with pytest.raises(errors.TopicAuthorizationFailed):
            asked.result(10)
        with pytest.raises(errors.TopicAuthorizationFailed) as caught:
            producer.flush(10)
        assert "records of send_many" not in str(caught.value), "one record failed unseen"
        assert producer.flush(10) == 2


def test_two_threads_that_flush_drop_no_failure_that_comes_meanwhile() -> None:
    """Each removed as many as it had seen: the second one those that the io thread had just added."""
    failures = Failures(None)

    def fail_bulk(part: BulkPart) -> None:
        submission = failed("a")
        part.submission, part.count = submission, 1
        submission.parts = [part]
        failures.add(submission, 0)

    class Interrupted(BulkPart):
        """While the first thread looks at it, the second one flushes, and another call fails."""

        is_seen = False

        @property
        def watched(self) -> bool:
            if not self.is_seen and failures._unwatched:
                self.is_seen = True
                failures.raise_unobserved()
                fail_bulk(BulkPart())
            return True

        @watched.setter
        def watched(self, value: bool) -> None: ...

    part = Interrupted()
    failures._unwatched.append((errors.error_for(FORBIDDEN), 1, part))
    failures.raise_unobserved()
    with pytest.raises(errors.TopicAuthorizationFailed):
        failures.raise_unobserved()


class BrokenFilter(logging.Filter):
    """As one that adds the request of its thread to each line."""

    def filter(self, record: logging.LogRecord) -> bool:
        raise LookupError("there is no request in this thread")


def test_a_filter_of_the_application_that_fails_ends_no_producer(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended the io thread, and all records under way failed."""
    broken, logger = BrokenFilter(), logging.getLogger("client_stub")
    logger.addFilter(broken)
    try:
        with Producer(daemon.run_dir) as producer:
            first = producer.send("a", b"1", on_delivery=lambda *_: 1 / 0)
            assert first.result(10).offset == 0
            assert producer.send("a", b"2").result(10).offset == 1
            daemon.deliver = lambda client, submit: _refuse(client, submit, daemon)
            producer.send("forbidden", b"3")
    finally:
        logger.removeFilter(broken)
    assert producer.stats().failed == 1
    assert capsys.readouterr().err.count("LookupError: there is no request") == 2


class ClosedStream:
    def write(self, text: str) -> int:
        raise ValueError("I/O operation on closed file.")


def test_lines_of_an_application_without_a_stderr_end_no_producer(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a service that has closed it: ``logging`` reports a failed write there, which fails, too."""
    handler, logger = logging.StreamHandler(ClosedStream()), logging.getLogger("client_stub")
    monkeypatch.setattr("sys.stderr", ClosedStream())
    logger.addHandler(handler)
    try:
        with Producer(daemon.run_dir) as producer:
            assert producer.send("a", b"1", on_delivery=lambda *_: 1 / 0).result(10).offset == 0
            assert producer.send("a", b"2").result(10).offset == 1
    finally:
        logger.removeHandler(handler)
