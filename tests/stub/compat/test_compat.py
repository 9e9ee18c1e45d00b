"""The twins before a scripted daemon: a full buffer, no daemon, failures, and settings that are not theirs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka.serializer
import pytest

from client_stub import Producer, errors
from client_stub.compat import confluent, kafka_python
from client_stub.compat.settings import ASKED_CHARACTERS_MAX, asked_cluster
from client_stub.contract.wire import PARTITIONERS, Kind, LocalCode, OutcomeKind, Persistence, SubmitFlag
from client_stub.outbox import outbox
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import Client, FakeDaemon, Submit

WAIT_S = 10


@pytest.fixture(params=["theirs", "twin"])
def of_both(request: pytest.FixtureRequest, daemon: FakeDaemon) -> Callable[..., Any]:
    """Makes a real producer on librdkafka's own mock of a broker, or a twin on the scripted daemon."""
    if request.param == "theirs":
        mock = {"bootstrap.servers": "nowhere:1", "test.mock.num.brokers": 1, "log_level": 0}
        return lambda **more: confluent_kafka.Producer({**mock, **more})
    return lambda **more: confluent.Producer({"sidecar.run_dir": str(daemon.run_dir), **more})


def test_a_full_buffer_is_a_buffer_error_at_once(daemon: FakeDaemon) -> None:
    daemon.accept = lambda client, submit: False
    producer = confluent.Producer({"sidecar.run_dir": str(daemon.run_dir)})
    with pytest.raises(BufferError, match="Local: Queue full"):
        for _ in range(100):
            producer.produce("t", bytes(1_000_000))
    assert len(producer) >= 8
    assert producer.poll(0) == 0 and producer.flush(0.05) == len(producer)
    producer._engine.close(0)


class Integer:
    """As an integer of numpy."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __index__(self) -> int:
        return self._number


def test_numbers_of_any_type_are_taken(of_both: Callable[..., Any]) -> None:
    """As a function in C takes them. The twin refused them, or never did what they said."""
    told: list[int] = []
    producer = of_both(on_delivery=lambda error, message: told.append(message.partition()))
    for partition in (Integer(-1), Integer(0), False):
        producer.produce("t", b"v", partition=partition)
    while len(told) < 3:
        assert producer.poll(True) in range(4)
    assert producer.poll(False) == 0 and producer.flush(True) == 0
    assert told.count(0) >= 2


def test_no_daemon_is_what_each_of_them_raises(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confluent, "CONNECT_TIMEOUT_MS", 100.0)
    with pytest.raises(confluent.KafkaException) as raised:
        confluent.Producer({"sidecar.run_dir": str(run_dir)}).produce("t", b"v")
    error = raised.value.args[0]
    assert (error.name(), error.retriable(), error == -187) == ("_ALL_BROKERS_DOWN", True, True)
    assert "kafka-sidecar run" in error.str() and "_ALL_BROKERS_DOWN" in str(error)
    with pytest.raises(kafka_python.KafkaTimeoutError, match="No kafka-sidecar daemon"):
        kafka_python.KafkaProducer(sidecar_run_dir=str(run_dir), max_block_ms=100).send("t", b"v")


@pytest.mark.parametrize(
    ("code", "confluents"),
    [
        (LocalCode.EXPIRED, (-192, "_MSG_TIMED_OUT")),
        (29, (29, "TOPIC_AUTHORIZATION_FAILED")),
        (-1, (-1, "UNKNOWN")),
        (LocalCode.POISON_SUBMISSION, (-172, "POISON_SUBMISSION")),
    ],
)
def test_a_failed_record_has_the_peers_code(
    daemon: FakeDaemon, code: int, confluents: tuple[int, str]
) -> None:
    daemon.deliver = lambda client, submit: daemon.outcome(
        client, submit, kind=OutcomeKind.FAILED, code=code, persistence=Persistence.NOT_PERSISTED, text="why"
    )
    told: list[confluent.KafkaError | None] = []
    producer = confluent.Producer({"sidecar.run_dir": str(daemon.run_dir)})
    producer.produce("t", b"v", on_delivery=lambda error, message: told.append(error))
    assert producer.flush(WAIT_S) == 0
    (error,) = told
    assert error is not None and (error.code(), error.name()) == confluents
    failed = kafka_python.KafkaProducer(sidecar_run_dir=str(daemon.run_dir)).send("t", b"v")
    seen: list[object] = []
    failed.add_callback(seen.append).add_errback(seen.append)
    with pytest.raises(errors.DeliveryFailed):
        failed.get(WAIT_S)
    assert failed.failed() and failed.value is None and eventually(lambda: seen) == [failed.exception]


def test_every_code_of_librdkafka_has_its_name() -> None:
    theirs = {
        name: code
        for name in dir(confluent_kafka.KafkaError)
        if isinstance(code := getattr(confluent_kafka.KafkaError, name), int) and not name.startswith("__")
    }
    assert theirs.items() <= vars(confluent.KafkaError).items()
    for code in (0, 3, 17, 87, -192, -184):
        ours, real = confluent.KafkaError(code, "why", True), confluent_kafka.KafkaError(code, "why", True)
        assert (ours.code(), ours.name(), ours.str(), ours.fatal()) == (
            real.code(),
            real.name(),
            real.str(),
            real.fatal(),
        )
        assert str(ours) == str(real) and (ours < 0) == (real < 0) and ours == code
    assert confluent.KafkaError(-1234, "why").name() == confluent_kafka.KafkaError(-1234, "why").name()


def test_a_closed_one_has_delivered_and_takes_no_more(daemon: FakeDaemon) -> None:
    told: list[int | None] = []
    config = {"sidecar.run_dir": str(daemon.run_dir)}
    with confluent.Producer(config) as producer:
        producer.produce("t", b"v", on_delivery=lambda error, message: told.append(message.offset()))
    assert told == [0] and producer.close() and len(producer) == 0
    calls: list[Callable[[], object]] = [
        lambda: producer.produce("t", b"v"),
        lambda: producer.produce_batch("t", [{"value": b"v"}]),
        lambda: producer.poll(0),
        producer.flush,
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="Producer has been closed"):
            call()


def test_behind_an_exception_a_with_block_waits_for_a_short_time(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confluent, "ERROR_CLOSE_S", 0.05)
    daemon.deliver = None
    told: list[confluent.KafkaError | None] = []
    with pytest.raises(KeyError), confluent.Producer({"sidecar.run_dir": str(daemon.run_dir)}) as producer:
        producer.produce("t", b"v", on_delivery=lambda error, message: told.append(error))
        raise KeyError("of the application")
    assert [error and error.name() for error in told] in (["_PURGE_QUEUE"], ["_PURGE_INFLIGHT"])


def test_records_that_the_daemon_may_deliver_are_purged_in_flight(daemon: FakeDaemon) -> None:
    """Ctrl-C in close() reported them as purged in the queue, as if sending them again could not double them."""
    daemon.deliver = None
    told: list[str] = []

    def on_delivery(error: confluent.KafkaError, message: confluent.Message) -> None:
        told.append(f"{message.topic()} {error.name()}")

    producer = confluent.Producer({"sidecar.run_dir": str(daemon.run_dir)})
    producer.produce("accepted", b"v", on_delivery=on_delivery)
    producer._engine.flush(WAIT_S, until="accepted")
    daemon.stop()
    producer.produce("queued", b"v", on_delivery=on_delivery)
    interrupt = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        interrupt.start()
        producer.close()
    interrupt.join()
    assert sorted(told) == ["accepted _PURGE_INFLIGHT", "queued _PURGE_QUEUE"]


class Reports(list[bytes | None]):
    """A callback that is false while it is empty."""

    def __call__(self, error: object, message: Any) -> None:
        self.append(message.value())


def test_no_callback_is_passed_over(daemon: FakeDaemon, of_both: Callable[..., Any]) -> None:
    """A callback that counts as false was never called, nor was a batch's for a message whose own is None."""
    reports, default = Reports(), Reports()
    producer = of_both(on_delivery=default)
    producer.produce("t", b"0", on_delivery=reports)
    producer.produce("t", b"1", callback=reports, on_delivery=Reports())
    messages = [{"value": b"2"}, {"value": b"3", "callback": None}, {"value": b"4", "callback": reports}]
    assert producer.produce_batch("t", messages, on_delivery=reports) == 3
    producer.produce("t", b"5")
    assert producer.flush(WAIT_S) == 0
    assert (sorted(reports), default) == ([b"0", b"1", b"2", b"3", b"4"], [b"5"])  # type: ignore[type-var]


def test_a_poll_ends_with_the_outcome_of_a_record_without_a_callback(of_both: Callable[..., Any]) -> None:
    """It waited for its whole timeout, with each record of a program that polls behind every produce()."""
    producer = of_both()
    for _ in range(3):
        producer.produce("t", b"v")
        assert producer.poll(10 * WAIT_S) == 1
    producer.produce("t", b"v")
    assert producer.flush(WAIT_S) == 0 and producer.poll(0.01) == 0
    told = Reports()
    producer.produce("t", b"own", callback=told)
    assert (producer.poll(10 * WAIT_S), told) == (1, [b"own"])


def test_a_poll_waits_its_time_also_when_no_record_is_under_way(of_both: Callable[..., Any]) -> None:
    """It returned at once, so ``while True: producer.poll()`` burnt a core."""
    told = Reports()
    producer = of_both(on_delivery=told)
    began = time.monotonic()
    assert producer.poll(0.3) == 0
    assert time.monotonic() - began >= 0.29
    served: list[int] = []
    polling = threading.Thread(target=lambda: served.append(producer.poll()), daemon=True)
    polling.start()
    polling.join(0.3)
    assert polling.is_alive()
    producer.produce("t", b"v")
    polling.join(WAIT_S)
    assert (served, told) == ([1], [b"v"])


@pytest.mark.parametrize("timeout", [[], [600]])
def test_ctrl_c_ends_a_poll(of_both: Callable[..., Any], timeout: list[float]) -> None:
    producer = of_both()
    interrupt = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        interrupt.start()
        producer.poll(*timeout)
    interrupt.join()


def test_a_flush_runs_every_callback_and_raises_afterwards(of_both: Callable[..., Any]) -> None:
    """It ended at the first that raised, and left the others to the next poll()."""
    told: list[bytes] = []

    def fail(_: object, message: Any) -> None:
        told.append(message.value())
        raise RuntimeError(message.value())

    producer = of_both()
    for number in range(3):
        producer.produce("t", b"%d" % number, partition=0, callback=fail)
    with pytest.raises(RuntimeError) as raised:
        producer.flush(WAIT_S)
    assert told == [b"0", b"1", b"2"]
    if isinstance(producer, confluent.Producer):
        assert raised.value.args == (b"0",)
    assert producer.flush(WAIT_S) == 0


def test_a_poll_ends_at_a_callback_that_raises(of_both: Callable[..., Any]) -> None:
    told: list[bytes] = []

    def fail(_: object, message: Any) -> None:
        told.append(message.value())
        raise RuntimeError(message.value())

    producer = of_both()
    for number in range(2):
        producer.produce("t", b"%d" % number, partition=0, callback=fail)
    for number in range(2):
        with pytest.raises(RuntimeError, match=str(number)):
            while True:
                producer.poll(WAIT_S)
        assert told == [b"0", b"1"][: number + 1]


@pytest.mark.parametrize("timestamp", [0, -1, -2, Integer(-1), Integer(1_700_000_000_000), 1_700_000_000_000])
def test_a_timestamp_of_minus_one_is_none(of_both: Callable[..., Any], timestamp: Any) -> None:
    """The twin refused it. A program passes on the timestamp of a message that has none."""
    told: list[object] = []
    producer = of_both(on_delivery=lambda error, _: told.append(error))
    producer.produce("t", b"v", timestamp=timestamp)
    assert (producer.flush(WAIT_S), told) == (0, [None])


@pytest.mark.parametrize("partition", [-2, -100, -(1 << 31), Integer(-2)])
def test_a_negative_partition_below_minus_one_is_refused(of_both: Callable[..., Any], partition: Any) -> None:
    """The twin took it for -1."""
    producer = of_both()
    producer.produce("t", b"v")
    producer.flush(WAIT_S)  # the original knows the topic now
    with pytest.raises((confluent.KafkaException, confluent_kafka.KafkaException)) as raised:
        producer.produce("t", b"v", partition=partition)
    error = raised.value.args[0]
    assert (error.name(), error.str()) == (
        "_UNKNOWN_PARTITION",
        "Unable to produce message: Local: Unknown partition",
    )
    assert len(producer) == 0


def test_only_errors_are_reported_if_the_program_says_so(
    daemon: FakeDaemon, of_both: Callable[..., Any]
) -> None:
    """Callbacks of such programs take every call for a failure."""
    reports = Reports()
    producer = of_both(**{"delivery.report.only.error": True, "on_delivery": reports})
    producer.produce("t", b"kept")
    assert (producer.flush(WAIT_S), len(producer), reports) == (0, 0, [])
    if isinstance(producer, confluent.Producer):
        daemon.deliver = lambda client, submit: daemon.outcome(
            client, submit, kind=OutcomeKind.FAILED, code=29, persistence=Persistence.NOT_PERSISTED
        )
        producer.produce("t", b"lost")
        assert (producer.flush(WAIT_S), reports) == (0, [b"lost"])


def test_the_end_of_a_with_block_runs_every_callback(daemon: FakeDaemon) -> None:
    """The reports behind a callback that raised were dropped, those of failures too: nobody could poll any more."""
    told: list[bytes | None] = []

    def fail(_: object, message: confluent.Message) -> None:
        told.append(message.value())
        raise RuntimeError("the program's own")

    with (
        pytest.raises(RuntimeError, match="the program's own"),
        confluent.Producer({"sidecar.run_dir": str(daemon.run_dir)}) as producer,
    ):
        for number in range(5):
            producer.produce("t", b"%d" % number, callback=fail)
    assert told == [b"0", b"1", b"2", b"3", b"4"]


def test_a_callback_that_raises_cancels_no_record_at_the_end(daemon: FakeDaemon) -> None:
    """A record that a callback had just sent again was said to have failed, and was delivered."""
    fates: list[tuple[bytes | None, str | None]] = []
    failures = [19]

    def deliver(client: Client, submit: Submit) -> None:
        if submit.topic == "again" and failures:
            code = failures.pop()
            daemon.outcome(
                client, submit, kind=OutcomeKind.FAILED, code=code, persistence=Persistence.NOT_PERSISTED
            )
        else:
            daemon.deliver_all(client, submit)

    def report(error: confluent.KafkaError | None, message: confluent.Message) -> None:
        fates.append((message.value(), error and error.name()))
        if error is not None and error.retriable():
            producer.produce(message.topic(), message.value(), callback=report)
        if message.topic() == "raises":
            raise RuntimeError("the program's own")

    daemon.deliver = deliver
    with (
        pytest.raises(RuntimeError, match="the program's own"),
        confluent.Producer({"sidecar.run_dir": str(daemon.run_dir)}) as producer,
    ):
        producer.produce("again", b"a", callback=report)
        producer.produce("raises", b"b", callback=report)
    assert sorted(fates, key=str) == [(b"a", "NOT_ENOUGH_REPLICAS"), (b"a", None), (b"b", None)]


def test_a_message_keeps_the_bytes_that_were_sent(daemon: FakeDaemon) -> None:
    reports = Reports()
    buffer = bytearray(b"one")
    with confluent.Producer({"sidecar.run_dir": str(daemon.run_dir)}) as producer:
        producer.produce("t", buffer, callback=reports)
        buffer[:] = b"two"
    assert reports == [b"one"]


def test_a_batch_continues_after_a_message_that_is_refused(daemon: FakeDaemon) -> None:
    told: list[tuple[str, bytes | None]] = []

    def tell(who: str) -> Any:
        return lambda error, message: told.append((who, message.value()))

    with confluent.Producer({"sidecar.run_dir": str(daemon.run_dir)}) as producer:
        producer.produce("t", b"first")
        producer.flush(WAIT_S)
        messages: list[Any] = [
            {"value": "a", "key": "k", "timestamp": 7},
            {"value": bytes(2_000_000)},
            {"value": b"b", "callback": tell("own"), "headers": {"h": "v"}},
        ]
        assert producer.produce_batch("t", messages, on_delivery=tell("all")) == 2
        for wrong in ({"value": "x"}, [b"x"], [{"value": 5}], [{"key": 5}]):
            with pytest.raises(TypeError):
                producer.produce_batch("t", wrong)  # type: ignore[arg-type]
    assert told == [("all", b"a"), ("own", b"b")]
    assert [message.get("_error") for message in messages] == [
        None,
        confluent.KafkaError.MSG_SIZE_TOO_LARGE,
        None,
    ]
    with pytest.raises(confluent.KafkaException, match="on_delivery requires a callable"):
        confluent.Producer({"on_delivery": 5})


def test_a_short_patience_is_kafka_pythons_timeout(daemon: FakeDaemon) -> None:
    daemon.deliver = None
    producer = kafka_python.KafkaProducer(sidecar_run_dir=str(daemon.run_dir))
    assert not producer.bootstrap_connected()
    future = producer.send("t", b"v")
    assert producer.bootstrap_connected() and producer.metrics()["producer-metrics"]["waiting"] == 1
    with pytest.raises(kafka_python.KafkaTimeoutError, match=r"Timeout after waiting for 0\.05 secs"):
        future.get(0.05)
    with pytest.raises(kafka_python.KafkaTimeoutError):
        producer.flush(0.05)
    assert future.value is None and not future.failed()
    producer.close(0)


@pytest.mark.parametrize(
    ("headers", "size"),
    [([("h", None)], 1), ({"h": b"xy"}, 3), ((("h", b"x") for _ in range(2)), 4), (None, -1)],
)
def test_headers_of_every_form_that_send_takes_are_measured(
    daemon: FakeDaemon, headers: Any, size: int
) -> None:
    """A call that raised behind the send had its record delivered, and its caller sent it once more."""
    with kafka_python.KafkaProducer(sidecar_run_dir=str(daemon.run_dir)) as producer:
        assert producer.send("t", b"v", headers=headers).get(WAIT_S).serialized_header_size == size
        with pytest.raises(TypeError):
            producer.send("t", b"v", headers=[("h", "text")])
    assert sum(submit.count for submit in daemon.received) == 1


class SerializerOf2(kafka.serializer.Serializer):  # type: ignore[misc]
    def serialize(self, topic: str, value: str) -> bytes:
        return f"{topic} {value}".encode()


class SerializerOf3(kafka.serializer.Serializer):  # type: ignore[misc]
    def serialize(self, topic: str, headers: Any, data: str) -> bytes:
        return f"{topic} {len(headers)} {data}".encode()


def test_serializers_of_both_versions_of_kafka_python_are_called(daemon: FakeDaemon) -> None:
    with kafka_python.KafkaProducer(
        sidecar_run_dir=str(daemon.run_dir), key_serializer=SerializerOf2(), value_serializer=SerializerOf3()
    ) as producer:
        producer.send("t", "v", key="k", headers=[("h", b"x")]).get(WAIT_S)
    assert [record[:2] for submit in daemon.received for record in submit.records] == [[b"t k", b"t 1 v"]]


def test_a_forked_child_hears_nothing_of_its_parents_records(daemon: FakeDaemon) -> None:
    told: list[object] = []
    producer = confluent.Producer({"sidecar.run_dir": str(daemon.run_dir)})
    producer.produce("t", b"v", on_delivery=lambda *both: told.append(both))
    eventually(lambda: len(producer) and producer._arrived_count())
    child = os.fork()
    if not child:
        os._exit(len(producer) + producer.poll(0) + producer.flush(1) + len(told))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert producer.poll(0) == len(told) == 1


def test_settings_of_the_daemon_are_named_once(daemon: FakeDaemon, caplog: pytest.LogCaptureFixture) -> None:
    confluent.Producer(
        {
            **{"bootstrap.servers": "a:1", "acks": "all", "linger.ms": 5, "error_cb": print},
            "sidecar.run_dir": str(daemon.run_dir),
        }
    )
    kafka_python.KafkaProducer(sidecar_run_dir=str(daemon.run_dir), linger_ms=5, client_id="x")
    said = [record.getMessage() for record in caplog.records]
    assert [line.rpartition(": ")[2] for line in said] == ["error_cb, linger.ms.", "linger.ms."]
    with pytest.raises(NotImplementedError, match="the daemon has the records"):
        confluent.Producer({"sidecar.run_dir": str(daemon.run_dir)}).purge()


class Theirs:
    """A partitioner of kafka-python 3.x."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def partition(
        self, topic: str, key: Any, key_bytes: Any, value: Any, value_bytes: Any, cluster: Any
    ) -> int:
        self.seen.append(
            (topic, key, key_bytes, value, value_bytes, cluster.topics(), cluster.partitions_for_topic(topic))
        )
        return max(cluster.available_partitions_for_topic(topic))


class Older:
    """One of an earlier 3.x."""

    def partition(self, topic: str, key_bytes: Any, cluster: Any) -> int:
        return min(cluster.available_partitions_for_topic(topic))


def test_a_partitioner_of_the_program_is_called_as_kafka_python_calls_it(daemon: FakeDaemon) -> None:
    def second(key: bytes | None, every: list[int], available: list[int]) -> int:
        assert (key, every) == (b"k", [0, 1, 2])
        return available[1]

    theirs = Theirs()
    daemon.partitions = 3
    for partitioner, expected in ((second, 1), (theirs, 2), (Older(), 0)):
        with kafka_python.KafkaProducer(
            sidecar_run_dir=str(daemon.run_dir), partitioner=partitioner, key_serializer=str.encode
        ) as producer:
            for _ in range(3):
                producer.send("t", b"v", key="k")
            producer.send("t", b"v", key="k", partition=7)
        records = [each.records[i] for each in daemon.received for i in range(each.count)]
        assert [record[3] for record in records] == [expected] * 3 + [7]
        daemon.received.clear()
    assert theirs.seen == [("t", "k", b"k", b"v", b"v", {"t"}, {0, 1, 2})] * 3
    with pytest.raises(TypeError, match="partitioner must be a function of"):
        kafka_python.KafkaProducer(partitioner="murmur2")


@pytest.mark.parametrize("old_style", [False, True])
@pytest.mark.parametrize("name", [None, *PARTITIONERS])
def test_a_submission_carries_the_partitioner(daemon: FakeDaemon, name: str | None, old_style: bool) -> None:
    settings = {} if name is None else {"partitioner": name}
    if old_style:
        settings = {"default.topic.config": settings}
    with confluent.Producer({"sidecar.run_dir": str(daemon.run_dir), **settings}) as producer:
        producer.produce("t", b"v", b"k")
    (submit,) = daemon.received
    number = PARTITIONERS.index(name or "consistent_random") + 1
    assert submit.flags & 0x3C == number << 2 | SubmitFlag.FIXED_PARTITIONS


def test_the_default_of_kafka_python_is_murmur2_and_a_forked_child_has_it_too(daemon: FakeDaemon) -> None:
    producer = kafka_python.KafkaProducer(sidecar_run_dir=str(daemon.run_dir))
    producer.send("t", b"v", b"k").get(WAIT_S)
    pid = os.fork()
    if not pid:
        producer.send("t", b"v", b"k").get(WAIT_S)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    flags = [each.flags >> 2 & 7 for each in daemon.received]
    assert flags == [PARTITIONERS.index("murmur2_random") + 1] * 2
    producer.close()


@pytest.mark.parametrize("name", ["xx", "", "Murmur2", print, 5])
def test_a_partitioner_that_is_none_is_refused(of_both: Callable[..., Any], name: Any) -> None:
    with pytest.raises((confluent.KafkaException, confluent_kafka.KafkaException)) as raised:
        of_both(partitioner=name)
    assert raised.value.args[0].name() == "_INVALID_ARG"
    assert 'Invalid value for configuration property "partitioner"' in raised.value.args[0].str()


def test_a_daemon_that_does_not_know_the_partitioner_takes_no_record(daemon: FakeDaemon) -> None:
    """It would place the keys otherwise, without a word."""
    daemon.limits = {"max_request_size": 1 << 20}
    producer = confluent.Producer({"sidecar.run_dir": str(daemon.run_dir)})
    with pytest.raises(
        confluent.KafkaException, match=r"older than kafka-sidecar .* partitioner consistent_random"
    ):
        producer.produce("t", b"v", b"k")
    assert not daemon.received
    producer.close()
    with Producer(daemon.run_dir) as plain:
        plain.send("t", b"v", b"k").result(WAIT_S)


def test_an_upgrade_that_was_taken_back_holds_the_records_until_it_comes_again(daemon: FakeDaemon) -> None:
    producer = confluent.Producer({"sidecar.run_dir": str(daemon.run_dir)})
    producer.produce("t", b"0", b"k")
    assert producer.flush(WAIT_S) == 0
    new, daemon.limits = daemon.limits, {"max_request_size": 1 << 20}
    daemon.kill_worker()
    producer.produce("t", b"1", b"k")
    eventually(lambda: "does not know the partitioner" in producer._engine.stats().why_away)
    daemon.limits = new
    assert producer.flush(WAIT_S) == 0
    assert [each.records[0][1] for each in daemon.received] == [b"0", b"1"]
    producer.close()


def test_plain_records_take_the_compiled_way(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """produce() + poll(0) took 4.4 times the CPU of the original, as all of it was Python."""
    daemon.accept = lambda client, submit: False  # so that a submission stays open, also on a busy machine
    monkeypatch.setattr(outbox, "STAY_OPEN_MS_MAX", 1e9)
    told, default = Reports(), Reports()
    with confluent.Producer({"sidecar.run_dir": str(daemon.run_dir)}, on_delivery=default) as producer:
        producer.produce("t", b"sent")
        eventually(lambda: daemon.received)
        producer.produce("t", b"first")
        slow: list[Any] = []
        monkeypatch.setattr(producer, "_produce", lambda *record: slow.append(record))
        monkeypatch.setattr(producer, "_poll", slow.append)
        for number in range(100):
            producer.produce("t", f"v{number}", "k", on_delivery=told)
            producer.produce("t", value=b"own%d" % number, key=None, callback=None)
            assert producer.poll(0) == 0
        assert not slow
        for wrong in (
            *({"value": 5}, {"key": 5}, {"partition": 7}, {"timestamp": 7}, {"headers": {}}, {"callback": 5}),
            *({"callback": told, "on_delivery": told}, {"value": bytearray(b"x")}, {"partition": True}),
        ):
            producer.produce("t", **wrong)
        producer.produce("other")
        producer.produce(7)  # type: ignore[arg-type]
        assert len(slow) == 11
        monkeypatch.undo()
        daemon.accept = lambda client, submit: True
        daemon.do(lambda: daemon.tell(daemon.only_client, [Kind.RESEND, 1, 1]))
        assert producer.flush(WAIT_S) == 0
        assert told == [b"v%d" % number for number in range(100)]
        assert default == [b"sent", b"first", *(b"own%d" % number for number in range(100))]
    assert {each[0] for submit in daemon.received for each in submit.records} == {None, b"k"}


def test_callbacks_may_poll_flush_and_produce(daemon: FakeDaemon) -> None:
    told: list[bytes | None] = []

    def again(_: object, message: confluent.Message) -> None:
        told.append(message.value())
        if message.value() == b"1":
            producer.produce("t", b"2", callback=again)
            producer.flush(WAIT_S)
            told.append(b"flushed")
        producer.poll(0)

    with confluent.Producer({"sidecar.run_dir": str(daemon.run_dir)}) as producer:
        producer.produce("t", b"0", callback=again)
        producer.produce("t", b"1", callback=again)
    assert told == [b"0", b"1", b"2", b"flushed"]


def test_threads_that_poll_serve_each_message_once(daemon: FakeDaemon) -> None:
    told: list[bytes | None] = []
    ended = threading.Event()
    with confluent.Producer({"sidecar.run_dir": str(daemon.run_dir)}) as producer:

        def poll() -> None:
            while not ended.is_set():
                producer.poll(0.01)

        threads = [threading.Thread(target=poll) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(3_000):
            producer.produce("t", b"%d" % number, callback=lambda _, message: told.append(message.value()))
            producer.poll(0)
        assert producer.flush(WAIT_S) == 0
        ended.set()
        for thread in threads:
            thread.join()
    assert sorted(told, key=lambda each: int(each or b"")) == [b"%d" % number for number in range(3_000)]


def test_a_misspelt_setting_that_has_an_effect_is_refused() -> None:
    """The program would run without its serializer, or with another daemon."""
    with pytest.raises(ValueError, match=r"no setting value\.serialiser: did you mean value\.serializer\?"):
        kafka_python.KafkaProducer(value_serialiser=str.encode)
    with pytest.raises(ValueError, match=r"no setting sidecar\.rundir: did you mean sidecar\.run_dir\?"):
        confluent.Producer({"sidecar.rundir": "/nowhere"})


def test_a_message_can_be_changed_as_the_real_one(daemon: FakeDaemon) -> None:
    """Serializing producers of applications put their own objects back into it."""
    theirs: list[confluent_kafka.Message] = []
    ours: list[confluent.Message] = []
    real = confluent_kafka.Producer({"bootstrap.servers": "nowhere:1", "test.mock.num.brokers": 1})
    real.produce("t", b"value", key=b"k", on_delivery=lambda error, message: theirs.append(message))
    assert real.flush(WAIT_S) == 0
    with confluent.Producer({"sidecar.run_dir": str(daemon.run_dir)}) as twin:
        twin.produce("t", b"value", key=b"k", on_delivery=lambda error, message: ours.append(message))

    def seen(message: Any) -> tuple[Any, ...]:
        before = (message.key(), message.value(), len(message), message.leader_epoch(), message.topic())
        message.set_key("k2")
        message.set_value([1, 2, 3])
        message.set_headers([("h", b"v")])
        message.set_topic("u")
        message.set_error(None)
        after = (
            message.key(),
            message.value(),
            len(message),
            message.headers(),
            message.topic(),
            message.error(),
        )
        message.set_headers(None)
        return (*before, *after, message.headers())

    assert seen(ours[0]) == seen(theirs[0])


def test_a_long_client_id_is_shortened_with_a_word(
    daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka takes names of any length, so a program that has one must not end by it."""
    long = "ä" * 40
    for engine in (
        confluent.Producer({"client.id": long, "sidecar.run_dir": str(daemon.run_dir)})._engine,
        kafka_python.KafkaProducer(client_id=long, sidecar_run_dir=str(daemon.run_dir))._producer.engine,
    ):
        assert engine.client_name == "ä" * 32
    assert [record.getMessage() for record in caplog.records] == [
        f"The client.id has more than 64 bytes, so this client is {'ä' * 32} here."
    ] * 2
    producer = confluent.Producer({"client.id": 7, "sidecar.run_dir": str(daemon.run_dir)})
    assert producer._engine.client_name == "7"


def test_a_future_says_whether_another_try_may_succeed(daemon: FakeDaemon) -> None:
    codes = [29, 19]
    daemon.deliver = lambda client, submit: daemon.outcome(
        client, submit, kind=OutcomeKind.FAILED, code=codes.pop(0), persistence=Persistence.NOT_PERSISTED
    )
    states = []
    with kafka_python.KafkaProducer(sidecar_run_dir=str(daemon.run_dir)) as producer:
        for _ in range(2):
            future = producer.send("t", b"v")
            with pytest.raises(errors.DeliveryFailed):
                future.get(WAIT_S)
            states.append((future.succeeded(), future.failed(), future.retriable()))
        daemon.deliver = None
        waiting = producer.send("t", b"v")
        states.append((waiting.succeeded(), waiting.failed(), waiting.retriable()))
        producer._producer.flush(WAIT_S, until="accepted")
        daemon.do(daemon.deliver_log)
    assert states == [(False, True, False), (False, True, True), (False, False, False)]
    assert waiting.succeeded() and not waiting.retriable()


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ({"bootstrap.servers": "a:1,b:2", "acks": "all"}, {"bootstrap.servers": "a:1,b:2", "acks": "all"}),
        (
            {"metadata.broker.list": "a", "request.required.acks": -1},
            {"bootstrap.servers": "a", "acks": "-1"},
        ),
        ({"client.id": "x"}, None),
    ],
)
def test_the_daemon_hears_which_servers_and_acks_confluents_program_asks_for(
    daemon: FakeDaemon, settings: dict[str, Any], asked: dict[str, str] | None
) -> None:
    """They were dropped, and the records went to another cluster without a word."""
    producer = confluent.Producer({**settings, "sidecar.run_dir": str(daemon.run_dir)})
    producer.produce("t", b"v")
    assert producer.flush(WAIT_S) == 0
    assert daemon.hellos[0][7:] == ([] if asked is None else [asked])


def test_the_daemon_hears_which_servers_kafka_pythons_program_asks_for(daemon: FakeDaemon) -> None:
    producer = kafka_python.KafkaProducer(
        bootstrap_servers=["a:1", "b:2"], acks=1, sidecar_run_dir=str(daemon.run_dir)
    )
    asked = {"bootstrap.servers": "a:1,b:2", "acks": "1"}
    assert producer.partitions_for("t")
    producer.send("t", b"v").get(WAIT_S)
    assert [question[:2] for question in daemon.questions] == [[["t"], asked]]
    assert daemon.hellos[0][7:] == [asked]
    daemon.topic_refusals = {"t": ("OTHER_CLUSTER", "This client asks for another.")}
    with pytest.raises(errors.DaemonRefused, match="asks for another"):
        producer.partitions_for("t")
    producer.close()


def test_a_program_of_another_cluster_hears_both_at_its_first_record(daemon: FakeDaemon) -> None:
    daemon.refuse_hello = ("OTHER_CLUSTER", "Client x asks for a:1, and this daemon sends to b:2.")
    producer = confluent.Producer({"bootstrap.servers": "a:1", "sidecar.run_dir": str(daemon.run_dir)})
    with pytest.raises(
        confluent.KafkaException, match="asks for a:1, and this daemon sends to b:2"
    ) as caught:
        producer.produce("t", b"v")
    error = caught.value.args[0]
    assert (error.code(), error.retriable()) == (confluent.KafkaError._AUTHENTICATION, False)


def test_a_very_long_list_of_servers_is_cut() -> None:
    asked = asked_cluster({"bootstrap.servers": [f"host-{number}:9092" for number in range(1_000)]})
    assert len(asked["bootstrap.servers"]) == ASKED_CHARACTERS_MAX
    assert len(asked_cluster({"acks": "x" * ASKED_CHARACTERS_MAX})["acks"]) == ASKED_CHARACTERS_MAX


def test_calls_of_transactions_time_out_as_each_library_says(daemon: FakeDaemon, tmp_path: Path) -> None:
    absent = {"sidecar_run_dir": str(tmp_path), "transactional_id": "t", "max_block_ms": 50}
    with pytest.raises(kafka_python.KafkaTimeoutError, match="No kafka-sidecar daemon"):
        kafka_python.KafkaProducer(**absent).init_transactions()
    producer = kafka_python.KafkaProducer(**absent | {"sidecar_run_dir": str(daemon.run_dir)})
    producer.init_transactions()
    producer.begin_transaction()
    offsets = {kafka.structs.TopicPartition("in", 0): kafka.structs.OffsetAndMetadata(17, None, None)}
    producer.send_offsets_to_transaction(offsets, "group")
    daemon.on_txn = lambda client, txn: None
    with pytest.raises(kafka_python.KafkaTimeoutError, match="No answer"):
        producer.commit_transaction()
    daemon.on_txn = daemon.answer_txn
    eventually(lambda: daemon.txn_frames[-1][0] == Kind.TXN_END)
    daemon.do(lambda: daemon.answer_txn(daemon.only_client, daemon.txn_frames[-1]))
    producer.commit_transaction()
    producer.close()


def test_close_ends_a_commit_that_waits_without_limit(daemon: FakeDaemon) -> None:
    producer = confluent.Producer({"sidecar.run_dir": str(daemon.run_dir), "transactional.id": "t"})
    producer.init_transactions()
    producer.begin_transaction()
    daemon.on_txn = lambda client, txn: None
    caught: list[Any] = []

    def commit() -> None:
        try:
            producer.commit_transaction()
        except confluent.KafkaException as error:
            caught.append(error.args[0])

    thread = threading.Thread(target=commit)
    thread.start()
    eventually(lambda: daemon.txn_frames[-1][0] == Kind.TXN_END)
    producer._engine.close(0.05)
    thread.join(30)
    assert caught[0].code() == confluent.KafkaError._STATE
