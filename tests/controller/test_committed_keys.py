"""Goal: of each key the last record whose transaction was committed counts, in whatever pieces the log is read."""

from __future__ import annotations

import contextlib
import random

import pytest

from sidecar.controller.cluster.committed_keys import KEPT_BYTES_MAX, KEPT_KEYS_MAX, CommittedKeys
from sidecar.protocol.fetched_batches import fetched_batches
from sidecar.protocol.messages import ProtocolError
from tests.controller.log_bytes import ABORT, COMMIT, batch, marker


def last(keys: CommittedKeys, key: bytes) -> bytes | None:
    found = keys.last(key)
    return None if found is None else found.value


def test_a_record_counts_from_its_transaction_s_marker_on() -> None:
    keys = CommittedKeys(0)
    keys.read(batch(0, [(b"k", b"old")]))
    keys.read(batch(1, [(b"k", b"new")], producer_id=7))
    assert last(keys, b"k") == b"old"
    keys.read(marker(2, 7, COMMIT))
    assert last(keys, b"k") == b"new"
    assert keys.position == 3


def test_an_aborted_record_never_counts() -> None:
    keys = CommittedKeys(0)
    keys.read(batch(0, [(b"k", b"aborted")], producer_id=7) + marker(1, 7, ABORT))
    keys.read(batch(2, [(b"other", b"x")], producer_id=7) + marker(3, 7, COMMIT))
    assert last(keys, b"k") is None
    assert last(keys, b"other") == b"x"


def test_a_marker_ends_the_transaction_of_its_own_producer_id() -> None:
    keys = CommittedKeys(0)
    keys.read(batch(0, [(b"a", b"1")], producer_id=7) + batch(1, [(b"b", b"2")], producer_id=8))
    keys.read(marker(2, 8, COMMIT))
    assert (last(keys, b"a"), last(keys, b"b")) == (None, b"2")


def test_the_last_record_is_that_of_the_highest_offset_whenever_it_was_committed() -> None:
    """As a consumer sees it, and as compaction keeps it."""
    keys = CommittedKeys(0)
    keys.read(batch(0, [(b"k", b"first"), (b"only", b"1")], producer_id=7))
    keys.read(batch(2, [(b"k", b"second")], producer_id=8) + marker(3, 8, COMMIT))
    keys.read(marker(4, 7, COMMIT))
    assert (last(keys, b"k"), last(keys, b"only")) == (b"second", b"1")


def test_a_tombstone_is_no_record() -> None:
    keys = CommittedKeys(0)
    keys.read(batch(0, [(b"k", b"1"), (b"k", None)]))
    assert keys.last(b"k") is None


def test_a_batch_that_is_cut_or_was_read_is_left() -> None:
    keys = CommittedKeys(0)
    first, second = batch(0, [(b"k", b"1"), (b"k", b"2")]), batch(2, [(b"k", b"3")])
    assert keys.read(first + second[:-1])
    assert keys.position == 2
    assert not keys.read(second[:40])
    # A broker hands over whole batches, also the one in whose middle the position is.
    middle = CommittedKeys(1)
    assert middle.read(first + second)
    assert last(middle, b"k") == b"3"


def test_compacted_batches_have_gaps() -> None:
    keys = CommittedKeys(0)
    keys.read(batch(5, [(b"k", b"1")], offset_deltas=[3], last_delta=9))
    found = keys.last(b"k")
    assert found is not None and (found.offset, keys.position) == (8, 15)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_packed_batches(codec: str) -> None:
    keys = CommittedKeys(0)
    keys.read(batch(0, [(b"k", b"x" * 500)] * 20, codec=codec))
    assert last(keys, b"k") == b"x" * 500


def test_headers_and_times() -> None:
    (only,) = next(fetched_batches(batch(3, [(b"k", b"v")], headers=((b"a", b"1"), (b"b", None))))).records()
    assert only == (3, 1_000, b"k", b"v", (("a", b"1"), ("b", None)))


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (batch(0, [(b"k", b"v")])[:-1] + b"\xff", "checksum"),
        (batch(0, [(b"k", b"v")], magic=1), "format 1"),
        (batch(0, [(b"k", b"v")], count=9), "cannot be read"),
        (batch(0, [(b"k", b"v")], attributes=5), "codec 5"),
        (batch(0, [(b"k", b"v")] * 3, attributes=4), "zstd"),
        (batch(0, [(b"", b"")], producer_id=1, attributes=0x30), "marker at offset 0"),
    ],
)
def test_what_is_no_batch_is_refused(data: bytes, fault: str) -> None:
    with pytest.raises(ProtocolError, match=fault):
        CommittedKeys(0).read(data)


def test_random_bytes_raise_nothing_else() -> None:
    chance = random.Random(7)
    whole = batch(0, [(b"k", b"v")] * 3, producer_id=3) + marker(3, 3, COMMIT)
    for _ in range(2_000):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        with contextlib.suppress(ProtocolError):
            CommittedKeys(0).read(bytes(data))


def test_few_and_small_records_are_kept_for_the_next_question() -> None:
    keys = CommittedKeys(0)
    for number in range(KEPT_KEYS_MAX):
        keys.read(batch(number, [(b"%d" % number, b"v")]))
    assert keys.is_small
    keys.read(batch(KEPT_KEYS_MAX, [(b"one more", b"v")]))
    assert not keys.is_small
    large = CommittedKeys(0)
    large.read(batch(0, [(b"k", b"v" * (KEPT_BYTES_MAX - 1))], producer_id=5))
    assert large.is_small
    large.read(batch(1, [(b"m", b"")], producer_id=5))
    assert not large.is_small


def test_of_a_large_partition_one_key_is_kept() -> None:
    keys = CommittedKeys(0)
    keys.read(batch(0, [(b"a", b"1"), (b"b", b"2")]))
    keys.read(batch(2, [(b"a", b"3"), (b"b", b"4")], producer_id=7))
    assert keys.is_whole
    keys.keep_only(b"a")
    assert not keys.is_whole
    keys.read(batch(4, [(b"c", b"5")]) + marker(5, 7, COMMIT))
    assert (last(keys, b"a"), last(keys, b"b"), last(keys, b"c")) == (b"3", None, None)
    keys.read(batch(6, [(b"a", b"6")]))
    assert last(keys, b"a") == b"6"
