"""Goal: the kit's own decoder reads batches of real brokers, and refuses one that is damaged in any field."""

from __future__ import annotations

import struct
import zlib

import pytest

from sidecar.tools.testing.record_batches import (
    CRC_FROM,
    HEADER_BYTES,
    BadBatch,
    batch_headers,
    crc32c,
    read_batch,
    varint,
)

# From kafka-python's test vectors: written by a Kafka broker.
ONE = bytes.fromhex(
    "00000000000000000000003b00000001020318a2700000000000000000015dff7b063c0000015dff7b063cffffffffffff"
    "ffffffffffffffff0000000112000000010631323300"
)
TWO = bytes.fromhex(
    "0000000000000001000000400000000202c85cbd230000000000010000015dff7cdd6c0000015dff7cde14ffffffffffff"
    "ffffffffffffffff000000020c0000000100000e00d00202010000"
)
WITH_HEADER = bytes.fromhex(
    "00000000000000000000004500000000025cd8ef520000000000000000016585b6f3c10000016585b6f3c1ffffffffffff"
    "ffffffffffffffff000000012600000001066864720208686b6579086876616c"
)


def sealed(batch: bytes) -> bytes:
    """With the length and the CRC that its bytes need."""
    data = bytearray(batch)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[CRC_FROM:])))
    return bytes(data)


def test_batches_of_a_real_broker() -> None:
    header, (record,) = read_batch(ONE)
    assert (header.record_count, header.producer_id, record.value, record.timestamp_ms) == (
        1,
        -1,
        b"123",
        1503229838908,
    )
    header, records = read_batch(TWO)
    assert [record.timestamp_ms for record in records] == [1503229959532, 1503229959700]
    assert [record.value for record in records] == [b"", b""]
    _, (record,) = read_batch(WITH_HEADER)
    assert record.headers == (("hkey", b"hval"),)
    assert [header.size_bytes for header in batch_headers(ONE + TWO)] == [71, 76]


@pytest.mark.parametrize("position", [16, 17, 22, 26, 30, 38, 57, *range(HEADER_BYTES, len(TWO))])
def test_one_damaged_byte_is_found(position: int) -> None:
    damaged = bytearray(TWO)
    damaged[position] ^= 1
    with pytest.raises(BadBatch):
        read_batch(bytes(damaged))


@pytest.mark.parametrize(
    ("offset", "form", "value"),
    [(57, ">i", 1), (57, ">i", 3), (23, ">i", 5), (35, ">q", 1503229959701)],
    ids=["too few", "too many", "last offset delta", "largest timestamp"],
)
def test_a_right_crc_does_not_hide_a_wrong_field(offset: int, form: str, value: int) -> None:
    data = bytearray(TWO)
    struct.pack_into(form, data, offset, value)
    with pytest.raises(BadBatch):
        read_batch(sealed(bytes(data)))


def test_gzip() -> None:
    packer = zlib.compressobj(wbits=31)
    body = packer.compress(TWO[HEADER_BYTES:]) + packer.flush()
    data = bytearray(TWO[:HEADER_BYTES] + body)
    data[22] = 1
    header, records = read_batch(sealed(bytes(data)))
    assert header.codec == "gzip"
    assert records == read_batch(TWO)[1]
    with pytest.raises(BadBatch, match="gzip"):
        read_batch(sealed(bytes(data[:-6])))


@pytest.mark.parametrize(
    ("value", "hexed"),
    [
        (0, "00"),
        (-1, "01"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (8191, "fe7f"),
        (8192, "808001"),
        (2147483647, "feffffff0f"),
        (-2147483648, "ffffffff0f"),
    ],
)
def test_varints(value: int, hexed: str) -> None:
    data = bytes.fromhex(hexed)
    assert varint(data, 0) == (value, len(data))


def test_a_varint_has_an_end() -> None:
    with pytest.raises(BadBatch):
        varint(b"\x80" * 6, 0)
    with pytest.raises(BadBatch):
        varint(b"\x80" * 11, 0, bytes_max=10)


def test_both_ways_to_a_crc_agree() -> None:
    assert crc32c(b"Some String") == 608512271
    long = bytes(range(256)) * 200
    import crc32c as package

    assert crc32c(long[:32_768]) == package.crc32c(long[:32_768])
    assert crc32c(long) == package.crc32c(long)
