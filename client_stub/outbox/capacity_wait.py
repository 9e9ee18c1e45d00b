"""CapacityWait: a caller's wait for free buffer memory, and its errors, with the cause if this process knows it."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final

from client_stub.errors import BufferExhausted, DaemonUnreachable, SidecarError
from client_stub.system.log import log
from client_stub.system.minute_limit import MinuteLimit
from client_stub.system.missing_resources import unreachable_text
from client_stub.system.originals import get_ident, monotonic

if TYPE_CHECKING:
    from client_stub.outbox.waiters import Waiters


class Full(Enum):
    """The result of a call that may not wait and found no free memory."""

    FULL = "full"


FULL: Final = Full.FULL
WAIT_WARNING_S: Final = 2.0
"""A send that has waited this long for capacity logs it once, with the cause."""
CHECK_MS: Final = 100.0
"""How often a caller that waits for capacity checks for it without being woken."""


class CapacityWait:
    """How callers wait until a worker has accepted their producer and its buffer has free memory. Any thread."""

    def __init__(
        self,
        waiters: Waiters,
        path: str,
        buffered_bytes: Callable[[], int],
    ) -> None:
        self._waiters = waiters
        self._reasons = waiters.reasons
        self._path = path
        self._buffered_bytes = buffered_bytes
        self._limit = MinuteLimit()
        """Of all callers, which mostly wait for the same."""

    def run(
        self,
        topic: str,
        is_attached: Callable[[], bool],
        is_free: Callable[[], bool],
        *,
        max_block_ms: float,
        connect_timeout_ms: float,
    ) -> None:
        """Wait for both conditions, which may raise. Raises DaemonUnreachable or BufferExhausted."""
        limit_ms = max_block_ms
        if get_ident() == self._waiters.io_thread_id:
            limit_ms = 0  # a callback runs in the io thread, which would wait for itself
        if not is_attached():
            first_ms = min(limit_ms, connect_timeout_ms)
            if not self._waiters.wait_until(is_attached, first_ms / 1e3):
                raise self.error(topic, first_ms, was_attached=False)
        self._waiters.outbox.wake()
        began = monotonic()
        ends = began + limit_ms / 1e3
        warned = False
        # Waiters are woken when half of the buffer is free. Less capacity is polled for, as one held topic may occupy
        # the rest for long.
        while not self._waiters.wait_until(
            is_free, min(CHECK_MS / 1e3, ends - monotonic()), for_capacity=True
        ):
            now = monotonic()
            if now >= ends:
                raise self.error(topic, limit_ms, was_attached=True)
            if not warned and now - began >= WAIT_WARNING_S:
                warned = True
                if not self._limit.may_log(now * 1e3):
                    continue
                log.warning(
                    "A send to topic %s has waited %.0f s for room: %d bytes of this producer wait%s.",
                    topic,
                    now - began,
                    self._buffered_bytes(),
                    self._what_for(topic),
                )

    def error(self, topic: str, waited_ms: float, *, was_attached: bool) -> SidecarError:
        """The error of a caller that waited ``waited_ms`` in vain: DaemonUnreachable or BufferExhausted."""
        reasons = self._reasons
        if not was_attached:
            return DaemonUnreachable(unreachable_text(self._path, waited_ms, reasons.last_word))
        waited = f"waited {waited_ms:.0f} ms (max.block.ms). No record of this call was queued."
        if reasons.is_turned_away:
            return BufferExhausted(
                f"The daemon refuses this producer ({reasons.last_word.rstrip('.')}), which it took before, and "
                f"{self._buffered_bytes()} bytes already wait for it; {waited}"
            )
        if reasons.last_word:
            return DaemonUnreachable(
                f"The daemon at {self._path} is away ({reasons.last_word}) and {self._buffered_bytes()} bytes already "
                f"wait for it; {waited}"
            )
        return BufferExhausted(
            f"Failed to allocate room for a record of topic {topic} within the configured max blocking "
            f"time {waited_ms:.0f} ms: {self._buffered_bytes()} bytes wait"
            f"{self._what_for(topic)}. "
            "Send slower, raise buffer.memory of the daemon, or raise max_block_ms."
        )

    def _what_for(self, topic: str) -> str:
        """The end of "... bytes wait": the cause if this process knows it."""
        return self._reasons.why_not_taken(topic, for_capacity=True) or " for the daemon to accept them"
