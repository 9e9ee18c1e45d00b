"""The journal: what is accepted stays, page edges do not show, pages go back from the middle, recovery agrees."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import pytest

from sidecar.kernel import _kernel
from tests.kernel.journal import INCARNATION, Journal, encode, pack

LINE = 64


def numbered(count: int, size: int = 20) -> list[list[Any]]:
    return [[f"key-{i}".encode(), bytes([i % 256]) * size] for i in range(count)]


@pytest.mark.parametrize("page_bytes", [256, 320, 4096])
@pytest.mark.parametrize("value_bytes", [0, 1, 150, 190, 191, 192, 193, 1_000, 20_000])
def test_records_cross_page_edges(kernel: ModuleType, page_bytes: int, value_bytes: int) -> None:
    journal = Journal(kernel, page_bytes=page_bytes, page_count=600 if page_bytes < 1024 else 80)
    records = [
        *numbered(3, value_bytes),
        [None, None],
        [b"", b"v" * value_bytes, [["h", b"x" * value_bytes]]],
    ]
    plain = Journal(kernel, page_bytes=1 << 20, page_count=1)
    edged = journal.batches(journal.index(journal.add(records)))[0]
    assert encode(edged) == encode(plain.batches(plain.index(plain.add(records)))[0])


def test_an_entry_needs_as_many_records_as_it_says(journal: Journal) -> None:
    for count, payload in ((0, b"x"), (2, b"x"), (65_536, b"x" * 65_536), (-1, b"x")):
        with pytest.raises(ValueError, match="no entry has"):
            journal.chain.append(payload, **fields(count=count))
        with pytest.raises(ValueError, match="no entry has"):
            journal.chain.pages_needed(count, len(payload))
    with pytest.raises(ValueError, match="format 2"):
        journal.chain.append(b"xx", **fields(count=1, format=2))
    with pytest.raises(ValueError, match="more pages are needed"):
        journal.chain.append(b"xx", **fields(count=1))
    assert (journal.chain.tail, journal.chain.live_entries) == (0, 0)


def fields(**changed: Any) -> dict[str, Any]:
    names = (
        "count",
        "client_row",
        "client_generation",
        "stream",
        "seq",
        "base_timestamp_ms",
        "format",
        "flags",
    )
    return {**dict.fromkeys(names, 1), **changed}


def test_pages_must_be_taken_by_the_same_worker(journal: Journal) -> None:
    with pytest.raises(ValueError, match="was not taken"):
        journal.chain.link_pages([3])
    journal.kernel.take_pages(journal.owners, INCARNATION + 1, 1)
    with pytest.raises(ValueError, match="was not taken"):
        journal.chain.link_pages([0])
    with pytest.raises(ValueError, match="is not one of"):
        journal.chain.link_pages([64])


def test_pages_go_back_from_the_middle(journal: Journal) -> None:
    entries = [journal.add(numbered(6), seq=seq) for seq in range(1, 10)]
    blocks = [journal.index(entry) for entry in entries]
    before = journal.chain.page_count
    assert journal.chain.release_pages() == []
    for block in blocks[3:6]:
        assert journal.batches(block)[0].mark_done() == 1
    middle = journal.chain.release_pages()
    assert middle, "entries of one page and more were finished in the middle"
    assert journal.chain.page_count == before - len(middle)
    assert journal.chain.release_pages() == []
    journal.give(middle)
    # The entries around the hole are still there, for the live owner and for recovery.
    recovered = journal.recover()
    assert recovered.damage == []
    assert [e.seq for e in recovered.entries()] == [1, 2, 3, 7, 8, 9]
    for block in blocks[:3] + blocks[6:]:
        encode(journal.batches(block)[0])
    with pytest.raises((ValueError, KeyError)):
        journal.index(entries[4])
    for block in blocks[:3] + blocks[6:]:
        journal.batches(block)[0].mark_done()
    journal.give(journal.chain.release_pages() + journal.chain.release_idle())
    assert journal.owners == bytes(len(journal.owners)), "pages taken and given back are equal in number"
    assert journal.chain.live_entries == journal.chain.live_records == journal.chain.page_count == 0


def test_an_idle_chain_keeps_no_page_and_continues(journal: Journal) -> None:
    tails = []
    for seq in range(1, 6):
        entry = journal.add(numbered(2), seq=seq)
        tails.append(journal.chain.tail)
        journal.batches(journal.index(entry))[0].mark_done()
        journal.give(journal.chain.release_idle())
        assert journal.chain.page_count == 0
        assert journal.owners == bytes(len(journal.owners))
    assert tails == sorted(set(tails)), "positions never come again"
    live = journal.add(numbered(1), seq=9)
    recovered = journal.recover()
    assert [e.ordinal for e in recovered.entries()] == [live.ordinal]
    assert recovered.damage == []
    fresh = journal.open()
    assert fresh.tail == journal.chain.tail
    assert fresh.next_ordinal * LINE >= fresh.tail


def test_release_idle_with_something_live_is_release_pages(journal: Journal) -> None:
    journal.add(numbered(2))
    assert journal.chain.release_idle() == []
    assert journal.chain.page_count > 0


def test_words_tell_what_became_of_each_record(journal: Journal) -> None:
    kernel, chain = journal.kernel, journal.chain
    entry = journal.add(
        [[b"a", b"v", None, 1], [b"b", b"v", None, 7], [b"c", b"v", None, 0, -5], [None, b"v"]]
    )
    assert kernel.entry_words(chain, entry) == [0xFFFF] * 4
    block = journal.index(entry, 2)
    assert block.failures == [(1, 0xFF02), (2, 0xFF03)]
    words = kernel.entry_words(chain, entry)
    assert words[:3] == [1, 0xFFFF, 0xFF03] and words[3] in (0, 1), "partition 7 may appear"
    # The same reader again, as recovery would: nothing is assigned anew, failures are told again.
    again = journal.index(entry, 2)
    assert (again.groups, again.failures) == (block.groups, block.failures)
    assert kernel.fail_remaining(chain, entry, 0xFF02) == [1]
    assert journal.index(entry, 8).failures == block.failures, "its failure is final now"
    assert not kernel.mark_failed_done(chain, entry, [1, 2])
    assert not kernel.mark_failed_done(chain, entry, [1, 2]), "repeatable"
    assert entry.remaining == 2
    assert journal.index(entry, 2).failures == []
    batches = journal.batches(block)
    assert sum(batch.mark_done() for batch in batches.values()) == 1
    assert sum(batch.mark_done() for batch in batches.values()) == 0
    assert chain.live_entries == 0


def test_a_partition_that_is_gone_fails_and_a_kept_one_is_kept(journal: Journal) -> None:
    entry = journal.add([[b"k", b"v", None, 5], [b"k", b"v", None, 2]])
    journal.index(entry, 6)
    block = journal.index(entry, 3)
    assert block.failures == [(0, 0xFF02)]
    assert block.groups == [(2, 0, 1)]


def test_partitions_that_no_word_can_hold_are_refused(journal: Journal) -> None:
    entry = journal.add([[b"k", b"v", None, 0xFF00], [b"k", b"v", None, 0xFEFF], [None, b"v"]])
    block = journal.index(entry, 70_000)
    assert block.failures == [(0, 0xFF02)]
    assert block.groups[0] == (0xFEFF, 0, 1)


def test_failures_before_sending_are_facts_by_their_words(journal: Journal) -> None:
    kernel, chain = journal.kernel, journal.chain
    waiting = journal.add(numbered(3))
    assert kernel.fail_remaining(chain, waiting, 0xFF05) == [0, 1, 2]
    assert kernel.fail_remaining(chain, waiting, 0xFF05) == []
    assert kernel.mark_failed_done(chain, waiting, [0, 1, 2])
    expired = journal.add(numbered(3))
    batch = journal.batches(journal.index(expired))[0]
    batch.mark_failed(0xFF04)
    assert kernel.entry_words(chain, expired) == [0xFF04] * 3
    assert batch.mark_done() == 1
    with pytest.raises(ValueError, match="not a failure word"):
        kernel.fail_remaining(chain, journal.add(numbered(1)), 0xFFFE)


def state_of(chain: Any, kernel: ModuleType) -> list[tuple[int, int, list[int]]]:
    return [(e.ordinal, e.seq, kernel.entry_words(chain, e)) for e in chain.entries()]


def test_accepted_is_one_store(kernel: ModuleType) -> None:
    """Whatever part of an append's plain writes is there: without the tail's store nothing of it is."""
    rng = random.Random(20)
    journal = Journal(kernel)
    for seq in range(1, 4):
        journal.add(numbered(seq), seq=seq)
    payload = pack(numbered(12))
    journal.link(journal.chain.pages_needed(12, len(payload)))
    before, tail_before = bytes(journal.pages), bytes(journal.tail_word)
    old = state_of(journal.recover(), kernel)
    journal.append(payload, 12, seq=4)
    after, tail_after = bytes(journal.pages), bytes(journal.tail_word)
    new = state_of(journal.recover(), kernel)
    assert [seq for _, seq, _ in new] == [1, 2, 3, 4] and new[:3] == old
    changed = [i for i in range(0, len(before), 8) if before[i : i + 8] != after[i : i + 8]]
    for _ in range(40):
        journal.pages[:] = before
        for i in rng.sample(changed, rng.randint(0, len(changed))):
            journal.pages[i : i + 8] = after[i : i + 8]
        journal.tail_word[:] = tail_before
        recovered = journal.recover()
        assert recovered.damage == []
        assert state_of(recovered, kernel) == old
    journal.pages[:], journal.tail_word[:] = after, tail_after
    assert state_of(journal.recover(), kernel) == new


def test_a_linked_page_that_was_never_written_to_is_no_entry(journal: Journal) -> None:
    journal.add(numbered(3))
    journal.link(5)
    recovered = journal.recover()
    assert recovered.damage == []
    assert recovered.live_entries == 1


def test_recovery_continues_where_the_dead_worker_stopped(journal: Journal) -> None:
    journal.add(numbered(3), seq=1)
    journal.add(numbered(9), seq=2)
    recovered = journal.recover()
    assert recovered.tail == journal.chain.tail
    assert recovered.next_ordinal == journal.chain.next_ordinal
    journal.chain = recovered
    journal.add(numbered(5), seq=3)
    assert [entry.seq for entry in journal.recover().entries()] == [1, 2, 3]
    for entry in list(recovered.entries()):
        journal.batches(journal.index(entry))[0].mark_done()
    journal.give(recovered.release_pages() + recovered.release_idle())
    assert journal.owners == bytes(len(journal.owners))


def test_damage_is_reported_and_not_followed(kernel: ModuleType) -> None:
    rng = random.Random(3)
    for _ in range(200):
        journal = Journal(kernel, page_count=12)
        for seq in range(1, 5):
            journal.add(numbered(4), seq=seq)
        for _ in range(rng.randint(1, 6)):
            journal.pages[rng.randrange(len(journal.pages))] = rng.randrange(256)
        recovered = journal.recover()
        for entry in recovered.entries():
            journal.chain = recovered
            journal.index(entry, 3)
    impossible = Journal(kernel, page_count=12)
    impossible.add(numbered(4))
    impossible.pages[64:68] = b"\xff\xff\xff\x7f"
    assert impossible.recover().damage


def test_an_entry_of_another_chain_is_refused(kernel: ModuleType) -> None:
    one, other = Journal(kernel), Journal(kernel)
    entry = one.add(numbered(1))
    with pytest.raises(ValueError, match="not a live entry"):
        other.index(entry)


def test_a_batch_whose_pages_are_gone_is_not_encoded() -> None:
    journal = Journal(_kernel)
    entry = journal.add(numbered(30))
    block = journal.index(entry)
    batch = journal.batches(block)[0]
    batch.mark_done()
    journal.give(journal.chain.release_pages() + journal.chain.release_idle())
    with pytest.raises(ValueError, match="ENCODE_MISMATCH"):
        encode(batch)


def test_bytes_that_changed_since_the_index_are_not_sent() -> None:
    journal = Journal(_kernel, page_bytes=4096)
    batch = journal.batches(journal.index(journal.add([[b"k", b"value"], [b"k", b"value"]])))[0]
    at = journal.pages.find(b"\xc4\x05value")
    journal.pages[at : at + 2] = b"\xc4\x04"
    with pytest.raises(ValueError, match="ENCODE_MISMATCH"):
        encode(batch)


def test_sticky_partitioner_keeps_and_moves(kernel: ModuleType) -> None:
    partitioner = kernel.StickyPartitioner(10, [1, 4, 7], 1_000, 5)
    drawn = [partitioner.next_partition(100) for _ in range(6_000)]
    runs = [drawn[i : i + 10] for i in range(0, len(drawn), 10)]
    assert all(len(set(run)) == 1 for run in runs), "one partition for one batch's bytes"
    counts = {p: sum(run[0] == p for run in runs) for p in (1, 4, 7)}
    assert sum(counts.values()) == 600 and min(counts.values()) > 150
    current = partitioner.current
    partitioner.update(12, [current, 11])
    assert partitioner.current == current
    partitioner.update(12, [p for p in (1, 4, 7) if p != current])
    assert partitioner.current == -1
    assert partitioner.next_partition(10) != current
    nobody = kernel.StickyPartitioner(3, [], 1_000, 5)
    assert {nobody.next_partition(2_000) for _ in range(50)} == {0, 1, 2}


def test_the_entry_that_is_walked_is_noted_while_it_is(kernel: Any) -> None:
    """A process that finds its reader dead knows which submission it had before it; one walk over many notes each in
    its turn."""
    journal = Journal(kernel)
    entries = [journal.add([[None, b"x"], [None, b"y"]], seq=seq) for seq in (1, 2, 3)]
    partitioner = kernel.StickyPartitioner(1, [0], 16_384, 1)
    note, seen = bytearray(8), []
    kernel.set_store_hook(lambda point: seen.append(int.from_bytes(note, "little")))
    try:
        kernel.index(journal.chain, entries[0], partitioner, 1 << 20, 0, note, 7 << 50)
        kernel.index_run(journal.chain, journal.chain.ordinals(1, 9), partitioner, 1 << 20, 0, note, 7 << 50)
    finally:
        kernel.set_store_hook(None)
    assert seen == [7 << 50 | entry.ordinal for entry in entries for _ in range(2)]
    assert note == bytes(8)
