"""SizeLimits: the sizes that no record may exceed, and their error. Any thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from client_stub.contract.wire import SUBMIT_HEAD_BYTES_MAX, LocalCode
from client_stub.errors import RecordTooLarge
from client_stub.records.packer import (
    kafka_size_bound,
    over_request_size,
    packed_bound,
    packed_size,
)
from client_stub.zmtp.frames import MESSAGE_BYTES_MAX


class SizeLimits:
    """The limits of one producer's daemon. The io thread sets them.

    ``wait_for_welcome(topic)``: waits for the daemon's first WELCOME, and raises as a send to the topic that waits for
    room.
    """

    def __init__(self, wait_for_welcome: Callable[[str], None]) -> None:
        self.request_bytes_max: int | None = None
        """max.request.size of the daemon, known after the first WELCOME."""
        self.payload_bytes_max = MESSAGE_BYTES_MAX - SUBMIT_HEAD_BYTES_MAX
        """The largest payload in bytes of one submission that the daemon reads, from its last WELCOME."""
        self._wait_for_welcome = wait_for_welcome

    @property
    def known(self) -> int | None:
        """As ``limit``, None until the daemon has sent it."""
        limit = self.request_bytes_max
        return None if limit is None else min(limit, self.payload_bytes_max)

    def limit(self, topic: str) -> int:
        """The greatest size in bytes that no record may exceed: the daemon's max.request.size, or what one message
        takes if that is less. Waits for the first WELCOME.
        """
        if self.request_bytes_max is None:
            self._wait_for_welcome(topic)
        return self.known or self.payload_bytes_max

    def check(self, topic: str, record: tuple[Any, ...]) -> None:
        """Raises RecordTooLarge for a checked record that exceeds max.request.size or does not fit into one message.
        Waits for the first WELCOME.
        """
        self.limit(topic)
        limit = self.request_bytes_max
        estimate = kafka_size_bound(record)
        if limit is not None and estimate > limit:
            raise RecordTooLarge(over_request_size(topic, estimate, limit), code=LocalCode.RECORD_TOO_LARGE)
        most = self.payload_bytes_max
        if packed_bound(record) > most and (payload_bytes := packed_size(record)) > most:
            raise RecordTooLarge(
                f"The record for topic {topic} is {payload_bytes} bytes, and one message to the daemon takes {most} at "
                "most.",
                code=LocalCode.RECORD_TOO_LARGE,
            )

    def check_numbered(self, topic: str, number: int, record: tuple[Any, ...]) -> None:
        """As ``check`` for one record of a call; the error names it."""
        try:
            self.check(topic, record)
        except RecordTooLarge as error:
            raise RecordTooLarge(f"record {number}: {error}", code=error.code) from None
