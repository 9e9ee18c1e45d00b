"""One slot on a segment and a disk whose power can be cut: accept, end, crash of the host, next boot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgpack

from client_stub.contract.wire import LocalCode
from sidecar.kernel import Entry, entry_payload, fail_remaining, mark_failed_done
from sidecar.producer.lanes import IDEMPOTENT_LANE
from sidecar.shm.accept_log import AcceptLog, LogContents, read_log
from sidecar.shm.accept_log_format import BLOCK_BYTES
from sidecar.shm.buffer_pool import BufferPool
from sidecar.shm.chain_table import ChainTable
from sidecar.shm.recovery import take_over_pages
from sidecar.shm.restore import next_instance, restore
from sidecar.shm.segment import Segment
from sidecar.shm.submission_name import submission_name
from sidecar.worker.streams.session import StreamState
from sidecar.worker.streams.topic_queue import TopicQueue
from sidecar.worker.stubs.group_commit import GroupCommit
from tests.worker.power_disk import PowerDisk

TOPICS = ("a", "bb")
FILE_BYTES = 6 * BLOCK_BYTES
BASE_MS = 1_700_000_000_000


class Steps(Executor):
    """The committing thread, a piece of work at a time."""

    def __init__(self) -> None:
        self._work: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._work.append((future, lambda: fn(*args, **kwargs)))
        return future

    def step(self) -> bool:
        if not self._work:
            return False
        future, work = self._work.pop(0)
        try:
            result = work()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        return True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        while self.step():
            pass


class Loop:
    """The part of an event loop that a GroupCommit uses."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_soon_threadsafe(self, fn: Callable[..., None], *args: Any) -> None:
        self.calls.append(lambda: fn(*args))

    def run(self) -> None:
        while self.calls:
            self.calls.pop(0)()


class CrashHarness:
    """A worker's life on one segment and one disk. Submissions are told apart by a number in their payload."""

    def __init__(
        self, segment: Segment, disk: PowerDisk, incarnation: int, *, pending_bytes_max: int = 1 << 20
    ) -> None:
        self.segment, self.disk = segment, disk
        segment.prepare_slot(0)
        pages = take_over_pages(segment, 0, incarnation)
        slot = segment.slot(0)
        slot.claim(incarnation=incarnation)
        self.counters = slot.counters
        self.pool = BufferPool(segment, incarnation=incarnation, workers=1, slot=0)
        self.pool.adopt(sum(map(len, pages.values())))
        table = ChainTable(segment, 0, incarnation=incarnation)
        names = {name.chain_id: name for name in table.names()}
        for chain_id, own in pages.items():
            table.adopt(chain_id, names[chain_id].lane, names[chain_id].topic, own)
        self.queues: dict[str, TopicQueue] = {}
        self.streams: dict[str, StreamState] = {}
        for topic in TOPICS:
            chain = table.open(IDEMPOTENT_LANE, topic)
            assert chain is not None
            self.queues[topic] = TopicQueue(topic, IDEMPOTENT_LANE, chain)
            self.streams[topic] = StreamState(cast(Any, SimpleNamespace()), 1, self.queues[topic], 0)
        self.thread, self.loop = Steps(), Loop()
        self.commit = GroupCommit(
            loop=cast(asyncio.AbstractEventLoop, self.loop),
            accept_log=AcceptLog(disk, 0, segment.instance_id, FILE_BYTES),
            thread=self.thread,
            pending_bytes_max=pending_bytes_max,
            counters=self.counters,
            queues=self.queues.values(),
            turns=cast(Any, SimpleNamespace(wake=lambda: None)),
            on_accepted=self._accepted,
        )
        self.told: dict[str, int] = dict.fromkeys(TOPICS, 0)
        self.numbers: dict[tuple[str, int], int] = {}
        """(topic, seq) → the number in the payload."""
        self.names: dict[int, bytes] = {}
        """Names of all submissions that were ever in this segment."""
        self.live = {
            number_of(entry_payload(queue.chain, entry)): (queue, entry)
            for queue in self.queues.values()
            for entry in queue.chain.entries()
        }
        for number, (_, entry) in self.live.items():
            self._name(number, entry)
        self.commit.begin()

    def accept(self, topic: str, number: int, size: int, records: int) -> None:
        queue, stream = self.queues[topic], self.streams[topic]
        payload = payload_of(number, size, records)
        needed = queue.chain.pages_needed(records, len(payload))
        if needed:
            pages = self.pool.take(needed)
            if pages is None:
                return
            queue.chain.link_pages(pages)
        self.disk.note("sent", number)
        stream.position += 1
        entry = queue.chain.append(
            payload,
            count=records,
            client_row=0,
            client_generation=1,
            stream=1,
            seq=stream.position,
            base_timestamp_ms=BASE_MS,
            format=1,
            flags=0,
        )
        self.numbers[topic, stream.position] = number
        self.live[number] = queue, entry
        self._name(number, entry)
        self.commit.add(queue, stream, entry, payload)

    def end(self, number: int) -> None:
        """The submission's records have their end and are told."""
        queue, entry = self.live.pop(number)
        self.disk.note("ended", number)
        failed = fail_remaining(queue.chain, entry, int(LocalCode.ABORTED))
        mark_failed_done(queue.chain, entry, failed)
        self.commit.entries_ended(queue.chain, queue.topic)
        pages = queue.chain.release_pages()
        if pages:
            self.pool.give(pages)

    def _name(self, number: int, entry: Entry) -> None:
        self.names[number] = submission_name(self.segment.instance_id, 0, entry)

    def work(self) -> None:
        """A turn: what the thread has to do, and what the loop hears of it."""
        self.commit.step()
        self.thread.step()
        self.loop.run()

    def settle(self) -> None:
        self.commit.note_endings()
        for _ in range(50):
            self.work()

    def _accepted(self, streams: set[StreamState]) -> None:
        for stream in streams:
            topic = stream.topic_queue.topic
            for seq in range(self.told[topic] + 1, stream.accepted + 1):
                self.disk.note("accepted", self.numbers[topic, seq])
            self.told[topic] = stream.accepted


def payload_of(number: int, size: int, records: int) -> bytes:
    """Records that say whose they are in every byte, so that a torn one is not taken for a whole one."""
    value = (number << 16 | records).to_bytes(8, "big") * (1 + size // 8)
    return b"".join(msgpack.packb([None, value]) for _ in range(records))


def number_of(payload: Any) -> int:
    """The number of a whole submission; AssertionError for any other bytes."""
    data = bytes(payload)
    unpacker = msgpack.Unpacker()
    unpacker.feed(data)
    value = next(iter(unpacker))[1]
    mark = int.from_bytes(value[:8], "big")
    assert data == payload_of(mark >> 16, len(value) - 8, mark & 0xFFFF), "torn"
    return mark >> 16


def numbers_of(contents: LogContents) -> list[int]:
    return [number_of(entry.payload) for entry in contents.entries]


def check(found: Iterable[int], damage: list[str], notes: list[tuple[Any, ...]], known: set[int]) -> None:
    """No accepted one lost, none invented, none twice in the log, its order kept; ``known``: live at the start."""
    found = list(found)
    by_kind = {kind: {note[1] for note in notes if note[0] == kind} for kind in ("sent", "accepted", "ended")}
    assert not damage
    assert len(found) == len(set(found))
    lost = (by_kind["accepted"] | known) - by_kind["ended"] - set(found)
    assert not lost, f"accepted and lost: {sorted(lost)}"
    invented = set(found) - by_kind["sent"] - known
    assert not invented, f"never sent: {sorted(invented)}"


def boot(path: Path, image: dict[str, bytes]) -> tuple[Segment, PowerDisk, list[int]]:
    """The host starts again with this on its disk: segment from the log. Returns the numbers found, in order."""
    disk = PowerDisk(image)
    contents = read_log(disk, 0)
    segment, restored = restore(
        path,
        {0: contents},
        page_bytes=4096,
        buffer_memory_bytes=64 * 4096,
        clients_max=4,
        instance_id=next_instance(contents.instance_id or bytes(16)),
    )
    assert restored.submissions == len(contents.entries) and not restored.damage
    assert restored.records == sum(entry.records for entry in contents.entries)
    if contents.entries:
        counted = segment.slot(0).counters.get("records_resent_unknown_total")
        assert counted == restored.records, "what may be doubled is counted"
    return segment, disk, numbers_of(contents)
