"""Goal: a submission that cannot be taken costs its own records and nothing else, nor do faults of ours.

Method: as in test_stub_port.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from client_stub.contract.wire import (
    SUBMISSION_BYTES_MAX,
    SUBMISSION_RECORDS_MAX,
    Format,
    Kind,
    LocalCode,
    Outcome,
    OutcomeKind,
    Persistence,
)
from client_stub.zmtp.frames import HEADER_BYTES_MAX, MESSAGE_BYTES_MAX
from sidecar.kernel import Chain, index
from sidecar.shm.buffer_pool import BufferPool
from sidecar.shm.segment import Segment
from sidecar.worker.stubs.intake import ERROR_HOLD_MS, full_submission, largest_submission
from tests.configs import producer_config
from tests.worker.harness import EPOCH, Harness
from tests.worker.port_harness import BASE_TIMESTAMP_MS, RECORD, PortHarness


def failed(outcomes: list[Outcome]) -> list[tuple[int, int, int, int]]:
    """(seq, records, code, persistence) of each failure."""
    return [
        (each.seq, each.count, each.code, each.persistence)
        for each in outcomes
        if each.kind == OutcomeKind.FAILED
    ]


def test_a_record_larger_than_the_pool_fails_alone(tmp_path: Path) -> None:
    harness = Harness(tmp_path / "segment", producer_config(max_request_size=32 << 20))
    port_harness = PortHarness(harness)
    pool_bytes = harness.pool.pages_max * harness.segment.page_bytes
    assert port_harness.limit < pool_bytes, "WELCOME tells what the pool holds"
    peer = port_harness.client()
    port_harness.intake._submission_bytes_max = (
        64 << 20
    )  # what is not caught by that: many records in few bytes
    peer.submit(1, payload=RECORD)
    peer.submit(2, payload=bytes(pool_bytes + harness.segment.page_bytes))
    peer.submit(3, payload=RECORD)
    assert failed(peer.outcomes()) == [(2, 1, LocalCode.RECORD_TOO_LARGE, Persistence.NOT_PERSISTED)]
    assert "buffer.memory" in peer.outcomes()[0].text
    assert peer.heard(Kind.ACCEPTED, Kind.OUTCOMES)[-1][-1] == [[1, 3]]
    assert port_harness.counted("malformed_frames_total") == 0


def test_a_submission_that_was_too_long_to_be_kept_fails_by_itself(port_harness: PortHarness) -> None:
    peer, other = port_harness.client(), port_harness.client("other")
    peer.submit(1, count=3, payload=RECORD * 3)
    peer.submit(2, count=5, payload=b"", skipped_bytes=100 << 20)
    other.submit(1, stream=7)
    peer.submit(3)
    assert failed(peer.outcomes()) == [(2, 5, LocalCode.RECORD_TOO_LARGE, Persistence.NOT_PERSISTED)]
    assert "max.request.size" in peer.outcomes()[0].text
    assert peer.heard(Kind.ACCEPTED, Kind.OUTCOMES, Kind.REFUSED)[-1][-1] == [[1, 3]]
    assert port_harness.counted("records_accepted_total") == 3 + 5 + 1 + 1
    peer.send([Kind.ACK, 1])
    assert port_harness.counted("records_failed_total") == 5
    assert port_harness.counted("records_held") == 5
    assert not port_harness.endpoint.nonsense


@pytest.mark.parametrize("beyond", [0, 1])
def test_the_largest_submission_is_taken_and_one_byte_more_fails(
    port_harness: PortHarness, beyond: int
) -> None:
    port_harness.intake._submission_bytes_max = 10_000
    peer = port_harness.client()
    peer.submit(1, payload=bytes(10_000 + beyond))
    assert [each.code for each in peer.outcomes()] == [LocalCode.RECORD_TOO_LARGE] * beyond
    assert port_harness.topics.waiting.entry_count == 1 - beyond


def test_the_largest_submission_follows_the_settings(harness: Harness, tmp_path: Path) -> None:
    assert largest_submission(1 << 20, harness.pool) == harness.pool.entry_bytes_max - 256  # a pool of 1 MiB
    segment = Segment.create(
        tmp_path / "larger",
        page_bytes=16_384,
        buffer_memory_bytes=1 << 30,
        clients_max=16,
        instance_id=b"test",
    )
    try:
        segment.prepare_slot(0)
        segment.slot(0).claim(incarnation=3)
        pool = BufferPool(segment, incarnation=3, workers=2, slot=0)
        assert largest_submission(1_024, pool) == SUBMISSION_BYTES_MAX
        assert largest_submission(1 << 20, pool) == (2 << 20) + HEADER_BYTES_MAX
        assert largest_submission(2**31 - 1, pool) == MESSAGE_BYTES_MAX - HEADER_BYTES_MAX
    finally:
        segment.close()


@pytest.mark.parametrize("pool_bytes", [1 << 20, 2 << 20, 5 << 20, 128 << 20])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_full_submission_fits_half_of_the_pool_in_any_format(
    tmp_path: Path, pool_bytes: int, workers: int
) -> None:
    """One topic may hold half of the pool. The smallest rows grow most when columns become records."""
    segment = Segment.create(
        tmp_path / "pool",
        page_bytes=16_384,
        buffer_memory_bytes=pool_bytes,
        clients_max=16,
        instance_id=b"test",
    )
    try:
        segment.prepare_slot(0)
        segment.slot(0).claim(incarnation=3)
        pool = BufferPool(segment, incarnation=3, workers=workers, slot=0)
        chain = Chain(
            segment.pages, segment.page_bytes, 0, 0, bytearray(8), incarnation=3, owners=segment.owners
        )
        most = full_submission(pool)
        assert (
            most == SUBMISSION_BYTES_MAX if pool_bytes >= 5 << 20 else 100_000 < most < SUBMISSION_BYTES_MAX
        )
        for columns_bytes, row_bytes in ((4, 4), (8, 11), (12, 15), (17, 17), (100, 103)):
            count = min(SUBMISSION_RECORDS_MAX, most // columns_bytes)
            assert chain.pages_needed(count, count * row_bytes) <= pool.page_count // 2
    finally:
        segment.close()


def test_the_successor_of_a_worker_that_died_over_a_refused_submission_fails_it_too(harness: Harness) -> None:
    """Its bytes in the journal can be read by nobody as a record."""
    port_harness = PortHarness(harness)
    harness.settlement.refuse = lambda *_: None  # type: ignore[method-assign]  # it dies before the words are changed
    peer = port_harness.client()
    peer.submit(1, count=4, skipped_bytes=100 << 20, payload=b"")
    queue = port_harness.topics.get("t")
    assert queue is not None
    (entry,) = queue.chain.entries()
    block = index(queue.chain, entry, harness.partitioner, 1 << 20)
    assert [code for _, code in block.failures] == [LocalCode.MALFORMED_RECORD] * 4
    assert not block.groups


def test_columns_that_cannot_be_read_fail_their_records_and_not_their_client(
    port_harness: PortHarness,
) -> None:
    peer = port_harness.client()
    fields = [EPOCH, 1, 1, "t", BASE_TIMESTAMP_MS, Format.ARROW, 0, 2]
    peer.send([Kind.SUBMIT, *fields], b"no columns at all")
    peer.submit(2)
    assert peer.heard(Kind.ACCEPTED, Kind.REFUSED)[-1][-1] == [[1, 2]]
    queue = port_harness.topics.get("t")
    assert queue is not None
    bad, good = (
        index(queue.chain, each, port_harness.harness.partitioner, 1 << 20) for each in queue.chain.entries()
    )
    assert [code for _, code in bad.failures] == [LocalCode.MALFORMED_RECORD] * 2
    assert good.count == 1


class OurFault(Exception):
    pass


def test_an_error_of_ours_fails_the_records_and_not_their_client(
    port_harness: PortHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    peer = port_harness.client()
    peer.submit(1)

    def breaks(*_: Any, **__: Any) -> None:
        monkeypatch.undo()
        raise OurFault("nobody foresaw this")

    monkeypatch.setattr(port_harness.holds, "_take", breaks)
    large = RECORD * 10_000
    peer.submit(2, count=10_000, payload=large)
    assert failed(peer.outcomes()) == [(2, 10_000, LocalCode.ABORTED, Persistence.NOT_PERSISTED)]
    assert "nobody foresaw this" in caplog.text
    peer.submit(3)
    assert peer.heard(Kind.ACCEPTED, Kind.OUTCOMES, Kind.REFUSED)[-1][-1] == [[1, 3]]
    assert port_harness.counted("accept_errors_total") == 1
    assert port_harness.counted("malformed_frames_total") == 0
    assert port_harness.given_up == []


def test_an_error_of_ours_that_stays_holds_the_stream_and_nothing_else(
    port_harness: PortHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = port_harness.client()

    def breaks(*_: Any, **__: Any) -> None:
        raise OurFault

    with monkeypatch.context() as patched:
        patched.setattr(port_harness.shares, "refusal", breaks)
        peer.submit(1)
    assert [message[:3] for message in peer.heard(Kind.HOLD, Kind.REFUSED)] == [[Kind.HOLD, 1, 1]]
    port_harness.holds.timed_due(port_harness.clock.advance(ERROR_HOLD_MS))
    port_harness.port.end_turn(port_harness.clock.now_ms())
    assert peer.heard(Kind.RESUME) == [[Kind.RESUME, 1, 1]]
    peer.submit(1)
    assert peer.heard(Kind.ACCEPTED)[0][2] == [[1, 1]]


def test_an_error_after_the_journals_store_ends_the_worker(
    port_harness: PortHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor begins with what the journal says; this memory would take the submission a second time."""
    peer = port_harness.client()

    def breaks(*_: Any) -> None:
        raise OurFault

    (session,) = port_harness.harness.sessions
    monkeypatch.setattr(session.row, "store_position", breaks)
    peer.submit(1)
    assert len(port_harness.given_up) == 1
    assert peer.heard(Kind.REFUSED, Kind.ACCEPTED) == []
