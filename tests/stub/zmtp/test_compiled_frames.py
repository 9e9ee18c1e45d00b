"""Frames: the compiled functions take and leave the same as those of frames.py do."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from client_stub.native import hot
from client_stub.zmtp import frames as drawn
from client_stub.zmtp.frames import HEADER_BYTES_MAX

frames = st.lists(
    st.binary(max_size=40) | st.sampled_from([0, 255, 256, 4096, 4097, 65_536, 65_537]).map(bytes),
    min_size=1,
    max_size=5,
)


@given(frames)
@example([b""] * 65)
def test_compiled_encode_writes_what_frames_py_writes(some: list[bytes]) -> None:
    made = [list(map(bytes, each.encode(some))) for each in (hot, drawn)]
    assert made[0] == made[1]
    as_views = [memoryview(frame) for frame in some]
    assert list(map(bytes, hot.encode(as_views))) == made[0]


@given(
    frames,
    st.binary(max_size=20),
    st.none() | st.tuples(st.integers(1, 20), st.integers(0, 255)),
    st.integers(0, 300),
    st.sampled_from([1, 300, 1 << 30]),
)
@example([b"a"] * 64, b"", None, 0, 1 << 30)
@example([b"a"] * 65, b"", None, 0, 1 << 30)
def test_compiled_whole_message_reads_or_leaves_what_frames_py_does(
    some: list[bytes], behind: bytes, damage: tuple[int, int] | None, cut: int, most: int
) -> None:
    stream = bytearray(b"\x07" + b"".join(drawn.encode(some)) + behind)
    if damage is not None and damage[0] < len(stream):
        stream[damage[0]] = damage[1]
    view, end = memoryview(stream), max(1, len(stream) - cut)
    found = [each.whole_message(view, 1, end, most) for each in (hot, drawn)]
    assert found[0] == found[1]
    if damage is None and len(some) <= 64 and cut <= len(behind) and most == 1 << 30:
        assert (found[0] is None) == (len(some[0]) > HEADER_BYTES_MAX)
    if found[0] is not None and damage is None:
        assert [bytes(each) for each in found[0][0]] == some
