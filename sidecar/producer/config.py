"""ProducerConfig: the Kafka settings the producer core decides by, already validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sidecar.producer.lanes import ACKS_ALL, IDEMPOTENT_LANE


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
    compression_level: int | None = None
    max_request_size: int = 1_048_576
    max_block_ms: float = 60_000.0
    request_timeout_ms: float = 30_000.0
    delivery_timeout_ms: float = 120_000.0
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

    def acks_of(self, lane: int) -> int:
        """What a Produce request of ``lane`` asks for: the idempotent lane always waits for all replicas in
        sync.

        The other lane exists beside an idempotent one only for topics set to acks 0 or 1, so its default is
        1.
        """
        if lane == IDEMPOTENT_LANE:
            return ACKS_ALL
        return 1 if self.enable_idempotence else self.acks
