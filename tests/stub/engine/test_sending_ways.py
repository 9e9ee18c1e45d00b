"""Goal: a record is the same by whichever way it is sent: its bytes, its outcome, and the error of a call.

Method: a random list of calls, made by every way of sending in turn, against the scripted daemon and by the fakes.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgpack
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from client_stub import AsyncProducer, Producer
from client_stub.compat import confluent, kafka_python
from client_stub.contract.wire import OutcomeKind, Persistence, Shape
from client_stub.errors import SidecarError, error_for
from client_stub.testing import FakeAsyncProducer, FakeProducer, FakeRecord
from tests.stub.fake_daemon import Client, FakeDaemon, Submit

WAIT_S: Final = 30.0
REFUSED_BY_KAFKA: Final = b"!"
"""The first byte of a value whose record the broker refuses."""
CODE, TEXT = 19, "The broker refused it."
TOO_LARGE: Final = bytes(1 << 20)


class Row(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


class Call(NamedTuple):
    topic: str
    rows: list[Row]


Outcome = tuple[Any, ...]
"""(offset, the record's own timestamp or None), or (error's class, code)."""


class Seen(NamedTuple):
    """What one way has shown of a list of calls."""

    records: dict[str, bytes]
    """Topic → its records as msgpack, in their order."""
    outcomes: list[list[Outcome] | tuple[str, str]]
    """Of each call: the outcome of each record, or the class and text of the error that it raised."""


keys = st.none() | st.binary(max_size=4)
values = st.binary(min_size=1, max_size=30) | st.binary(max_size=8).map(REFUSED_BY_KAFKA.__add__)
headers = st.none() | st.lists(
    st.tuples(st.sampled_from(["h", "ü"]), st.none() | st.binary(max_size=3)), max_size=2
)
times = st.none() | st.integers(1, 1 << 40)
plain_rows = st.tuples(keys, values).map(lambda each: Row(*each))
full_rows = st.builds(Row, keys, values, headers, st.sampled_from([None, 0]), times)
good = st.lists(plain_rows, min_size=1, max_size=6) | st.lists(plain_rows | full_rows, min_size=1, max_size=6)
# A call with a record that is refused has no other: send_many() refuses the whole call, and send() one record.
bad = st.sampled_from(
    [
        [Row(None, TOO_LARGE)],
        [Row(b"k", TOO_LARGE, [("h", b"x")])],
        [Row(5, b"v")],  # type: ignore[arg-type]
        [Row(b"k", b"v", [("h", 5)])],  # type: ignore[list-item]
        [Row(b"k", b"v", None, -2)],
        [Row(b"k", b"v", None, None, -2)],
    ]
)
calls = st.lists(st.builds(Call, st.sampled_from(["a", "b"]), good | bad), max_size=12)


def packed(rows: list[Any]) -> bytes:
    """Records of two or five fields; one of five without a headers, partition and timestamp is one of two."""
    return b"".join(
        msgpack.packb(row[:2] if len(row) == 5 and all(each is None for each in row[2:]) else row)
        for row in rows
    )


def outcome_of(row: Row, error: Any, offset: int | None, timestamp_ms: int | None) -> Outcome:
    if error is not None:
        return type(error).__name__, error.code
    return offset, timestamp_ms if row.timestamp_ms is not None else None


def refusal(error: Exception) -> tuple[str, str]:
    """Without the number of the record, which send() does not say."""
    return type(error).__name__, re.sub(r"^record 0: ", "", str(error))


class Ways:
    """Each method makes the calls, and returns for each one the outcomes of its records, or its refusal."""

    @staticmethod
    def send(producer: Producer | FakeProducer, some: list[Call]) -> list[Any]:
        made: list[Any] = []
        for topic, rows in some:
            try:
                made.append([producer.send(topic, r.value, r.key, *r[2:]) for r in rows])
            except Exception as error:
                made.append(refusal(error))
        producer.flush(WAIT_S)
        return [
            each
            if isinstance(each, tuple)
            else [future_outcome(*pair) for pair in zip(call.rows, each, strict=True)]
            for each, call in zip(made, some, strict=True)
        ]

    @staticmethod
    def send_many(producer: Producer | FakeProducer, some: list[Call]) -> list[Any]:
        made: list[Any] = []
        for topic, rows in some:
            told: list[Outcome] = []
            left = iter(rows)

            def tell(
                error: Any, metadata: Any, told: list[Outcome] = told, left: Iterator[Row] = left
            ) -> None:
                place = (None, None) if metadata is None else (metadata.offset, metadata.timestamp_ms)
                told.append(outcome_of(next(left), error, *place))

            try:
                producer.send_many(topic, [tuple(row) for row in rows], on_delivery=tell)
                made.append(told)
            except Exception as error:
                made.append(refusal(error))
        producer.flush(WAIT_S)
        return made

    @staticmethod
    def send_arrow(producer: Producer | FakeProducer, some: list[Call]) -> list[Any]:
        """It has no callbacks: (offsets of the delivered, number of the failed, first error)."""
        made: list[Any] = []
        for topic, rows in some:
            try:
                bulk = producer.send_arrow(topic, table_of(rows))
                bulk.watch()
                made.append(bulk)
            except (pa.ArrowException, TypeError, ValueError) as error:  # no column can have such a row
                made.append(refusal(error))
            except SidecarError as error:
                made.append(refusal(error))
        producer.flush(WAIT_S)
        return [each if isinstance(each, tuple) else bulk_outcome(each) for each in made]

    @staticmethod
    async def send_async(producer: AsyncProducer | FakeAsyncProducer, some: list[Call]) -> list[Any]:
        made: list[Any] = []
        for topic, rows in some:
            try:
                made.append([await producer.send(topic, r.value, r.key, *r[2:]) for r in rows])
            except Exception as error:
                made.append(refusal(error))
        await producer.flush(WAIT_S)
        for each, call in zip(made, some, strict=True):
            if isinstance(each, list):
                done = await asyncio.gather(*each, return_exceptions=True)
                each[:] = [
                    outcome_of(row, one, None, None)
                    if isinstance(one, BaseException)
                    else outcome_of(row, None, one.offset, one.timestamp_ms)
                    for row, one in zip(call.rows, done, strict=True)
                ]
        return made

    @staticmethod
    async def send_many_async(producer: AsyncProducer | FakeAsyncProducer, some: list[Call]) -> list[Any]:
        made: list[Any] = []
        for topic, rows in some:
            try:
                bulk = await producer.send_many(topic, [tuple(row) for row in rows])
                bulk.watch()
                made.append(bulk)
            except Exception as error:
                made.append(refusal(error))
        await producer.flush(WAIT_S)
        return [each if isinstance(each, tuple) else bulk_outcome(each) for each in made]

    @staticmethod
    def confluent(producer: confluent.Producer, some: list[Call]) -> list[Any]:
        made: list[Any] = []
        for topic, rows in some:
            told: list[Any] = []
            try:
                for row in rows:
                    more: dict[str, Any] = {"headers": row.headers} if row.headers is not None else {}
                    if row.partition is not None:
                        more["partition"] = row.partition
                    if row.timestamp_ms is not None:
                        more["timestamp"] = row.timestamp_ms
                    producer.produce(topic, row.value, row.key, on_delivery=partial(note, told), **more)
                made.append(told)
            except Exception:
                made.append(())  # the twin has confluent's errors
        assert producer.flush(WAIT_S) == 0
        for each, call in zip(made, some, strict=True):
            if isinstance(each, list):
                each[:] = [
                    ("code", error.code())
                    if error is not None
                    else outcome_of(row, None, m.offset(), m.timestamp()[1])
                    for row, (error, m) in zip(call.rows, each, strict=True)
                ]
        return made

    @staticmethod
    def kafka_python(producer: kafka_python.KafkaProducer, some: list[Call]) -> list[Any]:
        made: list[Any] = []
        for topic, rows in some:
            try:
                made.append([producer.send(topic, r.value, r.key, *r[2:]) for r in rows])
            except Exception:
                made.append(())
        producer.flush(WAIT_S)
        for each, call in zip(made, some, strict=True):
            if isinstance(each, list):
                each[:] = [
                    outcome_of(row, future.exception, None, None)
                    if future.failed()
                    else outcome_of(row, None, future.value.offset, future.value.timestamp)
                    for row, future in zip(call.rows, each, strict=True)
                ]
        return made


def note(told: list[Any], error: Any, message: Any) -> None:
    told.append((error, message))


def future_outcome(row: Row, future: Any) -> Outcome:
    error = future.exception(0)
    metadata = None if error is not None else future.result(0)
    return outcome_of(
        row, error, *((None, None) if metadata is None else (metadata.offset, metadata.timestamp_ms))
    )


def bulk_outcome(bulk: Any) -> list[Any]:
    assert bulk.done()
    offsets = [each.first_offset + number for each in bulk.offsets() for number in range(each.count)]
    error = bulk.first_error
    return [offsets, bulk.failed_count, None if error is None else (type(error).__name__, error.code)]


def as_bulk(each: Any) -> Any:
    """The outcomes of single records as those of a bulk call."""
    if isinstance(each, tuple):
        return each
    failed = [outcome for outcome in each if isinstance(outcome[0], str)]
    return [[o[0] for o in each if o not in failed], len(failed), failed[0] if failed else None]


def table_of(rows: list[Row]) -> pa.Table:
    kinds: dict[str, Any] = {
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        "partition": pa.int32(),
        "timestamp": pa.int64(),
    }
    columns: dict[str, Any] = {}
    for (name, kind), column in zip(kinds.items(), zip(*rows, strict=True), strict=True):
        cells: Any = column
        if name == "headers":
            cells = [
                None if each is None else [{"key": key, "value": value} for key, value in each]
                for each in column
            ]
        columns[name] = pa.array(cells, kind)
    return pa.table(columns)


def deliver(daemon: FakeDaemon) -> Callable[[Client, Submit], None]:
    """The broker takes each record alone, and refuses some."""

    def one_by_one(client: Client, submit: Submit) -> None:
        for index, record in enumerate(submit.records):
            if bytes(record[1]).startswith(REFUSED_BY_KAFKA):
                daemon.outcome(
                    client, submit, kind=OutcomeKind.FAILED, persistence=Persistence.NOT_PERSISTED, code=CODE,
                    text=TEXT, shape=Shape.RANGE, first_index=index, count=1, base_offset=-1,
                )  # fmt: skip
                continue
            offset = daemon.next_offset.get(submit.topic, 0)
            daemon.next_offset[submit.topic] = offset + 1
            daemon.outcome(client, submit, shape=Shape.RANGE, first_index=index, count=1, base_offset=offset)

    return one_by_one


def refused_by_kafka(record: FakeRecord) -> SidecarError | None:
    if (record.value or b"").startswith(REFUSED_BY_KAFKA):
        return error_for(CODE, TEXT, Persistence.NOT_PERSISTED)
    return None


@contextlib.contextmanager
def recorded(daemon: FakeDaemon) -> Iterator[dict[str, bytes]]:
    """Topic → what arrives during the block."""
    first = len(daemon.received)
    daemon.next_offset.clear()
    found: dict[str, bytes] = {}
    yield found
    for submit in daemon.received[first:]:
        found[submit.topic] = found.get(submit.topic, b"") + packed(submit.records)


def by_daemon(daemon: FakeDaemon, make: Callable[[], Any], way: Callable[..., Any], some: list[Call]) -> Seen:
    with recorded(daemon) as records:
        producer = make()
        try:
            outcomes = way(producer, some)
        finally:
            producer.close()
    return Seen(records, outcomes)


def by_daemon_async(daemon: FakeDaemon, way: Callable[..., Any], some: list[Call]) -> Seen:
    async def main() -> list[Any]:
        async with AsyncProducer(daemon.run_dir) as producer:
            found: list[Any] = await way(producer, some)
            return found

    with recorded(daemon) as records:
        outcomes = asyncio.run(main())
    return Seen(records, outcomes)


def by_fake(producer: Any, outcomes: list[Any]) -> Seen:
    records: dict[str, bytes] = {}
    for topic, *fields in producer.records:
        records[topic] = records.get(topic, b"") + packed([fields])
    return Seen(records, outcomes)


def faked(way: Callable[..., Any], some: list[Call]) -> Seen:
    with FakeProducer(partitions=1) as producer:
        producer.fail_with = refused_by_kafka
        return by_fake(producer, way(producer, some))


def faked_async(way: Callable[..., Any], some: list[Call]) -> Seen:
    async def main() -> Seen:
        async with FakeAsyncProducer(partitions=1) as producer:
            producer.fail_with = refused_by_kafka
            return by_fake(producer, await way(producer, some))

    return asyncio.run(main())


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(calls)
def test_all_ways_send_the_same_records_with_the_same_outcomes(daemon: FakeDaemon, some: list[Call]) -> None:
    daemon.deliver = deliver(daemon)
    run_dir: Path = daemon.run_dir

    def native() -> Producer:
        return Producer(run_dir)

    send = by_daemon(daemon, native, Ways.send, some)
    sent = {
        topic: packed([r for c in some if c.topic == topic and is_good(c) for r in c.rows]) for topic in "ab"
    }
    assert send.records == {topic: data for topic, data in sent.items() if data}
    assert [isinstance(each, list) for each in send.outcomes] == [is_good(call) for call in some]

    for seen in (
        by_daemon(daemon, native, Ways.send_many, some),
        by_daemon_async(daemon, Ways.send_async, some),
        faked(Ways.send, some),
        faked(Ways.send_many, some),
        faked_async(Ways.send_async, some),
    ):
        assert seen == send
    in_bulk = Seen(send.records, [as_bulk(each) for each in send.outcomes])
    for seen in (
        by_daemon_async(daemon, Ways.send_many_async, some),
        faked_async(Ways.send_many_async, some),
    ):
        assert seen == in_bulk

    arrow, fake_arrow = by_daemon(daemon, native, Ways.send_arrow, some), faked(Ways.send_arrow, some)
    assert arrow == fake_arrow
    assert arrow.records == send.records
    for mine, theirs, call in zip(arrow.outcomes, in_bulk.outcomes, some, strict=True):
        assert mine == theirs or (not is_good(call) and isinstance(mine, tuple)), call

    # Confluent's takes a negative timestamp for the time of the call.
    both = [call for call in some if call.rows[0].timestamp_ms != -2]
    expected = [each for each, call in zip(send.outcomes, some, strict=True) if call in both]
    for twin in (
        by_daemon(
            daemon, lambda: confluent.Producer({"sidecar.run_dir": str(run_dir)}), Ways.confluent, both
        ),
        by_daemon(
            daemon, lambda: kafka_python.KafkaProducer(sidecar_run_dir=str(run_dir)), Ways.kafka_python, both
        ),
    ):
        assert twin.records == send.records
        assert [by_code(each) for each in twin.outcomes] == [by_code(each) for each in expected]


def by_code(each: list[Outcome] | tuple[str, ...]) -> Any:
    """Without the names of errors, which the twins have of their own."""
    if isinstance(each, tuple):
        return "refused"
    return [outcome[1] if isinstance(outcome[0], str) else outcome for outcome in each]


def is_good(call: Call) -> bool:
    """Whether its records can be sent. Those that cannot are the only ones of their call."""
    row = call.rows[0]
    return not (
        row.value is TOO_LARGE
        or row.key == 5
        or row.headers == [("h", 5)]
        or -2 in (row.partition, row.timestamp_ms)
    )
