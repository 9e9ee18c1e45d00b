"""kill -9 between any two stores of a worker: the next reader finds what was told to the outside, and no damage."""

from __future__ import annotations

import os
import random
import signal
import struct
from pathlib import Path

import pytest

from client_stub.contract.wire import Outcome, OutcomeKind, Persistence, Shape, pack_outcome
from sidecar.kernel import entry_words
from sidecar.shm.chain_table import ChainTable
from sidecar.shm.client_table import ClientRow, ClientTable
from sidecar.shm.descriptor_states import DescriptorEvent, DescriptorState
from sidecar.shm.descriptors import DescriptorTable
from sidecar.shm.recovery import describe_undelivered, linked_pages
from sidecar.shm.segment import Segment
from tests.outcomes import unpack_outcomes
from tests.reading_back import row_of, stream_position
from tests.shm.test_journal_tables import Slot

TOLD = struct.Struct("<BQ")
ACCEPTED, DELIVERED = 1, 2
RECORDS = 7
CLIENT = b"c" * 20


def work(path: Path, pipe: int, seed: int) -> None:
    """Accept, send, settle, tell, free, for ever; say on the pipe what a client would have heard."""
    rng = random.Random(seed)
    segment = Segment.attach(path)
    worker = Slot(segment, 0)
    row = ClientTable(segment).take_row(CLIENT, "client", 1, 0, b"s" * 16)
    assert row is not None and row.place_stream(1, 0)
    seq = 0
    waiting = []
    while True:
        for _ in range(rng.randint(1, 4)):
            seq += 1
            chain, entry = worker.accept("orders", RECORDS, seq=seq)
            row.store_position(1, seq)
            os.write(pipe, TOLD.pack(ACCEPTED, seq))
            waiting.append(entry)
        rng.shuffle(waiting)
        while len(waiting) > 5:
            entry = waiting.pop()
            sent = [(worker.send(chain, p, batch), batch) for p, batch in worker.batches(chain, entry)]
            for number, batch in sent:
                worker.descriptors.store_outcome(number, 0, 0, -1)
                told = Outcome(
                    OutcomeKind.DELIVERED, Persistence.PERSISTED, Shape.COUNT, row.next_number, 1, 0,
                    entry.seq, 0, batch.first_cursor[1], batch.count, 0, -1, b"", "",
                )  # fmt: skip
                assert row.ring_append(pack_outcome(told))
                worker.descriptors.step(DescriptorEvent.RELEASE, number)
                batch.mark_done()
                worker.descriptors.step(DescriptorEvent.FREE, number)
            os.write(pipe, TOLD.pack(DELIVERED, entry.seq))
            row.ring_ack(row.next_number - 1 - rng.randint(0, min(3, row.next_number - 1)))
        worker.pool.give(chain.release_pages())


def outcomes_of(row: ClientRow) -> list[Outcome]:
    found = row.ring_slice_from(row.acked_number + 1)
    return unpack_outcomes(found[2]) if found else []


@pytest.mark.parametrize("seed", range(12))
def test_killed_anywhere(segment: Segment, segment_path: Path, slot: int, seed: int) -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            work(segment_path, writing, seed)
        finally:
            os._exit(9)
    os.close(writing)
    # Somewhere in the middle of its work: after so many words from it, not after so much time.
    heard = [TOLD.unpack(os.read(reading, TOLD.size)) for _ in range(random.Random(seed).randint(1, 300))]
    os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    while rest := os.read(reading, TOLD.size):
        heard.append(TOLD.unpack(rest))
    os.close(reading)
    accepted = {seq for what, seq in heard if what == ACCEPTED}
    delivered = {seq for what, seq in heard if what == DELIVERED}

    pages = linked_pages(segment)
    assert set(pages) <= {(0, 0)}
    chain = ChainTable(segment, 0).recover(0, pages.get((0, 0)))
    assert chain.damage == []
    live = {entry.seq: entry for entry in chain.entries()}
    descriptors = list(DescriptorTable(segment, 0))
    row = row_of(ClientTable(segment), CLIENT)
    assert row is not None
    # Accepted and not delivered: still there, whole. At most one entry more than was told. The one whose words
    # became done just before the kill could not be said on the pipe any more: its outcome stands in the ring.
    unsaid = accepted - delivered - set(live)
    assert len(unsaid) <= 1
    assert unsaid <= {outcome.seq for outcome in outcomes_of(row)}
    assert len(set(live) - accepted) <= 1
    assert max(accepted, default=0) - 1 <= (stream_position(row, 1) or 0) <= max(accepted, default=0) + 1
    for seq in set(live) & delivered:
        raise AssertionError(f"submission {seq} was delivered, and its words do not say so")
    for descriptor in descriptors:
        entry = live.get(next((e.seq for e in live.values() if e.ordinal == descriptor.first_cursor[0]), 0))
        if entry is None:
            assert descriptor.state == DescriptorState.RELEASED, (
                "a missing page under another state is corruption"
            )
    settled = sum(
        d.count
        for d in descriptors
        if d.state in (DescriptorState.STORED, DescriptorState.RELEASED) and d.chain_id == 0
    )
    open_words = sum(word != 0xFFFE for entry in live.values() for word in entry_words(chain, entry))
    undelivered = sum(row[2] for row in describe_undelivered(segment))
    assert open_words - settled <= undelivered <= open_words
