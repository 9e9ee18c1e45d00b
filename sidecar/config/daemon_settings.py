"""The daemon's own settings, one row each. They are in separate tables and have dotted names."""

from __future__ import annotations

from typing import Final

from sidecar.config.setting import INT_MAX, LONG_MAX, Setting, ValueKind, choice, integer

DAEMON_SETTINGS: Final[tuple[Setting, ...]] = (
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
    Setting(
        "daemon.idle_timeout_s",
        ValueKind.NUMBER,
        0.0,
        "A daemon that has had no client for this time drains and ends, such as one that was started for a single job. "
        "0: never.",
        0,
        31_536_000,
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
        "Connections of one worker to one broker. A second one is used only while the first is full, or while a "
        "backlog waits next to small batches. A broker takes one request of a connection after the other. 1: never.",
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
    integer(
        "daemon.stage_timeout_ms",
        3_600_000,
        1_000,
        INT_MAX,
        "How long a sealed stage waits for a transaction that includes it. Then it is dropped.",
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
        "Longest pause before a worker is replaced that died before it was ready for a second; pauses double up "
        "to it.",
    ),
    # [pool]
    Setting(
        "pool.path",
        ValueKind.TEXT,
        "",
        'File of the shared segment; "": a new one under /dev/shm. With pool.sync = accept the folder PATH.log is '
        "next to it.",
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
    Setting(
        "pool.staged_share",
        ValueKind.NUMBER,
        0.7,
        "Part of the pool for records of stages. What does not fit fails at once.",
        0.01,
        1.0,
    ),
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
    # [log]
    choice(
        "log.level",
        "info",
        ("debug", "info", "warning", "error"),
        "The least severe lines that the daemon and its workers log. `run -v` is debug.",
    ),
    choice(
        "log.format",
        "text",
        ("text", "json", "journald"),
        "Lines of the log on stderr. json: an object in each. journald: each begins with its priority, as in <4>, and "
        "the journal adds the time; the systemd unit sets it.",
    ),
)
