"""ProducerConfig: the Kafka settings the producer core decides by, already validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sidecar.producer.lanes import ACKS_ALL


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """Names and defaults as in Kafka 4.x (dots become underscores). Times in ms, sizes in bytes.

    ``buffer_memory`` is the segment's pool; the core only carries it. Relations between settings (for
    instance delivery.timeout.ms >= linger.ms + request.timeout.ms) are checked where the configuration is
    loaded.
    """

    client_id: str = "kafka-sidecar"
    acks: int = -1
    enable_idempotence: bool = True
    batch_size: int = 16_384
    batch_growth_bytes: int = 0
    """How far a batch may grow over batch.size while it waits to be drained; 0: not at all."""
    linger_ms: float = 5.0
    buffer_memory: int = 134_217_728
    compression_type: str = "none"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    partitioner: str = "murmur2"
    partitioner_ignore_keys: bool = False
    partitioner_adaptive_partitioning_enable: bool = True
    partitioner_availability_timeout_ms: float = 0.0
    partitioner_rack_aware: bool = False
    client_rack: str = ""
    max_request_size: int = 1_048_576
    max_block_ms: float = 60_000.0
    request_timeout_ms: float = 30_000.0
    delivery_timeout_ms: float = 120_000.0
    connections_per_broker: int = 1
    """2: while the first is full, a second one takes its share of the partitions."""
    retries: int = 2_147_483_647
    max_in_flight_requests_per_connection: int = 5
    retry_backoff_ms: float = 100.0
    retry_backoff_max_ms: float = 1_000.0

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> ProducerConfig:
        """Build from validated values under Kafka's names (``"linger.ms"``); names the core does not use are
        skipped.
        """
        known = {field.name for field in fields(cls)}
        chosen = {name.replace(".", "_").replace("-", "_"): value for name, value in values.items()}
        arguments = {name: value for name, value in chosen.items() if name in known}
        if arguments.get("acks") == "all":
            arguments["acks"] = ACKS_ALL
        elif "acks" in arguments:
            arguments["acks"] = int(arguments["acks"])
        return cls(**arguments)

    def level_of(self, codec: str) -> int | None:
        """The level of a codec for all topics; None: the codec's own default."""
        levels = {
            "gzip": self.compression_gzip_level if self.compression_gzip_level > 0 else None,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }
        return levels.get(codec)
