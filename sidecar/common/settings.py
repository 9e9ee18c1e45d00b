"""One row per setting: name, kind, default, bounds, text. Parser, checks and docs/configuration.md come
from it.

Kafka's settings keep Kafka's names and stand in ``[kafka]``; the daemon's own stand in tables of their own
and are named dotted (``daemon.workers``). The rules between settings are in
:mod:`sidecar.common.config_rules`.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sidecar.common.client_rules import ClientRule
from sidecar.common.log_settings import LOG_SETTINGS
from sidecar.common.sasl_settings import SASL_SETTINGS
from sidecar.common.setting import INT_MAX, LONG_MAX, Setting, Value, ValueKind, choice, integer
from sidecar.common.tls_settings import SECURITY_PROTOCOLS, TLS_SETTINGS

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
    # What a send promises
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
        "murmur2 places records with a key as if they had none.",
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
        "When no known broker answers: start again from bootstrap.servers (KIP-899), or go on trying the known ones.",
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
        "Old producer's dial, in place of metadata.max.age.ms when set: refresh that often while records are "
        "sent; -1: only on failures; 0: after each send (costly).",
    ),
    # [daemon]
    Setting(
        "daemon.run_dir",
        ValueKind.TEXT,
        "",
        "Directory of sockets and lock; --run-dir wins. Its default is at the top of this page.",
    ),
    integer("daemon.workers", 2, 1, 64, "Worker processes."),
    Setting(
        "daemon.listen",
        ValueKind.TEXT,
        "",
        "Second endpoint, for clients that do not share the run directory: tcp://host:port, with CURVE only. The port "
        'and one more for each worker are used. "": none (docs/security.md).',
    ),
    Setting(
        "daemon.curve_key_file",
        ValueKind.TEXT,
        "",
        "File with the daemon's secret key for `listen`, as `kafka-sidecar keygen` makes it.",
        is_path=True,
    ),
    Setting(
        "daemon.cpus",
        ValueKind.INTEGERS,
        None,
        "CPUs to pin the workers to, round robin. Unset: pinned only where there are at least workers + 2.",
    ),
    Setting(
        "daemon.shutdown_timeout_s",
        ValueKind.NUMBER,
        30.0,
        "After SIGTERM, how long accepted records may still be delivered before they fail.",
        0,
        86_400,
    ),
    integer(
        "daemon.clients_max", 1_024, 16, 65_535, "Clients that may be connected or have records pending."
    ),
    choice(
        "daemon.unlisted_clients",
        "allow",
        ("allow", "deny"),
        "deny: only clients whose name has a table [clients.NAME] are admitted.",
    ),
    integer(
        "daemon.batch_growth_bytes",
        512 << 10,
        0,
        INT_MAX,
        "How far a full batch may grow while it waits (0: not beyond batch.size). It costs no memory here, and it "
        "lets the broker keep up under a backlog; at most max.request.size.",
    ),
    integer(
        "daemon.connections_per_broker",
        2,
        1,
        2,
        "Connections of one worker to one broker. A second one is made and used only while the first is full, as a "
        "broker takes one request of a connection after the other; 1: never.",
    ),
    integer(
        "daemon.request_buffers_bytes",
        64 << 20,
        2_048,
        LONG_MAX,
        "Memory of one worker for requests being written; at least 2 × max.request.size.",
    ),
    Setting(
        "daemon.client_ack_timeout_s",
        ValueKind.NUMBER,
        30.0,
        "A client whose outcome ring stays full this long is cut.",
        0.1,
        3_600,
    ),
    Setting(
        "daemon.client_grace_s",
        ValueKind.NUMBER,
        60.0,
        "How long a client that is not connected may come back for its outcomes. After that its failed records are "
        "dead letters, and its place in the client table is given to others.",
        0.1,
        3_600,
    ),
    Setting(
        "daemon.heartbeat_timeout_s",
        ValueKind.NUMBER,
        3.0,
        "A worker whose loop is silent this long, at three checks in a row, is killed and replaced.",
        0.5,
        3_600,
    ),
    Setting(
        "daemon.standby",
        ValueKind.BOOLEAN,
        True,
        "One more worker process waits with everything imported (20 MiB of its own), so a dead worker is replaced "
        "without a Python start.",
    ),
    integer(
        "daemon.restart_backoff_max_ms",
        10_000,
        0,
        600_000,
        "Longest pause before a worker that dies within a second, again and again, is replaced; pauses double up "
        "to it.",
    ),
    # [pool]
    Setting(
        "pool.path",
        ValueKind.TEXT,
        "",
        'File of the shared segment; "": one of its own under /dev/shm. With pool.sync = accept the folder PATH.log is '
        "beside it.",
    ),
    Setting(
        "pool.prefault",
        ValueKind.BOOLEAN,
        False,
        "Each worker maps every page of the pool before it takes its first record, in huge pages where the kernel "
        "gives them for shared memory. This saves page faults among the first records, and costs 0.1 to 0.5 s a GiB "
        "of buffer.memory at its start.",
    ),
    integer("pool.page_bytes", 16_384, 4_096, 65_536, "Bytes of one page, a power of two."),
    choice(
        "pool.sync",
        "none",
        ("none", "accept"),
        "Failures that accepted records survive. none: the death of any process. accept: also a crash of the host; "
        "records are forced to the disk of pool.path before they count as accepted (docs/durability.md).",
    ),
    # [recover]
    choice(
        "recover.unknown",
        "resend",
        ("resend", "fail"),
        "For a batch without an answer whose broker has forgotten the producer id (after a worker's death, or with old "
        "records). resend: it is sent again and may then be there twice. fail: it fails as possibly persisted.",
    ),
    # [dead_letters]
    Setting(
        "dead_letters.path",
        ValueKind.TEXT,
        "",
        'Directory for the failed records of clients that are gone; "": dead-letters in the run directory, which a '
        "reboot empties where it is under /run.",
    ),
    integer(
        "dead_letters.max_bytes", 256 << 20, 1 << 16, LONG_MAX, "Bound for the bytes of all dead letters."
    ),
    choice(
        "dead_letters.when_full",
        "hold",
        ("hold", "drop_oldest"),
        "At max_bytes. hold: further letters stay in the pool until some are replayed or removed. "
        "drop_oldest: the oldest file is removed, counted and logged.",
    ),
    # [http]
    Setting(
        "http.listen",
        ValueKind.TEXT,
        "127.0.0.1:9464",
        "Address of /metrics, /healthz and the page, as host:port; port 0: any free one, shown by status. With "
        'unix:PATH it is a socket for the daemon\'s group; a relative PATH begins at the run dir. "": none.',
    ),
    Setting(
        "http.tls.certificate",
        ValueKind.TEXT,
        None,
        "Certificate and chain in PEM for this address, read at the start; then it speaks TLS only.",
        is_path=True,
    ),
    Setting("http.tls.key", ValueKind.TEXT, None, "The certificate's private key in PEM.", is_path=True),
    Setting(
        "http.token.file",
        ValueKind.TEXT,
        None,
        "File with a token that requests must carry (Authorization: Bearer), read at each one. /healthz, "
        "/livez and the page need none; the page asks its reader for it.",
        is_path=True,
    ),
    *LOG_SETTINGS,
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
"""The settings of ``[topics."PATTERN"]``; unset: as for all topics."""


class ConfigError(ValueError):
    """The configuration cannot be used; ``sentences`` names every fault found, each with what to do."""

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
    """The same with names resolved and files read."""
    topics: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    """By pattern, in the order of the file: the first that matches a topic counts."""
    sources: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """Path of the configuration file, as it was given; empty without one that sets anything."""
        return next(
            (
                source
                for source in self.sources.values()
                if source != "-X" and not source.startswith("KAFKA_SIDECAR__")
            ),
            "",
        )

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
        """Whether a token, a password or a private key is in it, or in a file that it names."""
        named = (name for name, value in self.values.items() if value not in (None, "", []))
        return any(
            client.get("token") or client.get("token.file") for client in self.clients.values()
        ) or any(BY_NAME[name].secret or name.endswith(".file") or name in _KEY_FILES for name in named)

    def to_mapping(self) -> dict[str, object]:
        """A worker's settings: every value by name, ``clients`` and ``topics`` (in order) as nested maps."""
        return {
            **self.values,
            "clients": {name: rule.to_mapping() for name, rule in self.client_rules.items()},
            "topics": {pattern: dict(keys) for pattern, keys in self.topics.items()},
        }


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name a person most likely meant by ``name``, if one is near."""
    known = list(known)
    found = difflib.get_close_matches(name.lower().replace("_", "."), known, n=1, cutoff=0.6)
    if found:
        return found[0]
    tails = [each for each in known if each.endswith("." + name) or each.split(".", 1)[-1] == name]
    return tails[0] if tails else None
