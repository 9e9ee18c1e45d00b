"""Records at max.request.size and one byte beyond it by every way in, and above one message to the daemon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zmq

from client_stub import Producer, errors
from client_stub.contract.wire import SUBMIT_HEAD_BYTES_MAX, Format, Persistence
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import FakeDaemon

pa = pytest.importorskip("pyarrow")

FORMATS = {"msgpack": 2, "columns": 6}
FITS = bytes((1 << 20) - 87)
"""The largest value of a record without key and headers under a max.request.size of 1 MiB."""


def _plain(producer: Producer, value: bytes) -> Any:
    return producer.send_many("t", [(None, b"small"), (None, value)])


def _full(producer: Producer, value: bytes) -> Any:
    return producer.send_many("t", [(None, b"small"), (None, value, None, 0)])


def _into_what_gathers(producer: Producer, value: bytes) -> Any:
    producer.send_many("t", [(None, b"first")])
    return producer.send_many("t", [(None, value)])


def _arrow(producer: Producer, value: bytes) -> Any:
    return producer.send_arrow("t", pa.table({"value": [b"small", value, None]}))


def _sliced_arrow(producer: Producer, value: bytes) -> Any:
    table = pa.table({"value": pa.array([bytes(3 << 20), b"small", value], pa.large_binary())})
    return producer.send_arrow("t", table.slice(1))


def _arrow_with_headers(producer: Producer, value: bytes) -> Any:
    headers = [None, [{"key": "h", "value": value[5:]}, {"key": "", "value": None}], []]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = {"value": [b"x", b"", None], "headers": pa.array(headers, kind), "key": [b"k", None, b""]}
    return producer.send_arrow("t", pa.table(rows).slice(1))


WAYS: dict[str, Callable[[Producer, bytes], Any]] = {
    "send_many": _plain,
    "send_many of full records": _full,
    "send_many beside what gathers": _into_what_gathers,
    "send_arrow": _arrow,
    "send_arrow of a slice": _sliced_arrow,
    "send_arrow with headers": _arrow_with_headers,
}


@pytest.mark.parametrize("formats", FORMATS.values(), ids=FORMATS.keys())
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_a_record_too_large_is_refused_before_any_of_its_call_is_queued(
    run_dir: Path, way: Callable[[Producer, bytes], Any], formats: int
) -> None:
    daemon = FakeDaemon(run_dir, limits={"max_request_size": 1 << 20, "formats": formats})
    try:
        with Producer(run_dir) as producer:
            way(producer, FITS).result(10)
            seen = sum(submit.count for submit in daemon.received)
            with pytest.raises(errors.RecordTooLarge, match=r"^record \d+: .* 1048577 bytes .* larger than"):
                way(producer, FITS + b"x")
            producer.flush(10)
            beside = 1 if way is _into_what_gathers else 0
            assert sum(submit.count for submit in daemon.received) == seen + beside
    finally:
        daemon.stop()


@pytest.mark.parametrize("way", [*WAYS.values(), lambda p, v: p.send("t", v)], ids=[*WAYS, "send"])
def test_a_record_above_one_message_to_the_daemon_is_refused(
    run_dir: Path, way: Callable[[Producer, bytes], Any]
) -> None:
    """max.request.size may be larger than a message that the daemon reads."""
    most = 300_000 + SUBMIT_HEAD_BYTES_MAX
    daemon = FakeDaemon(run_dir, limits={"max_request_size": 8 << 20, "formats": 6, "message_bytes": most})
    try:
        with Producer(run_dir) as producer:
            way(producer, bytes(299_000)).result(10)
            with pytest.raises(errors.RecordTooLarge, match="takes 300000 at most"):
                way(producer, bytes(300_001))
            producer.send("t", b"after").result(10)
    finally:
        daemon.stop()


@pytest.mark.parametrize("name", ["a", "a" * 300_000, "\N{EURO SIGN}" * 100_000])
def test_headers_count_as_the_bytes_that_they_take(run_dir: Path, name: str) -> None:
    """Java sends such records: the bound of three bytes a character is no reason to refuse one."""
    count = 900_000 // (len(name.encode()) + 2)
    daemon = FakeDaemon(run_dir, limits={"max_request_size": 1 << 20, "message_bytes": 1_300_000})
    try:
        with Producer(run_dir) as producer:
            assert producer.send("t", b"v", headers=[(name, None)] * count).result(10).offset == 0
            with pytest.raises(errors.RecordTooLarge, match=r"larger than 1048576"):
                producer.send("t", b"v", headers=[(name, None)] * 2 * count)
    finally:
        daemon.stop()


def test_records_after_one_with_very_many_headers_have_a_message_of_their_own(run_dir: Path) -> None:
    """Room was made for the bound of its headers. Other records filled it, and all of them were refused."""
    most = 1_300_000
    daemon = FakeDaemon(run_dir, limits={"max_request_size": 1 << 20, "message_bytes": most})
    large = (None, b"v", [("a", None)] * 300_000)
    try:
        with Producer(run_dir) as producer:
            assert producer.send_many("t", [large, *[(None, bytes(10_000))] * 50]).result(10) == 51
        assert max(len(submit.payload) for submit in daemon.received) < most
    finally:
        daemon.stop()


def _many_small(producer: Producer, values: list[bytes]) -> None:
    producer.send_many("t", [(None, value) for value in values])


def _many_full(producer: Producer, values: list[bytes]) -> None:
    producer.send_many("t", [(None, value, None, 0) for value in values])


def _one_by_one(producer: Producer, values: list[bytes]) -> None:
    for value in values:
        producer.send("t", value)


def _one_table(producer: Producer, values: list[bytes]) -> None:
    producer.send_arrow("t", pa.table({"value": values}))


@pytest.mark.parametrize("formats", FORMATS.values(), ids=FORMATS.keys())
@pytest.mark.parametrize("way", [_many_small, _many_full, _one_by_one, _one_table])
def test_submissions_are_cut_where_the_daemon_says(
    run_dir: Path, way: Callable[[Producer, list[bytes]], None], formats: int
) -> None:
    """A daemon with a small pool can take no submission of 1 MiB; a larger record still has one of its own."""
    most = 100_000
    daemon = FakeDaemon(
        run_dir, limits={"max_request_size": 1 << 20, "formats": formats, "submission_bytes": most}
    )
    values = [b"%d" % number * 50 for number in range(3_000)]
    values[1_000] = bytes(2 * most)
    try:
        with Producer(run_dir) as producer:
            way(producer, values)
            producer.flush(10)
        assert sum(submit.count for submit in daemon.received) == len(values)
        if Format.ARROW not in {submit.format for submit in daemon.received}:
            assert [record[1] for submit in daemon.received for record in submit.records] == values
        assert all(len(submit.payload) <= most or submit.count == 1 for submit in daemon.received)
    finally:
        daemon.stop()


def test_a_record_too_large_for_a_new_daemon_fails_alone(producer: Producer, daemon: FakeDaemon) -> None:
    """Queued under a larger limit, then the daemon was replaced."""
    daemon.limits["max_request_size"] = 8 << 20
    producer.send("t", b"first").result(10)
    daemon.accept = lambda client, submit: submit.count == 1 and len(submit.payload) < 100
    deliveries = [
        producer.send("t", value) for value in (b"one", bytes(2 << 20), b"two", bytes(3 << 20), b"three")
    ]
    eventually(lambda: len(daemon.received) > 1)
    daemon.limits["message_bytes"] = 2 << 20
    daemon.accept = lambda client, submit: (
        len(submit.payload) < 100
    )  # the old worker must not take a large one yet
    daemon.kill_worker()
    results = [delivery.exception(10) for delivery in deliveries]
    assert [type(error) for error in results] == [
        type(None), errors.RecordTooLarge, type(None), errors.RecordTooLarge, type(None)
    ]  # fmt: skip
    refused = results[1]
    assert isinstance(refused, errors.RecordTooLarge) and refused.persistence == Persistence.NOT_PERSISTED
    producer.flush(10)
    producer.send("t", b"last").result(10)
    values = [
        record[1] for submit in daemon.received if len(submit.payload) < 100 for record in submit.records
    ]
    assert list(dict.fromkeys(values)) == [b"first", b"one", b"two", b"three", b"last"]


def test_a_worker_that_ends_every_connection_is_not_hammered_and_records_wait_no_longer_than_they_may(
    run_dir: Path,
) -> None:
    """A WELCOME is no progress by itself: what is sent behind it may be what ends the connection."""
    daemon = FakeDaemon(run_dir, limits={"max_request_size": 8 << 20})
    daemon.do(lambda: daemon.worker.setsockopt(zmq.MAXMSGSIZE, 200_000))
    daemon.do(daemon.rebind_worker)
    try:
        with Producer(run_dir, delivery_timeout_ms=1_000) as producer:
            producer.send("t", b"first").result(10)
            attached = len(daemon.attaches)
            error = producer.send("t", bytes(300_000)).exception(20)
            assert isinstance(error, errors.DaemonLost)
            assert len(daemon.attaches) - attached < 20
            producer.send("t", b"after").result(10)
    finally:
        daemon.stop()
