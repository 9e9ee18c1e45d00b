"""A wrong argument is one sentence that names it, before anything starts or is queued."""

from __future__ import annotations

import asyncio
import copy
import enum
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import numpy as np
import pytest

from client_stub import AsyncProducer, Producer
from client_stub.testing import FakeAsyncProducer, FakeProducer
from tests.stub.fake_daemon import FakeDaemon

SERVERS = ("PLAINTEXT://a:9092", "[::1]:9092", "a:1, b:2", "kafka-1.example.org:9092")


@pytest.mark.parametrize("kind", [Producer, AsyncProducer])
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"client_name": 5}, "client_name must be str, not int."),
        ({"client_name": "x" * 65}, "has more than 64 bytes."),
        ({"client_name": "\udc80"}, "client_name has half a character"),
        ({"token": 5}, "token must be str, not int."),
        ({"token": "\udc80"}, "token has half a character"),
        ({"max_block_ms": "60000"}, "max_block_ms must be a number of milliseconds, not str."),
        ({"max_block_ms": None}, "max_block_ms must be a number of milliseconds, not NoneType."),
        ({"max_block_ms": math.nan}, "max_block_ms must be a number of milliseconds, not nan."),
        ({"max_block_ms": -1}, "max_block_ms must not be negative, not -1."),
        ({"connect_timeout_ms": timedelta(seconds=1)}, "connect_timeout_ms must be a number of milliseconds"),
        ({"delivery_timeout_ms": 0}, "delivery_timeout_ms must be more than 0, not 0."),
        ({"on_error": "x"}, r"on_error must be callable as on_error\(error, topic, count\), not str."),
        ({"key_serializer": "x"}, "key_serializer must be a function"),
        ({"run_dir": 5}, "run_dir must be a path, not int."),
        ({"run_dir": ""}, "run_dir is empty"),
        ({"run_dir": "/tmp/\0x"}, "null character"),
        ({"run_dir": ["a:9092"]}, "run_dir is a path, not a list of brokers: "),
        *(({"run_dir": each}, "run_dir is a path, not a list of brokers") for each in SERVERS),
        (
            {"bootstrap_servers": "a:1"},
            "takes no argument 'bootstrap_servers': bootstrap.servers and all other",
        ),
        ({"linger_ms": 5}, "takes no argument 'linger_ms': .* the configuration of the daemon"),
        ({"client_id": "x"}, "takes no argument 'client_id': client_name is its name here."),
        ({"value_serialiser": str}, "takes no argument 'value_serialiser': did you mean value_serializer?"),
    ],
)
def test_of_the_constructor(kind: type, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence):
        kind(**arguments)


def test_times_of_other_kinds_of_numbers_and_paths_of_all_kinds_are_taken(daemon: FakeDaemon) -> None:
    from decimal import Decimal

    path = daemon.run_dir
    for run_dir in (path, str(path), os.fsencode(path)):
        with Producer(run_dir, max_block_ms=Decimal(5_000), delivery_timeout_ms=math.inf) as producer:  # type: ignore[arg-type]
            producer.send("t", b"x").result(10)


class Topic(enum.StrEnum):
    ORDERS = "orders"


class Odd:
    """Neither text nor bytes, and without a hash."""

    __hash__ = None  # type: ignore[assignment]


@pytest.fixture(params=["fake", "real", "serializing"])
def any_producer(request: pytest.FixtureRequest, daemon: FakeDaemon) -> Any:
    if request.param == "fake":
        return FakeProducer()
    taken = {"value_serializer": lambda value: value} if request.param == "serializing" else {}
    return Producer(daemon.run_dir, **taken)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"topic": ["orders"]}, "topic must be str, not list."),
        ({"topic": Odd()}, "topic must be str, not Odd."),
        ({"topic": "\udc80"}, "has half a character"),
        ({"topic": "x" * 250}, "must have 1 to 249 bytes"),
        ({"headers": 5}, "headers must be .* not int."),
        ({"headers": "ab"}, "headers must be .* not str."),
        ({"headers": [("\udc80", b"")]}, "The name of header .* has half a character"),
        ({"partition": 1 << 31}, "non-negative or None, and at most 2147483647."),
        ({"partition": -1}, "non-negative or None.$"),
        ({"timestamp_ms": 1 << 63}, "non-negative or None, and at most 9223372036854775807."),
        ({"timestamp_ms": datetime.now(UTC)}, "timestamp_ms must be int or None, not datetime."),
        ({"on_delivery": "x"}, r"on_delivery must be callable as on_delivery\(error, metadata\), not str."),
    ],
)
def test_of_a_send(any_producer: Any, arguments: dict[str, Any], sentence: str) -> None:
    fields = {"topic": "orders", "value": b"x"} | arguments
    with any_producer as producer:
        producer.send(Topic.ORDERS, b"1").result(10)
        calls: list[Callable[[], Any]] = [lambda: producer.send(**fields)]
        if arguments.keys() & {"topic", "on_delivery"}:
            rows, more = [(None, b"x")], {k: v for k, v in arguments.items() if k != "topic"}
            calls.append(lambda: producer.send_many(fields["topic"], rows, **more))
        if "topic" in arguments:
            calls.append(lambda: producer.partitions_for(fields["topic"]))
        for call in calls:
            with pytest.raises((TypeError, ValueError), match=sentence):
                call()
        assert producer.stats().sent == 1


def test_any_integer_is_a_partition_and_a_timestamp(any_producer: Any) -> None:
    """Programs compute both with numpy, whose integers are none of Python's."""
    with any_producer as producer:
        for kind in (np.int8, np.uint16, np.int32, np.int64, enum.IntEnum("Place", {"ONE": 1})):
            fields = {"partition": kind(1), "timestamp_ms": kind(1)}
            assert producer.send("orders", b"x", **fields).result(10)
            assert producer.send_many("orders", [(None, b"x", None, kind(1), kind(1))]).result(10) == 1
        for wrong in (True, np.bool_(True), np.float64(1), np.array([1, 2])):
            for name in fields:
                with pytest.raises(TypeError, match=f"{name} must be int or None, not "):
                    producer.send("orders", b"x", **{name: wrong})


@pytest.mark.parametrize(
    ("timeout", "sentence"),
    [
        ("1", "seconds or None, not str"),
        (math.nan, "cannot be nan"),
        (-1, "cannot be negative"),
        (True, "not bool"),
    ],
)
def test_of_a_patience(any_producer: Any, timeout: Any, sentence: str) -> None:
    with any_producer as producer:
        for call in (producer.close, lambda each: producer.partitions_for("orders", each)):
            with pytest.raises((TypeError, ValueError), match=sentence):
                call(timeout)


def test_of_a_done_callback(any_producer: Any) -> None:
    with any_producer as producer:
        for delivery in (producer.send("orders", b"x"), producer.send_many("orders", [(None, b"x")])):
            with pytest.raises(
                TypeError, match=r"callback must be callable as callback\(delivery\), not NoneType"
            ):
                delivery.add_done_callback(None)


def test_a_script_whose_name_is_no_text_has_a_client_name(daemon: FakeDaemon) -> None:
    program = (
        "import sys; sys.argv[0] = '/x/\\udcff.py'\n"
        "from client_stub import Producer\n"
        "with Producer(sys.argv[1]) as producer: producer.send('orders', b'x').result(10)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(daemon.run_dir)], timeout=60, check=True)
    assert [submit.count for submit in daemon.received] == [1]


def test_producers_and_futures_cannot_be_copied_or_pickled(producer: Producer) -> None:
    bulk, delivery = producer.send_many("orders", [(None, b"x")]), producer.send("orders", b"x")
    for thing, advice in (
        (producer, "A Producer belongs to its process .*: make one where it is used"),
        (AsyncProducer(), "An AsyncProducer belongs to its process"),
        (delivery, r"A Delivery belongs to its process .*: pass on its result\(\)"),
        (bulk, "A BulkDelivery belongs to its process"),
        (FakeProducer(), "A FakeProducer belongs to its process"),
        (FakeAsyncProducer(), "A FakeAsyncProducer belongs to its process"),
        (FakeProducer().send("orders", b"x"), r"A Delivery belongs .*: pass on its result\(\)"),
    ):
        for copies in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=advice):
                copies(thing)
    assert pickle.loads(pickle.dumps(delivery.result(10))) == delivery.result(10)


def test_the_repr_of_a_bulk_delivery_shows_its_outcome(any_producer: Any) -> None:
    with any_producer as producer:
        bulk = producer.send_many("orders", [(None, b"x"), (None, b"y")])
        assert bulk.exception(10) is None
        assert repr(bulk) == "<BulkDelivery of 2: all have their outcome>"


def test_an_async_producer_takes_what_a_producer_takes(daemon: FakeDaemon) -> None:
    async def run() -> int:
        settings: dict[str, Any] = {"token": "t", "connect_timeout_ms": 1_000, "on_error": print}
        async with AsyncProducer(daemon.run_dir, "n", **settings) as producer:
            fields: dict[str, Any] = {"key": b"k", "headers": {"h": b""}, "partition": 0, "timestamp_ms": 1}
            return (await producer.send_and_wait("t", b"x", **fields)).timestamp_ms

    assert asyncio.run(run()) == 1


@pytest.mark.parametrize("kind", ["fake", "real"])
def test_of_a_field_that_another_client_has(daemon: FakeDaemon, kind: str) -> None:
    bulk = FakeProducer() if kind == "fake" else Producer(daemon.run_dir)
    for arguments, sentence in (
        ({"callback": 5}, r"send_many\(\) takes no argument 'callback': on_delivery is its name here\."),
        ({"on_delivry": 5}, r"takes no argument 'on_delivry': did you mean on_delivery\?"),
        ({"acks": 1}, r"takes no argument 'acks': it takes topic, records, on_delivery\."),
    ):
        with pytest.raises(TypeError, match=sentence):
            bulk.send_many("orders", [(None, b"x")], **arguments)  # type: ignore[arg-type]
    for arguments, sentence in (
        ({"callback": 5}, r"^send\(\) takes no argument 'callback': on_delivery is its name here\.$"),
        ({"on_delivry": 5}, r"^send\(\) takes no argument 'on_delivry': did you mean on_delivery\?$"),
        (
            {"value": b"x", "acks": 1},
            r"^send\(\) takes no argument 'acks': it takes topic, value, key, headers",
        ),
    ):
        with pytest.raises(TypeError, match=sentence):
            bulk.send("orders", **arguments)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^value must be bytes or None, not int"):
        bulk.send(topic="orders", value=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"send\(\) .* argument"):
        bulk.send(value=b"x")  # type: ignore[call-arg]
    bulk.close()

    async def main() -> None:
        producer: Any = FakeAsyncProducer() if kind == "fake" else AsyncProducer(daemon.run_dir)
        async with producer:
            for send in (producer.send, producer.send_and_wait):
                with pytest.raises(
                    TypeError, match=r"takes no argument 'timestamp': timestamp_ms is its name here\."
                ):
                    await send("orders", b"x", timestamp="x")
                with pytest.raises(
                    TypeError, match=r"takes no argument 'on_delivery': await what it returns"
                ):
                    await send("orders", b"x", on_delivery=print)
            with pytest.raises(
                TypeError, match=r"send_many\(\) takes no argument 'callback': await what it returns"
            ):
                await producer.send_many("orders", [], callback=5)

    asyncio.run(main())


def test_of_the_waits_and_of_a_bulk_call(any_producer: Any) -> None:
    """A time that has run out is no fault of the caller: less than 0 only looks."""
    with any_producer as producer:
        producer.send("orders", b"1").result(10)
        if isinstance(producer, FakeProducer):
            producer.hold()
        waiting = producer.send("orders", b"2")
        for records, kind in ((None, "NoneType"), (5, "int"), (b"abc", "bytes")):
            with pytest.raises(TypeError, match=rf"^records must be an iterable of \(key, .* not {kind}\.$"):
                producer.send_many("orders", records)
        if isinstance(producer, FakeProducer):
            with pytest.raises(TimeoutError):
                waiting.result(-1)
            producer.release()


@pytest.mark.parametrize("wrong", ["5", True, timedelta(seconds=1), math.nan])
def test_a_wait_checks_its_timeout_first(any_producer: Any, wrong: Any) -> None:
    """Otherwise a wrong one would pass each time the outcome is quicker than the caller."""
    with any_producer as producer:
        done, many = producer.send("orders", b"1"), producer.send_many("orders", [(None, b"1")])
        done.result(10)
        many.result(10)
        failed: list[BaseException] = []

        def in_a_callback(_: object) -> None:
            for call in (done.result, many.result, producer.flush):
                try:
                    call(wrong)
                except (TypeError, ValueError) as error:
                    failed.append(error)

        done.add_done_callback(in_a_callback)
        if isinstance(producer, FakeProducer):
            producer.hold()
        left, none = producer.send("orders", b"2"), producer.send_many("orders", [])
        waits = [
            each for delivery in (done, many, left, none) for each in (delivery.result, delivery.exception)
        ]
        waits += [producer.flush, producer.close, partial(producer.partitions_for, "orders")]
        for wait in waits:
            with pytest.raises((TypeError, ValueError), match=r"(number of seconds or None, not|be nan)"):
                wait(wrong)
        if isinstance(producer, FakeProducer):
            producer.release()
        producer.close()
        for wait in waits:
            with pytest.raises((TypeError, ValueError), match=r"(number of seconds or None, not|be nan)"):
                wait(wrong)
    assert len(failed) == 3


def test_a_future_of_a_forked_child_looks_at_its_argument_first(daemon: FakeDaemon) -> None:
    with Producer(daemon.run_dir) as producer:
        waits = [producer.send("orders", b"1").result, producer.send_many("orders", [(None, b"1")]).result]
        producer.flush()
        pid = os.fork()
        if not pid:
            try:
                for wait in waits:
                    with pytest.raises(TypeError):
                        wait("5")  # type: ignore[arg-type]
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0


def test_of_the_waits_on_a_loop(daemon: FakeDaemon) -> None:
    async def main() -> None:
        async with AsyncProducer(daemon.run_dir) as producer:
            with pytest.raises(TypeError, match="timeout must be a number of seconds or None, not str"):
                await producer.flush("5")  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="records must be an iterable"):
                await producer.send_many("orders", None)  # type: ignore[arg-type]
            bulk = await producer.send_many("orders", [(None, b"1")])
            await bulk
            with pytest.raises(TypeError, match="timeout must be a number of seconds or None, not str"):
                bulk.result("5")  # type: ignore[arg-type]

    asyncio.run(main())
