"""FakeProducer behaves as Producer does against a daemon that delivers at once, and fails or waits on demand."""

from __future__ import annotations

import inspect
import logging
import sys
import threading
from typing import Any

import pyarrow as pa
import pytest

from client_stub import Producer, errors
from client_stub.errors import RecordTooLarge, TransactionError, TransactionStateError, TransactionTimeout
from client_stub.testing import FakeProducer, FakeRecord, fake_producer  # noqa: F401 (a fixture)
from tests.stub.fake_daemon import FakeDaemon


@pytest.fixture(params=["fake", "real"])
def either(request: pytest.FixtureRequest, daemon: FakeDaemon) -> Any:
    return FakeProducer() if request.param == "fake" else Producer(daemon.run_dir)


def test_the_fake_behaves_as_the_real_one(either: Any) -> None:
    seen: list[tuple[Any, Any]] = []
    with either as producer:
        first = producer.send("orders", b"1", key=b"k", on_delivery=lambda *both: seen.append(both))
        second = producer.send("orders", value=b"2", headers=[("h", b"v")], timestamp_ms=7)
        assert (first.result(10).offset, second.result(10).offset) == (0, 1)
        assert second.result(10).timestamp_ms == 7 and first.done() and first.exception(0) is None
        assert seen == [(None, first.result(10))]
        bulk = producer.send_many("orders", [(b"k", b"3"), (None, b"4", None, 0)])
        assert bulk.result(10) == bulk.count == 2 and bulk.done() and bulk.first_error is None
        assert bulk.offsets() == ((0, 2, 2),)
        told: list[Any] = []
        first.add_done_callback(told.append)
        bulk.add_done_callback(told.append)
        producer.send_many("orders", []).add_done_callback(lambda each: told.append(each.count))
        assert told == [first, bulk, 0]
        stats = producer.stats()
        assert (stats.sent, stats.delivered, stats.failed, stats.waiting) == (4, 4, 0, 0)
        assert stats.is_connected and not producer.flush(10)
        for wrong in (
            {"value": "text"},
            {"value": b"x", "partition": -1},
            {"value": b"x", "timestamp_ms": -1},
        ):
            with pytest.raises((TypeError, ValueError)):
                producer.send("orders", **wrong)
    with pytest.raises(errors.ProducerClosed):
        producer.send("orders", b"late")


def test_records_are_kept_as_they_were_sent(fake_producer: FakeProducer) -> None:  # noqa: F811
    fake_producer.send("a", b"v", b"k", [("h", None)], 3, 9)
    fake_producer.send_many("b", [(None, b"w")])
    assert fake_producer.records == [
        FakeRecord("a", b"k", b"v", [("h", None)], 3, 9),
        FakeRecord("b", None, b"w", None, None, None),
    ]


def test_records_without_a_key_go_in_turns_also_those_that_were_held() -> None:
    producer = FakeProducer(partitions=3)
    producer.hold()
    held = [producer.send("a", b"%d" % number, key=b"k" if number == 2 else None) for number in range(5)]
    producer.release()
    assert [each.result(0).partition for each in (*held[:2], *held[3:])] == [0, 1, 2, 0]
    assert producer.send("a", b"next").result(0).partition == 1


def test_a_record_sent_by_a_callback_comes_after_those_sent_before(either: Any) -> None:
    """It may not wait, and a producer that is being closed takes no more of it."""
    sent: list[Any] = []
    refused: list[Exception] = []

    def send_more(error: Any, metadata: Any) -> None:
        try:
            sent.append(either.send("orders", b"more"))
            sent[-1].result(1)
        except errors.SidecarError as refusal:
            refused.append(refusal)

    if isinstance(either, FakeProducer):
        either.hold()
    records = [either.send_many("orders", [(None, b"1"), (None, b"2")], on_delivery=send_more)]
    if isinstance(either, FakeProducer):
        either.release()
    records[0].result(10)
    either.flush(10)
    assert [each.result(10).offset for each in sent] == [2, 3]
    assert all("would wait for ever" in str(each) for each in refused) and len(refused) == 2
    if isinstance(either, FakeProducer):
        either.hold()
        either.send("orders", b"3", on_delivery=send_more)
        either.close()
        assert len(sent) == 2 and isinstance(refused[-1], errors.ProducerClosed)
    either.close()


def test_threads_find_their_offsets_in_the_order_of_the_records() -> None:
    before = sys.getswitchinterval()
    with FakeProducer() as producer:
        found: dict[bytes, Any] = {}

        def send(name: bytes) -> None:
            for number in range(300):
                value = b"%s%d" % (name, number)
                found[value] = producer.send("orders", value)

        threads = [threading.Thread(target=send, args=(name,)) for name in (b"a", b"b", b"c")]
        sys.setswitchinterval(1e-6)
        try:
            for each in threads:
                each.start()
            for each in threads:
                each.join(10)
        finally:
            sys.setswitchinterval(before)
        producer.flush(10)
        assert [found[each.value].result(0).offset for each in producer.records] == list(range(900))


def test_failures_on_demand() -> None:
    def refuse(record: FakeRecord) -> errors.SidecarError | None:
        return errors.error_for(29) if record.topic == "forbidden" else None

    with FakeProducer(fail_with=refuse) as producer:
        bulk = producer.send_many("forbidden", [(None, b"x"), (None, b"y")])
        with pytest.raises(errors.TopicAuthorizationFailed):
            bulk.result(0)
        assert bulk.failed_count == 2
        producer.send("allowed", b"x").result(0)
        assert [producer.flush(), producer.flush()] == [2, 0]


def test_outcomes_that_are_held() -> None:
    producer = FakeProducer(partitions=4)
    producer.hold()
    held = producer.send("a", b"x", key=b"k")
    assert not held.done()
    with pytest.raises(TimeoutError, match="no outcome after 0 s"):
        held.result(0)
    with pytest.raises(TimeoutError, match="1 record has no outcome"):
        producer.flush(0)
    assert producer.flush(0, until="accepted") == 0
    producer.release()
    assert held.result(0).partition == producer.send("a", b"y", key=b"k").result(0).partition
    producer.hold()
    cut = producer.send("a", b"z")
    producer.close(0)
    assert isinstance(cut.exception(0), errors.DeliveryCancelled)


def test_it_has_each_call_of_the_real_one_with_the_same_arguments() -> None:
    def calls(of: type) -> dict[str, list[str]]:
        found = inspect.getmembers(of, lambda member: callable(member) or isinstance(member, property))
        return {
            name: [each for each in inspect.signature(member).parameters if each != "others"]
            if callable(member)
            else []
            for name, member in found
            if not name.startswith("_")
        }

    assert calls(Producer).items() <= calls(FakeProducer).items()


def test_it_can_stand_in_the_place_of_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """An application makes its producer itself, with the arguments of the real one, which are checked as there."""
    told: list[tuple[str, str, int]] = []
    producer = FakeProducer(
        None,
        "billing",
        token="t",
        max_block_ms=5,
        connect_timeout_ms=1,
        delivery_timeout_ms=9,
        on_error=lambda error, topic, count: told.append((error.name, topic, count)),
        fail_with=lambda record: errors.error_for(29) if record.topic == "forbidden" else None,
    )
    producer.send("forbidden", b"x")
    producer.send("forbidden", b"x", on_delivery=lambda *_: None)
    producer.send("orders", b"x")
    assert told == [("TOPIC_AUTHORIZATION_FAILED", "forbidden", 1)]
    for wrong in ({"client_name": 5}, {"bootstrap_servers": "a:1"}, {"run_dir": "a:1"}):
        with pytest.raises((TypeError, ValueError)):
            FakeProducer(**wrong)
    with FakeProducer(on_error=lambda *_: 1 / 0, fail_with=lambda _: errors.error_for(29)) as logging_one:
        logging_one.send("orders", b"x")  # what the callback raises is logged


def test_a_record_that_is_too_large_is_refused_as_by_the_daemon(either: Any) -> None:
    with either as producer:
        producer.send("orders", b"x").result(10)
        assert producer.size_limit("orders") == producer.known_size_limit
        with pytest.raises(errors.RecordTooLarge, match="when serialized which is larger than"):
            producer.send("orders", bytes(20_000_000))
        assert producer.stats().sent == 1


def test_rows_of_an_arrow_table() -> None:
    table = pa.table(
        {
            "value": ["a", None],
            "key": pa.array([b"k", None], pa.binary()),
            "headers": [[{"key": "h", "value": b"1"}], None],
            "partition": pa.array([None, 2]),
            "timestamp": [7, 8],
            "other": [1, 2],
        }
    )
    with FakeProducer(partitions=3, value_serializer=lambda _: b"never called") as producer:
        delivery = producer.send_arrow("orders", table)
        assert delivery.result(0) == delivery.count == 2
        assert producer.records == [
            FakeRecord("orders", b"k", b"a", [("h", b"1")], None, 7),
            FakeRecord("orders", None, None, None, 2, 8),
        ]
        assert producer.send_arrow("orders", table.to_batches()[0]).offsets()
    with pytest.raises(errors.ProducerClosed):
        producer.send_arrow("orders", table)


def test_wrong_arguments_are_refused_alike_and_nothing_is_sent(either: Any) -> None:
    with either as producer:
        for call in (
            lambda: producer.send("", b"x"),
            lambda: producer.send(b"orders", b"x"),
            lambda: producer.send_many("orders", [(None, b"x"), (None, "text")]),
            lambda: producer.send_many("orders", [b"x"]),
            lambda: producer.send_arrow("orders", pa.table({"key": ["x"]})),
            lambda: producer.send_arrow("orders", pa.table({"value": [1]})),
            lambda: producer.send_arrow("orders", [b"x"]),
            lambda: producer.partitions_for(""),
            lambda: producer.partitions_for("orders", timeout=-1),
            lambda: producer.flush(until="sent"),
            lambda: producer.close(-1),
        ):
            with pytest.raises((TypeError, ValueError)):
                call()
        assert producer.stats().sent == 0


def test_partitions_of_a_topic() -> None:
    producer = FakeProducer(partitions=2)
    found = producer.partitions_for("orders")
    assert [(each.topic, each.partition) for each in found] == [("orders", 0), ("orders", 1)]
    assert all({each.leader} == set(each.replicas) == set(each.in_sync_replicas) for each in found)
    producer.close()
    assert not producer.takes_records
    with pytest.raises(errors.ProducerClosed):
        producer.partitions_for("orders")


def test_a_callback_that_fails_is_logged_and_the_others_run(
    either: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a bulk call without a record, too: it is over before anybody can listen."""
    told: list[Any] = []

    def fail(*_: object) -> None:
        raise RuntimeError("of the application")

    with either as producer:
        delivery = producer.send("orders", b"1", on_delivery=fail)
        delivery.result(10)
        bulk, none = producer.send_many("orders", [(None, b"2")]), producer.send_many("orders", [])
        bulk.result(10)
        for each in (delivery, bulk, none):
            each.add_done_callback(fail)
            each.add_done_callback(told.append)
        assert told == [delivery, bulk, none]
    said = [record.getMessage().split(" callback")[0] for record in caplog.records]
    assert said == ["An on_delivery", *["A done"] * 3]
    assert all(record.levelno == logging.ERROR and record.exc_info for record in caplog.records)


def test_flush_raises_an_unwatched_bulk_failure() -> None:
    producer = FakeProducer(fail_with=lambda _: errors.error_for(29))
    producer.send_many("orders", [(None, b"x")])
    with pytest.raises(errors.TopicAuthorizationFailed):
        producer.flush()
    producer.send_many("orders", [(None, b"x")]).watch()
    assert producer.flush() == 2
    producer.send_many("orders", [(None, b"x")])
    with pytest.raises(errors.TopicAuthorizationFailed):
        producer.close()


def test_records_of_a_transaction_are_committed_or_not() -> None:
    producer = FakeProducer(transactional_id="t")
    with producer.transaction():
        producer.send("orders", b"a")
        producer.send_offsets_to_transaction({("in", 0): 7}, "group")
        assert not producer.committed
    with pytest.raises(ZeroDivisionError), producer.transaction():
        producer.send("orders", b"b")
        raise ZeroDivisionError
    producer.fail_with = lambda record: RecordTooLarge("Too large.")
    with pytest.raises(TransactionError, match="Too large") as caught, producer.transaction():
        producer.send("orders", b"c")
    assert caught.value.abortable
    assert [each.value for each in producer.records] == [b"a", b"b", b"c"]
    assert [each.value for each in producer.committed] == [b"a"]
    assert producer.committed_offsets == {"group": {("in", 0): 7}}
    with pytest.raises(TransactionStateError):
        producer.send("orders", b"d")
    producer.close()


def test_commit_waits_for_held_outcomes() -> None:
    producer = FakeProducer(transactional_id="t")
    producer.init_transactions()
    producer.begin_transaction()
    producer.hold()
    producer.send("orders", b"a")
    with pytest.raises(TransactionTimeout):
        producer.commit_transaction(0)
    producer.release()
    producer.commit_transaction()
    assert len(producer.committed) == 1
