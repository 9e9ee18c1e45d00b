"""CommittedKeys: the last committed record of each key of one partition, as the log's batches tell. Sans-IO.

CommittedRecords feeds it, on the controller's loop. It reads open transactions, too, and judges them by their markers:
so it may read up to the high watermark, while an open transaction of another producer holds the last stable offset.
"""

from __future__ import annotations

from typing import Final

from sidecar.protocol.fetched_batches import FetchedRecord, fetched_batches

KEPT_KEYS_MAX: Final = 4_096
KEPT_BYTES_MAX: Final = 1 << 20
"""Of the records that are kept between two questions."""


class CommittedKeys:
    """Begins at ``position``; ``read`` what the broker has from there, until that has reached the high watermark."""

    def __init__(self, position: int) -> None:
        self.position = position
        """The next offset to read."""
        self._last: dict[bytes, FetchedRecord] = {}
        self._open: dict[int, dict[bytes, FetchedRecord]] = {}
        """Producer id → records of its transaction, whose marker has not come."""
        self._only: bytes | None = None
        """The one key that is kept, in a partition that has too many."""

    def read(self, data: bytes) -> bool:
        """Read the batches of one answer; False if there was no whole one. Raises ProtocolError."""
        before = self.position
        for batch in fetched_batches(data):
            if batch.last_offset < self.position:
                continue
            if batch.is_marker:
                ended = self._open.pop(batch.producer_id, {})
                if batch.is_commit:
                    self._commit(ended)
            else:
                into = self._open.setdefault(batch.producer_id, {}) if batch.is_transactional else self._last
                for record in batch.records():
                    key = record.key
                    if key is not None and self._only in (None, key) and record.offset >= self.position:
                        into[key] = record
            self.position = batch.last_offset + 1
        return self.position > before

    def _commit(self, ended: dict[bytes, FetchedRecord]) -> None:
        """A later record may have been committed earlier. It stays the last: so consumers see it, and compaction."""
        for key, record in ended.items():
            known = self._last.get(key)
            if known is None or known.offset < record.offset:
                self._last[key] = record

    def last(self, key: bytes) -> FetchedRecord | None:
        """None, too, for a key whose last record is a tombstone."""
        found = self._last.get(key)
        return None if found is None or found.value is None else found

    def keep_only(self, key: bytes) -> None:
        """Forget all other keys, for good: the answer needs only this one."""
        self._only = key
        for records in (self._last, *self._open.values()):
            for other in records.keys() - {key}:
                del records[other]

    @property
    def is_whole(self) -> bool:
        """Whether it has every key."""
        return self._only is None

    @property
    def is_small(self) -> bool:
        """Whether it may be kept until the next question."""
        kept = [*self._last.values(), *(each for of_id in self._open.values() for each in of_id.values())]
        size = sum(len(each.key or b"") + len(each.value or b"") for each in kept)
        return len(kept) <= KEPT_KEYS_MAX and size <= KEPT_BYTES_MAX
