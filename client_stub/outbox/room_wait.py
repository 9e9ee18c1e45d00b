"""The wait of a caller for room, and its errors, with the cause if this process knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from client_stub.errors import BufferExhausted, DaemonUnreachable, SidecarError
from client_stub.io.run_dir import unreachable_text
from client_stub.outbox.wait_reasons import why_not_taken
from client_stub.system.log import log
from client_stub.system.originals import get_ident, monotonic

if TYPE_CHECKING:
    from client_stub.native.hot import OpenStream
    from client_stub.outbox.outbox import Outbox

WAIT_WARNING_S: Final = 2.0
"""A send that has waited this long for room logs it once, with the cause."""
WARNING_INTERVAL_S: Final = 60.0
"""The minimum time between two such lines of one producer, whose callers mostly wait for the same."""
ROOM_LOOK_MS: Final = 100.0
"""How often a caller that waits for room checks for it without being woken."""


def wait_for_room(outbox: Outbox, stream: OpenStream) -> None:
    """Wait until a worker has accepted this process and its buffer has room. Raises as ``Outbox.wait_for_room``."""
    outbox.check_usable(stream)
    if outbox.attached_once and outbox.has_room:
        return
    limit_ms = outbox.max_block_ms
    if get_ident() == outbox.io_thread_id:
        limit_ms = 0  # a callback runs in the io thread, which would wait for itself

    def is_attached() -> bool:
        outbox.check_usable(stream)
        return outbox.attached_once

    def is_roomy() -> bool:
        outbox.check_usable(stream)
        return outbox.has_room

    if not outbox.attached_once:
        first_ms = min(limit_ms, outbox.connect_timeout_ms)
        if not outbox.wait_until(is_attached, first_ms / 1e3):
            raise no_room(outbox, stream.topic, first_ms)
    outbox.wake()
    began = monotonic()
    ends = began + limit_ms / 1e3
    warned = False
    # Waiters are woken when half of the buffer is free. Less room is polled for, as one held topic may occupy the
    # rest for long.
    while not outbox.wait_until(is_roomy, min(ROOM_LOOK_MS / 1e3, ends - monotonic()), for_room=True):
        now = monotonic()
        if now >= ends:
            raise no_room(outbox, stream.topic, limit_ms)
        if not warned and now - began >= WAIT_WARNING_S:
            warned = True
            if now < outbox.room_warning_at:
                continue
            outbox.room_warning_at = now + WARNING_INTERVAL_S
            log.warning(
                "A send to topic %s has waited %.0f s for room: %d bytes of this producer wait%s.",
                stream.topic,
                now - began,
                outbox.buffered_bytes,
                _what_for(outbox, stream.topic),
            )


def no_room(outbox: Outbox, topic: str, waited_ms: float) -> SidecarError:
    """The error of a caller that waited ``waited_ms`` in vain: DaemonUnreachable or BufferExhausted."""
    if not outbox.attached_once:
        return DaemonUnreachable(unreachable_text(outbox.path, waited_ms, outbox.last_word))
    waited = f"waited {waited_ms:.0f} ms (max.block.ms). No record of this call was queued."
    if outbox.is_turned_away:
        return BufferExhausted(
            f"The daemon refuses this producer ({outbox.last_word.rstrip('.')}), which it took before, and "
            f"{outbox.buffered_bytes} bytes already wait for it; {waited}"
        )
    if outbox.last_word:
        return DaemonUnreachable(
            f"The daemon at {outbox.path} is away ({outbox.last_word}) and {outbox.buffered_bytes} bytes already "
            f"wait for it; {waited}"
        )
    return BufferExhausted(
        f"Failed to allocate room for a record of topic {topic} within the configured max blocking "
        f"time {waited_ms:.0f} ms: {outbox.buffered_bytes} bytes wait"
        f"{_what_for(outbox, topic)}. "
        "Send slower, raise buffer.memory of the daemon, or raise max_block_ms."
    )


def _what_for(outbox: Outbox, topic: str) -> str:
    """The end of "... bytes wait": the cause if this process knows it."""
    return why_not_taken(outbox, topic, for_room=True) or " for the daemon to accept them"
