"""One row per setting: name, kind, default, bounds, text. Parser, checks and docs/configuration.md are derived from
it.

Loaded in the controller and passed to each worker; only read there.

Kafka's settings keep Kafka's names and are in ``[kafka]``. The daemon's own are in
:mod:`sidecar.config.daemon_settings`, the rules between settings in :mod:`sidecar.config.rules`.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sidecar.config.client_rules import ClientRule
from sidecar.config.daemon_settings import DAEMON_SETTINGS
from sidecar.config.sasl_settings import SASL_SETTINGS
from sidecar.config.setting import INT_MAX, LONG_MAX, Setting, Value, ValueKind, choice, integer
from sidecar.config.tls_settings import SECURITY_PROTOCOLS, TLS_SETTINGS

PARTITIONERS: Final = (
    "murmur2",
    "consistent_random",
    "fnv1a",
    "fnv1a_random",
    "random",
    "round_robin",
)
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


SETTINGS: Final[tuple[Setting, ...]] = (
    # [kafka]: where and who
    Setting(
        "bootstrap.servers",
        ValueKind.LIST,
        None,
        "Brokers to ask first, as host:port, separated by commas. Needed.",
    ),
    Setting("client.id", ValueKind.TEXT, "kafka-sidecar", "Name that the brokers' logs and quotas see."),
    Setting(
        "client.rack",
        ValueKind.TEXT,
        "",
        "Rack of this host, as the brokers name theirs (broker.rack); for partitioner.rack.aware.",
    ),
    choice(
        "client.dns.lookup",
        "use_all_dns_ips",
        ("use_all_dns_ips",),
        "Every address that a broker's name resolves to is tried.",
    ),
    # How to talk to the brokers
    choice(
        "security.protocol",
        "PLAINTEXT",
        SECURITY_PROTOCOLS,
        "How to talk to the brokers: without or with TLS (SSL), without or with a login (SASL).",
        any_case=True,
    ),
    *TLS_SETTINGS,
    *SASL_SETTINGS,
    # Guarantees of a send
    choice(
        "acks",
        "all",
        ("all", "-1", "0", "1"),
        "Which replicas must have a record before it counts as delivered. 0 and 1 switch idempotence off.",
    ),
    Setting(
        "enable.idempotence",
        ValueKind.BOOLEAN,
        None,
        "Each record once and in order across retries. On, unless acks or retries forbid it.",
    ),
    integer(
        "retries", INT_MAX, 0, INT_MAX, "Resends of a batch; delivery.timeout.ms is the bound that matters."
    ),
    integer(
        "max.in.flight.requests.per.connection",
        5,
        1,
        INT_MAX,
        "Requests without an answer on one connection; at most 5 with idempotence.",
    ),
    integer(
        "delivery.timeout.ms",
        120_000,
        0,
        INT_MAX,
        "Bound from accepting a record to its outcome, retries included.",
    ),
    integer(
        "request.timeout.ms",
        30_000,
        0,
        INT_MAX,
        "Bound for one answer of a broker; then its connection closes.",
    ),
    integer(
        "max.block.ms",
        60_000,
        0,
        LONG_MAX,
        "How long send() may wait for room, and accepted records for their topic's metadata.",
    ),
    # Batches
    integer("linger.ms", 5, 0, LONG_MAX, "How long an open batch waits for more records."),
    integer(
        "batch.size",
        16_384,
        0,
        INT_MAX,
        "Bytes at which a batch of one partition is full and sent without linger (uncompressed).",
    ),
    integer(
        "max.request.size",
        1_048_576,
        1_024,
        INT_MAX,
        "Largest record and largest request, bytes uncompressed.",
    ),
    integer(
        "buffer.memory", 128 << 20, 1 << 20, LONG_MAX, "Bytes for records accepted and not yet delivered."
    ),
    choice("compression.type", "none", CODECS, "Codec of the batches."),
    integer(
        "compression.gzip.level", -1, -1, 9, "gzip level, 1 (fast) to 9 (small); -1: the codec's own default."
    ),
    integer("compression.lz4.level", 9, 1, 17, "lz4 level."),
    integer("compression.zstd.level", 3, -131_072, 22, "zstd level."),
    # Where a record goes
    choice(
        "partitioner",
        "murmur2",
        PARTITIONERS,
        "Where a record goes that names no partition. murmur2: Kafka's default, keys by hash, keyless records to one "
        "partition per batch.size bytes. consistent_random: librdkafka's default (CRC-32; null and empty keys by "
        "chance). fnv1a: librdkafka's (null keys as the empty one); fnv1a_random: null keys by chance. random and "
        "round_robin: whatever the key, among partitions with a leader.",
    ),
    Setting(
        "partitioner.ignore.keys",
        ValueKind.BOOLEAN,
        False,
        "murmur2 partitions records with a key as if they had none.",
    ),
    Setting(
        "partitioner.adaptive.partitioning.enable",
        ValueKind.BOOLEAN,
        True,
        "Keyless records go more often to partitions with less waiting for them (KIP-794).",
    ),
    integer(
        "partitioner.availability.timeout.ms",
        0,
        0,
        LONG_MAX,
        "Keyless records avoid the partitions of a broker that took nothing for this long though batches were "
        "ready for it; 0: never. Needs adaptive partitioning.",
    ),
    Setting(
        "partitioner.rack.aware",
        ValueKind.BOOLEAN,
        False,
        "Keyless records go to partitions whose leader is in client.rack while there are any (KIP-1123).",
    ),
    # Retries and connections
    integer("retry.backoff.ms", 100, 0, LONG_MAX, "First wait before a retry; doubles with jitter."),
    integer("retry.backoff.max.ms", 1_000, 0, LONG_MAX, "Longest wait before a retry."),
    integer(
        "reconnect.backoff.ms", 50, 0, LONG_MAX, "First wait before connecting again; doubles with jitter."
    ),
    integer("reconnect.backoff.max.ms", 1_000, 0, LONG_MAX, "Longest wait before connecting again."),
    integer("socket.connection.setup.timeout.ms", 10_000, 0, LONG_MAX, "Bound for one connection attempt."),
    integer("socket.connection.setup.timeout.max.ms", 30_000, 0, LONG_MAX, "Bound that attempts grow to."),
    integer(
        "connections.max.idle.ms", 540_000, -1, LONG_MAX, "Idle connections close after this; -1: never."
    ),
    integer(
        "send.buffer.bytes", 131_072, -1, INT_MAX, "SO_SNDBUF of broker sockets; -1: the system's default."
    ),
    integer(
        "receive.buffer.bytes", 32_768, -1, INT_MAX, "SO_RCVBUF of broker sockets; -1: the system's default."
    ),
    # Metadata
    choice(
        "metadata.recovery.strategy",
        "rebootstrap",
        ("none", "rebootstrap"),
        "When no known broker answers: start again from bootstrap.servers (KIP-899), or keep trying the known ones.",
        any_case=True,
    ),
    integer(
        "metadata.recovery.rebootstrap.trigger.ms",
        300_000,
        0,
        INT_MAX,
        "Without any answer to a metadata request for this long, start again from bootstrap.servers (KIP-1102).",
    ),
    integer("metadata.max.age.ms", 300_000, 0, LONG_MAX, "A full refresh of metadata at least this often."),
    integer("metadata.max.idle.ms", 300_000, 5_000, LONG_MAX, "A topic not used for this long is forgotten."),
    integer(
        "topic.metadata.refresh.interval.ms",
        None,
        -1,
        LONG_MAX,
        "A setting of Kafka's old producer that replaces metadata.max.age.ms when set: refresh this often while "
        "records are sent; -1: only on failures; 0: after each send (costly).",
    ),
    *DAEMON_SETTINGS,
)

BY_NAME: Final[Mapping[str, Setting]] = {row.name: row for row in SETTINGS}

_OF_TOPICS: Final = (
    "compression.type",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.zstd.level",
    "linger.ms",
    "batch.size",
    "delivery.timeout.ms",
    "partitioner",
)
TOPIC_KEYS: Final[Mapping[str, Setting]] = {
    row.name: row
    for row in (
        choice(
            "acks",
            None,
            ("all", "-1", "0", "1"),
            "As acks. 0 and 1 take the topic's records out of idempotence, and no other topic's.",
        ),
        *(dataclasses.replace(BY_NAME[name], default=None, doc=f"As {name}.") for name in _OF_TOPICS),
        integer(
            "rate",
            None,
            1,
            LONG_MAX,
            "Bytes per second that each topic may take in, over all workers: its senders are held when it is "
            "used up. Bytes are those of the records as clients send them, uncompressed.",
        ),
        integer("records.per.second", None, 1, LONG_MAX, "The same by number of records; both may be set."),
    )
}
"""Settings of ``[topics."PATTERN"]``. An unset one is as for all topics."""


class ConfigError(ValueError):
    """The configuration cannot be used. ``sentences`` names every fault, each with what to do."""

    def __init__(self, sentences: Iterable[str]) -> None:
        self.sentences = list(sentences)
        super().__init__("\n".join(self.sentences))


_KEY_FILES: Final = frozenset(
    {"ssl.key.location", "ssl.keystore.location", "http.tls.key", "daemon.curve_key_file"}
)


@dataclass(frozen=True)
class SidecarConfig:
    """Concluded, immutable settings. ``values`` has every row's name; safe to share between threads."""

    values: Mapping[str, Value]
    clients: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    client_rules: Mapping[str, ClientRule] = field(default_factory=dict)
    """Client tables with names resolved and files read."""
    topics: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    """Settings by pattern, in the order of the file: the first that matches a topic counts."""
    sources: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    file: str = ""
    """Path of the configuration file as given; empty without one."""

    def integer(self, name: str) -> int:
        value = self.values[name]
        assert isinstance(value, int), name
        return value

    def number(self, name: str) -> float:
        value = self.values[name]
        assert isinstance(value, (int, float)), name
        return float(value)

    def text(self, name: str) -> str:
        value = self.values[name]
        assert isinstance(value, str), name
        return value

    def words(self, name: str) -> list[str]:
        value = self.values[name]
        assert isinstance(value, list), name
        return list(value)

    @property
    def holds_secrets(self) -> bool:
        """Whether it contains a token, a password or a private key, or names a file with one."""
        named = (name for name, value in self.values.items() if value not in (None, "", []))
        return any(
            client.get("token") or client.get("token.file") for client in self.clients.values()
        ) or any(BY_NAME[name].secret or name.endswith(".file") or name in _KEY_FILES for name in named)

    def to_mapping(self) -> dict[str, object]:
        """A worker's settings: every value by name, with ``clients`` and ``topics`` (in order) as nested mappings."""
        return {
            **self.values,
            "clients": {name: rule.to_mapping() for name, rule in self.client_rules.items()},
            "topics": {pattern: dict(keys) for pattern, keys in self.topics.items()},
        }


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a user most likely meant by ``name``, if one is similar."""
    known = list(known)
    found = difflib.get_close_matches(name.lower().replace("_", "."), known, n=1, cutoff=0.6)
    if found:
        return found[0]
    tails = [each for each in known if each.endswith("." + name) or each.split(".", 1)[-1] == name]
    return tails[0] if tails else None
