"""An exception at any byte code that callers run: what was sent stays sent, later records go on, nothing is doubled.

A signal handler may raise between any two byte codes of the main thread, and PyThreadState_SetAsyncExc in any thread.
Each scenario is gone through once for every byte code that it runs, with an exception there.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import client_stub
from client_stub import Producer, errors
from client_stub.contract.wire import Kind
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import FakeDaemon

pa = pytest.importorskip("pyarrow")

STUB = str(Path(client_stub.__file__).parent)
WAIT_S = 10.0
OPCODES_MAX = 5_000
"""More than any of the scenarios runs; the last one has to end without an exception."""


class Interrupted(BaseException):
    """The exception of a handler."""


def interrupted_at(number: int, action: Callable[[], object]) -> bool:
    """Run ``action`` with an exception before its ``number``-th byte code in the stub; False: it has fewer."""
    left = number

    def at_opcode(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if event == "opcode":
            left -= 1
            if not left:
                raise Interrupted
        return at_opcode

    def at_call(frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(STUB) or code.co_name == "__del__":
            return None  # what a finalizer raises reaches nobody
        frame.f_trace_opcodes = True
        return at_opcode

    before = sys.gettrace()  # of who measures coverage
    sys.settrace(at_call)
    try:
        action()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return left <= 0


@pytest.fixture
def column_daemon(run_dir: Path) -> Iterator[FakeDaemon]:
    fake = FakeDaemon(run_dir, limits={"max_request_size": 1 << 20, "formats": 6})
    yield fake
    fake.stop()


def _values(daemon: FakeDaemon, topic: str) -> list[bytes]:
    """Records of ``topic`` that the daemon has accepted, in order."""
    return [
        bytes(record[1]) for submit in daemon.received if submit.topic == topic for record in submit.records
    ]


def _told(calls: list[bytes], value: bytes) -> Callable[[Any, Any], object]:
    return lambda error, metadata: calls.append(value)


def _send(producer: Producer, topic: str, value: bytes, calls: list[bytes]) -> None:
    producer.send(topic, value, on_delivery=_told(calls, value))


def _send_full(producer: Producer, topic: str, value: bytes, calls: list[bytes]) -> None:
    producer.send(topic, value, b"k", [("h", b"x")], 0, 5, _told(calls, value))


def _send_large(producer: Producer, topic: str, value: bytes, calls: list[bytes]) -> None:
    producer.send(topic, value.ljust(100_000), on_delivery=_told(calls, value))


def _send_many(producer: Producer, topic: str, value: bytes, calls: list[bytes]) -> None:
    producer.send_many(topic, [(None, value), (None, b"second")], on_delivery=_told(calls, value))


def _send_many_full(producer: Producer, topic: str, value: bytes, calls: list[bytes]) -> None:
    producer.send_many(topic, [(None, value, None, 0, 7)], on_delivery=_told(calls, value))


def _send_and_wait(producer: Producer, topic: str, value: bytes, calls: list[bytes]) -> None:
    producer.send(topic, value, on_delivery=_told(calls, value)).result(WAIT_S)


def _send_and_flush(producer: Producer, topic: str, value: bytes, calls: list[bytes]) -> None:
    producer.send(topic, value, on_delivery=_told(calls, value))
    producer.flush(WAIT_S)


def _send_and_flush_accepted(producer: Producer, topic: str, value: bytes, calls: list[bytes]) -> None:
    producer.send_many(topic, [(None, value)], on_delivery=_told(calls, value)).result(WAIT_S)
    producer.flush(WAIT_S, until="accepted")


SCENARIOS = {
    "send": _send,
    "send of all fields": _send_full,
    "send of a large record": _send_large,
    "send_many": _send_many,
    "send_many of all fields": _send_many_full,
    "result": _send_and_wait,
    "flush": _send_and_flush,
    "flush until accepted": _send_and_flush_accepted,
}


@pytest.mark.slow
@pytest.mark.parametrize("fresh_topic", [False, True], ids=["known topic", "new topic"])
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_an_exception_at_any_byte_code_costs_at_most_its_own_record(
    producer: Producer, daemon: FakeDaemon, scenario: Callable[..., None], fresh_topic: bool
) -> None:
    calls: list[bytes] = []
    producer.send("t", b"warm").result(WAIT_S)
    for number in range(1, OPCODES_MAX):
        topic = f"t{number}" if fresh_topic else "t"
        before = [] if fresh_topic else [producer.send(topic, b"before-%d" % number)]
        value = b"interrupted-%d" % number
        seen = len(daemon.received)
        goes_on = interrupted_at(number, partial(scenario, producer, topic, value, calls))
        after = producer.send(topic, b"after-%d" % number)
        after.result(WAIT_S)
        producer.flush(WAIT_S)
        assert all(delivery.done() for delivery in before)
        arrived = [
            bytes(record[1]).rstrip()
            for submit in daemon.received[seen - 1 if seen else 0 :]
            for record in submit.records
            if submit.topic == topic
        ]
        assert arrived.count(b"after-%d" % number) == 1
        assert arrived.count(value) == calls.count(value) // (2 if scenario is _send_many else 1) <= 1
        if value in arrived:
            assert arrived.index(value) < arrived.index(b"after-%d" % number)
        if not goes_on:
            assert value in arrived
            return
    pytest.fail("the scenario has more byte codes than OPCODES_MAX")


@pytest.mark.slow
def test_an_exception_at_any_byte_code_of_the_first_send_leaves_a_producer_that_works(
    daemon: FakeDaemon,
) -> None:
    for number in range(1, OPCODES_MAX):
        producer = Producer(daemon.run_dir)
        goes_on = interrupted_at(number, partial(producer.send, "t", b"first-%d" % number))
        producer.send("t", b"after-%d" % number).result(WAIT_S)
        producer.close(WAIT_S)
        if not goes_on:
            break
    counts = Counter(_values(daemon, "t"))
    assert set(counts.values()) == {1}
    assert all(counts[b"after-%d" % each] == 1 for each in range(1, number + 1))
    assert counts[b"first-%d" % number] == 1


@pytest.mark.slow
def test_an_exception_at_any_byte_code_of_close_leaves_the_rest_to_the_next_close(daemon: FakeDaemon) -> None:
    for number in range(1, OPCODES_MAX):
        producer = Producer(daemon.run_dir)
        deliveries = [producer.send("t", b"%d-%d" % (number, each)) for each in range(3)]
        goes_on = interrupted_at(number, producer.close)
        producer.close(WAIT_S)
        assert all(delivery.exception(0) is None for delivery in deliveries)
        with pytest.raises(errors.ProducerClosed):
            producer.send("t", b"too late")
        if not goes_on:
            break
    assert set(Counter(_values(daemon, "t")).values()) == {1}
    eventually(lambda: len(daemon.byes) == number)
    assert not any(daemon.byes)


def test_an_exception_while_send_waits_for_room_leaves_nobody_behind(
    producer: Producer, daemon: FakeDaemon
) -> None:
    producer.send("t", b"first").result(WAIT_S)
    daemon.accept = lambda client, submit: False
    producer.send("t", b"holds")
    eventually(lambda: len(daemon.received) == 2)
    outbox = producer._engine.outbox
    outbox.buffer_bytes, outbox.max_block_ms = 1, 3
    for number in range(1, OPCODES_MAX):
        try:
            assert interrupted_at(number, partial(producer.send, "u", b"waits-%d" % number))
        except errors.BufferExhausted:
            break
    daemon.accept = lambda client, submit: True
    daemon.kill_worker()
    outbox.max_block_ms = 1e3 * WAIT_S
    producer.send("u", b"after").result(WAIT_S)
    assert _values(daemon, "u") == [b"after"]
    assert not outbox.waiters._locks


@pytest.mark.slow
def test_an_exception_at_any_byte_code_of_send_arrow_queues_whole_blocks_or_none(
    column_daemon: FakeDaemon,
) -> None:
    with Producer(column_daemon.run_dir) as producer:
        producer.send("t", b"warm").result(WAIT_S)
        for number in range(1, OPCODES_MAX):
            table = pa.table({"value": [b"a", b"b", b"c"]})
            seen = len(column_daemon.received)
            goes_on = interrupted_at(number, partial(producer.send_arrow, "a", table))
            producer.flush(WAIT_S)
            blocks = column_daemon.received[seen:]
            assert [submit.count for submit in blocks] in ([], [3])
            producer.send_arrow("a", table).result(WAIT_S)
            if not goes_on:
                assert len(blocks) == 1
                return
    pytest.fail("send_arrow has more byte codes than OPCODES_MAX")


@pytest.mark.parametrize("is_commit", [True, False])
def test_calls_of_transactions_can_be_made_again(run_dir: Path, is_commit: bool) -> None:
    """Also after an exception in its last step a call holds up no later one, and none waits for ever."""
    daemon = FakeDaemon(run_dir)
    try:
        with Producer(run_dir, transactional_id="t") as producer:
            producer.init_transactions(WAIT_S)
            ends = producer.commit_transaction if is_commit else producer.abort_transaction

            def whole() -> None:
                producer.begin_transaction()
                producer.send_offsets_to_transaction({("in", 0): 1}, "group", WAIT_S)
                ends(WAIT_S)

            for number in count(1):
                is_interrupted = interrupted_at(number, whole)
                transactions = producer._engine.transactions
                if transactions.unanswered_end is not None:
                    ends(WAIT_S)
                elif transactions.is_open:
                    producer.abort_transaction(WAIT_S)
                with producer.transaction():
                    producer.send("orders", b"x")
                if not is_interrupted:
                    break
                assert number < OPCODES_MAX
    finally:
        daemon.stop()
    ended = {tuple(each[1:3]) for each in daemon.txn_frames if each[0] == Kind.TXN_END}
    assert len({number for number, _ in ended}) == len(ended), "no transaction was both committed and aborted"
    assert {each.transaction for each in daemon.received} <= {number for number, commits in ended if commits}


def test_init_can_be_made_again(run_dir: Path) -> None:
    daemon = FakeDaemon(run_dir)
    try:
        kept = []  # so that none is collected in the midst of another one's call
        for number in count(1, 7):
            with Producer(run_dir, transactional_id="t") as producer:
                kept.append(producer)
                is_interrupted = interrupted_at(number, partial(producer.init_transactions, WAIT_S))
                with contextlib.suppress(errors.TransactionStateError):
                    producer.init_transactions(WAIT_S)
                with producer.transaction():
                    producer.send("orders", b"x")
            if not is_interrupted:
                break
            assert number < OPCODES_MAX
    finally:
        daemon.stop()
