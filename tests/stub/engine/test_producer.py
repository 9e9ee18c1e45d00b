"""The Producer against the scripted daemon on real sockets: sending, outcomes, errors, backpressure, close."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from client_stub import Producer, RecordMetadata, errors
from client_stub.contract.wire import Kind, LocalCode, Persistence
from client_stub.errors import error_for
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import Client, FakeDaemon, Submit


def test_a_record_goes_out_and_its_metadata_comes_back(producer: Producer, daemon: FakeDaemon) -> None:
    delivery = producer.send(
        "orders", value=b"v", key=b"k", headers=[("h", b"x"), ("n", None)], partition=0, timestamp_ms=1234
    )
    assert delivery.result(timeout=10) == RecordMetadata("orders", 0, 0, 1234)
    assert delivery.done() and delivery.exception() is None
    assert daemon.received[0].records == [[b"k", b"v", [["h", b"x"], ["n", None]], 0, 1234]]


def test_records_keep_their_order_and_batch_while_the_thread_is_busy(
    producer: Producer, daemon: FakeDaemon
) -> None:
    told: list[int] = []
    for number in range(20_000):
        producer.send("t", b"%d" % number, on_delivery=lambda e, m: told.append(m.offset))
    producer.flush(10)
    sent = [int(record[1]) for submit in daemon.received for record in submit.records]
    assert sent == list(range(20_000))
    assert told == list(range(20_000))
    assert len(daemon.received) < 2_000


@pytest.mark.rule("A9")
def test_flush_waits_for_what_was_sent_before_it_and_ends_linger(
    producer: Producer, daemon: FakeDaemon
) -> None:
    daemon.deliver = None
    first = [producer.send("a", b"1"), producer.send("b", b"1")]
    with pytest.raises(TimeoutError, match=r"flush\(\) timed out after 0.1 s: 2 records"):
        producer.flush(0.1)
    assert {stream for stream, _ in eventually(lambda: len(daemon.flushes) == 2 and daemon.flushes)} == {1, 2}
    done = threading.Event()

    def flush() -> None:
        producer.flush(10)
        done.set()

    thread = threading.Thread(target=flush)
    thread.start()
    eventually(lambda: len(daemon.flushes) >= 4 or not thread.is_alive() or daemon.flushes)
    daemon.do(daemon.deliver_log)
    thread.join(10)
    assert done.is_set() and all(delivery.done() for delivery in first)


def test_flush_until_accepted_does_not_wait_for_outcomes(producer: Producer, daemon: FakeDaemon) -> None:
    daemon.deliver = None
    daemon.accept = lambda client, submit: False
    delivery = producer.send("a", b"1")
    with pytest.raises(TimeoutError, match="1 record is not accepted yet"):
        producer.flush(0.1, until="accepted")

    def accept() -> None:
        daemon.accept = lambda client, submit: True
        daemon.tell(daemon.only_client, [Kind.RESUME, 1, 1])

    daemon.do(accept)
    producer.flush(10, until="accepted")
    assert not delivery.done()
    daemon.do(daemon.deliver_log)
    producer.flush(10)
    assert delivery.done()
    with pytest.raises(ValueError, match="'delivered' or 'accepted'"):
        producer.flush(until="gone")  # type: ignore[arg-type]


def test_send_many_splits_at_a_mebibyte_and_keeps_order(producer: Producer, daemon: FakeDaemon) -> None:
    rows = [(b"%d" % n, bytes(1000)) for n in range(3_000)]
    assert producer.send_many("t", rows).result(10) == 3_000
    assert [int(r[0]) for s in daemon.received for r in s.records] == list(range(3_000))
    assert len(daemon.received) >= 3
    assert all(len(s.payload) <= 1 << 20 for s in daemon.received)
    mixed = [(b"k", b"v"), [None, None], (b"k", b"v", {"h": b"1"}), (None, b"x", None, 2, 77)]
    producer.send_many("t", mixed).result(10)
    assert daemon.received[-1].records == [
        [b"k", b"v"], [None, None], [b"k", b"v", [["h", b"1"]], None, None], [None, b"x", None, 2, 77]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"topic": None, "value": b""}, TypeError, "topic must be str, not NoneType"),
        ({"topic": "", "value": b""}, ValueError, "must have 1 to 249 bytes"),
        ({"topic": "t", "value": "text"}, TypeError, "value must be bytes or None, not str; encode it first"),
        (
            {"topic": "t", "value": b"", "key": 5},
            TypeError,
            "key must be bytes or None, not int; encode it first, for example with json.dumps",
        ),
        ({"topic": "t", "value": b"", "partition": -1}, ValueError, "Invalid partition: -1"),
        ({"topic": "t", "value": b"", "partition": "1"}, TypeError, "partition must be int"),
        ({"topic": "t", "value": b"", "timestamp_ms": -1}, ValueError, "Invalid timestamp: -1"),
        ({"topic": "t", "value": b"", "headers": [("h", "x")]}, TypeError, "header 'h' must be bytes"),
        ({"topic": "t", "value": b"", "headers": ["h"]}, TypeError, "headers must be"),
        ({"topic": "t", "value": b"", "headers": [(b"h", b"")]}, TypeError, "name must be str"),
    ],
)
def test_misuse_raises_from_send_and_queues_nothing(
    producer: Producer, daemon: FakeDaemon, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text.replace("(", r"\(")):
        producer.send(**arguments)
    producer.flush(10)
    assert daemon.received == []


def test_send_many_checks_all_types_before_it_queues_any(producer: Producer, daemon: FakeDaemon) -> None:
    with pytest.raises(TypeError, match="record 2: value must be bytes"):
        producer.send_many("t", [(b"k", b"v"), (b"k", b"v"), (b"k", "v")])
    with pytest.raises(TypeError, match="record 0 must be"):
        producer.send_many("t", [b"kv"])  # type: ignore[list-item]
    producer.flush(10)
    assert daemon.received == []


@pytest.mark.rule("A3")
def test_a_record_over_max_request_size_is_refused_naming_size_and_limit(
    producer: Producer, daemon: FakeDaemon
) -> None:
    """Exactly as Kafka's producer judges: a partition or timestamp costs nothing, key and headers their lengths."""
    fits = bytes((1 << 20) - 87)
    producer.send("t", fits).result(10)
    producer.send("t", fits, partition=3, timestamp_ms=1).result(10)
    producer.send("t", fits[4:], headers=[("h", b"1")]).result(10)
    producer.send("t", fits[3:], headers=[("h", b"")], key=b"").result(10)
    producer.send_many("t", [(None, fits, None, 1, 5)]).result(10)
    too_large: list[dict[str, Any]] = [
        {"value": fits + b"x"},
        {"value": fits, "key": b"1"},
        {"value": fits + b"x", "partition": 3},
        {"value": fits[3:], "headers": [("h", b"1")]},
    ]
    for record in too_large:
        with pytest.raises(
            errors.RecordTooLarge, match=r"for topic \S+ is 1048577 bytes .* larger than 1048576"
        ):
            producer.send("t", **record)
    assert len(daemon.received) == 5


def test_a_record_larger_than_a_submission_travels_alone(run_dir: Path) -> None:
    daemon = FakeDaemon(run_dir, limits={"max_request_size": 8 << 20})
    try:
        with Producer(run_dir) as producer:
            producer.send("t", b"small")
            producer.send("t", bytes(3 << 20))
            producer.send("t", b"small")
        assert [len(s.records[0][1]) for s in daemon.received] == [5, 3 << 20, 5]
    finally:
        daemon.stop()


@pytest.mark.rule("A2")
def test_send_waits_for_room_and_then_says_what_is_full(run_dir: Path) -> None:
    daemon = FakeDaemon(run_dir)
    daemon.accept = lambda client, submit: False
    producer = Producer(run_dir, max_block_ms=100)
    try:
        with pytest.raises(
            errors.BufferExhausted, match="topic t within the configured max blocking time 100 ms"
        ):
            for _ in range(100):
                producer.send("t", bytes(1_000_000))
        queued = producer._engine.outbox.buffered_bytes
        assert queued <= 10 << 20
    finally:
        producer.close(0)
        daemon.stop()


def test_credit_bounds_what_is_under_way(producer: Producer, daemon: FakeDaemon) -> None:
    daemon.window_bytes = 300_000
    daemon.accept = lambda client, submit: False
    for number in range(10):
        producer.send("t", bytes(100_000))
        if number < 2:
            eventually(lambda: len(daemon.received) > number)  # noqa: B023 (called at once)
    producer._engine.outbox.wake(always=True)
    daemon.do(lambda: None)
    assert sum(len(submit.payload) for submit in daemon.received) <= 300_000
    daemon.accept = lambda client, submit: True
    daemon.kill_worker()
    producer.flush(10)
    assert sum(submit.count for submit in daemon.received[2:]) == 10


def test_a_refused_stream_fails_its_records_and_no_others(producer: Producer, daemon: FakeDaemon) -> None:
    def accept(client: Client, submit: Submit) -> bool:
        if submit.topic == "bad":
            daemon.tell(client, [Kind.REFUSED, "TOO_MANY_STREAMS", "Too many topics.", submit.stream])
            return False
        return True

    daemon.accept = accept
    bad, good = producer.send("bad", b"v"), producer.send("good", b"v")
    assert good.result(10).topic == "good"
    with pytest.raises(errors.TopicLimit, match="refused topic bad: Too many topics") as caught:
        bad.result(10)
    assert caught.value.persistence is Persistence.NOT_PERSISTED
    assert (caught.value.code, caught.value.name) == (LocalCode.TOPIC_REFUSED, "TOO_MANY_STREAMS")
    assert not caught.value.retriable, "who sends it again at once gets the same answer"
    with pytest.raises(errors.TopicLimit):
        producer.send("bad", b"v")


def test_many_threads_share_one_producer(producer: Producer, daemon: FakeDaemon) -> None:
    lists: list[list[Any]] = [[] for _ in range(4)]

    def run(number: int) -> None:
        for n in range(2_000):
            lists[number].append(producer.send("t", b"%d-%d" % (number, n), key=b"%d" % number))

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush(20)
    records = [bytes(record[1]) for s in daemon.received for record in s.records]
    assert len(set(records)) == 8_000
    for number in range(4):
        mine = [r for r in records if r.startswith(b"%d-" % number)]
        assert mine == [b"%d-%d" % (number, n) for n in range(2_000)]
        for n in (0, 1_999):  # the future knows its own record's place
            assert records[lists[number][n].result(1).offset] == b"%d-%d" % (number, n)


def test_errors_keep_what_they_know_when_pickled() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(error_for(19, persistence=1)))
    assert type(error) is errors.NotEnoughReplicas and error.retriable and error.code == 19
    assert error.name == "NOT_ENOUGH_REPLICAS" and error.persistence is Persistence.POSSIBLY_PERSISTED


def test_a_bulk_call_that_fails_in_the_middle_has_the_future_of_what_is_queued(run_dir: Path) -> None:
    daemon = FakeDaemon(run_dir)
    daemon.accept = lambda client, submit: False
    producer = Producer(run_dir, max_block_ms=100)
    try:
        rows = [(None, bytes(500_000))] * 40
        with pytest.raises(errors.BufferExhausted) as caught:
            producer.send_many("t", rows)
        queued = caught.value.queued
        assert queued is not None
        assert 0 < queued.count < 40
        assert f"(The first {queued.count} records of this call are queued.)" in str(caught.value)
        with pytest.raises(errors.BufferExhausted) as caught:
            producer.send_many("other", rows)
        assert caught.value.queued is None
        assert "of this call are queued" not in str(caught.value)
        daemon.accept = lambda client, submit: True
        daemon.kill_worker()
        assert queued.result(10) == queued.count
    finally:
        producer.close(0)
        daemon.stop()


def test_a_held_topic_that_fills_most_of_the_buffer_does_not_stop_the_others(daemon: FakeDaemon) -> None:
    """The rest of the room comes back and goes again, though never half of the buffer is free and no outcome comes."""
    daemon.window_bytes = 64 << 20
    daemon.accept = lambda client, submit: submit.topic != "held"
    daemon.deliver = None
    producer = Producer(daemon.run_dir, max_block_ms=60_000)
    producer.send("t", b"opens the connection")
    for _ in range(60):
        producer.send("held", bytes(100_000))

    def send() -> None:
        for _ in range(80):
            producer.send("t", bytes(100_000))

    thread = threading.Thread(target=send)
    thread.start()
    eventually(lambda: not thread.is_alive())
    producer.close(0)
