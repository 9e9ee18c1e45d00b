"""Outcomes: the compiled reader takes and leaves the same as the one in Python does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from client_stub import RecordMetadata, errors
from client_stub.contract.wire import (
    Outcome,
    OutcomeKind,
    Persistence,
    Shape,
    pack_outcome,
)
from client_stub.native import hot
from client_stub.native.hot import RecordsOutcome, SubmissionCore
from tests import outcomes as in_python

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
    for each in (hot, in_python):
        try:
            found.append(each.unpack_outcomes(data))
        except ValueError as error:
            found.append(str(error))
    assert found[0] == found[1]
    if damage is None and cut <= 60:
        assert found[0] == some
        assert all(type(each) is Outcome for each in hot.unpack_outcomes(memoryview(data)))


@given(st.sets(st.integers(0, 700), max_size=300))
def test_an_outcome_has_the_rank_of_each_record(members: set[int]) -> None:
    mask = sum(1 << member for member in members)
    outcome = RecordsOutcome(mask, "t", 0, 0, 0, None, None)
    ranks = {index: outcome.rank(index) for index in range(-1, 800)}
    assert {index: rank for index, rank in ranks.items() if rank >= 0} == {
        member: rank for rank, member in enumerate(sorted(members))
    }


def test_the_first_outcome_of_a_record_counts_and_gives_its_metadata() -> None:
    submission = SubmissionCore()
    error = errors.DeliveryFailed("expired")
    submission.outcomes = [
        RecordsOutcome(0b0101, "t", 3, 70, 1_000, {2: 5}, None),
        RecordsOutcome(0b1110, "t", 4, -1, 2_000, None, None),
        RecordsOutcome(0b110000, "t", 4, -1, 2_000, None, error),
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
    assert all(type((submission.find(index) or ())[1]) is RecordMetadata for index in range(4))


@given(st.lists(st.integers(0, 65_535), max_size=40))
def test_index_lists_become_a_mask(indexes: list[int]) -> None:
    data = b"".join(index.to_bytes(2, "little") for index in indexes)
    assert hot.mask_of_indexes(data) == sum({1 << n for n in indexes})
