"""The bytes that other versions read: a segment's header and tables, the wire's numbers and frames, one of each.

``python -m tests.shm.golden`` prints them. The file beside it was made so before any of them was touched.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgpack

from client_stub.contract import wire
from sidecar.kernel import BatchRecords, Chain, StickyPartitioner, index, take_pages
from sidecar.shm import layout
from sidecar.shm.client_table import ClientTable
from sidecar.shm.descriptors import DescriptorTable
from sidecar.shm.histograms import BROKERS_MAX, FIRST_WORD, HISTOGRAM_ROWS, REQUEST_ROW
from sidecar.shm.layout import Layout
from sidecar.shm.segment import Segment
from tests.shm.sent import Sent

CLIENT = bytes(range(20))
SECRET = bytes(range(100, 116))


def golden() -> Iterator[tuple[str, str]]:
    """(name, number, form or hex) of each."""
    for name, value in sorted(vars(layout).items()):
        if name.isupper() and isinstance(value, int | bytes | tuple | struct.Struct):
            yield f"layout.{name}", value.format if isinstance(value, struct.Struct) else repr(value)
    for row in (*HISTOGRAM_ROWS, REQUEST_ROW):
        yield f"histograms.{row.name}", repr((row.bounds, row.steps))
    yield "histograms.words", repr((FIRST_WORD, BROKERS_MAX))
    yield "layout.of", str(tuple(Layout.of(page_bytes=16_384, page_count=64, clients_max=16)))
    for name, value in sorted(vars(wire).items()):
        if isinstance(value, type) and issubclass(value, int):
            yield from ((f"wire.{name}.{each.name}", str(int(each))) for each in value)
        elif name.isupper() and isinstance(value, int | struct.Struct):
            yield f"wire.{name}", value.format if isinstance(value, struct.Struct) else str(value)
    outcome = wire.Outcome(2, 1, 2, 9, 5, 0xFF04, 77, 3, 1, 2, -1, -1, b"\1\0\5\0", "expired")
    yield "wire.outcome", wire.pack_outcome(outcome).hex()
    yield from _kernel()
    with tempfile.TemporaryDirectory() as folder:
        yield from _segment(Path(folder))


def _kernel() -> Iterator[tuple[str, str]]:
    pages, owners, tail = bytearray(4 * 4096), bytearray(8 * 4), bytearray(8)
    chain = Chain(pages, 4096, 1, 2, tail, incarnation=7, owners=owners)
    chain.link_pages(take_pages(owners, 7, 2))
    records = [[b"key", b"value %d" % n, [["name", b"x"]], n % 2, 1_700_000_000_001 + n] for n in range(4)]
    payload = b"".join(msgpack.packb(record) for record in records)
    for flags in (1, 0):
        entry = chain.append(
            payload,
            count=4,
            client_row=3,
            client_generation=4,
            stream=5,
            seq=6,
            base_timestamp_ms=1_700_000_000_000,
            format=1,
            flags=flags,
        )
        block = index(chain, entry, StickyPartitioner(2, [0, 1], 16_384, 1), 1 << 20)
        for partition, start, stop in block.groups:
            batch = BatchRecords()
            assert batch.try_append(block, start, stop, 16_384) == stop - start
            outcome = batch.outcomes(
                0,
                number=1,
                kind=1,
                persistence=2,
                code=0,
                partition=partition,
                base_offset=40,
                append_time_ms=-1,
                text=b"",
            )
            yield f"kernel.outcome.{flags}.{partition}", outcome.hex()
            out = bytearray(batch.size_bytes)
            batch.encode_into(out, producer_id=1, epoch=2, base_sequence=3)
            yield f"kernel.batch.{flags}.{partition}", out.hex()
    yield "kernel.pages", bytes(pages[:1024]).hex()
    yield "kernel.owners", owners.hex()
    yield "kernel.tail", tail.hex()


def _segment(folder: Path) -> Iterator[tuple[str, str]]:
    segment = Segment.create(
        folder / "segment",
        page_bytes=16_384,
        buffer_memory_bytes=1 << 20,
        clients_max=16,
        instance_id=b"golden",
    )
    segment.prepare_slot(3)
    head = bytearray(segment.header[:1024])
    head[layout.BOOT_ID_OFFSET : layout.BOOT_ID_OFFSET + 32] = bytes(32)  # of this host and of this moment
    yield "segment.header", head.rstrip(b"\0").hex()
    row = ClientTable(segment).take_row(CLIENT, "billing", 42, 3, SECRET)
    assert row is not None and row.place_stream(9, 1)
    row.store_position(9, 70)
    places = segment.layout
    yield "segment.client_word", bytes(segment.view[places.client_words :][:8]).hex()
    yield "segment.client", bytes(segment.view[places.client(0) :][:512]).hex()
    table = DescriptorTable(segment, 3)
    place = table.free_indexes[-1]
    area = segment.slot(3).area[layout.DESCRIPTORS_OFFSET + place * layout.DESCRIPTOR_BYTES :]
    sent = Sent(1, 2, None, (3, 4), (5, 6), 7, producer_id=8, epoch=9, base_sequence=10)
    assert sent.publish(table, published_ms=11) == place
    yield "segment.descriptor.published", bytes(area[: layout.DESCRIPTOR_BYTES]).hex()
    table.store_outcome(place, 0, 12, 13, counted=14)
    yield "segment.descriptor.settled", bytes(area[: layout.DESCRIPTOR_BYTES]).hex()
    segment.close()


if __name__ == "__main__":
    print("\n".join(f"{name} {value}" for name, value in golden()))
