"""AwaitableMetadata: waiting for cluster metadata in asyncio (rules M4, M5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from sidecar.common.clock import MonotonicClock
from sidecar.controller.event_wait import happens_within
from sidecar.metadata.errors import InvalidPartitionError, MetadataTimeout
from sidecar.metadata.metadata import Metadata


class TopicMetadata(NamedTuple):
    """What ``wait_on_metadata`` gives: the topic's partition count and how long it took."""

    partition_count: int
    waited_ms: float


class AwaitableMetadata:
    """Waiting for Metadata in asyncio (rules M4, M5). ``wake`` asks whoever does the updating to look now.

    Waiters only look: they never hold up the updating. Belongs to the loop's thread.
    """

    def __init__(self, metadata: Metadata, clock: MonotonicClock, wake: Callable[[], None]) -> None:
        self.metadata = metadata
        self._clock = clock
        self._wake = wake
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Something happened to the Metadata (an update, a failure, its end): every waiter looks again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def await_update(self, last_version: int, max_wait_ms: float) -> None:
        """Return once the version is above ``last_version``.

        Raises ValueError for a negative wait, TimeoutError with the caller's own wait, MetadataClosed, and
        MetadataAuthenticationError once for each failure seen meanwhile.
        """
        if max_wait_ms < 0:
            raise ValueError(f"max_wait_ms must not be negative, and it is {max_wait_ms:g}.")
        await self._await_update(last_version, max_wait_ms, max_wait_ms)

    async def wait_on_metadata(
        self,
        topic: str,
        partition: int | None,
        max_wait_ms: float,
        *,
        wait_for_partition: bool = True,
    ) -> TopicMetadata:
        """Return the partition count of ``topic`` once a record for it (and for ``partition``) can go.

        What is known is returned at once, without a request. A partition out of range is waited for, as
        Kafka's current producer does, because the topic may be growing; with ``wait_for_partition=False``
        it fails with InvalidPartitionError after the one update that a stale cache deserves. Raises
        MetadataTimeout naming the topic, TopicAuthorizationError and InvalidTopicError at once.
        """
        count = self.metadata.check_topic(topic, partition)
        if count is not None:
            self.metadata.add(topic, self._clock.now_ms())
            return TopicMetadata(count, 0.0)
        started_ms = self._clock.now_ms()
        while True:
            self.metadata.add(topic, self._clock.now_ms())
            version = self.metadata.request_update()
            self._wake()
            left_ms = max_wait_ms - (self._clock.now_ms() - started_ms)
            try:
                await self._await_update(version, max(0.0, left_ms), max_wait_ms)
            except MetadataTimeout as timeout:
                why = self.metadata.why_not(topic, partition)
                raise MetadataTimeout(self._timeout_text(topic, partition, max_wait_ms)) from (why or timeout)
            waited_ms = self._clock.now_ms() - started_ms
            count = self.metadata.check_topic(topic, partition)
            if count is not None:
                return TopicMetadata(count, waited_ms)
            known = self.metadata.snapshot.partition_count(topic)
            if known is not None and partition is not None and not wait_for_partition:
                raise InvalidPartitionError(partition, known)

    def _timeout_text(self, topic: str, partition: int | None, max_wait_ms: float) -> str:
        known = self.metadata.snapshot.partition_count(topic)
        if known is None or partition is None:
            return f"Topic {topic} not present in metadata after {max_wait_ms:g} ms."
        return (
            f"Partition {partition} of topic {topic} with partition count {known} is not present in metadata "
            f"after {max_wait_ms:g} ms."
        )

    async def _await_update(self, last_version: int, wait_ms: float, told_ms: float) -> None:
        deadline_ms = self._clock.now_ms() + wait_ms
        while not self.metadata.check_update(last_version):
            left_ms = deadline_ms - self._clock.now_ms()
            if left_ms <= 0 or not await happens_within(self._changed, left_ms / 1000):
                raise MetadataTimeout(f"Failed to update metadata after {told_ms:g} ms.")
