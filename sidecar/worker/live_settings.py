"""Settings that a running worker adopts after a reload, each in one place, between two turns.

The worker calls it between two turns, on its loop.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sidecar.common.own_process import hide_memory
from sidecar.config.rules import config_of
from sidecar.protocol.connection_states import ConnectionConfig
from sidecar.worker.settings import WorkerSettings
from sidecar.worker.streams.rate_limit import RateLimits

if TYPE_CHECKING:
    from sidecar.deadletter.spool import SpoolWriter
    from sidecar.net.kafka.authentication import Authenticator
    from sidecar.net.kafka.cluster_links import ClusterLinks
    from sidecar.net.kafka.link_security import LinkSecurity
    from sidecar.worker.build import Rooms


def use_settings(
    values: Mapping[str, Any],
    rooms: Rooms,
    links: ClusterLinks,
    authenticator: Authenticator | None,
    security: LinkSecurity,
    spool: SpoolWriter,
    now_ms: float,
) -> None:
    """Apply every live setting. ``values``: all settings by name, as CONFIGURE carries them.

    All are read before the first is applied. Raises ValueError for settings that cannot be used.
    """
    if values.get("holds_secrets"):
        hide_memory()
    settings = WorkerSettings.from_mapping(values)
    connections = config_of(ConnectionConfig, values)
    rooms.core.accumulator.use_rules(settings.rules, now_ms)
    rooms.topics.use_rules(settings.rules, RateLimits(rooms.memory.segment, settings.workers))
    rooms.stubs.limits.use(settings.client_rules)
    rooms.stubs.clients.apply_rules(now_ms)
    rooms.stubs.intake.open_to_records(settings.takes_records)
    # Rates may be higher now; a stream over its rate is held again.
    rooms.stubs.holds.timed_due(float("inf"))
    rooms.stubs.sessions.grace_ms = settings.client_grace_ms
    rooms.stubs.clients.client_ack_timeout_ms = settings.client_ack_timeout_ms
    rooms.stages.timeout_ms = settings.stage_timeout_ms
    rooms.stubs.shares.set_staged_share(settings.staged_share)
    if authenticator is not None:
        authenticator.change(values)
    security.use(values)
    links.use(connections)
    spool.bound(
        int(values["dead_letters.max_bytes"]), drop_oldest=values["dead_letters.when_full"] == "drop_oldest"
    )
    logging.getLogger().setLevel(str(values["log.level"]).upper())
