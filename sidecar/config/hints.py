"""Setting names of other Kafka clients, and their counterparts here.

The loader and the command line call it when a name is unknown.

librdkafka's names: its CONFIGURATION.md. kafka-python's and aiokafka's are Kafka's with underscores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final

from sidecar.config.refused_settings import METRICS_ARE_SCRAPED

_NOT_NEEDED = "nothing takes its place, and nothing needs to; leave it out"
_CALLBACKS = "outcomes are for clients: send() returns a future, and takes on_delivery"
_CONSUMER = "it is a consumer's; leave it out"
_VERSIONS = "the daemon asks each broker for its versions; leave it out"

OTHER_NAMES: Final[Mapping[str, str]] = {
    "metadata.broker.list": "bootstrap.servers",
    "brokers": "bootstrap.servers",
    "broker.list": "bootstrap.servers",
    "queue.buffering.max.ms": "linger.ms",
    "compression.codec": "compression.type",
    "request.required.acks": "acks",
    "message.send.max.retries": "retries",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "message.timeout.ms": "delivery.timeout.ms",
    "message.max.bytes": "max.request.size",
    "queue.buffering.max.kbytes": "buffer.memory, in bytes",
    "queue.buffering.max.messages": "buffer.memory, in bytes: records are bounded by their size",
    "batch.num.messages": "batch.size, in bytes: batches are bounded by their size",
    "socket.timeout.ms": "request.timeout.ms",
    "socket.send.buffer.bytes": "send.buffer.bytes",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "topic.metadata.refresh.sparse": "metadata.max.idle.ms",
    "topic.metadata.propagation.max.ms": "max.block.ms",
    "debug": "log.level = debug",
    "log_level": "log.level",
    "rack.id": "client.rack",
    "acks.timeout.ms": "request.timeout.ms",
    "client_name": "client.id",
}
"""Another client's setting name → the name to use here."""
_OTHERS: Final[Mapping[str, str]] = {
    "enable.gapless.guarantee": "enable.idempotence gives order and no duplicates; after a lost record others continue",
    "sticky.partitioning.linger.ms": "murmur2 changes the partition of keyless records each batch.size bytes",
    "queuing.strategy": _NOT_NEEDED,
    "queue.buffering.backpressure.threshold": _NOT_NEEDED,
    "message.copy.max.bytes": _NOT_NEEDED,
    "socket.nagle.disable": "sockets send at once (TCP_NODELAY); leave it out",
    "socket.keepalive.enable": "request.timeout.ms finds silent brokers; leave it out",
    "socket.max.fails": _NOT_NEEDED,
    "socket.blocking.max.ms": _NOT_NEEDED,
    "broker.address.ttl": "names are resolved at each connection; leave it out",
    "broker.address.family": "addresses of both families are tried; leave it out",
    "api.version.request": _VERSIONS,
    "api.version.request.timeout.ms": _VERSIONS,
    "api.version.fallback.ms": _VERSIONS,
    "broker.version.fallback": _VERSIONS,
    "api_version": _VERSIONS,
    "statistics.interval.ms": METRICS_ARE_SCRAPED,
    "stats_cb": METRICS_ARE_SCRAPED,
    "delivery.report.only.error": _CALLBACKS,
    "on_delivery": _CALLBACKS,
    "dr_cb": _CALLBACKS,
    "dr_msg_cb": _CALLBACKS,
    "error_cb": "errors are in the daemon's log and in `kafka-sidecar status`; leave it out",
    "logger": "the daemon logs to stderr: log.level and log.format; leave it out",
    "produce.offset.report": "offsets are always reported; leave it out",
    "allow.auto.create.topics": "a topic is created on first use where the cluster does so; leave it out",
    "group.id": _CONSUMER,
    "auto.offset.reset": _CONSUMER,
    "enable.auto.commit": _CONSUMER,
    "key.deserializer": _CONSUMER,
    "value.deserializer": _CONSUMER,
}


def other_client_hint(name: str) -> str | None:
    """Advice about a setting of another client, as the end of a sentence; None for any other name."""
    for form in (name, name.replace("_", ".")):
        ours = OTHER_NAMES.get(form)
        if ours is not None:
            return f"write {ours} (another client's name for it)"
        if form in _OTHERS:
            return _OTHERS[form]
    return None


ENVIRONMENT_PREFIX: Final = "KAFKA_SIDECAR__"
_ONE_UNDERSCORE: Final = "KAFKA_SIDECAR_"
_NEARLY: Final = 0.95
"""Of a misspelt variable. A Kubernetes service of our name brings others, such as KAFKA_SIDECAR_PORT, which are not."""
_OWN_VARIABLES: Final = frozenset({"KAFKA_SIDECAR_RUN_DIR", "KAFKA_SIDECAR_CURVE_KEY_FILE"})
"""Variables that look like a setting but have a meaning of their own."""


def misspelt_variables(environment: Iterable[str], settings: Iterable[tuple[str, str]]) -> list[str]:
    """One sentence for each variable that names a setting, given as (table, key), but lacks the prefix of settings."""
    right = {}
    for table, key in settings:
        rest = key.upper().replace(".", "_")
        variable = f"{ENVIRONMENT_PREFIX}{table.upper()}__{rest}"
        right[f"{_ONE_UNDERSCORE}{table.upper()}_{rest}"] = variable
        right[f"{_ONE_UNDERSCORE}{table.upper()}__{rest}"] = variable
        right.setdefault(f"{_ONE_UNDERSCORE}{rest}", variable)
    return [
        f"{variable} sets nothing: settings have two underscores after each part; write {right[variable]}."
        for variable in sorted(environment)
        if variable in right and variable not in _OWN_VARIABLES
    ] + [
        f"{variable} sets nothing: did you mean {near[0]}?"
        for variable in sorted(environment)
        if variable not in right
        and not variable.startswith(ENVIRONMENT_PREFIX)
        and variable not in _OWN_VARIABLES
        and (near := get_close_matches(variable, _OWN_VARIABLES, 1, _NEARLY))
    ]
