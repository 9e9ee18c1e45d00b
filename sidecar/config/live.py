"""Says which settings a running daemon can change, and how two configurations differ. No I/O.

The controller calls it at a reload.

A setting is live if the code that uses it has one place where the new value is put. All others need a new daemon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sidecar.config.secret_sources import HIDDEN
from sidecar.config.setting import Value
from sidecar.config.settings import BY_NAME, SidecarConfig

LIVE: Final = frozenset(
    {
        "bootstrap.servers",
        "batch.size",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "connections.max.idle.ms",
        "delivery.timeout.ms",
        "linger.ms",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
        "daemon.client_ack_timeout_s",
        "daemon.client_grace_s",
        "daemon.shutdown_timeout_s",
        "daemon.idle_timeout_s",
        "daemon.unlisted_clients",
        "daemon.stage_timeout_ms",
        "dead_letters.max_bytes",
        "dead_letters.when_full",
        "log.level",
        "pool.staged_share",
    }
)
LIVE_PREFIXES: Final = ("ssl.", "sasl.", "https.")
"""Credentials: later connections use the new ones."""
OF_THE_SEGMENT: Final = frozenset({"buffer.memory", "daemon.clients_max", "pool.page_bytes", "pool.path"})
"""Fixed when the segment is made. A takeover keeps the old daemon's segment, so it cannot change them."""
SETTLED_TOPIC_KEYS: Final = ("acks", "partitioner")
"""Topic settings that cannot change: records in the journal are in the lane of its acks, and a key must keep its
partition.
"""
_SECRETS: Final = frozenset({"token", *(name for name, row in BY_NAME.items() if row.secret)})


def is_live(name: str) -> bool:
    return name in LIVE or name.startswith(LIVE_PREFIXES)


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of two configurations. ``changes``: a phrase per change, for the log. ``refusals``: a sentence per
    change that needs a new daemon.
    """

    changes: tuple[str, ...]
    refusals: tuple[str, ...]


def difference(old: SidecarConfig, new: SidecarConfig) -> Difference:
    """Compare concluded configurations. No text contains a secret."""
    changes: list[str] = []
    refusals: list[str] = []
    for name in BY_NAME:
        before, after = old.values[name], new.values[name]
        if before == after:
            continue
        phrase = f"{name} {shown_value(name, before)} → {shown_value(name, after)}"
        if is_live(name):
            changes.append(phrase)
        else:
            refusals.append(_needs_clean_stop(phrase) if name in OF_THE_SEGMENT else _needs_restart(phrase))
    changes += _table_changes("clients", old.clients, new.clients)
    changes += [
        f'clients."{name}" by its token file or the host\'s users'
        for name, rule in new.client_rules.items()
        if old.clients.get(name) == new.clients[name] and old.client_rules[name] != rule
    ]
    changes += _table_changes("topics", old.topics, new.topics)
    if list(old.topics) != list(new.topics) and set(old.topics) == set(new.topics):
        changes.append("the order of [topics] tables")
    unlike = _first_unlike(old.topics, new.topics)
    if unlike is not None:
        refusals.append(_needs_restart(f'acks or partitioner of the topics of topics."{unlike}"'))
    return Difference(tuple(changes), tuple(refusals))


def _needs_restart(what: str) -> str:
    return f"{what} needs a restart: kafka-sidecar run --takeover."


def _needs_clean_stop(what: str) -> str:
    return f"{what} needs a clean stop: kafka-sidecar drain, then restart the daemon."


def _first_unlike(
    old: Mapping[str, Mapping[str, Value]], new: Mapping[str, Mapping[str, Value]]
) -> str | None:
    """First pattern whose topics may get other values of fixed settings; None if there is none.

    Only the first table that matches a topic applies to it. So all tables up to the last one that sets a fixed setting
    must be the same as before, in the same order.
    """
    before, after = _settled(old), _settled(new)
    for index in range(max(len(before), len(after))):
        one = before[index] if index < len(before) else None
        other = after[index] if index < len(after) else None
        if one != other:
            found = other or one
            assert found is not None
            return found[0]
    return None


def _settled(topics: Mapping[str, Mapping[str, Value]]) -> list[tuple[str, list[Value]]]:
    tables = [(pattern, [keys.get(key) for key in SETTLED_TOPIC_KEYS]) for pattern, keys in topics.items()]
    while tables and not any(value is not None for value in tables[-1][1]):
        tables.pop()
    return tables


def _table_changes(
    kind: str, old: Mapping[str, Mapping[str, Value]], new: Mapping[str, Mapping[str, Value]]
) -> list[str]:
    found = [f'{kind}."{name}" added' for name in new if name not in old]
    found += [f'{kind}."{name}" removed' for name in old if name not in new]
    for name, keys in new.items():
        before = old.get(name)
        if before is None:
            continue
        for key in sorted(keys.keys() | before.keys()):
            one, other = before.get(key), keys.get(key)
            if one != other:
                found.append(f'{kind}."{name}".{key} {shown_value(key, one)} → {shown_value(key, other)}')
    return found


def shown_value(name: str, value: Any) -> str:
    """A value for logs and users; ``***`` for a secret."""
    if value is None:
        return "unset"
    if name in _SECRETS:
        return HIDDEN
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value) or '""'
