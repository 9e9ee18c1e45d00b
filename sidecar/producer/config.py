"""ProducerConfig: validated Kafka settings by which the producer core decides.

Made once from the worker's settings, and again at a reload.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """Names as in Kafka 4.x (dots become underscores). Times in ms, sizes in bytes. Made by ``config_of``.

    ``buffer_memory`` is the segment's pool; the core only carries it.
    """

    client_id: str
    acks: int
    enable_idempotence: bool
    batch_size: int
    batch_growth_bytes: int
    """Bytes by which a batch may grow beyond batch.size while it waits to be drained; 0 turns that off."""
    linger_ms: float
    buffer_memory: int
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    partitioner: str
    partitioner_ignore_keys: bool
    partitioner_adaptive_partitioning_enable: bool
    partitioner_availability_timeout_ms: float
    partitioner_rack_aware: bool
    client_rack: str
    max_request_size: int
    max_block_ms: float
    request_timeout_ms: float
    delivery_timeout_ms: float
    connections_per_broker: int
    """1 or 2. With 2, a second connection takes a share of the partitions while the first is full."""
    retries: int
    max_in_flight_requests_per_connection: int
    retry_backoff_ms: float
    retry_backoff_max_ms: float

    def level_of(self, codec: str) -> int | None:
        """Compression level of a codec for all topics; None for the codec's own default."""
        levels = {
            "gzip": self.compression_gzip_level if self.compression_gzip_level > 0 else None,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }
        return levels.get(codec)
