"""FailureBook: what failed is counted by topic and error, logged once a minute, and shown as one line each."""

from __future__ import annotations

import logging

import pytest

from client_stub.contract.error_codes import ERROR_CODES
from client_stub.contract.wire import LocalCode, Persistence
from sidecar.common.control import FailureRow
from sidecar.controller.status.advice import ERROR_ADVICE
from sidecar.controller.status.failure_book import LAST_MAX, LINE_INTERVAL_MS, OTHER, TOPICS_MAX, FailureBook

FORBIDDEN = 29
BROKER_TEXT = "Not authorized to access topics: [orders]"


def row(
    topic: str = "orders", code: int = FORBIDDEN, count: int = 1, text: str = "", client: str = "web"
) -> FailureRow:
    return FailureRow(topic, code, text, Persistence.NOT_PERSISTED, count, client)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_the_first_failure_is_logged_at_once_and_then_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    book = FailureBook()
    book.add([row(text=BROKER_TEXT + ".", count=3)], 1_000, 0)
    assert lines(caplog) == [
        "3 records of topic orders failed: TOPIC_AUTHORIZATION_FAILED: Not authorized to access topics: [orders] (not "
        "persisted; the last one from client web). Grant WRITE and DESCRIBE on the topic to the daemon's user, or "
        "correct the topic."
    ]
    for ms in range(100):
        book.add([row()], 1_000, float(ms))
    book.add([row("billing")], 1_000, 100)
    assert len(lines(caplog)) == 2, "another topic has a line of its own"
    book.tick(LINE_INTERVAL_MS)
    assert lines(caplog)[-1].startswith("100 records of topic orders failed")
    book.tick(2 * LINE_INTERVAL_MS + 1)
    book.close()
    assert len(lines(caplog)) == 3


def test_the_end_logs_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    book = FailureBook()
    book.add([row()], 0, 0)
    book.add([row(count=7, client="")], 0, 1)
    book.close()
    assert "7 records of topic orders failed" in lines(caplog)[-1]
    assert "the last one from client that is gone" in lines(caplog)[-1]


def test_counts_are_by_topic_and_error_and_bounded() -> None:
    book = FailureBook()
    for number in range(TOPICS_MAX + 5):
        book.add([row(f"t{number:03}", count=2)], 0, 0)
    book.add([row("t000", LocalCode.EXPIRED), row("", count=9)], 0, 0)
    counts = dict(book.counts())
    assert len({topic for topic, _ in counts}) == TOPICS_MAX + 1
    assert counts["t000", "TOPIC_AUTHORIZATION_FAILED"] == 2
    assert counts["t000", "TIMED_OUT"] == 1
    assert counts[OTHER, "TOPIC_AUTHORIZATION_FAILED"] == 5 * 2 + 9
    assert sum(counts.values()) == 2 * (TOPICS_MAX + 5) + 1 + 9


def test_a_busy_topic_takes_the_place_of_a_quiet_one_and_no_sum_changes() -> None:
    book = FailureBook()
    for number in range(3 * TOPICS_MAX):
        book.add([row(f"t{number:03}"), row(f"t{number:03}", LocalCode.EXPIRED)], 0, 0)
    sent = 6 * TOPICS_MAX
    for number in range(1_000):
        book.add([row("busy")], 0, 0)
        if number % 10 == 0:
            book.add([row(f"u{number:03}")], 0, 0)
    counts = dict(book.counts())
    assert sum(counts.values()) == sent + 1_100
    assert counts["busy", "TOPIC_AUTHORIZATION_FAILED"] > 900
    assert counts[OTHER, "TIMED_OUT"] >= TOPICS_MAX
    assert len({topic for topic, _ in counts}) <= TOPICS_MAX + 1
    assert len(book._others) <= TOPICS_MAX
    assert book.last()[0]["topic"] in {"busy", OTHER}


def test_topics_that_fail_alike_do_not_drive_each_other_out() -> None:
    book = FailureBook()
    for _ in range(20):
        for number in range(TOPICS_MAX):
            book.add([row(f"t{number:03}")], 0, 0)
        book.add([row("new")], 0, 0)
    counts = dict(book.counts())
    assert all(counts[f"t{number:03}", "TOPIC_AUTHORIZATION_FAILED"] == 20 for number in range(TOPICS_MAX))
    assert counts[OTHER, "TOPIC_AUTHORIZATION_FAILED"] == 20


def test_the_latest_stand_first_as_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    book = FailureBook()
    for number in range(LAST_MAX + 3):
        book.add([row(f"t{number}")], float(number), 0)
    book.add([row("t1", text="a\nb\x1b[2J", client="we\nb")], 99.0, 0)
    last = book.last()
    assert len(last) == LAST_MAX and last[0]["topic"] == "t1"
    assert last[0] == {
        "topic": "t1",
        "error": "TOPIC_AUTHORIZATION_FAILED",
        "text": "a?b?[2J",
        "advice": "Grant WRITE and DESCRIBE on the topic to the daemon's user, or correct the topic.",
        "persistence": "not persisted",
        "records": 2,
        "client": "we?b",
        "first_ms": 1,
        "last_ms": 99,
    }
    assert all("\n" not in line and "\x1b" not in line for line in lines(caplog))


def test_every_advice_is_for_an_error_that_exists() -> None:
    names = {row.name for row in ERROR_CODES.values()}
    assert names >= ERROR_ADVICE.keys()


def test_records_whose_time_was_over_have_the_advice_for_what_they_waited_for() -> None:
    """It was "see `kafka-sidecar status`", in status itself."""
    book = FailureBook()
    book.add([row(code=LocalCode.EXPIRED)._replace(cause="NOT_ENOUGH_REPLICAS")], 0, 0)
    book.add([row("billing", LocalCode.EXPIRED)._replace(cause="paused")], 0, 0)
    book.add([row("web", LocalCode.EXPIRED)], 0, 0)
    shown = {each["topic"]: each["advice"] for each in book.last()}
    assert shown == {
        "orders": "Too few replicas are in sync: look at the brokers and min.insync.replicas.",
        "billing": "`kafka-sidecar resume` lets the topic continue.",
        "web": "Look at the brokers, send less, or raise delivery.timeout.ms.",
    }
    book.add([row(code=LocalCode.EXPIRED)._replace(cause="no_leader")], 0, 0)
    assert "must come back" in book.last()[0]["advice"], "that of the last one"


def test_no_advice_leads_in_a_circle_and_what_is_final_has_one() -> None:
    assert not any("kafka-sidecar status" in each for each in ERROR_ADVICE.values())
    of_records = {LocalCode.TOPIC_DELETED, LocalCode.METADATA_TIMEOUT, LocalCode.INVALID_PARTITION}
    assert all(ERROR_CODES[code].name in ERROR_ADVICE for code in of_records)
