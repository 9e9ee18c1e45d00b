"""Outcomes that tell only how many, and the same records told again by index: each record counts once."""

from __future__ import annotations

import random

import pytest

from client_stub.contract.wire import LocalCode, Outcome, OutcomeKind, Persistence, Shape
from client_stub.outbox.outbox import Outbox
from client_stub.outbox.submission import Submission

RECORDS = 24


def _submission() -> Submission:
    outbox = Outbox(max_block_ms=0, connect_timeout_ms=0, path="/nowhere")
    submission = Submission(outbox.waiters, "t", None, 0, 0)
    submission.count = RECORDS
    submission.seal(b"x" * RECORDS)
    return submission


def _outcome(shape: Shape, first_index: int, count: int, *, failed: bool) -> Outcome:
    return Outcome(
        kind=OutcomeKind.FAILED if failed else OutcomeKind.DELIVERED,
        persistence=Persistence.NOT_PERSISTED if failed else Persistence.PERSISTED,
        shape=shape,
        number=0,
        stream=1,
        code=LocalCode.EXPIRED if failed else 0,
        seq=1,
        partition=0,
        first_index=first_index,
        count=count,
        base_offset=-1,
        append_time_ms=-1,
        indexes=b"",
        text="",
    )


def _runs(indexes: list[int]) -> list[tuple[int, int]]:
    """(first, count) of each run of adjacent indexes."""
    runs: list[tuple[int, int]] = []
    for index in indexes:
        if runs and sum(runs[-1]) == index:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((index, 1))
    return runs


def test_records_given_by_count_and_then_by_index_are_counted_once() -> None:
    """A batch fails before it was drained, its worker dies before the ACK, and who adopts it tells by index."""
    submission = _submission()
    submission.apply(_outcome(Shape.COUNT, 0, 10, failed=True))
    submission.apply(_outcome(Shape.RANGE, 0, 10, failed=True))
    submission.apply(_outcome(Shape.COUNT, 0, 10, failed=True))
    assert submission.remaining == RECORDS - 10
    assert not submission.completed
    assert submission.failed_count == 10


@pytest.mark.parametrize("seed", range(100))
def test_no_order_of_counts_and_repeats_ends_a_submission_early(seed: int) -> None:
    """Shares of several batches, scattered over the submission; some told twice in either way."""
    rng = random.Random(seed)
    submission = _submission()
    share_of = [rng.randrange(4) for _ in range(RECORDS)]
    shares = [[i for i, share in enumerate(share_of) if share == each] for each in range(4)]
    failed = [rng.random() < 0.6 for _ in shares]
    told: set[int] = set()
    for place, indexes in enumerate(shares):
        if indexes and (not failed[place] or rng.random() < 0.6):
            for _ in range(rng.randrange(1, 3)):
                submission.apply(_outcome(Shape.COUNT, indexes[0], len(indexes), failed=failed[place]))
            told.update(indexes)
            assert submission.completed == (len(told) == RECORDS)
    if submission.completed:
        assert submission.failed_count == sum(failed[share] for share in share_of)
        return  # nobody asks it any more
    by_index = sorted(i for i, share in enumerate(share_of) if failed[share])
    for first, count in _runs(by_index):
        submission.apply(_outcome(Shape.RANGE, first, count, failed=True))
        told.update(range(first, first + count))
        assert submission.remaining >= RECORDS - len(told)
    for place, indexes in enumerate(shares):
        if indexes:  # also a repeat by count of what was told by index
            submission.apply(_outcome(Shape.COUNT, indexes[0], len(indexes), failed=failed[place]))
            told.update(indexes)
    assert submission.remaining == RECORDS - len(told) == 0
    assert submission.failed_count == sum(failed[share] for share in share_of)
