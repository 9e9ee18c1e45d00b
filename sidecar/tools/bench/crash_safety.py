"""The cost of surviving kill -9 for one record: every step that is needed only for that, measured alone.

The steps run on a real segment under /dev/shm in the worker's own code, without network, sockets and peers. Their sum
is compared with the time of a record end to end.
"""

from __future__ import annotations

import os
import secrets
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgpack

from client_stub.contract.wire import CLIENT_ID_BYTES, SECRET_BYTES, OutcomeKind, Persistence, SubmitFlag
from sidecar.kernel import PAGE_TAKEN, BatchRecords, Chain, Entry, StickyPartitioner, index
from sidecar.shm.client_table import ClientTable
from sidecar.shm.descriptor_states import DescriptorEvent
from sidecar.shm.descriptors import DescriptorTable
from sidecar.shm.segment import Segment
from sidecar.tools.bench.bed import PARTITIONS, Bed
from sidecar.tools.bench.measurement import Results
from sidecar.tools.bench.throughput import measure_throughput
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.waiting import wait_until

SECTION: Final = "crash-safety"
KIND: Final = "sidecar-send-many"
COST_MAX: Final = 0.10
RECORDS: Final = 1_000
SUBMISSIONS: Final = 100
RECORD_BYTES: Final = 128
"""About the bytes of a record of 100 + 16 bytes in a batch."""
PAGE_BYTES: Final = 16_384
INDEX_BYTES_MAX: Final = 1 << 20


@dataclass(eq=False)
class _SentBatch:
    """A batch as the table of descriptors sees it."""

    partition: int
    records: BatchRecords
    chain: Chain | None
    descriptor: int = -1
    lane: int = 0
    producer_id: int = 1
    epoch: int = 0
    base_sequence: int = 0
    doubtful_parent: object = None
    was_in_doubt: bool = False


class CrashSafetyWalk:
    """The steps over one segment, in the worker's order. Each round makes a new one."""

    def __init__(self, segment: Segment, batch_bytes: int) -> None:
        self._batch_bytes = batch_bytes
        segment.prepare_slot(0)
        segment.slot(0).claim(incarnation=1)
        # A daemon's pages were touched long ago, so their first mapping is not a record's cost.
        segment.pages[::4096] = bytes(len(segment.pages[::4096]))
        for page in range(segment.page_count):
            struct.pack_into("<II", segment.owners, 8 * page, PAGE_TAKEN, 1)
        self._chain = Chain(
            segment.pages, PAGE_BYTES, 0, 0, bytearray(8), incarnation=1, owners=segment.owners
        )
        self._chain.link_pages(range(segment.page_count))
        self._descriptors = DescriptorTable(segment, 0)
        row = ClientTable(segment).take_row(
            secrets.token_bytes(CLIENT_ID_BYTES), "bench", os.getpid(), 0, secrets.token_bytes(SECRET_BYTES)
        )
        assert row is not None
        self._row = row
        value = b"v" * 100
        self._payload = b"".join(msgpack.packb([b"key-%012d" % (i % 997), value]) for i in range(RECORDS))
        self._entries: list[Entry] = []
        self._batches: list[tuple[int, BatchRecords]] = []
        self._outcomes: list[bytes] = []
        self._taken: list[int] = []

    def run(self) -> dict[str, float]:
        """Nanoseconds per record of each step."""
        spent = {"copy": _timed(self._accept)}
        self._gather()
        spent["descriptors"] = _timed(self._publish)
        spent["descriptors"] += _timed(self._settle)
        self._pack_outcomes()
        spent["outcome ring"] = _timed(self._tell)
        # Marking a word done writes it as giving it its partition did, inside a walk that does much else.
        spent["words"] = 2 * _timed(self._mark)
        spent["descriptors"] += _timed(self._free)
        assert self._chain.live_entries == 0
        return {name: seconds * 1e9 / (RECORDS * SUBMISSIONS) for name, seconds in spent.items()}

    def _accept(self) -> None:
        """Fact 1: the frame is copied into the journal, then the tail moves."""
        for seq in range(1, SUBMISSIONS + 1):
            self._entries.append(
                self._chain.append(
                    self._payload,
                    count=RECORDS,
                    client_row=self._row.index,
                    client_generation=self._row.generation,
                    stream=1,
                    seq=seq,
                    base_timestamp_ms=1_700_000_000_000,
                    format=1,
                    flags=SubmitFlag.WANT_INDEXES,
                )
            )

    def _gather(self) -> None:
        """Not part of crash safety: any producer finds the partition and fills its batch."""
        partitioner = StickyPartitioner(PARTITIONS, range(PARTITIONS), self._batch_bytes, 1)
        open_batches: dict[int, BatchRecords] = {}
        for entry in self._entries:
            block = index(self._chain, entry, partitioner, INDEX_BYTES_MAX)
            for partition, start, stop in block.groups:
                at = start
                while at < stop:
                    batch = open_batches.get(partition)
                    if batch is None:
                        batch = open_batches[partition] = BatchRecords()
                        self._batches.append((partition, batch))
                    at += batch.try_append(block, at, stop, self._batch_bytes)
                    if at < stop:
                        del open_batches[partition]

    def _publish(self) -> None:
        """Fact 2: sent under."""
        for partition, batch in self._batches:
            sent = _SentBatch(partition, batch, self._chain)
            assert self._descriptors.publish((sent,), 0)
            self._taken.append(sent.descriptor)

    def _settle(self) -> None:
        """Fact 3: done."""
        for number in self._taken:
            self._descriptors.store_outcome(number, code=0, base_offset=0, append_time_ms=-1)

    def _pack_outcomes(self) -> None:
        """Not part of crash safety: a client needs its outcomes, wherever they are kept."""
        first = self._row.next_number
        for partition, batch in self._batches:
            for piece in range(batch.slice_count):
                self._outcomes.append(
                    batch.outcomes(
                        piece,
                        number=first + len(self._outcomes),
                        kind=OutcomeKind.DELIVERED,
                        persistence=Persistence.PERSISTED,
                        code=0,
                        partition=partition,
                        base_offset=0,
                        append_time_ms=-1,
                    )
                )

    def _tell(self) -> None:
        """Put the outcomes into the client's ring, take them out into a frame, and acknowledge them."""
        for outcome in self._outcomes:
            if not self._row.ring_append(outcome):
                self._acknowledge()
                assert self._row.ring_append(outcome), "a ring has room for one outcome"
        self._acknowledge()

    def _acknowledge(self) -> None:
        row = self._row
        row.ring_slice_from(row.acked_number + 1)
        row.ring_ack(row.next_number - 1)

    def _mark(self) -> None:
        for _, batch in self._batches:
            batch.mark_done()

    def _free(self) -> None:
        for number in self._taken:
            self._descriptors.step(DescriptorEvent.RELEASE, number)
            self._descriptors.step(DescriptorEvent.FREE, number)


def measure_crash_safety(bed: Bed, results: Results) -> None:
    """Measure the steps alone, and their share of a record's time with send_many(), our fastest way end to end.

    The costs of a batch are divided by the number of records that a batch had in the same run.
    """
    before = _sent(bed)
    measure_throughput(bed, results, section=SECTION, kinds=(KIND,))
    records, batches = (now - then for now, then in zip(_sent(bed), before, strict=True))
    results.add(SECTION, "records a batch", KIND, "", [records / batches])
    with bed.steps.step("Crash-safety: its steps alone, nanoseconds a record"):
        rounds = measure_steps(bed.rounds, int(records / batches * RECORD_BYTES))
    for name in rounds[0]:
        results.add(SECTION, name, "sidecar", "ns", [each[name] for each in rounds])
    results.add(SECTION, "all steps", "sidecar", "ns", [sum(each.values()) for each in rounds])
    rate = results.find(SECTION, "acked records/s", KIND)
    cpu = results.find(SECTION, "total CPU a record", KIND)
    assert rate is not None
    assert cpu is not None
    results.add(SECTION, "a record end to end, time", KIND, "ns", [1e9 / each for each in rate.values])
    results.add(SECTION, "a record end to end, CPU", KIND, "ns", [1e3 * each for each in cpu.values])
    for what in ("time", "CPU"):
        results.compare(
            f"crash-safety's share of a record's {what}, send_many() end to end",
            (SECTION, "all steps", "sidecar"),
            (SECTION, f"a record end to end, {what}", KIND),
            at_most=COST_MAX,
        )


def measure_steps(rounds: int, batch_bytes: int) -> list[dict[str, float]]:
    """Nanoseconds per record by step, one entry per round."""
    found = []
    for _ in range(rounds):
        with _segment() as segment:
            found.append(CrashSafetyWalk(segment, batch_bytes).run())
    return found


def _sent(bed: Bed) -> tuple[float, float]:
    """(records delivered, batches sent) so far by the daemon's counters; it publishes the latter once a second."""
    daemon = bed.site.daemon
    seen: tuple[float, float] | None = None

    def unchanged() -> tuple[float, float] | None:
        nonlocal seen
        before, seen = (
            seen,
            (
                metric(daemon, "kafka_sidecar_records_delivered_total"),
                metric(daemon, "kafka_sidecar_batches_sent_total"),
            ),
        )
        return seen if seen == before else None

    return wait_until(unchanged, "the daemon's counters to stand still", interval_s=2.5)


@contextmanager
def _segment() -> Iterator[Segment]:
    path = Path("/dev/shm") / f"kafka-sidecar-bench-{os.getpid()}"
    segment = Segment.create(
        path,
        page_bytes=PAGE_BYTES,
        buffer_memory_bytes=32 << 20,
        clients_max=16,
        instance_id=b"bench",
    )
    try:
        yield segment
    finally:
        segment.close()
        path.unlink()


def _timed(work: Callable[[], Any]) -> float:
    """CPU seconds of ``work``: no step waits, and other processes on the machine must not count."""
    start = time.thread_time()
    work()
    return time.thread_time() - start
