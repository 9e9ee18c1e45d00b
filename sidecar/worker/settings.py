"""WorkerSettings: the subset of the daemon's settings that a worker uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.config.client_rules import ClientRules
from sidecar.config.rules import config_of
from sidecar.producer.config import ProducerConfig
from sidecar.producer.topic_settings import TopicRules


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Immutable. Each name ends in its unit; sizes are in bytes."""

    config: ProducerConfig
    rules: TopicRules
    """Rules of ``[topics."PATTERN"]``."""
    workers: int
    """Number of workers that share the pool and the rates."""
    request_buffers_bytes: int
    client_grace_ms: float
    client_ack_timeout_ms: float
    heartbeat_timeout_s: float
    stage_timeout_ms: int
    staged_share: float
    """Part of the pool for records of stages."""
    client_rules: ClientRules
    """Rules of ``[clients.NAME]``."""
    takes_records: bool
    """False after an operator has drained the daemon."""
    when_unknown: str
    """recover.unknown: ``resend`` or ``fail``."""

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> WorkerSettings:
        """Build from all settings by name, as START carries them. Raises ValueError for one that cannot be used."""
        config = config_of(ProducerConfig, values)
        return cls(
            config=config,
            rules=TopicRules(config, values["topics"], values.get("paused.topics", ())),
            workers=int(values["daemon.workers"]),
            request_buffers_bytes=int(values["daemon.request_buffers_bytes"]),
            client_grace_ms=float(values["daemon.client_grace_s"]) * 1000,
            client_ack_timeout_ms=float(values["daemon.client_ack_timeout_s"]) * 1000,
            heartbeat_timeout_s=float(values["daemon.heartbeat_timeout_s"]),
            stage_timeout_ms=int(values["daemon.stage_timeout_ms"]),
            staged_share=float(values["pool.staged_share"]),
            client_rules=ClientRules.from_mapping(values),
            takes_records=not values.get("paused.intake", False),
            when_unknown=str(values["recover.unknown"]),
        )
