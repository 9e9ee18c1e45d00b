"""Goal: a call with a wrong argument says so in one sentence, leaves nothing behind, and a fake says the same.

Method: each call is made with a producer and with a fake; errors, words and counts are compared.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest

from client_stub import AsyncProducer, Producer, errors
from client_stub.compat import confluent, kafka_python
from client_stub.testing import FakeAsyncProducer, FakeProducer
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import FakeDaemon

LARGE: Final = bytes(2 << 20)
TOPICS: Final = (None, 5, b"orders", "", "x" * 250, "\udc80", ["orders"])
WAITS: Final = ("5", True, math.nan, [])
TIMES: Final = (*WAITS, -1, -math.inf, -(10**400))
FIELDS: Final[tuple[dict[str, Any], ...]] = (
    {"value": "text"},
    {"value": 5},
    {"value": {"id": 1}},
    {"key": "text"},
    {"key": 7.5},
    {"headers": 5},
    {"headers": "ab"},
    {"headers": [("h",)]},
    {"headers": ["h"]},
    {"headers": {b"h": b"v"}},
    {"headers": {"h": "v"}},
    {"headers": [("\udc80", b"")]},
    {"partition": True},
    {"partition": "1"},
    {"partition": 1.0},
    {"partition": -1},
    {"partition": 1 << 31},
    {"timestamp_ms": False},
    {"timestamp_ms": 1.5},
    {"timestamp_ms": -1},
    {"timestamp_ms": 1 << 63},
    {"value": LARGE},
    {"value": "text", "headers": 5},
    {"partition": -1, "timestamp_ms": -1},
)
ROWS: Final = (
    None,
    5,
    b"rows",
    [5],
    [b"ab"],
    [(b"k",)],
    [(None, b"v", None, None, None, None)],
    [("key", b"v")],
    [(None, b"v"), (None, "text")],
    [(None, b"v", 5)],
    [(None, b"v", None, -1)],
    [(None, b"v", None, None, 1.5)],
    [(None, b"v"), (None, LARGE)],
    [(None, b"v", {"h": b""}), (None, LARGE, {"h": b""})],
)
TABLES: Final = (
    5,
    [b"v"],
    pa.table({"key": ["k"]}),
    pa.table({"value": [1]}),
    pa.table({"value": [b"v"], "partition": [-1]}),
    pa.table({"value": [b"v", LARGE]}),
)
Call = Callable[[Any], Any]


def calls_of_both() -> list[Call]:
    """Calls that Producer and AsyncProducer have."""
    return [
        *(lambda p, topic=topic: p.send(topic, b"v") for topic in TOPICS),
        *(lambda p, fields=fields: p.send("orders", **fields) for fields in FIELDS),
        lambda p: p.send(None, "text"),
        *(lambda p, topic=topic: p.send_many(topic, [(None, b"v")]) for topic in TOPICS),
        *(lambda p, rows=rows: p.send_many("orders", rows) for rows in ROWS),
        lambda p: p.send_many("", [5]),
        lambda p: p.send_many("orders", [], acks=1),
        *(lambda p, table=table: p.send_arrow("orders", table) for table in TABLES),
        lambda p: p.send_arrow("", TABLES[-1]),
        *(lambda p, topic=topic: p.partitions_for(topic) for topic in TOPICS),
        *(lambda p, wait=wait: p.partitions_for("orders", wait) for wait in TIMES),
        *(lambda p, wait=wait: p.flush(wait) for wait in WAITS),
        *(lambda p, until=until: p.flush(until=until) for until in ("sent", None, [])),
        lambda p: p.flush("5", until="sent"),
        *(lambda p, wait=wait: p.close(wait) for wait in TIMES),
    ]


def calls_of_producers() -> list[Call]:
    """Calls that only Producer has."""
    return [
        *(lambda p, given=given: p.send("orders", b"v", on_delivery=given) for given in (5, "x", [])),
        lambda p: p.send("orders", b"v", callback=5),
        lambda p: p.send(topic="orders", value=b"v", timestamp="x", on_delivery=5),
        lambda p: p.send("", "text", on_delivery=5),
        lambda p: p.send("", b"v", on_delivery=5),
        lambda p: p.send_many("orders", [(None, b"v")], on_delivery=5),
        lambda p: p.send_many("", [5], on_delivery=5),
        lambda p: p.send_many("orders", [], callback=5),
    ]


def told(call: Callable[[], Any]) -> tuple[type[Exception], str]:
    with pytest.raises(Exception) as raised:
        call()
    return type(raised.value), str(raised.value)


def test_a_fake_refuses_the_same_calls_in_the_same_words(producer: Producer) -> None:
    fake = FakeProducer()
    for each in (producer, fake):
        each.send("orders", b"v").result(10)
    for number, call in enumerate(calls_of_both() + calls_of_producers()):
        kind, text = told(lambda call=call: call(producer))  # type: ignore[misc]
        assert told(lambda call=call: call(fake)) == (kind, text), number  # type: ignore[misc]
        assert issubclass(kind, TypeError | ValueError | errors.RecordTooLarge), (number, kind, text)
        assert " operand" not in text and " object" not in text, (number, text)
        assert producer.stats().sent == fake.stats().sent == len(fake.records) == 1, number
    assert producer.flush(10) == fake.flush(10) == 0
    assert producer.send("orders", b"v").result(10).offset == 1


def test_an_asynchronous_fake_refuses_the_same_calls_in_the_same_words(daemon: FakeDaemon) -> None:
    async def told_of(call: Call, producer: Any) -> tuple[type[Exception], str]:
        try:
            await call(producer)
        except Exception as error:
            return type(error), str(error)
        pytest.fail("not refused")

    async def main() -> None:
        fake = FakeAsyncProducer()
        async with AsyncProducer(daemon.run_dir) as producer:
            for each in (producer, fake):
                await each.send_and_wait("orders", b"v")
            for number, call in enumerate(calls_of_both()):
                kind, text = await told_of(call, producer)
                assert await told_of(call, fake) == (kind, text), number
                assert producer.stats().sent == fake.stats().sent == len(fake.records) == 1, number
            assert (await producer.send_and_wait("orders", b"v")).offset == 1

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["fake", "real"])
def test_a_closed_producer_finds_a_wrong_argument_first(daemon: FakeDaemon, kind: str) -> None:
    producer = FakeProducer() if kind == "fake" else Producer(daemon.run_dir)
    producer.send("orders", b"v").result(10)
    producer.close()
    for call in (
        lambda: producer.send("orders", "text"),  # type: ignore[arg-type]
        lambda: producer.send_many("orders", [(None, "text")]),
        lambda: producer.send_arrow("orders", pa.table({"value": [1]})),
    ):
        with pytest.raises(TypeError):
            call()
    for late in (
        lambda: producer.send("orders", b"v"),
        lambda: producer.send_many("orders", [(None, b"v")]),
        lambda: producer.send_arrow("orders", pa.table({"value": ["v"]})),
        lambda: producer.partitions_for("orders"),
    ):
        with pytest.raises(errors.ProducerClosed):
            late()
    assert producer.send_many("orders", []).result(0) == 0
    assert producer.stats().sent == 1


@pytest.mark.parametrize("kind", ["fake", "real"])
def test_times_of_all_kinds_and_lengths_are_taken(daemon: FakeDaemon, kind: str) -> None:
    producer: Any = FakeProducer() if kind == "fake" else Producer(daemon.run_dir, max_block_ms=10**400)
    waits = (Decimal(10), math.inf, 10**400, 10)
    for wait in waits:
        if kind == "fake":
            producer.hold()
        daemon.deliver = None
        deliveries = producer.send("orders", b"v"), producer.send_many("orders", [(None, b"v")])
        for each in deliveries:
            with pytest.raises(TimeoutError):
                each.result(Decimal("-0.5"))
        if kind == "fake":
            producer.release()
        else:
            producer.flush(wait, until="accepted")
            daemon.do(daemon.deliver_log)
        for each in deliveries:
            each.result(wait)
        assert producer.flush(wait) == 0
        assert producer.partitions_for("orders", wait)
    producer.close(waits[0])


def test_headers_that_can_be_read_only_once_reach_the_daemon_from_a_send_that_waits(
    daemon: FakeDaemon,
) -> None:
    """The first attempt of a first send finds no daemon yet. It had read them, and the second found none."""

    async def main() -> None:
        async with AsyncProducer(daemon.run_dir) as producer:
            await producer.send_and_wait("orders", b"v", headers=iter([("h", b"1")]))

    asyncio.run(main())
    assert daemon.received[0].records == [[None, b"v", [["h", b"1"]], None, None]]


def test_a_call_that_waits_sends_its_arguments_as_they_were(daemon: FakeDaemon) -> None:
    """A caller that cleared its list or buffer behind a call lost records only when there was no room at once."""

    async def main() -> None:
        async with AsyncProducer(daemon.run_dir) as producer:
            rows, value, headers = [(None, b"1"), (None, b"2")], bytearray(b"3"), {"h": b"v"}
            bulk = asyncio.create_task(producer.send_many("orders", rows))
            one = asyncio.create_task(producer.send("orders", value, headers=headers))
            await asyncio.sleep(0)
            for wrong, kind in (({"topic": ["orders"]}, "topic"), ({"value": "x"}, "value")):
                with pytest.raises(TypeError, match=f"^{kind} must be "):
                    await producer.send(**{"topic": "orders", "value": b"x"} | wrong)  # type: ignore[arg-type]
            for each in (rows, value, headers):
                each.clear()  # type: ignore[attr-defined]
            assert await (await bulk) == 2
            await (await one)

    asyncio.run(main())
    found = [record for submit in daemon.received for record in submit.records]
    assert [record[1] for record in found] == [b"1", b"2", b"3"]
    assert found[2][2] == [["h", b"v"]]


def test_a_function_of_a_fake_that_raises_fails_its_record_alone() -> None:
    """The record had no outcome, and result() waited for ever."""

    def refuse(record: Any) -> errors.SidecarError | None:
        if record.value == b"raised":
            raise errors.error_for(29)
        return 1 / 0  # type: ignore[return-value]

    fake = FakeProducer(fail_with=refuse)
    assert isinstance(fake.send("orders", b"raised").exception(0), errors.TopicAuthorizationFailed)
    with pytest.raises(errors.SidecarError, match="fail_with failed: ZeroDivisionError"):
        fake.send("orders", b"bug").result(0)


def test_a_fake_reads_the_headers_of_rows_once_and_queues_all_rows_or_none() -> None:
    fake = FakeProducer()
    fake.send_many("orders", [(None, b"v", iter([("h", b"1")]))]).result(0)
    assert fake.records[0].headers == [("h", b"1")]

    def close(*_: object) -> None:
        fake.close()

    assert fake.send_many("orders", [(None, b"1"), (None, b"2")], on_delivery=close).result(0) == 2


def test_the_arguments_of_a_fake_alone_are_checked() -> None:
    for wrong, sentence in (
        ({"partitions": 0}, "^partitions must be at least 1, not 0.$"),
        ({"partitions": "2"}, "^partitions must be int, not str.$"),
        ({"fail_with": 5}, r"^fail_with must be callable as fail_with\(record\), not int.$"),
    ):
        for kind in (FakeProducer, FakeAsyncProducer):
            with pytest.raises((TypeError, ValueError), match=sentence):
                kind(**wrong)  # type: ignore[arg-type]


def test_flush_raises_no_failure_of_a_bulk_call_that_has_a_callback() -> None:
    """As with the real one: the callback has it."""
    fake, seen = FakeProducer(fail_with=lambda _: errors.error_for(29)), []
    fake.send_many("orders", [(None, b"v")], on_delivery=lambda error, _: seen.append(error))
    assert fake.flush() == 1 and len(seen) == 1


def test_of_the_twin_of_confluent_kafka(daemon: FakeDaemon) -> None:
    producer = confluent.Producer({"sidecar.run_dir": str(daemon.run_dir)})
    seen: list[object] = []
    producer.produce("orders", b"v", on_delivery=lambda *_: seen.append(1))
    calls: list[tuple[Callable[[], object], str]] = [
        (
            lambda: producer.produce("orders", b"v", callback=5),  # type: ignore[arg-type]
            r"callback must be callable as callback\(error, message\), not int.",
        ),
        (
            lambda: producer.produce("orders", b"v", on_delivery="x"),  # type: ignore[arg-type]
            r"on_delivery must be callable as on_delivery\(error, message\), not str.",
        ),
        (
            lambda: producer.produce_batch("orders", [{"value": b"1"}, {"value": b"2", "callback": 5}]),
            r"callback must be callable as callback\(error, message\), not int.",
        ),
        (lambda: producer.produce("orders", b"v", partition="1"), "partition must be int or None, not str."),  # type: ignore[arg-type]
        (lambda: producer.produce("orders", b"v", headers=5), "headers must be .* not int."),  # type: ignore[arg-type]
        (lambda: producer.produce("orders", b"v", headers=[("h",)]), "headers must be .* pairs, not"),  # type: ignore[list-item]
        (lambda: producer.produce("orders", 5), "value must be bytes or None, not int"),  # type: ignore[arg-type]
        (lambda: producer.produce(None, b"v"), "topic must be str, not NoneType."),  # type: ignore[arg-type]
        (lambda: producer.poll("5"), "timeout must be a number of seconds or None, not str."),  # type: ignore[arg-type]
        (lambda: producer.poll(math.nan), "timeout cannot be nan"),
        (lambda: producer.flush("5"), "timeout must be a number of seconds or None, not str."),  # type: ignore[arg-type]
        (lambda: confluent.Producer("a:9092"), "config must be a mapping of settings, not str."),  # type: ignore[arg-type]
    ]
    for call, sentence in calls:
        with pytest.raises((TypeError, ValueError), match=sentence):
            call()
    assert producer._engine.stats().sent == 1
    producer.produce("orders", b"v", headers={"h": "text"}, on_delivery=lambda *_: seen.append(1))
    assert producer.flush(10) == 0 and seen == [1, 1]
    assert daemon.received[-1].records[-1][2] == [["h", b"text"]]
    producer.close()


def test_of_the_twin_of_kafka_python(daemon: FakeDaemon) -> None:
    run_dir = str(daemon.run_dir)
    for wrong, sentence in (
        ({"key_serializer": 5}, "key_serializer must be a function from an object to bytes, or have"),
        ({"max_block_ms": "x"}, "max_block_ms must be a number of milliseconds, not str."),
        ({"max_block_ms": None}, "max_block_ms must be a number of milliseconds, not NoneType."),
    ):
        with pytest.raises(TypeError, match=sentence):
            kafka_python.KafkaProducer(sidecar_run_dir=run_dir, **wrong)
    with kafka_python.KafkaProducer(sidecar_run_dir=run_dir) as producer:
        future = producer.send("orders", b"v")
        for add, end in ((future.add_callback, "metadata"), (future.add_errback, "error")):
            with pytest.raises(
                TypeError, match=rf"f must be callable as f\(\*args, {end}, \*\*kwargs\), not int."
            ):
                add(5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"timeout must be a number of seconds or None, not str\."):
            producer.flush("5")  # type: ignore[arg-type]
        eventually(lambda: producer._producer.stats().delivered == 1)
