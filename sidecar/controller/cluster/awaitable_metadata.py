"""AwaitableMetadata: waiting for cluster metadata in asyncio (rules M4, M5).

MetadataFetcher and questions of clients use it, on the controller's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sidecar.common.clock import MonotonicClock
from sidecar.controller.event_wait import happens_within
from sidecar.metadata.errors import MetadataTimeout, SaslAuthenticationError
from sidecar.metadata.metadata import Metadata
from sidecar.metadata.snapshot import TopicState


class AwaitableMetadata:
    """Waits for Metadata in asyncio (rules M4, M5). ``wake`` makes the updater look at once.

    Waiters only read, and never delay an update. Belongs to the thread of the loop.
    """

    def __init__(self, metadata: Metadata, clock: MonotonicClock, wake: Callable[[], None]) -> None:
        self.metadata = metadata
        self._clock = clock
        self._wake = wake
        self.refusal = ""
        """The reason why the brokers refuse our login, as a sentence. While it is set, no call waits."""
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Wake every waiter: the Metadata has an update or a failure, or was closed."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def await_update(self, last_version: int, max_wait_ms: float) -> None:
        """Return once the version is above ``last_version``.

        Raises ValueError for a negative wait, TimeoutError with the caller's timeout in its text, MetadataClosed, and
        MetadataAuthenticationError once for each failure seen meanwhile.
        """
        if max_wait_ms < 0:
            raise ValueError(f"max_wait_ms must not be negative, and it is {max_wait_ms:g}.")
        await self._await_update(last_version, max_wait_ms, max_wait_ms)

    async def wait_on_metadata(self, topic: str, max_wait_ms: float) -> TopicState:
        """The state of the topic, once records can be sent to it (Kafka's ``waitOnMetadata``).

        A known topic is returned at once, without a request. Raises MetadataTimeout, which names the topic and has the
        cluster's last reason as its cause, and at once TopicAuthorizationError and InvalidTopicError.
        """
        started_ms = self._clock.now_ms()
        while True:
            found = self.metadata.check_topic(topic)
            self.metadata.add(topic, self._clock.now_ms())
            if found is not None:
                return found
            version = self.metadata.request_update()
            self._wake()
            left_ms = max_wait_ms - (self._clock.now_ms() - started_ms)
            try:
                await self._await_update(version, max(0.0, left_ms), max_wait_ms)
            except MetadataTimeout as timeout:
                text = f"Topic {topic} not present in metadata after {max_wait_ms:g} ms."
                raise MetadataTimeout(text) from (self.metadata.why_not(topic) or timeout)

    async def _await_update(self, last_version: int, wait_ms: float, max_wait_ms: float) -> None:
        deadline_ms = self._clock.now_ms() + wait_ms
        while not self.metadata.check_update(last_version):
            if self.refusal:
                raise SaslAuthenticationError(self.refusal)
            left_ms = deadline_ms - self._clock.now_ms()
            if left_ms <= 0 or not await happens_within(self._changed, left_ms / 1000):
                raise MetadataTimeout(f"Failed to update metadata after {max_wait_ms:g} ms.")
