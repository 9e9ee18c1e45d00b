"""The outcome of records in pure Python, and the callbacks that it runs: see ``pure.py``."""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from itertools import accumulate, compress, count, repeat
from operator import call
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from client_stub.records.record_metadata import RecordMetadata

if TYPE_CHECKING:
    from client_stub.errors import DeliveryFailed, SidecarError
    from client_stub.native.pure import SubmissionCore

OnDelivery: TypeAlias = "Callable[[SidecarError | None, RecordMetadata | None], object]"

_BITS: Final = [bytes((byte >> bit) & 1 for bit in range(8)) for byte in range(256)]
_TO_METADATA: Final = tuple.__new__


class Fate:
    """The outcome of the records whose bits are set in ``mask``. Immutable; any thread may use it.

    Offsets count along the bits of ``mask``; -1 when the broker gave none. ``timestamps`` has the records' own
    timestamps in ms, and ``timestamp_ms`` is that of all others.
    """

    __slots__ = (
        "_ranks",
        "base_offset",
        "error",
        "mask",
        "partition",
        "timestamp_ms",
        "timestamps",
        "topic",
    )

    def __init__(
        self,
        mask: int,
        topic: str,
        partition: int,
        base_offset: int,
        timestamp_ms: int,
        timestamps: dict[int, int] | None,
        error: DeliveryFailed | None,
    ) -> None:
        self.mask = mask
        self.topic = topic
        self.partition = partition
        self.base_offset = base_offset
        self.timestamp_ms = timestamp_ms
        self.timestamps = timestamps
        self.error = error
        self._ranks: tuple[array[int], list[int]] | None = None
        """(words of the mask, number of members before each word). Made at the first look-up, as most fates are never
        looked up.
        """

    def rank(self, index: int) -> int:
        """How many of this fate's records come before ``index``; -1 when the record is none of them."""
        words, before = self._ranks or self._count()
        word = index >> 6
        if not 0 <= word < len(words):
            return -1
        bits, place = words[word], index & 63
        if not bits >> place & 1:
            return -1
        return before[word] + (bits & ((1 << place) - 1)).bit_count()

    def _count(self) -> tuple[array[int], list[int]]:
        size = (self.mask.bit_length() + 63) // 64
        words = array("Q", self.mask.to_bytes(8 * size, sys.byteorder))
        if sys.byteorder == "big":
            words.reverse()
        self._ranks = ranks = words, [0, *accumulate(word.bit_count() for word in words)]
        return ranks

    def metadata(self, index: int, rank: int) -> RecordMetadata:
        """The metadata of the record ``index``, which ``rank`` records of this fate come before."""
        timestamp_ms = self.timestamp_ms
        if self.timestamps is not None:
            timestamp_ms = self.timestamps.get(index, timestamp_ms)
        offset = self.base_offset + rank if self.base_offset >= 0 else -1
        return RecordMetadata(self.topic, self.partition, offset, timestamp_ms)


def mask_of_indexes(indexes: bytes) -> int:
    """An int whose set bits are the little-endian u16 ``indexes``."""
    numbers = array("H")
    numbers.frombytes(indexes)
    bits = bytearray(max(numbers, default=0) // 8 + 1)
    for index in numbers:
        bits[index >> 3] |= 1 << (index & 7)
    return int.from_bytes(bits, "little")


def run_callbacks(submission: SubmissionCore, fate: Fate, news: int, failed: Callable[[], object]) -> None:
    """Run the callbacks of the records of ``fate`` whose bits are set in ``news``.

    ``failed()`` is called as the exception handler when a callback raises. Unless it raises as well, the remaining
    callbacks still run.
    """
    mask, base_offset, timestamps = fate.mask, fate.base_offset, fate.timestamps
    # Only the range of set bits is walked: a batch has records that are close to each other.
    first = (news & -news).bit_length() - 1
    span = range(first, news.bit_length())
    selectors = b""
    if submission.callbacks is not None or timestamps is not None or mask != news:
        selectors = _selectors(news >> first)
    callbacks: Iterable[OnDelivery | None]
    if submission.callbacks is not None:
        callbacks = [each or _no_callback for each in compress(submission.callbacks[first:], selectors)]
    else:
        callbacks = repeat(submission.callback, news.bit_count())
    if fate.error is not None:
        _run(callbacks, repeat(fate.error), repeat(None), failed)
        return
    if base_offset < 0:
        offsets: Iterable[int] = repeat(-1)
    elif mask == news:
        offsets = count(base_offset)
    else:
        offsets = (
            base_offset + (mask & ((1 << index) - 1)).bit_count() for index in compress(span, selectors)
        )
    times: Iterable[int] = repeat(fate.timestamp_ms)
    if timestamps is not None:
        times = map(timestamps.get, compress(span, selectors), times)
    fields = zip(repeat(fate.topic), repeat(fate.partition), offsets, times, strict=False)
    _run(callbacks, repeat(None), map(_TO_METADATA, repeat(RecordMetadata), fields), failed)


def _no_callback(error: SidecarError | None, metadata: RecordMetadata | None) -> None:
    """The callback of a record without one, when other records have callbacks."""


def _run(
    callbacks: Iterable[Any], errors: Iterable[Any], metadatas: Iterable[Any], failed: Callable[[], object]
) -> None:
    """Call all callbacks. After one that raises, the iterators continue with the next."""
    calls = map(call, callbacks, errors, metadatas)
    while True:
        try:
            deque(calls, maxlen=0)
        except BaseException:
            failed()
        else:
            return


def _selectors(mask: int) -> bytes:
    """One byte per bit, 1 if it is set, as itertools.compress takes it."""
    return b"".join(map(_BITS.__getitem__, mask.to_bytes((mask.bit_length() + 7) // 8, "little")))
