"""Records of every kind as hypothesis draws them, and their bytes by the packer and by msgpack."""

from __future__ import annotations

from typing import Any

import msgpack
from hypothesis import strategies as st

from client_stub.native.hot import RecordPacker, SubmissionCore
from client_stub.records.packer import packed_bound
from client_stub.records.record_fields import full_record

RECORDS_MAX = 200
sizes = st.sampled_from([0, 1, 31, 32, 255, 256, 65_535, 65_536])
contents = st.none() | st.binary(max_size=40) | sizes.map(bytes)
names = st.text(max_size=20) | sizes.map(lambda size: "n" * size)
numbers = st.sampled_from([0, 127, 128, 255, 256, 65_535, 65_536])
records = st.builds(
    lambda *fields: full_record(*fields)[0],
    contents,
    contents,
    st.none() | st.lists(st.tuples(names, contents), max_size=20),
    st.none() | numbers | st.just((1 << 31) - 1),
    st.none() | numbers | st.sampled_from([(1 << 32) - 1, 1 << 32, (1 << 63) - 1]),
)


def core_of(room: int) -> Any:
    core = SubmissionCore()
    core.packer, core.free_bytes = RecordPacker(), room
    return core


def check_rows(some: list[Any], start: int, room: int) -> None:
    """A run of the rows that fits is taken, with msgpack's bytes, and counted."""
    core = core_of(room)
    count = core.append_rows(some, start, print)
    packed = bytes(core.packer.view())
    assert packed == packed_by_msgpack(some[start : start + count])
    assert core.count == count and 0 <= core.free_bytes <= room - len(packed) - count
    assert core.callback is (print if count else None)
    if start + count < len(some):  # the next one had no room
        assert packed_bound(some[start + count]) > core.free_bytes


def packed_by_msgpack(some: list[Any]) -> bytes:
    return b"".join(msgpack.packb(as_packed(record)) for record in some)


def as_packed(record: Any) -> Any:
    if len(record) == 2:
        return list(record)
    key, value, headers, partition, timestamp_ms = record
    return [key, value, None if headers is None else [list(h) for h in headers], partition, timestamp_ms]
