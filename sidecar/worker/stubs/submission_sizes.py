"""How large a submission may be, by max.request.size and the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from client_stub.frames import HEADER_BYTES_MAX, MESSAGE_BYTES_MAX
from client_stub.wire import SUBMISSION_BYTES_MAX

if TYPE_CHECKING:
    from sidecar.shm.buffer_pool import BufferPool

_ENTRY_OVERHEAD_BYTES: Final = 256
"""Header, word and padding of an entry of one record, with something to spare."""


def largest_submission(max_request_size: int, pool: BufferPool) -> int:
    """Payload bytes that one SUBMIT may have: a record of max.request.size however it is packed, if the pool holds it.

    msgpack takes up to twice what Kafka takes for headers that are empty.
    """
    wanted = max(SUBMISSION_BYTES_MAX, 2 * max_request_size + HEADER_BYTES_MAX)
    return min(wanted, MESSAGE_BYTES_MAX - HEADER_BYTES_MAX, pool.entry_bytes_max - _ENTRY_OVERHEAD_BYTES)


def full_submission(pool: BufferPool) -> int:
    """Payload bytes at which a stub begins another submission: a quarter of the pool, 1 MiB at most.

    A topic may hold half of the pool, and the smallest rows of columns take up to twice as much in the journal.
    """
    return min(SUBMISSION_BYTES_MAX, pool.entry_bytes_max // 4 - _ENTRY_OVERHEAD_BYTES)
