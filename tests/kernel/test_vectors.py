"""Golden bytes and numbers made by others: Kafka's Java client, librdkafka, a real broker's log."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from sidecar.kernel import _kernel
from tests.kernel.journal import Journal, encode

MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
    b"kafka": 0xD067CF64 - (1 << 32),
    b"giberish123456789": 0x8F552B0C - (1 << 32),
    b"1234": 0x9FC97B14 - (1 << 32),
    b"234": 0xE7C009CA - (1 << 32),
    b"34": 0x873930DA - (1 << 32),
    b"4": 0x5A4B5CA1,
    b"PreAmbleWillBeRemoved,ThePrePartThatIs": 0x78424F1C,
    b"reAmbleWillBeRemoved,ThePrePartThatIs": 0x4A62B377,
    b"eAmbleWillBeRemoved,ThePrePartThatIs": 0xE0E4E09E - (1 << 32),
    b"AmbleWillBeRemoved,ThePrePartThatIs": 0x62B8B43F,
    b"": 0x106E08D9,
}

PARTITIONS = {
    b"21": {3: 0, 10: 0, 12: 0, 17: 13, 100: 40, 1000: 340},
    b"foobar": {3: 0, 10: 6, 12: 6, 17: 9, 100: 66, 1000: 166},
    b"a-little-bit-long-string": {3: 2, 10: 2, 12: 8, 17: 11, 100: 12, 1000: 112},
    b"a-little-bit-longer-string": {3: 2, 10: 9, 12: 11, 17: 12, 100: 19, 1000: 819},
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": {3: 2, 10: 7, 12: 5, 17: 0, 100: 77, 1000: 677},
    b"abc": {3: 0, 10: 7, 12: 3, 17: 16, 100: 7, 1000: 107},
    b"": {17: 11, 1000: 681},
    b"a": {1000: 524},
    b"ab": {1000: 434},
    b"123456789": {1000: 566},
    b"\x00 ": {1000: 742},
}

VARINTS = {
    0: "00",
    -1: "01",
    1: "02",
    63: "7e",
    -64: "7f",
    64: "8001",
    -65: "8101",
    8191: "fe7f",
    8192: "808001",
    1048575: "feff7f",
    1048576: "80808001",
    2147483647: "feffffff0f",
    -2147483648: "ffffffff0f",
    (1 << 63) - 1: "feffffffffffffffff01",
    -(1 << 63) + 1: "fdffffffffffffffff01",
}
HEADER_BYTES = 61
FIRST_BYTES = 7
"""The size of a record with neither key, value nor headers, at the beginning of its batch."""

# (records, base timestamp, base offset, bytes) as a broker's log has them: it stamps offset and leader epoch 0.
BATCHES: list[tuple[list[list[Any]], int, int, str]] = [
    (
        [[None, b"123"]],
        1503229838908,
        0,
        "00000000000000000000003b00000001020318a2700000000000000000015dff7b063c0000015dff7b063cffffffffffffff"
        "ffffffffffffff0000000112000000010631323300",
    ),
    (
        [[None, b""], [None, b"", None, None, 1503229959532 + 168]],
        1503229959532,
        1,
        "0000000000000001000000400000000202c85cbd230000000000010000015dff7cdd6c0000015dff7cde14ffffffffffffff"
        "ffffffffffffff000000020c0000000100000e00d00202010000",
    ),
    (
        [[None, b"hdr", [["hkey", b"hval"]]]],
        0x016585B6F3C1,
        0,
        "00000000000000000000004500000000025cd8ef520000000000000000016585b6f3c10000016585b6f3c1ffffffffffffff"
        "ffffffffffffff000000012600000001066864720208686b6579086876616c",
    ),
]


@pytest.mark.parametrize(("key", "expected"), MURMUR2.items(), ids=repr)
def test_murmur2_is_kafkas(kernel: ModuleType, key: bytes, expected: int) -> None:
    assert kernel.murmur2(key) == expected


def test_murmur2_takes_any_bytes(kernel: ModuleType) -> None:
    assert isinstance(kernel.murmur2(b"\xa4"), int)
    assert isinstance(kernel.murmur2(b"\x81" * 1000), int)


@pytest.mark.parametrize(("key", "by_count"), PARTITIONS.items(), ids=repr)
def test_a_key_goes_where_kafka_puts_it_also_without_leaders(
    journal: Journal, key: bytes, by_count: dict[int, int]
) -> None:
    for count, expected in by_count.items():
        entry = journal.add([[key, b"v"]])
        partitioner = journal.kernel.StickyPartitioner(count, [0], 16_384, 1)
        block = journal.kernel.index(journal.chain, entry, partitioner, 1 << 20)
        assert block.groups == [(expected, 0, 1)]


@pytest.mark.parametrize(("value", "expected"), VARINTS.items())
def test_zigzag_varints(journal: Journal, value: int, expected: str) -> None:
    """As the second record's distance in time from the first: the field of a batch that takes any value."""
    first_ms, second_ms = max(0, -value), max(0, value)
    entry = journal.add([[None, None, None, None, first_ms], [None, None, None, None, second_ms]])
    second = encode(journal.batches(journal.index(entry))[0])[HEADER_BYTES + FIRST_BYTES :]
    delta = bytes.fromhex(expected)
    size = 1 + len(delta) + 1 + 3  # attributes, distance in time, offset 1; no key, no value, no headers
    assert second == bytes([2 * size]) + b"\0" + delta + b"\x02\x01\x01\0"


@pytest.mark.parametrize(("records", "base_ms", "base_offset", "expected"), BATCHES)
def test_batches_are_those_a_broker_wrote(
    journal: Journal, records: list[list[Any]], base_ms: int, base_offset: int, expected: str
) -> None:
    entry = journal.add(records, base_ms=base_ms)
    batch = journal.batches(journal.index(entry))[0]
    data = bytearray(encode(batch))
    assert data[12:16] == b"\xff\xff\xff\xff", "a producer does not know the leader epoch"
    data[:8] = base_offset.to_bytes(8, "big")
    # The golden bytes have other leader epochs; neither they nor the offset are under the CRC.
    data[12:16] = bytes.fromhex(expected)[12:16]
    assert data.hex() == expected


def test_crc32c(kernel: ModuleType) -> None:
    assert kernel.crc32c(b"Some String") == 608512271
    assert kernel.crc32c(b"") == 0
    assert kernel.crc32c(b"String", kernel.crc32c(b"Some ")) == 608512271


def test_crc32c_by_instruction_is_that_by_table() -> None:
    data = bytes(range(256)) * 200
    sizes = [*range(70), 767, 768, 769, 1535, 3 * 4096 - 1, 3 * 4096, 3 * 4096 + 1, 40_000, len(data)]
    for size in sizes:
        for start in (0, 1, 7):
            piece = data[start : start + size]
            assert _kernel.crc32c(piece, 5) == _kernel._crc32c_soft(piece, 5), (size, start)  # type: ignore[attr-defined]


@pytest.mark.rule("A3")
@pytest.mark.parametrize(
    ("key_bytes", "value_bytes", "limit", "fits"),
    [
        (0, 1_048_489, 1_048_576, True),
        (0, 1_048_490, 1_048_576, False),
        (0, 99_900, 100_000, True),
        (0, 100_000, 100_000, False),
        (100_000, 0, 100_000, False),
        (1_000, 100_000, 100_000, False),
        (99_000, 0, 100_000, True),
    ],
)
def test_too_large_is_judged_as_java_does(
    kernel: ModuleType, key_bytes: int, value_bytes: int, limit: int, fits: bool
) -> None:
    journal = Journal(kernel, page_bytes=16_384, page_count=80)
    entry = journal.add([[b"k" * key_bytes, b"v" * value_bytes]])
    block = journal.index(entry, max_request_bytes=limit)
    assert block.failures == ([] if fits else [(0, 0xFF01)])


def test_record_sizes(journal: Journal) -> None:
    entry = journal.add([[b"test", b"Super"]])
    batch = journal.batches(journal.index(entry))[0]
    assert batch.size_bytes == 61 + 16
