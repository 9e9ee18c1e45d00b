"""The errors of a caller that has waited for room in vain, with the cause if this process knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from client_stub.errors import BufferExhausted, DaemonUnreachable, SidecarError
from client_stub.run_dir import unreachable_text
from client_stub.wait_reasons import why_not_taken

if TYPE_CHECKING:
    from client_stub.outbox import Outbox


def no_room(outbox: Outbox, topic: str, waited_ms: float) -> SidecarError:
    """The error of a caller that waited ``waited_ms`` in vain: DaemonUnreachable or BufferExhausted."""
    if not outbox.attached_once:
        return DaemonUnreachable(unreachable_text(outbox.path, waited_ms, outbox.last_word))
    if outbox.last_word:
        return DaemonUnreachable(
            f"The daemon at {outbox.path} is away ({outbox.last_word}) and {outbox.buffered_bytes} bytes already "
            f"wait for it; waited {waited_ms:.0f} ms (max.block.ms). No record of this call was queued."
        )
    return BufferExhausted(
        f"Failed to allocate room for a record of topic {topic} within the configured max blocking "
        f"time {waited_ms:.0f} ms: {outbox.buffered_bytes} bytes wait"
        f"{why_not_taken(outbox, topic, for_room=True) or ' for the daemon to accept them'}. "
        "Send slower, raise buffer.memory of the daemon, or raise max_block_ms."
    )
