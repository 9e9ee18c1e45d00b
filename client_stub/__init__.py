"""The thin stub of kafka-sidecar: ``Producer``, ``AsyncProducer``, and the errors they raise.

It runs inside applications, so its only dependency is msgpack, and it never imports ``sidecar``. The contract between
the two is ``wire.py``. Without the compiled part only the errors and the contract can be imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from client_stub import errors
from client_stub.errors import SidecarError
from client_stub.native.missing import COMPILED

try:
    from client_stub.io.last_record import CommittedRecord, LastCommitted
    from client_stub.io.topic_lookup import PartitionInfo
    from client_stub.outbox.delivery import BulkDelivery, Delivery
    from client_stub.outbox.inclusion import IncludedRange, Inclusion
    from client_stub.outbox.stats import ProducerStats
    from client_stub.producer import Producer
    from client_stub.record_metadata import OffsetRange, RecordMetadata
    from client_stub.records.offsets import GroupMetadata, OffsetToCommit
    from client_stub.stage import Stage
except ImportError as error:
    if error.name != COMPILED:
        raise

if TYPE_CHECKING:
    from client_stub.async_producer import AsyncProducer

__all__ = [
    "AsyncProducer",
    "BulkDelivery",
    "CommittedRecord",
    "Delivery",
    "GroupMetadata",
    "IncludedRange",
    "Inclusion",
    "LastCommitted",
    "OffsetRange",
    "OffsetToCommit",
    "PartitionInfo",
    "Producer",
    "ProducerStats",
    "RecordMetadata",
    "SidecarError",
    "Stage",
    "errors",
]


def __getattr__(name: str) -> Any:
    # Loaded on first use: asyncio costs 40 ms to import, and most callers never need it.
    if name == "AsyncProducer":
        from client_stub.async_producer import AsyncProducer

        return AsyncProducer
    if name == "__version__":
        from importlib.metadata import version

        return version("kafka-sidecar")
    if name in __all__:
        from client_stub import producer  # noqa: F401  it says what is missing
    raise AttributeError(f"module 'client_stub' has no attribute {name!r}")
