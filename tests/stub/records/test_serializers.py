"""Serializers: keys and values of the application's own types, and one clear error before anything is queued."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from client_stub import AsyncProducer, Producer, errors
from client_stub.testing import FakeProducer
from tests.stub.fake_daemon import FakeDaemon

WAIT_S = 10


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.fixture(params=["fake", "real"])
def serializing(request: pytest.FixtureRequest, daemon: FakeDaemon) -> Any:
    serializers: dict[str, Any] = {"key_serializer": str.encode, "value_serializer": as_json}
    made = FakeProducer(**serializers) if request.param == "fake" else Producer(daemon.run_dir, **serializers)
    yield made
    made.close(0)


def sent(producer: Any, daemon: FakeDaemon) -> list[tuple[bytes | None, bytes | None]]:
    if isinstance(producer, FakeProducer):
        return [(record.key, record.value) for record in producer.records]
    return [(record[0], record[1]) for submit in daemon.received for record in submit.records]


def test_keys_and_values_become_bytes_and_none_stays_null(serializing: Any, daemon: FakeDaemon) -> None:
    for _ in range(2):  # the second finds an open stream
        serializing.send("t", {"id": 1}, "k").result(WAIT_S)
    serializing.send("t", [1], headers=[("h", b"v")], timestamp_ms=5).result(WAIT_S)
    serializing.send("t", None, "gone").result(WAIT_S)
    serializing.send_many("t", [("a", 1), (None, "x", [("h", b"v")], 0, 7)]).result(WAIT_S)
    assert sent(serializing, daemon) == [
        (b"k", b'{"id": 1}'),
        (b"k", b'{"id": 1}'),
        (None, b"[1]"),
        (b"gone", None),
        (b"a", b"1"),
        (None, b'"x"'),
    ]


def test_a_serializer_that_fails_is_named_and_nothing_is_queued(serializing: Any, daemon: FakeDaemon) -> None:
    with pytest.raises(errors.SerializationFailed) as raised:
        serializing.send("t", b"bytes are no JSON", "k")
    assert str(raised.value) == (
        "value_serializer failed for a record of topic t: TypeError: Object of type bytes is not JSON serializable. "
        "No record of this call was queued."
    )
    assert isinstance(raised.value.__cause__, TypeError) and not raised.value.retriable
    with pytest.raises(errors.SerializationFailed, match=r"^key_serializer failed for record 2 of topic t: "):
        serializing.send_many("t", [("a", 1), ("b", 2), (3, 3)])
    with pytest.raises(TypeError, match="record 1 must be"):
        Producer(daemon.run_dir, value_serializer=as_json).send_many("t", [(b"a", 1), "b"])
    serializing.flush(WAIT_S)
    assert sent(serializing, daemon) == []
    assert serializing.stats().sent == 0


def test_a_serializer_that_returns_no_bytes_is_named(daemon: FakeDaemon) -> None:
    producer = Producer(daemon.run_dir, value_serializer=json.dumps)  # type: ignore[arg-type]
    with pytest.raises(
        errors.SerializationFailed, match=r"^value_serializer returned str for a record of topic t"
    ):
        producer.send("t", {})  # type: ignore[arg-type]
    producer.close()
    with pytest.raises(TypeError, match=r"key_serializer must be a function .* not str"):
        Producer(daemon.run_dir, key_serializer="utf-8")  # type: ignore[arg-type]


def test_an_async_send_that_waits_in_line_is_serialized_once(daemon: FakeDaemon) -> None:
    calls: list[Any] = []

    def note(value: Any) -> bytes:
        calls.append(value)
        return as_json(value)

    async def main() -> None:
        async with AsyncProducer(daemon.run_dir, value_serializer=note) as producer:
            await producer.send_and_wait("t", {"id": 1})  # type: ignore[arg-type]
            await (await producer.send("t", [2]))  # type: ignore[arg-type]
            await producer.send_many("t", [(None, 3)])
            await producer.flush(WAIT_S)
            with pytest.raises(errors.SerializationFailed):
                await producer.send("t", b"4")

    asyncio.run(main())
    assert calls == [{"id": 1}, [2], 3, b"4"]
    values = [record[1] for submit in daemon.received for record in submit.records]
    assert values == [b'{"id": 1}', b"[2]", b"3"]
