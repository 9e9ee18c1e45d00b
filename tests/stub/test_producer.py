"""The Producer against the scripted daemon on real sockets: sending, outcomes, errors, backpressure, close."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from client_stub import Producer, RecordMetadata, errors
from client_stub.errors import error_for
from client_stub.outbox import Outbox
from client_stub.submission import Submission
from client_stub.wire import Kind, LocalCode, OutcomeKind, Persistence, Shape
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


def test_flush_returns_when_the_callbacks_have_run(producer: Producer) -> None:
    entered, go, flushed = threading.Event(), threading.Event(), threading.Event()

    def slow(error: Any, metadata: Any) -> None:
        entered.set()
        go.wait(10)

    def flush() -> None:
        producer.flush(10)
        flushed.set()

    producer.send("t", b"v", on_delivery=slow)
    thread = threading.Thread(target=flush)
    assert entered.wait(10)
    thread.start()
    assert not flushed.wait(0.1)
    go.set()
    thread.join(10)
    assert flushed.is_set()


@pytest.mark.rule("A6")
def test_one_failing_callback_is_logged_and_stops_nobody(
    producer: Producer, daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[int] = []

    def on_delivery(error: Any, metadata: Any) -> None:
        told.append(metadata.offset)
        if metadata.offset % 3 == 0:
            raise RuntimeError("the caller's own fault")

    producer.send_many("t", [(None, b"%d" % n) for n in range(10)], on_delivery=on_delivery)
    producer.flush(10)
    assert told == list(range(10))
    assert caplog.text.count("An on_delivery callback failed") == 4


@pytest.mark.rule("A6")
def test_a_callback_that_wants_to_end_the_process_ends_nothing(
    daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    """sys.exit() in the io thread ended that thread without a word, and every later wait was for ever."""

    def leave(*_: object) -> None:
        raise SystemExit("as sys.exit() in a callback")

    with Producer(daemon.run_dir, on_error=leave) as producer:
        producer.send("t", b"1", on_delivery=leave)
        second = producer.send("t", b"2")
        second.add_done_callback(leave)
        producer.flush(10)
        daemon.deliver = lambda client, submit: daemon.outcome(
            client, submit, kind=OutcomeKind.FAILED, code=LocalCode.EXPIRED
        )
        producer.send("t", b"3")
        assert producer.flush(10) == 1
        daemon.deliver = daemon.deliver_all
        assert producer.send("t", b"4").result(10).offset == 2
    for words in ("An on_delivery callback", "A done callback", "An on_error callback"):
        assert caplog.text.count(f"{words} failed") == 1


@pytest.mark.rule("A6")
def test_outcomes_of_every_shape_reach_each_record_once(producer: Producer, daemon: FakeDaemon) -> None:
    """Three partitions answer for one submission, one of them with an error for a list of records."""
    daemon.deliver = None
    told: list[tuple[str, Any]] = []
    records = [(None, b"%d" % n) for n in range(12)]
    producer.send_many("t", records, on_delivery=lambda e, m: told.append(("bulk", e or m)))
    client, submit = _accepted(daemon)

    def answer() -> None:
        evens = sum(1 << n for n in range(0, 8, 2)).to_bytes(1, "little")
        daemon.outcome(
            client, submit, shape=Shape.BITMAP, indexes=evens, count=4, partition=3, base_offset=100
        )
        odds = b"".join(n.to_bytes(2, "little") for n in (1, 3, 5, 7))
        daemon.outcome(
            client,
            submit,
            shape=Shape.LIST,
            indexes=odds,
            count=4,
            kind=OutcomeKind.FAILED,
            code=10,
            text="The broker's own words.",
        )
        daemon.outcome(client, submit, first_index=8, count=4, partition=5, base_offset=7, append_time_ms=99)

    daemon.do(answer)
    producer.flush(10)
    results = [result for _, result in told]
    assert [(r.partition, r.offset) for r in results[:4]] == [(3, 100), (3, 101), (3, 102), (3, 103)]
    assert all(isinstance(r, errors.RecordTooLarge) for r in results[4:8])
    assert str(results[4]) == "The broker's own words."
    assert [(r.partition, r.offset, r.timestamp_ms) for r in results[8:]] == [
        (5, 7, 99), (5, 8, 99), (5, 9, 99), (5, 10, 99)
    ]  # fmt: skip
    assert len(results) == 12


@pytest.mark.rule("A6")
def test_a_repeated_outcome_completes_nobody_twice(producer: Producer, daemon: FakeDaemon) -> None:
    """After a worker's death outcomes are told again, under their old numbers or under new ones."""
    daemon.deliver = None
    told: list[Any] = []
    delivery = producer.send("t", b"v", on_delivery=lambda e, m: told.append(m))
    client, submit = _accepted(daemon)

    def answer() -> None:
        daemon.outcome(client, submit, number=1, base_offset=5)
        daemon.outcome(client, submit, number=1, base_offset=6)
        daemon.outcome(client, submit, number=2, base_offset=7)

    daemon.do(answer)
    producer.flush(10)
    assert delivery.result(10).offset == 5
    eventually(lambda: 2 in daemon.acks)
    assert [metadata.offset for metadata in told] == [5]


def test_a_failed_record_raises_its_own_error(producer: Producer, daemon: FakeDaemon) -> None:
    daemon.deliver = lambda client, submit: daemon.outcome(
        client, submit, kind=OutcomeKind.FAILED, code=LocalCode.EXPIRED, persistence=1, text="Expired."
    )
    told: list[Any] = []
    delivery = producer.send("t", b"v", on_delivery=lambda e, m: told.append((e, m)))
    with pytest.raises(errors.DeliveryTimeout, match="Expired") as caught:
        delivery.result(10)
    assert caught.value.retriable
    assert caught.value.persistence is Persistence.POSSIBLY_PERSISTED
    assert isinstance(caught.value, TimeoutError) and isinstance(caught.value, errors.SidecarError)
    assert told == [(caught.value, None)]


def test_a_failure_of_send_many_that_nobody_asks_about_is_told_by_flush(
    producer: Producer, daemon: FakeDaemon
) -> None:
    daemon.deliver = lambda client, submit: daemon.outcome(client, submit, kind=OutcomeKind.FAILED, code=29)
    producer.send_many("t", [(b"k", b"v")] * 3)
    with pytest.raises(errors.TopicAuthorizationFailed, match="3 records"):
        producer.flush(10)
    producer.flush(10)
    asked = producer.send_many("t", [(b"k", b"v")] * 3)
    with pytest.raises(errors.TopicAuthorizationFailed):
        asked.result(10)


def test_calls_that_share_a_submission_share_no_failure(producer: Producer, daemon: FakeDaemon) -> None:
    """Records 3 to 6 of a submission fail: the second call's and one that send() put there."""
    daemon.accept = lambda client, submit: False
    for number in (1, 2):  # two under way: what comes now gathers
        producer.send("t", b"before")
        eventually(lambda: len(daemon.received) == number)  # noqa: B023 (called at once)
    row = (None, b"v")
    good, bad = producer.send_many("t", [row] * 3), producer.send_many("t", [row] * 2)
    own, unwatched = producer.send("t", b"v"), producer.send_many("t", [row] * 4)
    bad.watch()
    assert not good.done() and not bad.done()

    def deliver(client: Client, submit: Submit) -> None:
        if submit.count == 10:
            daemon.outcome(client, submit, first_index=3, count=4, kind=OutcomeKind.FAILED, code=29)
            daemon.outcome(client, submit, count=3, base_offset=2)
            daemon.outcome(client, submit, first_index=7, count=3, base_offset=5)
        else:
            daemon.deliver_all(client, submit)

    def accept() -> None:
        daemon.accept, daemon.deliver = lambda client, submit: True, deliver
        daemon.tell(daemon.only_client, [Kind.RESUME, 1, 1])

    daemon.do(accept)
    assert good.result(10) == 3
    with pytest.raises(errors.TopicAuthorizationFailed):
        bad.result(10)
    assert (good.failed_count, bad.failed_count, unwatched.failed_count) == (0, 2, 1)
    assert isinstance(own.exception(10), errors.TopicAuthorizationFailed)
    with pytest.raises(errors.TopicAuthorizationFailed) as caught:
        producer.flush(10)
    assert "records of send_many" not in str(caught.value)  # one of ``unwatched``, which nobody looks after
    assert daemon.received[-1].count == 10


def test_flush_waits_until_errors_that_nobody_asks_for_are_noted(
    producer: Producer, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox, reached, go = producer._outbox, threading.Event(), threading.Event()
    real = outbox.completed

    def held(submissions: Iterable[Submission]) -> None:
        reached.set()
        assert go.wait(10)
        real(submissions)

    monkeypatch.setattr(outbox, "completed", held)
    daemon.deliver = lambda client, submit: daemon.outcome(
        client, submit, count=2, kind=OutcomeKind.FAILED, code=29
    )
    producer.send_many("t", [(None, b"v")] * 2)
    assert reached.wait(10)
    with pytest.raises(TimeoutError):
        producer.flush(0)
    go.set()
    with pytest.raises(errors.TopicAuthorizationFailed):
        producer.flush(10)


def test_callbacks_of_one_call_do_not_wait_with_those_of_another(
    producer: Producer, daemon: FakeDaemon
) -> None:
    told: list[str] = []
    for name in "abab":
        producer.send_many("t", [(None, b"v")] * 2, on_delivery=lambda e, m, name=name: told.append(name))
    producer.flush(10)
    assert "".join(told) == "aabbaabb"


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
        ({"topic": "t", "value": b"", "key": 5}, TypeError, "key must be bytes or None, not int"),
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
        queued = producer._outbox.buffered_bytes
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
    producer._outbox.wake(always=True)
    daemon.do(lambda: None)
    assert sum(len(submit.payload) for submit in daemon.received) <= 300_000
    daemon.accept = lambda client, submit: True
    daemon.kill_worker()
    producer.flush(10)
    assert sum(submit.count for submit in daemon.received[2:]) == 10


def test_no_daemon_names_the_path_and_the_command(run_dir: Path) -> None:
    producer = Producer(run_dir, connect_timeout_ms=200)
    with pytest.raises(errors.DaemonUnreachable) as caught:
        producer.send("t", b"v")
    assert f"{run_dir}/control.sock" in str(caught.value)
    assert "kafka-sidecar run" in str(caught.value)
    assert caught.value.retriable
    producer.close()


def test_a_stale_socket_of_a_dead_daemon_is_no_daemon(run_dir: Path) -> None:
    import socket

    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(run_dir / "control.sock"))
    dead.close()
    producer = Producer(run_dir, connect_timeout_ms=200)
    with pytest.raises(errors.DaemonUnreachable, match="kafka-sidecar run"):
        producer.send("t", b"v")
    producer.close()


def test_a_daemon_that_starts_meanwhile_is_found(run_dir: Path) -> None:
    producer = Producer(run_dir)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(producer.send("t", b"v").result(10)))
    thread.start()
    eventually(lambda: producer._outbox.last_word)
    daemon = FakeDaemon(run_dir)
    thread.join(10)
    assert results[0].offset == 0
    producer.close()
    daemon.stop()


def test_a_refused_client_hears_why(run_dir: Path) -> None:
    daemon = FakeDaemon(run_dir)
    daemon.refuse_hello = ("NOT_ADMITTED", 'Client "x" needs the token.')
    producer = Producer(run_dir, "x")
    with pytest.raises(errors.DaemonRefused, match="needs the token") as caught:
        producer.send("t", b"v")
    assert caught.value.name == "NOT_ADMITTED"
    producer.close()
    daemon.stop()


def test_a_refused_stream_fails_its_records_and_no_others(producer: Producer, daemon: FakeDaemon) -> None:
    def accept(client: Client, submit: Submit) -> bool:
        if submit.topic == "bad":
            daemon.tell(client, [Kind.REFUSED, "TOO_MANY_STREAMS", "Too many topics.", submit.stream])
            return False
        return True

    daemon.accept = accept
    bad, good = producer.send("bad", b"v"), producer.send("good", b"v")
    assert good.result(10).topic == "good"
    with pytest.raises(errors.DaemonLost, match="refused topic bad: Too many topics") as caught:
        bad.result(10)
    assert caught.value.persistence is Persistence.NOT_PERSISTED
    with pytest.raises(errors.TopicLimit):
        producer.send("bad", b"v")


@pytest.mark.rule("S2")
def test_close_delivers_says_goodbye_and_is_idempotent(daemon: FakeDaemon) -> None:
    producer = Producer(daemon.run_dir)
    deliveries = [producer.send("t", b"v") for _ in range(101)]
    producer.close()
    assert deliveries[-1].result(0).offset == 100
    assert eventually(lambda: daemon.byes) == [False]
    producer.close()
    with pytest.raises(errors.ProducerClosed, match="after producer has been closed"):
        producer.send("t", b"v")
    with pytest.raises(ValueError, match="cannot be negative"):
        Producer(daemon.run_dir).close(-1)


def test_close_meets_an_io_thread_that_has_just_ended(daemon: FakeDaemon) -> None:
    """Found with a hundred producers: the thread saw the wish to end before it was woken for it, ended, and
    close() wrote to a descriptor that was closed, or somebody else's by then."""
    producer = Producer(run_dir=str(daemon.run_dir))
    producer.send("t", b"x").result(timeout=10)
    io = producer._io
    assert io is not None
    io.abandon()
    io.join(10)
    producer.close()


def test_a_first_send_that_meets_a_close_leaves_no_thread_behind(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has found the producer open, and another thread closes it before there is an io thread to end."""
    producer = Producer(daemon.run_dir)
    start = producer._start

    def close_and_start(outbox: Outbox) -> None:
        producer.close()
        start(outbox)

    monkeypatch.setattr(producer, "_start", close_and_start)
    with pytest.raises(errors.ProducerClosed):
        producer.send("t", b"1")
    io = producer._io
    assert io is not None
    eventually(lambda: io.has_ended)


def test_close_0_fails_what_is_not_delivered_and_says_what_may_be(daemon: FakeDaemon) -> None:
    daemon.deliver = None
    producer = Producer(daemon.run_dir)
    told: list[Any] = []
    sent = producer.send("t", b"v", on_delivery=lambda e, m: told.append(e))
    eventually(lambda: daemon.received)
    producer.close(0)
    with pytest.raises(errors.DeliveryCancelled, match="may still deliver") as caught:
        sent.result(0)
    assert caught.value.persistence is Persistence.POSSIBLY_PERSISTED
    assert told == [caught.value]
    assert eventually(lambda: daemon.byes) == [True]


def test_waiting_inside_a_callback_is_refused_instead_of_hanging(
    producer: Producer, daemon: FakeDaemon
) -> None:
    caught: list[Exception] = []

    def on_delivery(error: Any, metadata: Any) -> None:
        try:
            producer.flush()
        except errors.SidecarError as refused:
            caught.append(refused)
        producer.send("t", b"from a callback")

    producer.send("t", b"v", on_delivery=on_delivery)
    eventually(lambda: len(daemon.received) == 2)
    assert "would wait for ever" in str(caught[0])


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


def _accepted(daemon: FakeDaemon) -> tuple[Client, Submit]:
    eventually(lambda: daemon.clients and daemon.only_client.log)
    return daemon.only_client, daemon.only_client.log[0]


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


def test_what_ends_the_producer_is_told_to_each_call_with_its_own_number(
    producer: Producer, daemon: FakeDaemon
) -> None:
    """Two calls wait for room in the middle when the daemon turns the client away."""
    producer.send("t", b"v").result(10)
    daemon.accept = lambda client, submit: False
    told: dict[str, errors.SidecarError] = {}

    def send_many(topic: str) -> None:
        try:
            producer.send_many(topic, [(None, bytes(500_000))] * 40)
        except errors.SidecarError as error:
            told[topic] = error

    threads = [threading.Thread(target=send_many, args=(topic,)) for topic in ("a", "b")]
    for thread in threads:
        thread.start()
    eventually(lambda: len(producer._outbox._waiters) == 2)
    daemon.refuse_hello = ("NOT_ADMITTED", "the token of client test is wrong")
    daemon.kill_worker()
    for thread in threads:
        thread.join(10)
    assert [error.name for error in told.values()] == ["NOT_ADMITTED"] * 2
    began = [error for error in told.values() if error.queued is not None]
    assert began, "the first of them had room"
    for error in began:
        assert error.queued is not None
        assert str(error).count("of this call are queued") == 1
        assert f"(The first {error.queued.count} records of this call" in str(error)
    assert "of this call" not in str(producer._outbox.fatal)


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
