"""The compiled hot path and its twin in pure Python: the same bytes, the same calls, the same refusals."""

from __future__ import annotations

import inspect
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from client_stub import Producer, RecordMetadata, _native, errors, producer_core, pure
from client_stub.frames import HEADER_BYTES_MAX
from client_stub.packer import LARGE_BYTES, PLAIN_OVERHEAD_BYTES, full_record, packed_bound
from client_stub.wire import (
    SUBMISSION_BYTES_MAX,
    SUBMISSION_RECORDS_MAX,
    Outcome,
    OutcomeKind,
    Persistence,
    Shape,
    pack_outcome,
)
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import FakeDaemon

ROOT = Path(__file__).resolve().parents[2]
PURE = "KAFKA_SIDECAR_PURE_STUB"
RECORDS_MAX = 200

sizes = st.sampled_from([0, 1, 31, 32, 255, 256, 65_535, 65_536])
contents = st.none() | st.binary(max_size=40) | sizes.map(bytes)
names = st.text(max_size=20) | sizes.map(lambda size: "n" * size)
numbers = st.sampled_from([0, 127, 128, 255, 256, 65_535, 65_536])
records = st.builds(
    lambda *fields: full_record(*fields)[0],
    contents,
    contents,
    st.none() | st.lists(st.tuples(names, contents), max_size=20),
    st.none() | numbers | st.just((1 << 31) - 1),
    st.none() | numbers | st.sampled_from([(1 << 32) - 1, 1 << 32, (1 << 63) - 1]),
)


@pytest.fixture(params=[_native, pure], ids=["native", "pure"])
def path(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


@pytest.fixture
def often_switched() -> Iterator[None]:
    """Threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


# --- bytes ----------------------------------------------------------------------------------------------


@given(st.lists(records, max_size=8))
@example([full_record(None, None, [("h", None)] * 65_536, None, None)[0]])
def test_both_pack_the_same_bytes(some: list[Any]) -> None:
    packers = _native.RecordPacker(), pure.RecordPacker()
    for packer in packers:
        for record in some:
            packer.pack(record)
    assert bytes(packers[0].view()) == bytes(packers[1].view())
    _rows_agree(some, 0, 4 * SUBMISSION_BYTES_MAX)
    unpacker = msgpack.Unpacker(max_buffer_size=1 << 30)
    unpacker.feed(bytes(packers[0].view()))
    told = [_as_packed(record) for record in some]
    assert list(unpacker) == told


frames = st.lists(
    st.binary(max_size=40) | st.sampled_from([0, 255, 256, 4096, 4097, 65_536, 65_537]).map(bytes),
    min_size=1,
    max_size=5,
)


@given(frames)
@example([b""] * 65)
def test_both_make_the_same_message_of_frames(some: list[bytes]) -> None:
    made = [list(map(bytes, path.encode(some))) for path in (_native, pure)]
    assert made[0] == made[1]
    as_views = [memoryview(frame) for frame in some]
    assert list(map(bytes, _native.encode(as_views))) == made[0]


@given(
    frames,
    st.binary(max_size=20),
    st.none() | st.tuples(st.integers(1, 20), st.integers(0, 255)),
    st.integers(0, 300),
    st.sampled_from([1, 300, 1 << 30]),
)
@example([b"a"] * 64, b"", None, 0, 1 << 30)
@example([b"a"] * 65, b"", None, 0, 1 << 30)
def test_both_read_the_same_message_or_leave_it(
    some: list[bytes], behind: bytes, damage: tuple[int, int] | None, cut: int, most: int
) -> None:
    stream = bytearray(b"\x07" + b"".join(pure.encode(some)) + behind)
    if damage is not None and damage[0] < len(stream):
        stream[damage[0]] = damage[1]
    view, end = memoryview(stream), max(1, len(stream) - cut)
    found = [path.whole_message(view, 1, end, most) for path in (_native, pure)]
    assert found[0] == found[1]
    if damage is None and len(some) <= 64 and cut <= len(behind) and most == 1 << 30:
        assert (found[0] is None) == (len(some[0]) > HEADER_BYTES_MAX)
    if found[0] is not None and damage is None:
        assert [bytes(each) for each in found[0][0]] == some


u32, u64, i64 = (st.integers(0, (1 << bits) - 1) for bits in (32, 64, 63))
outcomes = st.builds(
    Outcome,
    *(st.sampled_from(kind) for kind in (OutcomeKind, Persistence, Shape)),
    *(u64, u32, st.integers(-1, 0xFFFF), u64, u32, u32, u32, i64 | st.just(-1), i64 | st.just(-1)),
    st.binary(max_size=20),
    st.text(max_size=20),
)


@given(
    st.lists(outcomes, max_size=4),
    st.none() | st.tuples(st.integers(0, 200), st.integers(0, 255)),
    st.integers(0, 70),
)
def test_both_read_the_same_outcomes(some: list[Outcome], damage: tuple[int, int] | None, cut: int) -> None:
    packed = bytearray(b"".join(map(pack_outcome, some)))
    if damage is not None and damage[0] < len(packed):
        packed[damage[0]] = damage[1]
    data = bytes(packed[: len(packed) - cut] if cut > 60 else packed)
    found: list[object] = []
    for path in (_native, pure):
        try:
            found.append(path.unpack_outcomes(data))
        except ValueError as error:
            found.append(str(error))
    assert found[0] == found[1]
    if damage is None and cut <= 60:
        assert found[0] == some
        assert all(type(each) is Outcome for each in _native.unpack_outcomes(memoryview(data)))


@given(st.sets(st.integers(0, 700), max_size=300))
def test_a_fate_tells_the_rank_of_each_record(members: set[int]) -> None:
    mask = sum(1 << member for member in members)
    for path in (_native, pure):
        fate = path.Fate(mask, "t", 0, 0, 0, None, None)
        ranks = {index: fate.rank(index) for index in range(-1, 800)}
        assert {index: rank for index, rank in ranks.items() if rank >= 0} == {
            member: rank for rank, member in enumerate(sorted(members))
        }


def test_the_first_fate_of_a_record_counts_and_gives_its_metadata(path: ModuleType) -> None:
    submission = path.SubmissionCore()
    error = errors.DeliveryFailed("expired")
    submission.fates = [
        path.Fate(0b0101, "t", 3, 70, 1_000, {2: 5}, None),
        path.Fate(0b1110, "t", 4, -1, 2_000, None, None),
        path.Fate(0b110000, "t", 4, -1, 2_000, None, error),
    ]
    assert [submission.find(index) for index in range(7)] == [
        (None, RecordMetadata("t", 3, 70, 1_000)),
        (None, RecordMetadata("t", 4, -1, 2_000)),
        (None, RecordMetadata("t", 3, 71, 5)),
        (None, RecordMetadata("t", 4, -1, 2_000)),
        (error, None),
        (error, None),
        None,
    ]
    assert all(type(submission.find(index)[1]) is RecordMetadata for index in range(4))


@given(st.lists(records, min_size=1, max_size=RECORDS_MAX), st.data())
def test_rows_fill_the_room_and_no_more(some: list[Any], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(some) - 1))
    room = data.draw(st.integers(0, 4_000))
    _rows_agree(some, start, room)


def test_what_is_no_record_is_refused_and_leaves_no_bytes_behind() -> None:
    packer = _native.RecordPacker()
    packer.pack((b"k", b"v"))
    before = bytes(packer.view())
    bad: list[Any] = [
        [b"k", b"v"], (b"k",), (b"k", "v"), (5, b"v"), (b"k", b"v", "h", None, None),
        (b"k", b"v", [("h",)], None, None), (b"k", b"v", [(b"h", b"")], None, None),
        (b"k", b"v", [("h", "")], None, None), (b"k", b"v", None, "1", None),
    ]  # fmt: skip
    for record in bad:
        with pytest.raises(TypeError):
            packer.pack(record)
        assert bytes(packer.view()) == before
        core = _core(_native, 1_000)
        assert core.append_rows([(b"a", b"b")], 0, None) == 1
        taken = core.room, core.count, bytes(core.packer.view())
        with pytest.raises(TypeError):
            core.append_rows([(b"a", b"b"), record], 0, None)
        assert (core.room, core.count, bytes(core.packer.view())) == taken
    with pytest.raises(OverflowError):
        packer.pack((b"k", b"v", None, None, -1))
    assert bytes(packer.view()) == before


def test_a_buffer_that_is_looked_at_neither_moves_nor_empties(path: ModuleType) -> None:
    packer = path.RecordPacker()
    packer.pack((None, b"v"))
    view = packer.view()
    with pytest.raises(BufferError):
        packer.reset()
    if path is _native:
        with pytest.raises(BufferError):
            packer.pack((None, bytes(1 << 20)))
    assert bytes(view) == msgpack.packb([None, b"v"])
    view.release()
    packer.reset()
    assert len(packer) == 0 and bytes(packer.view()) == b""


@pytest.mark.parametrize(
    ("rows", "plain"),
    [
        ([(b"k", b"v"), (None, None)], True),
        ([], False),
        ([(b"k", b"v"), [b"k", b"v"]], False),
        ([(b"k", b"v", None)], False),
        ([(b"k", "v")], False),
        ([(bytearray(b"k"), b"v")], False),
    ],
)
def test_plain_pairs_are_told_from_others(path: ModuleType, rows: list[Any], plain: bool) -> None:
    assert path.plain_pairs(rows) == ([] if plain else None)


def test_plain_pairs_that_are_large_are_named(path: ModuleType) -> None:
    fits = bytes(LARGE_BYTES - PLAIN_OVERHEAD_BYTES)
    rows = [(None, fits), (b"k", fits), (None, None), (fits, b"v"), (fits, None)]
    assert path.plain_pairs(rows) == [1, 3]


@given(st.lists(st.integers(0, 65_535), max_size=40))
def test_index_lists_become_the_same_mask(indexes: list[int]) -> None:
    data = b"".join(index.to_bytes(2, "little") for index in indexes)
    assert _native.mask_of_indexes(data) == pure.mask_of_indexes(data) == sum({1 << n for n in indexes})


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
        assert [(p.name, p.default, p.kind) for p in one] == [(p.name, p.default, p.kind) for p in other]
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
    assert len(pending) == 2 and max(submission.count for submission in pending) <= 65_535


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
    with pytest.raises(BlockingIOError):
        path.clear_wakes(waker)
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
        "sys.exit('client_stub.zmtp' not in sys.modules or 'zmq' in sys.modules or 'asyncio' in sys.modules)"
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
def test_all_of_this_passes_in_pure_python_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/stub"],
        cwd=ROOT,
        env=os.environ | {PURE: "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    probe = "from client_stub import Delivery; print(Delivery.__module__)"
    for value, module in (("1", "client_stub.pure"), ("0", "client_stub._native")):
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


def _core(path: ModuleType, room: int) -> Any:
    core = path.SubmissionCore()
    core.packer, core.room = path.RecordPacker(), room
    return core


def _rows_agree(some: list[Any], start: int, room: int) -> None:
    """Both take a run of the rows that fits, the same bytes as far as both go, and count what they took."""
    taken = []
    for path in (_native, pure):
        core = _core(path, room)
        count = core.append_rows(some, start, print)
        packed = bytes(core.packer.view())
        unpacker = msgpack.Unpacker(max_buffer_size=1 << 30)
        unpacker.feed(packed)
        assert list(unpacker) == [_as_packed(record) for record in some[start : start + count]]
        assert core.count == count and 0 <= core.room <= room - len(packed) - count
        assert core.callback is (print if count else None)
        if start + count < len(some):  # the next one had no room
            assert packed_bound(some[start + count]) > core.room
        taken.append(packed)
    shorter, longer = sorted(taken, key=len)
    assert longer.startswith(shorter)


@given(st.lists(records, max_size=40), st.integers(0, 4_000))
def test_plain_rows_are_taken_whole_or_not_at_all(some: list[Any], room: int) -> None:
    core, twin = _core(_native, room + 40), _core(_native, 1 << 20)
    for each in (core, twin):
        assert each.append_rows([(b"k", b"v")], 0, None) == 1
    before = core.room, core.count, bytes(core.packer.view())
    added = core.append_plain(some, None)
    if added == -1:
        assert (core.room, core.count, bytes(core.packer.view())) == before
        assert pure.plain_pairs(some) is None or sum(map(packed_bound, some)) > before[0]
    else:
        assert added == len(some) == twin.append_rows(some, 0, None)
        assert bytes(core.packer.view()) == bytes(twin.packer.view())
        assert core.count == twin.count and core.room >= 0


def test_plain_rows_join_only_what_gathers_for_the_same_callback() -> None:
    empty, other = _core(_native, 1_000), _core(_native, 1_000)
    assert empty.append_plain([(b"k", b"v")], None) == -1  # a first record may have to wake the io thread
    other.append_rows([(b"k", b"v")], 0, print)
    assert other.append_plain([(b"k", b"v")], None) == -1


@pytest.mark.parametrize("path", [_native, pure])
def test_rows_share_a_submission_only_with_the_same_callback(path: ModuleType) -> None:
    core = _core(path, 1_000)
    assert core.append_rows([(b"a", b"b")] * 3, 1, print) == 2
    assert core.append_rows([(b"a", b"b")], 0, None) == -1
    assert core.append_rows([(b"a", b"b")], 0, print) == 1
    core.append((b"c", None), 20, None, None)  # callbacks differ by record from here on
    assert core.append_rows([(b"a", b"b")], 0, print) == -1
    assert (core.count, core.callbacks) == (4, [print, print, print, None])


@pytest.mark.parametrize("path", [_native, pure])
def test_no_room_holds_more_records_than_a_submission_may_have(path: ModuleType) -> None:
    core = _core(path, SUBMISSION_BYTES_MAX)
    assert core.append_rows([(None, None)] * 70_000, 0, None) <= SUBMISSION_RECORDS_MAX


def _as_packed(record: Any) -> Any:
    if len(record) == 2:
        return list(record)
    key, value, headers, partition, timestamp_ms = record
    return [key, value, None if headers is None else [list(h) for h in headers], partition, timestamp_ms]
