"""Futures that call back, places of bulk calls, and the counts of a producer."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from client_stub import AsyncProducer, BulkDelivery, Delivery, OffsetRange, Producer, errors
from client_stub.contract.wire import LocalCode, Outcome, OutcomeKind, Persistence, Shape, SubmitFlag
from client_stub.outbox.outbox import Outbox
from client_stub.outbox.submission import BulkPart, Submission
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import FakeDaemon

WAIT_S = 10
IO_THREAD = "kafka-sidecar-io"


def outcome(**fields: Any) -> Outcome:
    values: dict[str, Any] = {
        "kind": OutcomeKind.DELIVERED,
        "persistence": Persistence.PERSISTED,
        "shape": Shape.RANGE,
        "number": 1,
        "stream": 1,
        "code": 0,
        "seq": 1,
        "partition": 0,
        "first_index": 0,
        "count": 1,
        "base_offset": 0,
        "append_time_ms": -1,
        "indexes": b"",
        "text": "",
    }
    return Outcome(**{**values, **fields})


def bulk(count: int, *, first: int = 0, flags: int = 0) -> tuple[Submission, BulkDelivery]:
    outbox = Outbox(max_block_ms=0, connect_timeout_ms=0, path="nowhere")
    submission = Submission(outbox.waiters, "t", None, 0, 0)
    submission.flags = flags
    submission.count = first + count
    submission.seal(b"x")
    part = BulkPart()
    part.first, part.count, part.submission = first, count, submission
    return submission, BulkDelivery([part])


# --- add_done_callback ----------------------------------------------------------------------------------


def test_a_done_callback_runs_once_in_the_io_thread_and_at_once_when_it_is_late(
    producer: Producer, daemon: FakeDaemon
) -> None:
    daemon.deliver = None
    told: list[tuple[int, str]] = []

    def note(number: int) -> Callable[[Delivery], None]:
        return lambda each: told.append((each.result(0).offset + number, threading.current_thread().name))

    deliveries = [producer.send("t", b"%d" % number) for number in range(3)]
    for number, delivery in enumerate(deliveries):
        delivery.add_done_callback(note(10 * number))
        delivery.add_done_callback(note(100 * number))
    producer.flush(WAIT_S, until="accepted")
    assert told == []
    daemon.do(daemon.deliver_log)
    producer.flush(WAIT_S)
    assert told == [(number, IO_THREAD) for number in (0, 0, 11, 101, 22, 202)]
    told.clear()
    deliveries[2].add_done_callback(note(0))
    assert told == [(2, threading.current_thread().name)]


def test_a_done_callback_that_fails_or_waits_is_logged_and_the_others_continue(
    producer: Producer, daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.deliver = None
    told: list[Any] = []
    delivery, other = producer.send("t", b"1"), producer.send("u", b"2")
    delivery.add_done_callback(lambda _: other.result(WAIT_S))
    delivery.add_done_callback(told.append)
    producer.flush(WAIT_S, until="accepted")
    daemon.do(daemon.deliver_log)
    producer.flush(WAIT_S)
    assert told == [delivery]
    (line,) = [record for record in caplog.records if "done callback" in record.getMessage()]
    assert line.exc_info is not None and "would wait for ever" in str(line.exc_info[1])


def test_a_failed_record_calls_back_and_is_not_logged_as_unseen(
    producer: Producer, daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.deliver = lambda client, submit: daemon.outcome(
        client, submit, kind=OutcomeKind.FAILED, code=LocalCode.EXPIRED, text="too late"
    )
    told: list[errors.SidecarError | None] = []
    producer.send("t", b"1").add_done_callback(lambda each: told.append(each.exception(0)))
    assert producer.flush(WAIT_S) == 1
    assert [type(error) for error in told] == [errors.DeliveryTimeout]
    producer.close()
    assert caplog.records == []


def test_close_without_waiting_calls_back_what_it_cancels(producer: Producer, daemon: FakeDaemon) -> None:
    daemon.deliver = None
    told: list[errors.SidecarError | None] = []
    some = producer.send("t", b"1")
    some.add_done_callback(lambda each: told.append(each.exception(0)))
    many = producer.send_many("t", [(None, b"2"), (None, b"3")])
    many.add_done_callback(lambda each: told.append(each.first_error))
    producer.close(0)
    assert [type(error) for error in told] == [errors.DeliveryCancelled] * 2


@pytest.mark.parametrize("count", [0, 1, 100_000])
def test_a_bulk_call_calls_back_when_the_last_of_its_records_is_decided(
    producer: Producer, count: int
) -> None:
    told: list[tuple[int, bool]] = []
    rows = [(None, bytes(100)) for _ in range(count)]
    delivery = producer.send_many("t", rows)
    delivery.add_done_callback(lambda each: told.append((each.count, each.done())))
    producer.flush(WAIT_S)
    assert told == [(count, True)]
    delivery.add_done_callback(lambda each: told.append((each.count, each.done())))
    assert told == [(count, True)] * 2


def test_callbacks_that_race_with_outcomes_run_once_each(producer: Producer) -> None:
    """The record is decided before, while and after its callback is added."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    told: list[int] = []
    try:
        for number in range(3_000):
            delivery = producer.send("t", b"v")
            delivery.add_done_callback(lambda _, number=number: told.append(number))  # type: ignore[misc]
        many = [producer.send_many("t", [(None, b"v")] * 3) for _ in range(300)]
        for number, each in enumerate(many):
            each.add_done_callback(lambda _, number=number: told.append(-1 - number))  # type: ignore[misc]
        producer.flush(WAIT_S)
    finally:
        sys.setswitchinterval(before)
    assert sorted(told) == list(range(-300, 3_000))


def test_a_forked_child_cannot_listen_to_its_parents_record(producer: Producer, daemon: FakeDaemon) -> None:
    daemon.deliver = None
    delivery, many = producer.send("t", b"1"), producer.send_many("t", [(None, b"2")])
    producer.flush(WAIT_S, until="accepted")
    child = os.fork()
    if not child:
        refused = 0
        for each in (delivery, many):
            try:
                each.add_done_callback(print)  # type: ignore[attr-defined]
            except errors.ForkedProducer:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    daemon.do(daemon.deliver_log)
    assert delivery.result(WAIT_S).offset == 0


# --- places of bulk calls -------------------------------------------------------------------------------


def test_a_bulk_call_knows_where_its_records_stand(producer: Producer, daemon: FakeDaemon) -> None:
    producer.send("t", b"first").result(WAIT_S)
    delivery = producer.send_many("t", [(None, b"%d" % number) for number in range(5)])
    assert delivery.result(WAIT_S) == 5
    assert delivery.offsets() == (OffsetRange(0, 1, 5),)
    assert delivery.offsets()[0].end_offset == 6
    assert producer.send_many("t", []).offsets() == ()


def test_ranges_are_those_of_the_calls_own_records_in_a_submission_of_several() -> None:
    """
    index      0  1 | 2  3  4  5  6     the call's are 2 to 6
    partition  0  1   0  1  1  0  -     6 fails
    offset    10 50  11 51 52 12
    """
    submission, delivery = bulk(5, first=2, flags=SubmitFlag.WANT_INDEXES)
    assert delivery.offsets() == ()
    submission.apply(
        outcome(shape=Shape.BITMAP, base_offset=10, first_index=0, count=3, indexes=bytes([0b100101]))
    )
    assert delivery.offsets() == (OffsetRange(0, 11, 2),)
    submission.apply(
        outcome(
            shape=Shape.BITMAP, partition=1, base_offset=50, first_index=1, count=3, indexes=bytes([0b1101])
        )
    )
    submission.apply(outcome(kind=OutcomeKind.FAILED, code=3, first_index=6, base_offset=-1))
    assert delivery.done() and delivery.failed_count == 1
    assert delivery.offsets() == (OffsetRange(0, 11, 2), OffsetRange(1, 51, 2))


def test_adjacent_ranges_given_by_count_are_joined() -> None:
    submission, delivery = bulk(10)
    for first_index, count, partition, offset in ((5, 2, 0, 7), (0, 3, 0, 4), (3, 2, 1, -1), (7, 2, 1, -1)):
        submission.apply(
            outcome(
                shape=Shape.COUNT,
                first_index=first_index,
                count=count,
                partition=partition,
                base_offset=offset,
            )
        )
    submission.apply(
        outcome(shape=Shape.COUNT, kind=OutcomeKind.FAILED, code=3, first_index=9, base_offset=-1)
    )
    assert delivery.done()
    assert delivery.offsets() == (OffsetRange(0, 4, 5), OffsetRange(1, -1, 4))
    assert delivery.offsets()[1].end_offset == -1


# --- stats ----------------------------------------------------------------------------------------------


def test_stats_count_sent_records_and_their_outcomes(producer: Producer, daemon: FakeDaemon) -> None:
    idle = producer.stats()
    assert (idle.sent, idle.waiting, idle.connections, idle.is_connected) == (0, 0, 0, False)
    daemon.deliver = None
    daemon.accept = lambda client, submit: submit.topic != "held"
    producer.send("t", b"1")
    producer.send_many("t", [(None, b"%d" % number) for number in range(9)])
    eventually(lambda: producer.stats().accepted == 10)
    producer.send("held", b"1")
    eventually(lambda: producer.stats().waiting_bytes > 0)
    stats = producer.stats()
    assert (stats.sent, stats.accepted, stats.delivered, stats.failed, stats.waiting) == (11, 10, 0, 0, 11)
    assert (stats.connections, stats.is_connected, stats.why_away) == (1, True, "")
    daemon.do(daemon.deliver_log)
    eventually(lambda: producer.stats().waiting == 1)
    daemon.deliver = lambda client, submit: daemon.outcome(
        client, submit, kind=OutcomeKind.FAILED, code=LocalCode.EXPIRED, text="too late"
    )
    producer.send("t", b"2").exception(WAIT_S)
    producer.close(0)
    ended = producer.stats()
    assert (ended.sent, ended.accepted, ended.delivered, ended.failed) == (12, 11, 10, 2)
    assert (ended.waiting, ended.waiting_bytes, ended.is_connected) == (0, 0, False)


def test_stats_count_queued_records_while_the_daemon_is_away(producer: Producer, daemon: FakeDaemon) -> None:
    producer.send("t", b"1").result(WAIT_S)
    daemon.stop()
    eventually(lambda: producer.stats().why_away)
    for _ in range(3):
        producer.send("t", b"2")
    producer.send_many("t", [(None, b"3")] * 4)
    stats = producer.stats()
    assert (stats.sent, stats.delivered, stats.waiting, stats.is_connected) == (8, 1, 7, False)
    successor = FakeDaemon(daemon.run_dir)
    try:
        producer.flush(WAIT_S)
        assert (producer.stats().delivered, producer.stats().connections) == (8, 2)
    finally:
        successor.stop()


def test_stats_only_grow_and_add_up_while_others_send(producer: Producer) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    over = threading.Event()

    def send() -> None:
        for number in range(3_000):
            producer.send("t", b"%d" % number)
            if not number % 100:
                producer.send_many("t", [(None, b"v")] * 20)
        over.set()

    thread = threading.Thread(target=send)
    try:
        thread.start()
        last = producer.stats()
        while not over.is_set():
            stats = producer.stats()
            assert stats.sent == stats.delivered + stats.failed + stats.waiting
            assert stats.delivered >= last.delivered and stats.accepted >= last.accepted
            assert stats.sent >= last.sent
            last = stats
    finally:
        thread.join(WAIT_S)
        sys.setswitchinterval(before)
    producer.flush(WAIT_S)
    assert (producer.stats().sent, producer.stats().delivered) == (3_600, 3_600)


def test_an_async_producer_counts_too(daemon: FakeDaemon) -> None:
    async def main() -> None:
        async with AsyncProducer(daemon.run_dir) as sending:
            await sending.send_and_wait("t", b"v")
            await sending.flush(WAIT_S)  # counts follow when all callbacks of the outcome have run
            assert (sending.stats().sent, sending.stats().delivered) == (1, 1)
            bulk = await sending.send_many("t", [(None, b"v")] * 3)
            over = asyncio.Event()
            loop = asyncio.get_running_loop()
            bulk.add_done_callback(lambda _: loop.call_soon_threadsafe(over.set))
            await asyncio.wait_for(over.wait(), WAIT_S)
            assert bulk.offsets() == (OffsetRange(0, 1, 3),)

    asyncio.run(main())
