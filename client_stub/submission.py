"""Submission: the records of one topic that travel together, and what became of each of them.

The unit of the protocol: one SUBMIT, one sequence number of its stream. Futures are (submission, index), so
nothing is made per record when an outcome arrives unless a callback waits for it; callbacks run as one loop in C
over the whole outcome.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import compress, count, repeat
from operator import call
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from client_stub.errors import DeliveryFailed, SidecarError, error_for
from client_stub.record_metadata import RecordMetadata
from client_stub.wire import Format, Outcome, OutcomeKind, Persistence, Shape

if TYPE_CHECKING:
    from client_stub.outbox import Outbox
    from client_stub.packer import RecordPacker

log = logging.getLogger("client_stub")

OnDelivery: TypeAlias = Callable[[SidecarError | None, RecordMetadata | None], object]

_BITS: Final = [bytes((byte >> bit) & 1 for bit in range(8)) for byte in range(256)]
_TO_METADATA: Final = tuple.__new__


class Fate(NamedTuple):
    """What one outcome says about the records whose bits are set in ``mask``."""

    mask: int
    partition: int
    base_offset: int
    append_time_ms: int
    error: DeliveryFailed | None


class Submission:
    """Filled under the outbox's lock, then owned by the io thread; ``find`` may be called from any thread."""

    __slots__ = (
        "_counted",
        "_data",
        "_done_mask",
        "base_timestamp_ms",
        "callback",
        "callbacks",
        "count",
        "failed_count",
        "fates",
        "first_error",
        "flags",
        "format",
        "outbox",
        "pack",
        "packer",
        "payload_bytes",
        "queued_ms",
        "remaining",
        "room",
        "sent",
        "seq",
        "skip_bytes",
        "timestamps",
        "topic",
        "watched",
    )

    def __init__(
        self, outbox: Outbox, topic: str, packer: RecordPacker | None, room: int, base_timestamp_ms: int
    ) -> None:
        self.outbox = outbox
        self.topic = topic
        self.packer = packer
        if packer is not None:
            self.pack = packer.pack
        self.room = room
        """Payload bytes left, counted with an upper bound per record; it also keeps the count below its limit."""
        self.count = 0
        self.callback: OnDelivery | None = None
        """What waits for every record, while that is one and the same function (or nothing)."""
        self.callbacks: list[OnDelivery] | None = None
        """One for each record, once they differ."""
        self.base_timestamp_ms = base_timestamp_ms
        self.timestamps: dict[int, int] | None = None
        """The records' own timestamps, where given; metadata repeats them under CreateTime."""
        self.format: int = Format.MSGPACK
        self.flags = 0
        self.skip_bytes = 0
        """The msgpack array header that a bulk pack put before the records."""
        self.payload_bytes = 0
        self.seq = 0
        self.queued_ms = 0.0
        """When the io thread took it over (monotonic)."""
        self.sent = False
        """Given to a socket at least once: the daemon may have it."""
        self.remaining = 0
        self.first_error: DeliveryFailed | None = None
        self.failed_count = 0
        self.fates: list[Fate] = []
        self.watched = False
        """Somebody asks this submission for its error (else flush() tells it)."""
        self._data: bytes | None = None
        self._done_mask = 0
        self._counted: set[int] = set()

    def add_callback(self, on_delivery: OnDelivery | None, index: int) -> None:
        """The callback of record ``index``, when it is not the one that all before it have."""
        if self.callbacks is None:
            if not index:
                self.callback = on_delivery
                return
            self.callbacks = [self.callback or no_callback] * index
        self.callbacks.append(on_delivery or no_callback)

    def seal(self, data: bytes | None = None) -> None:
        """No record is added any more; the payload (``data``, or what was packed) has its final size."""
        self.remaining = self.count
        self._data = data
        if data is not None:
            self.payload_bytes = len(data)
        else:
            assert self.packer is not None
            self.payload_bytes = len(self.packer) - self.skip_bytes

    def payload(self) -> memoryview:
        """The bytes to send; they live in the packer until ``release``."""
        if self._data is not None:
            return memoryview(self._data)
        assert self.packer is not None
        return self.packer.view()[self.skip_bytes :]

    def release(self) -> RecordPacker | None:
        """Give the packer back: the daemon has the records, or they have failed."""
        packer, self.packer, self._data = self.packer, None, None
        return packer

    def detach_payload(self) -> RecordPacker | None:
        """Copy the (small) payload out of the packer and give that back."""
        packer = self.packer
        if packer is not None:
            self._data = bytes(self.payload())
            self.packer = None
        return packer

    @property
    def held_bytes(self) -> int:
        """Payload bytes that still count against the producer's buffer."""
        return self.payload_bytes if self.packer is not None or self._data is not None else 0

    @property
    def completed(self) -> bool:
        return self.remaining <= 0

    def find(self, index: int) -> tuple[DeliveryFailed | None, RecordMetadata | None] | None:
        """The record's (error, metadata), None while it is undecided."""
        for fate in self.fates:
            if fate.mask >> index & 1:
                if fate.error is not None:
                    return fate.error, None
                before = (fate.mask & ((1 << index) - 1)).bit_count()
                offset = fate.base_offset + before if fate.base_offset >= 0 else -1
                return None, RecordMetadata(
                    self.topic, fate.partition, offset, self._timestamp_ms(index, fate.append_time_ms)
                )
        return None

    def apply(self, outcome: Outcome) -> None:
        """Complete the records that ``outcome`` covers and that were not completed before; run their callbacks."""
        error = None
        if outcome.kind == OutcomeKind.FAILED:
            error = error_for(outcome.code, outcome.text, outcome.persistence)
        if outcome.shape == Shape.COUNT and not self.flags:
            # first_index names the slice of the batch it stands for: a repeat after a crash has the same one.
            if outcome.first_index in self._counted:
                return
            self._counted.add(outcome.first_index)
            self.remaining -= outcome.count
            if error is not None:
                self._note(error, outcome.count)
            return
        self._settle(
            _mask_of(outcome),
            outcome.partition,
            outcome.base_offset,
            outcome.append_time_ms,
            error,
        )

    def fail(self, error: DeliveryFailed) -> None:
        """Complete every record that is still undecided with ``error``."""
        if self.completed:
            return
        if self.flags:
            self._settle((1 << self.count) - 1, -1, -1, -1, error)
        else:
            self._note(error, self.remaining)
            self.remaining = 0

    def _settle(
        self, mask: int, partition: int, base_offset: int, append_time_ms: int, error: DeliveryFailed | None
    ) -> None:
        repeated = mask & self._done_mask
        news = mask & ~self._done_mask & ((1 << self.count) - 1)
        if not news:
            return
        if repeated and base_offset >= 0 and error is None:
            # Offsets count along the told records; a partial repeat cannot be cut without breaking that.
            log.warning("outcome for %s repeats some of its records; they keep their first fate", self.topic)
        self._done_mask |= news
        self.remaining -= news.bit_count()
        self.fates.append(Fate(mask, partition, base_offset, append_time_ms, error))
        if error is not None:
            self._note(error, news.bit_count())
        if self.callbacks is not None or self.callback is not None:
            self._call_back(mask, news, self.fates[-1])

    def _note(self, error: DeliveryFailed, count: int) -> None:
        self.failed_count += count
        if self.first_error is None:
            self.first_error = error

    def _call_back(self, mask: int, news: int, fate: Fate) -> None:
        # Only the span that is covered is walked: a batch holds records that lie near each other.
        first = (news & -news).bit_length() - 1
        span = range(first, news.bit_length())
        selectors = b""
        if self.callbacks is not None or self.timestamps is not None or mask != news:
            selectors = _selectors(news >> first)
        callbacks: Iterable[OnDelivery | None]
        if self.callbacks is not None:
            callbacks = compress(self.callbacks[first : span.stop], selectors)
        else:
            callbacks = repeat(self.callback, news.bit_count())
        if fate.error is not None:
            _run(callbacks, repeat(fate.error), repeat(None))
            return
        if fate.base_offset < 0:
            offsets: Iterable[int] = repeat(-1)
        elif mask == news:
            offsets = count(fate.base_offset)
        else:
            offsets = (
                fate.base_offset + (mask & ((1 << index) - 1)).bit_count()
                for index in compress(span, selectors)
            )
        if fate.append_time_ms >= 0:
            times: Iterable[int] = repeat(fate.append_time_ms)
        elif self.timestamps is None:
            times = repeat(self.base_timestamp_ms)
        else:
            times = map(self.timestamps.get, compress(span, selectors), repeat(self.base_timestamp_ms))
        fields = zip(repeat(self.topic), repeat(fate.partition), offsets, times, strict=False)
        _run(callbacks, repeat(None), map(_TO_METADATA, repeat(RecordMetadata), fields))

    def _timestamp_ms(self, index: int, append_time_ms: int) -> int:
        if append_time_ms >= 0:
            return append_time_ms
        if self.timestamps is None:
            return self.base_timestamp_ms
        return self.timestamps.get(index, self.base_timestamp_ms)


def no_callback(error: SidecarError | None, metadata: RecordMetadata | None) -> None:
    """Stands in a submission's callback list for the records that have none."""


def _run(callbacks: Iterable[Any], errors: Iterable[Any], metadatas: Iterator[Any] | Iterable[Any]) -> None:
    """Call them all; one that raises is logged and stops nobody (the iterators go on behind it)."""
    calls = map(call, callbacks, errors, metadatas)
    while True:
        try:
            deque(calls, maxlen=0)
        except Exception:
            log.exception("an on_delivery callback failed; the others go on")
        else:
            return


def _selectors(mask: int) -> bytes:
    """One byte per bit, 1 where set: what itertools.compress takes."""
    return b"".join(map(_BITS.__getitem__, mask.to_bytes((mask.bit_length() + 7) // 8, "little")))


def _mask_of(outcome: Outcome) -> int:
    first = outcome.first_index
    if outcome.shape == Shape.BITMAP:
        return int.from_bytes(outcome.indexes, "little") << first
    if outcome.shape == Shape.LIST:
        indexes = array("H")
        indexes.frombytes(outcome.indexes[: 2 * outcome.count])
        bits = bytearray(max(indexes, default=0) // 8 + 1)
        for index in indexes:
            bits[index >> 3] |= 1 << (index & 7)
        return int.from_bytes(bits, "little")
    return ((1 << outcome.count) - 1) << first


def lost_error(text: str, *, maybe: bool) -> DeliveryFailed:
    """The daemon (or its memory of us) is gone: ``maybe`` the records are in the log, or certainly not."""
    from client_stub.wire import LocalCode

    persistence = Persistence.POSSIBLY_PERSISTED if maybe else Persistence.NOT_PERSISTED
    return error_for(LocalCode.DISCONNECTED, text, persistence)
