"""The hot path: journal chains, the index and encode walks, words, outcome bytes, checksums, atomics.

One compiled extension does the work; ``reference.py`` is its twin in pure Python, the oracle of the tests. It is handed
bytes and numbers, and knows no other room.
The environment variable ``KAFKA_SIDECAR_PURE_KERNEL=1`` picks the twin (slow, for debugging only).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING or os.environ.get("KAFKA_SIDECAR_PURE_KERNEL") != "1":
    try:
        from sidecar.kernel import _kernel as _chosen
    except ImportError as error:
        raise ImportError(
            "The compiled kernel (sidecar.kernel._kernel) cannot be loaded: "
            f"{error}. Install a C compiler and the Python headers, then install kafka-sidecar again."
        ) from error
else:
    from sidecar.kernel import reference as _chosen

BATCH_HEADER_BYTES = _chosen.BATCH_HEADER_BYTES
ENTRY_HEADER_BYTES = _chosen.ENTRY_HEADER_BYTES
ENTRY_INDEX_BYTES = _chosen.ENTRY_INDEX_BYTES
HAS_HARDWARE_CRC32C = _chosen.HAS_HARDWARE_CRC32C
PAGE_HEADER_BYTES = _chosen.PAGE_HEADER_BYTES
PAGE_LINKED = _chosen.PAGE_LINKED
PAGE_TAKEN = _chosen.PAGE_TAKEN
PARTITIONERS = _chosen.PARTITIONERS
RECORD_INDEX_BYTES = _chosen.RECORD_INDEX_BYTES
RECORDS_PER_ENTRY_MAX = _chosen.RECORDS_PER_ENTRY_MAX
STORE_POINTS = _chosen.STORE_POINTS

BatchRecords = _chosen.BatchRecords
Chain = _chosen.Chain
Entry = _chosen.Entry
RecordBlock = _chosen.RecordBlock
StickyPartitioner = _chosen.StickyPartitioner
compare_and_swap_u64 = _chosen.compare_and_swap_u64
crc32c = _chosen.crc32c
decode_varint = _chosen.decode_varint
encode_varint = _chosen.encode_varint
entry_payload = _chosen.entry_payload
entry_words = _chosen.entry_words
fail_records = _chosen.fail_records
fail_remaining = _chosen.fail_remaining
fetch_add_u64 = _chosen.fetch_add_u64
give_pages = _chosen.give_pages
held_bytes = _chosen.held_bytes
index = _chosen.index
index_run = _chosen.index_run
load_acquire_u64 = _chosen.load_acquire_u64
mark_failed_done = _chosen.mark_failed_done
murmur2 = _chosen.murmur2
records_from_columns = _chosen.records_from_columns
set_store_hook = _chosen.set_store_hook
store_release_u64 = _chosen.store_release_u64
take_pages = _chosen.take_pages
write_batch_header = _chosen.write_batch_header

__all__ = [
    "BATCH_HEADER_BYTES",
    "ENTRY_HEADER_BYTES",
    "ENTRY_INDEX_BYTES",
    "HAS_HARDWARE_CRC32C",
    "PAGE_HEADER_BYTES",
    "PAGE_LINKED",
    "PAGE_TAKEN",
    "PARTITIONERS",
    "RECORDS_PER_ENTRY_MAX",
    "RECORD_INDEX_BYTES",
    "STORE_POINTS",
    "BatchRecords",
    "Chain",
    "Entry",
    "RecordBlock",
    "StickyPartitioner",
    "compare_and_swap_u64",
    "crc32c",
    "decode_varint",
    "encode_varint",
    "entry_payload",
    "entry_words",
    "fail_records",
    "fail_remaining",
    "fetch_add_u64",
    "give_pages",
    "held_bytes",
    "index",
    "index_run",
    "load_acquire_u64",
    "mark_failed_done",
    "murmur2",
    "records_from_columns",
    "set_store_hook",
    "store_release_u64",
    "take_pages",
    "write_batch_header",
]
