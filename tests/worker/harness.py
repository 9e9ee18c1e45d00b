"""A worker's insides on a real segment and the compiled kernel, without sockets: what tests of this room share."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import msgpack

from client_stub.contract.wire import Outcome, SubmitFlag
from sidecar.kernel import BatchRecords, Chain, Entry, StickyPartitioner, index
from sidecar.producer.batch_states import BatchState
from sidecar.producer.config import ProducerConfig
from sidecar.producer.lanes import IDEMPOTENT_LANE
from sidecar.producer.partition_queue import PartitionQueue
from sidecar.producer.producer_batch import ProducerBatch
from sidecar.producer.topic_settings import TopicRules
from sidecar.shm.client_table import ClientRow
from sidecar.shm.segment import Segment
from sidecar.worker.streams.session import ClientSession
from tests.configs import DEFAULTS, producer_config
from tests.outcomes import unpack_outcomes

from .manual_worker import EPOCH, KEY, ManualWorker

INCARNATION = 5
GRACE_MS = DEFAULTS["daemon.client_grace_s"] * 1000


class Harness:
    """One slot, one topic ``t`` of six partitions, any number of clients."""

    def __init__(
        self,
        path: Path,
        config: ProducerConfig | None = None,
        patterns: dict[str, dict[str, Any]] | None = None,
        pool_bytes: int = 1 << 20,
        **real: Any,
    ) -> None:
        """``real``: loop, clock and links for ManualWorker, in place of those that are moved by hand."""
        self.segment = Segment.create(
            path, page_bytes=16_384, buffer_memory_bytes=pool_bytes, clients_max=16, instance_id=b"test"
        )
        self.worker = ManualWorker(
            self.segment,
            incarnation=INCARNATION,
            config=config,
            patterns=patterns,
            spool=path.parent / "spool",
            **real,
        )
        self.rooms = rooms = self.worker.rooms
        memory = rooms.memory
        self.counters, self.pool, self.chain_table = memory.counters, memory.pool, memory.chain_table
        self.descriptors = memory.descriptors
        self.sessions, self.outboxes = rooms.stubs.sessions, rooms.stubs.outboxes
        self.acker, self.settlement = rooms.acker, rooms.settlement
        chain = self.chain_table.open(IDEMPOTENT_LANE, "t")
        assert chain is not None
        self.chain: Chain = chain
        self.flags = int(SubmitFlag.WANT_INDEXES)
        """Of the entries that are accepted."""
        self.partitioner = StickyPartitioner(6, range(6), 1 << 20, 1)
        self.sequence = 0

    def close(self) -> None:
        self.segment.close()

    def client(self, name: str = "client") -> ClientSession:
        """Attach one client as a stub would."""
        from sidecar.common.tickets import attach_ticket

        client_id = secrets.token_bytes(20)
        ticket = attach_ticket(KEY, client_id, name, EPOCH)
        fields = [1, client_id, name, 1234, EPOCH, ticket, None]
        session, _ = self.sessions.attach(secrets.token_bytes(5), fields, 0.0)
        session.row.place_stream(1, self.chain.chain_id)
        return session

    def accept(self, session: ClientSession, seq: int, count: int, partition: int | None = 0) -> Entry:
        """Journal one submission of ``count`` records."""
        return self.accept_records(session, seq, [[None, b"v%d" % i, None, partition] for i in range(count)])

    def accept_records(self, session: ClientSession, seq: int, records: list[list[object]]) -> Entry:
        """Journal one submission of these records."""
        payload, count = b"".join(map(msgpack.packb, records)), len(records)
        needed = self.chain.pages_needed(count, len(payload))
        if needed:
            pages = self.pool.take(needed)
            assert pages is not None
            self.chain.link_pages(pages)
        entry = self.chain.append(
            payload,
            count=count,
            client_row=session.row.index,
            client_generation=session.row.generation,
            stream=1,
            seq=seq,
            base_timestamp_ms=1_700_000_000_000,
            format=1,
            flags=self.flags,
        )
        session.unsettled_records += count
        return entry

    def batch(self, *entries: Entry, partition: int = 0, publish: bool = True) -> ProducerBatch:
        """A drained batch of all records of the entries, under a descriptor unless told otherwise."""
        records = BatchRecords()
        for entry in entries:
            block = index(self.chain, entry, self.partitioner, 1 << 20)
            for _, start, stop in block.groups:
                assert records.try_append(block, start, stop, 1 << 20) == stop - start
        queue = PartitionQueue("t", partition, IDEMPOTENT_LANE, TopicRules(producer_config()).of("t"))
        batch = ProducerBatch(
            queue=queue,
            records=records,
            chain=self.chain,
            order=0,
            created_ms=0.0,
            deadline_ms=1e9,
            state=BatchState.BETWEEN,
        )
        if publish:
            batch.identify(4711, 0, self.sequence)
            self.sequence += records.count
            assert self.descriptors.publish((batch,), 0)
        return batch


def told(row: ClientRow, start: int = 1) -> list[Outcome]:
    """The outcomes in a client's ring from a number on."""
    news = row.ring_slice_from(start)
    return [] if news is None else unpack_outcomes(news[2])
