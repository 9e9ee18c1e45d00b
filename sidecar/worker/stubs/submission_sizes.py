"""Size limits of submissions, from max.request.size and the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from client_stub.contract.wire import SUBMISSION_BYTES_MAX
from client_stub.zmtp.frames import HEADER_BYTES_MAX, MESSAGE_BYTES_MAX

if TYPE_CHECKING:
    from sidecar.shm.buffer_pool import BufferPool

_ENTRY_OVERHEAD_BYTES: Final = 256
"""Bytes of header, word and padding of an entry with one record, rounded up."""


def largest_submission(max_request_size: int, pool: BufferPool) -> int:
    """Largest payload of one SUBMIT: a record of max.request.size in any encoding, if the pool can hold it.

    msgpack takes up to twice as many bytes as Kafka for empty headers.
    """
    wanted = max(SUBMISSION_BYTES_MAX, 2 * max_request_size + HEADER_BYTES_MAX)
    return min(wanted, MESSAGE_BYTES_MAX - HEADER_BYTES_MAX, pool.entry_bytes_max - _ENTRY_OVERHEAD_BYTES)


def full_submission(pool: BufferPool) -> int:
    """Payload bytes at which a stub begins a new submission: a quarter of the pool, at most 1 MiB.

    A topic may hold half of the pool, and the smallest rows of columns take up to twice as much in the journal.
    """
    return min(SUBMISSION_BYTES_MAX, pool.entry_bytes_max // 4 - _ENTRY_OVERHEAD_BYTES)
