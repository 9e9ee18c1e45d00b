"""Partitioners: where other clients put the same key, and how evenly keyless records spread."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_stub.contract.wire import PARTITIONERS
from sidecar.kernel import _kernel
from tests.kernel.journal import Journal
from tests.kernel.oracle import reference, reference_partitioner

LONG = b"this is another string with more length to it perhaps"

# librdkafka's own table for 17 partitions (its test 0048); None: by chance.
OTHERS: dict[str, dict[bytes | None, int | None]] = {
    "murmur2": {b"": 11, b"23456": 9, LONG: 11, b"hejsan": 5},
    "consistent_random": {None: None, b"": None, b"23456": 7, LONG: 15, b"hejsan": 14},
}

# librdkafka's unittest_fnv1a, made with Go's hash/fnv as Sarama uses it.
FNV1A = {
    b"kafka": 0xD33C4E1,
    b"giberish123456789": 0x77A58295,
    b"1234": 0x23BDD03,
    b"234": 0x2DEA3CD2,
    b"34": 0x740FA83E,
    b"4": 0x310CA263,
    b"PreAmbleWillBeRemoved,ThePrePartThatIs": 0x65CBD69C,
    b"reAmbleWillBeRemoved,ThePrePartThatIs": 0x6E49C79A,
    b"eAmbleWillBeRemoved,ThePrePartThatIs": 0x69EED356,
    b"AmbleWillBeRemoved,ThePrePartThatIs": 0x6ABCC023,
    b"": 0x7EE3623B,
}

CHI_SQUARE_999 = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 16: 39.25}
"""The value that a fair draw exceeds once in a thousand, by degrees of freedom."""


def assert_spread(found: Counter[int], weights: Mapping[int, int]) -> None:
    """Chi-square against the weights; nothing anywhere else."""
    assert set(found) <= {partition for partition, weight in weights.items() if weight}
    total, whole = sum(found.values()), sum(weights.values())
    expected = {partition: total * weight / whole for partition, weight in weights.items() if weight}
    chi = sum((found[partition] - each) ** 2 / each for partition, each in expected.items())
    assert chi < CHI_SQUARE_999[len(expected) - 1], (chi, found)


def draws(partitioner: Any, count: int = 20_000, key: bytes | None = None) -> Counter[int]:
    """Where ``count`` records go, each of which fills a batch."""
    return Counter(partitioner.next_partition(1_000_000, key) for _ in range(count))


# The whole table, by hash; None: by chance. The keys: null, empty, and three others.
NAMED_KEYS = (None, b"", b"23456", LONG, b"hejsan")
NAMED: dict[str, tuple[int | None, ...]] = {
    "random": (None, None, None, None, None),
    "consistent": (0, 0, 0xB1B451D7, 0xB0150DF7, 0xD077037E),
    "consistent_random": (None, None, 0xB1B451D7, 0xB0150DF7, 0xD077037E),
    "murmur2": (0x106E08D9, 0x106E08D9, 0x058D780F, 0x4F7703DA, 0x5EC19395),
    "murmur2_random": (None, 0x106E08D9, 0x058D780F, 0x4F7703DA, 0x5EC19395),
    "fnv1a": (0x7EE3623B, 0x7EE3623B, 0x27E6F469, 0x155E3E5F, 0x17B1E27A),
    "fnv1a_random": (None, 0x7EE3623B, 0x27E6F469, 0x155E3E5F, 0x17B1E27A),
}


@pytest.mark.parametrize("own", ["murmur2", "fnv1a", "round_robin"])
@pytest.mark.parametrize("name", PARTITIONERS)
def test_a_client_s_partitioner_places_its_keys_whatever_the_daemon_s_is(
    kernel: ModuleType, name: str, own: str
) -> None:
    number = PARTITIONERS.index(name) + 1
    for count in (1, 2, 7, 17, 1_000):
        partitioner = kernel.StickyPartitioner(
            count, range(count), 1, 5, kind=own, ignore_keys=own == "murmur2"
        )
        for key, expected in zip(NAMED_KEYS, NAMED[name], strict=True):
            found = {partitioner.next_partition(10, key, number) for _ in range(50)}
            if expected is not None:
                assert found == {expected % count}, (count, key)
            else:
                assert len(found) > 1 or count == 1, (count, key)
    with pytest.raises(ValueError, match="no partitioner has the number 8"):
        partitioner.next_partition(10, b"k", 8)


@pytest.mark.parametrize("name", [each for each in PARTITIONERS if "random" in each])
def test_keyless_records_of_a_client_s_partitioner_fill_a_batch(kernel: ModuleType, name: str) -> None:
    """As librdkafka's sticky partitioning does; among the partitions with a leader."""
    number = PARTITIONERS.index(name) + 1
    partitioner = kernel.StickyPartitioner(9, [2, 5], 1_000, 5, kind="round_robin")
    runs = [{partitioner.next_partition(100, None, number) for _ in range(10)} for _ in range(40)]
    assert {len(each) for each in runs} == {1}
    assert set.union(*runs) == {2, 5}


@pytest.mark.parametrize("kind", OTHERS)
def test_keys_go_where_librdkafka_puts_them(kernel: ModuleType, kind: str) -> None:
    for key, expected in OTHERS[kind].items():
        partitioner = kernel.StickyPartitioner(17, range(17), 16_384, 5, kind=kind)
        if expected is None:
            assert_spread(draws(partitioner, 3_400, key), dict.fromkeys(range(17), 1))
        else:
            assert {partitioner.next_partition(10, key) for _ in range(3)} == {expected}


@pytest.mark.parametrize("kind", ["fnv1a", "fnv1a_random"])
@pytest.mark.parametrize(("key", "expected"), FNV1A.items(), ids=repr)
def test_fnv1a_is_that_of_librdkafka(kernel: ModuleType, kind: str, key: bytes, expected: int) -> None:
    for count in (17, 1_000, 65_000):
        partitioner = kernel.StickyPartitioner(count, range(count), 16_384, 5, kind=kind)
        assert partitioner.next_partition(10, key) == expected % count


def test_null_keys_of_fnv1a(kernel: ModuleType) -> None:
    single = kernel.StickyPartitioner(17, range(17), 16_384, 5, kind="fnv1a")
    assert draws(single, 50) == {0x7EE3623B % 17: 50}
    spread = kernel.StickyPartitioner(17, range(17), 16_384, 5, kind="fnv1a_random")
    assert_spread(draws(spread, 3_400), dict.fromkeys(range(17), 1))


@pytest.mark.parametrize(("kind", "expected"), [("murmur2", 9), ("consistent_random", 7), ("fnv1a", 6)])
def test_a_hashed_key_keeps_its_partition_without_a_leader(
    kernel: ModuleType, kind: str, expected: int
) -> None:
    assert reference_partitioner.fnv1a(b"23456") % 17 == 6
    partitioner = kernel.StickyPartitioner(17, [0], 16_384, 5, kind=kind)
    assert partitioner.next_partition(10, b"23456") == expected


@pytest.mark.parametrize("key", [None, b"", b"k"])
def test_random_takes_any_partition_with_a_leader(kernel: ModuleType, key: bytes | None) -> None:
    partitioner = kernel.StickyPartitioner(5, [0, 2, 3, 4], 1 << 30, 11, kind="random")
    assert_spread(draws(partitioner, 4_000, key), {0: 1, 2: 1, 3: 1, 4: 1})


def test_round_robin_takes_turns_among_those_with_a_leader(kernel: ModuleType) -> None:
    """The three scenes of Kafka's RoundRobinPartitionerTest."""
    two = kernel.StickyPartitioner(3, [0, 2], 16_384, 1, kind="round_robin")
    assert draws(two, 100) == {0: 50, 2: 50}
    three = kernel.StickyPartitioner(3, range(3), 16_384, 1, kind="round_robin")
    assert [three.next_partition(1, b"k%d" % i) for i in range(6)] == [0, 1, 2, 0, 1, 2]
    nobody = kernel.StickyPartitioner(3, [], 16_384, 1, kind="round_robin")
    assert draws(nobody, 30, b"key") == {0: 10, 1: 10, 2: 10}


@pytest.mark.parametrize(
    ("lengths", "weights"),
    [
        ([5, 0, 3, 0, 1], [1, 6, 3, 6, 5]),
        ([1, 7, 2], [7, 1, 6]),
        ([4, 4, 4], [1, 1, 1]),
        ([0, 9], [10, 1]),
    ],
)
def test_short_queues_are_chosen_more_often(
    kernel: ModuleType, lengths: list[int], weights: list[int]
) -> None:
    """Kafka's BuiltInPartitionerTest.adaptivePartitionsTest."""
    partitioner = kernel.StickyPartitioner(len(lengths), range(len(lengths)), 1, 99)
    for partition, length in enumerate(lengths):
        partitioner.set_queue_length(partition, length)
    assert_spread(draws(partitioner), dict(enumerate(weights)))
    for partition in range(len(lengths)):
        partitioner.set_queue_length(partition, 0)
    assert len(set(draws(partitioner, 1_000).values())) > 1
    assert_spread(draws(partitioner), dict.fromkeys(range(len(lengths)), 1))


def test_queue_lengths_count_only_among_the_available(kernel: ModuleType) -> None:
    partitioner = kernel.StickyPartitioner(4, [0, 1, 3], 1, 7)
    partitioner.set_queue_length(2, 1_000)
    partitioner.set_queue_length(3, 1)
    partitioner.set_queue_length(99, 1)  # of a partition that is not known yet
    assert_spread(draws(partitioner), {0: 2, 1: 2, 3: 1})
    partitioner.update(6, [2, 3, 4])
    partitioner.set_queue_length(2, 0)
    assert_spread(draws(partitioner), {2: 2, 3: 1, 4: 2})


def test_queue_lengths_are_bounded(kernel: ModuleType) -> None:
    count = 0xFF00
    partitioner = kernel.StickyPartitioner(count, range(count), 1, 7)
    partitioner.set_queue_length(0, 1 << 40)
    found = draws(partitioner, 2_000) if kernel is _kernel else draws(partitioner, 3)
    assert max(found) < count
    assert found[0] < 10
    with pytest.raises(ValueError, match="-1 batches"):
        partitioner.set_queue_length(0, -1)


def test_ignored_keys_go_where_keyless_records_go(kernel: ModuleType) -> None:
    partitioner = kernel.StickyPartitioner(17, range(17), 100, 3, ignore_keys=True)
    first = [partitioner.next_partition(10, b"23456") for _ in range(10)]
    assert len(set(first)) == 1
    assert_spread(draws(partitioner, 3_400, b"23456"), dict.fromkeys(range(17), 1))


def test_an_explicit_partition_wins_over_every_partitioner(journal: Journal) -> None:
    for kind in journal.kernel.PARTITIONERS:
        entry = journal.add([[b"k", b"v", None, 2], [None, b"v", None, 2], [None, b"v", None, 3]])
        partitioner = journal.kernel.StickyPartitioner(3, [0], 16_384, 1, kind=kind, ignore_keys=True)
        block = journal.kernel.index(journal.chain, entry, partitioner, 1 << 20)
        assert block.groups == [(2, 0, 2)]
        assert block.failures == [(2, 0xFF02)]


def test_unknown_partitioners_are_refused(kernel: ModuleType) -> None:
    with pytest.raises(ValueError, match="consistent_random"):
        kernel.StickyPartitioner(3, range(3), 16_384, 1, kind="sticky")


steps = st.lists(
    st.one_of(
        st.tuples(st.just("next"), st.integers(0, 400), st.one_of(st.none(), st.binary(max_size=40))),
        st.tuples(st.just("length"), st.integers(-1, 12), st.integers(0, 9)),
        st.tuples(st.just("update"), st.integers(1, 12), st.lists(st.integers(-1, 12), max_size=6)),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(reference.PARTITIONERS), st.booleans(), st.integers(0, 1 << 64), steps)
def test_both_place_alike(kind: str, ignore_keys: bool, seed: int, given_steps: list[Any]) -> None:
    assert _kernel.PARTITIONERS == reference.PARTITIONERS
    two = [
        kernel.StickyPartitioner(6, [0, 1, 4], 700, seed, kind=kind, ignore_keys=ignore_keys)
        for kernel in (_kernel, reference)
    ]
    for name, first, second in given_steps:
        if name == "next":
            assert two[0].next_partition(first, second) == two[1].next_partition(first, second)
        for each in two:
            if name == "length":
                each.set_queue_length(first, second)
            if name == "update":
                each.update(first, second)
        assert two[0].current == two[1].current


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_crc32_is_zlibs(key: bytes) -> None:
    partitioner = _kernel.StickyPartitioner(60_000, range(60_000), 1, 1, kind="consistent_random")
    if key:
        assert partitioner.next_partition(1, key) == zlib.crc32(key) % 60_000
