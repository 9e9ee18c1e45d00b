"""The compiled hot path and its twin in pure Python: the same bytes, the same calls, the same refusals."""

from __future__ import annotations

import inspect
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_stub import Producer, RecordMetadata, errors
from client_stub.engine import producer_core
from client_stub.native import _native, pure
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import FakeDaemon
from tests.stub.records.packed_records import RECORDS_MAX

ROOT = Path(__file__).resolve().parents[3]
PURE = "KAFKA_SIDECAR_PURE_STUB"
BOTH = (
    "--ignore=tests/stub/native/test_native_outcomes.py",
    "--ignore=tests/stub/native/test_native_records.py",
    "--deselect=tests/stub/engine/test_interleavings.py::test_without_the_compiled_module",
)


@pytest.fixture
def often_switched() -> Iterator[None]:
    """Threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


# --- submissions and callbacks --------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 2), st.none() | st.integers(0, 99), st.integers(17, 60)), max_size=20)
)
def test_both_note_the_same_callbacks_and_timestamps(steps: list[tuple[int, int | None, int]]) -> None:
    known = [None, lambda error, metadata: 1, lambda error, metadata: 2]
    cores = []
    for path in (_native, pure):
        core = path.SubmissionCore()
        core.packer, core.room = path.RecordPacker(), 400
        indexes = [core.append((None, b"v"), size, known[which], own) for which, own, size in steps]
        cores.append((indexes, core.room, core.count, core.callback, core.callbacks, core.timestamps))
    assert cores[0] == cores[1]


def _called(path: ModuleType, core: Any, mask: int, news: int, base: int, own: Any, error: Any) -> list[Any]:
    log: list[Any] = []
    kept: list[Any] = []

    def callback_of(number: int) -> Any:
        def callback(failure: Any, metadata: Any) -> None:
            log.append((number, failure, None if metadata is None else tuple(metadata)))
            if number % 3 == 0:
                kept.append((metadata, log[-1][2]))
            if number % 5 == 0:
                raise ValueError(number)

        return callback

    submission = path.SubmissionCore()
    if core is None:
        submission.callback = callback_of(7)
    else:
        submission.callbacks = [None if number is None else callback_of(number) for number in core]

    def failed() -> None:
        log.append(("failed", repr(sys.exception())))

    fate = path.Fate(mask, "t", 3, base, 1_000, own, error)
    path.run_callbacks(submission, fate, news, failed)
    assert [tuple(metadata) for metadata, _ in kept if metadata is not None] == [
        was for metadata, was in kept if metadata is not None
    ]
    assert all(type(metadata) is RecordMetadata for metadata, _ in kept if metadata is not None)
    return log


@given(st.data())
def test_both_call_back_the_same_records_with_the_same_places(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, RECORDS_MAX))
    mask = data.draw(st.integers(1, (1 << count) - 1) | st.just((1 << count) - 1))
    news = (mask & data.draw(st.integers(0, (1 << count) - 1))) or mask
    core = data.draw(st.none() | st.lists(st.none() | st.integers(0, 99), min_size=count, max_size=count))
    base = data.draw(st.sampled_from([-1, 0, 5, 1 << 40]))
    own = data.draw(st.none() | st.dictionaries(st.integers(0, count), st.integers(0, 1 << 50)))
    error = data.draw(st.sampled_from([None, errors.error_for(19)]))
    logs = [_called(path, core, mask, news, base, own, error) for path in (_native, pure)]
    assert logs[0] == logs[1]


def test_what_is_no_exception_ends_the_loop_only_if_it_is_raised_again(path: ModuleType) -> None:
    told: list[Any] = []

    def leave(error: Any, metadata: Any) -> None:
        told.append(metadata.offset)
        raise SystemExit

    def failed() -> None:
        told.append("failed")
        if told[-2] == 1:
            raise  # noqa: PLE0704  of the handler that calls

    submission = path.SubmissionCore()
    submission.callback = leave
    with pytest.raises(SystemExit):
        path.run_callbacks(submission, path.Fate(7, "t", 0, 0, 0, None, None), 7, failed)
    assert told == [0, "failed", 1, "failed"]


def test_metadata_that_callbacks_keep_stays_what_it_was(producer: Producer) -> None:
    kept: list[RecordMetadata] = []

    def keep_some(error: Any, metadata: Any) -> None:
        if metadata.offset % 3:
            kept.append(metadata)

    for _ in range(1_000):
        producer.send("t", b"v", on_delivery=keep_some)
    producer.flush(10)
    assert [metadata.offset for metadata in kept] == [n for n in range(1_000) if n % 3]


# --- the whole ------------------------------------------------------------------------------------------


def test_both_look_alike_to_a_reader() -> None:
    for mine, twin in (
        (_native.ProducerCore.send, producer_core.ProducerCore.send),
        (_native.Delivery.result, pure.Delivery.result),
        (_native.Delivery.exception, pure.Delivery.exception),
        (_native.Delivery.done, pure.Delivery.done),
        (_native.Delivery.add_done_callback, pure.Delivery.add_done_callback),
    ):
        assert inspect.getdoc(mine) == inspect.getdoc(twin)
        one, other = (inspect.signature(each).parameters.values() for each in (mine, twin))
        assert [(p.name, p.default, p.kind) for p in one] == [
            (p.name, p.default, p.kind)
            for p in other
            if p.name != "others"  # the compiled one finds these after the call
        ]
    assert _native.Delivery.__doc__ == pure.Delivery.__doc__


@pytest.mark.usefixtures("often_switched")
def test_senders_without_a_lock_lose_and_mix_nothing(producer: Producer, daemon: FakeDaemon) -> None:
    """Plain records, full ones, send_many() and own callbacks, from many threads while the io thread seals."""
    told: list[list[tuple[bytes, int]]] = [[] for _ in range(6)]
    futures: list[list[tuple[bytes, Any]]] = [[] for _ in range(6)]

    def run(number: int) -> None:
        for n in range(1_500):
            value = b"%d-%d" % (number, n)

            def own(error: Any, metadata: Any, value: bytes = value) -> None:
                told[number].append((value, metadata.offset))

            if n % 50 == 0:
                producer.send_many("t", [(None, value)], on_delivery=own)
            elif n % 7 == 0:
                futures[number].append(
                    (value, producer.send("t", value, timestamp_ms=n, headers=[("h", b"x")], on_delivery=own))
                )
            else:
                futures[number].append((value, producer.send("t", value, on_delivery=own)))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush(30)
    arrived = [bytes(record[1]) for submit in daemon.received for record in submit.records]
    assert len(arrived) == 6 * 1_500
    for number in range(6):
        values = [b"%d-%d" % (number, n) for n in range(1_500)]
        assert [value for value in arrived if value.startswith(b"%d-" % number)] == values
        assert [value for value, _ in told[number]] == values
        assert all(arrived[offset] == value for value, offset in told[number])
        assert all(arrived[future.result(1).offset] == value for value, future in futures[number])
        assert all(
            future.result(1).timestamp_ms == int(value.split(b"-")[1])
            for value, future in futures[number]
            if int(value.split(b"-")[1]) % 7 == 0
        )


def test_the_room_of_a_submission_is_kept_by_senders_without_a_lock(
    producer: Producer, daemon: FakeDaemon
) -> None:
    producer.send("t", b"first").result(10)
    daemon.stop()
    eventually(lambda: producer._outbox.last_word)
    for _ in range(70_000):
        producer.send("t")
    pending = producer._outbox.pending
    eventually(lambda: sum(submission.count for submission in list(pending)) == 70_000)
    assert len(pending) >= 2, "more when a busy machine takes long: a submission is closed after a second"
    assert max(submission.count for submission in pending) <= 65_535


def test_a_large_record_is_measured_though_there_is_room(run_dir: Path) -> None:
    daemon = FakeDaemon(run_dir, limits={"max_request_size": 100_000})
    producer = Producer(run_dir)
    producer.send("t", b"first").result(10)
    daemon.stop()
    eventually(lambda: producer._outbox.last_word)
    producer.send("t", b"opens a submission")
    with pytest.raises(errors.RecordTooLarge):
        producer.send("t", bytes(200_000))
    pending = producer._outbox.pending
    eventually(lambda: sum(submission.count for submission in list(pending)) == 1)
    producer.close(0)


def test_calls_on_descriptors_say_what_happened(path: ModuleType) -> None:
    waker = os.eventfd(0, os.EFD_NONBLOCK)
    path.write_wake(waker)
    path.write_wake(waker)
    path.clear_wakes(waker)
    assert not select.select([waker], [], [], 0)[0]
    path.clear_wakes(waker)  # after a wake-up that another reader has taken
    os.close(waker)
    for call in (path.write_wake, path.clear_wakes):
        with pytest.raises(OSError, match="Bad file descriptor"):
            call(waker)
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        room = bytearray(8)
        with pytest.raises(BlockingIOError):
            path.receive(near.fileno(), memoryview(room))
        far.send(b"news")
        assert path.receive(near.fileno(), memoryview(room)[2:]) == 4
        assert room == b"\0\0news\0\0"
        with pytest.raises((BufferError, TypeError)):
            path.receive(near.fileno(), memoryview(bytes(8)))
        far.close()
        assert path.receive(near.fileno(), memoryview(room)) == 0


def test_importing_the_package_brings_all_it_needs_but_opens_nothing() -> None:
    script = (
        "import sys, threading, os, client_stub\n"
        "assert threading.active_count() == 1\n"
        "links = [os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if n != '3']\n"
        "assert not any('eventfd' in link or 'socket' in link for link in links), links\n"
    )
    # A parent that preloads it pays for all forked children; libzmq and asyncio would be most of a small client.
    imported = (
        "import sys, client_stub\n"
        "sys.exit('client_stub.zmtp.connection' not in sys.modules or 'zmq' in sys.modules or 'asyncio' in sys.modules)"
    )
    for program in (script, imported):
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.skipif(os.environ.get(PURE) == "1", reason="this is the run in pure Python")
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_of_this_passes_in_pure_python_too() -> None:
    """All but what runs in pure Python anyway: tests that compare the two, and one that starts this run for itself."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/stub", *BOTH],
        cwd=ROOT,
        env=os.environ | {PURE: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    probe = "from client_stub import Delivery; print(Delivery.__module__)"
    for value, module in (("1", "client_stub.native.pure"), ("0", "client_stub.native._native")):
        seen = subprocess.run(
            [sys.executable, "-c", probe],
            cwd=ROOT,
            env=os.environ | {PURE: value},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert seen.stdout.strip() == module
