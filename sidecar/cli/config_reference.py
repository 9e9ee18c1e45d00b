"""docs/configuration.md, printed from the rows of the settings table."""

from __future__ import annotations

import json

from sidecar.config.client_settings import CLIENT_KEYS
from sidecar.config.live import SETTLED_TOPIC_KEYS, is_live
from sidecar.config.refused_settings import REFUSED, REFUSED_PREFIXES
from sidecar.config.setting import Setting
from sidecar.config.settings import SETTINGS, TOPIC_KEYS

_HEAD = """# Configuration

Every setting of the daemon, with its default. The smallest configuration is one line:
`kafka-sidecar run -X bootstrap.servers=host:9092`. Clients have a few settings themselves
([stub-api.md](stub-api.md)).

A setting has its default, unless one of these names another value; the last one counts: the file of `-c FILE`, an
environment variable, `-X key=value`.

| place | `linger.ms` | `daemon.workers` |
|---|---|---|
| TOML file | `[kafka]` `"linger.ms" = 5` | `[daemon]` `workers = 2` |
| variable | `KAFKA_SIDECAR__KAFKA__LINGER_MS=5` | `KAFKA_SIDECAR__DAEMON__WORKERS=2` |
| command line | `-X linger.ms=5` | `-X daemon.workers=2` |

Lists are TOML arrays, or words separated by commas. Bytes may be written as `"64KB"` or `"128MB"` (powers of 1,024). An
unknown name is an error that suggests the nearest known one, also for names of librdkafka and kafka-python. A FILE
whose name ends with `.properties` is read as Kafka's own tools read theirs: `linger.ms=5`, `daemon.workers=2`.
`kafka-sidecar config check -c FILE` reports every fault at once (exit 2). `kafka-sidecar config show` prints the
resulting configuration as TOML.

The run directory is `--run-dir`, else `daemon.run_dir`, else `KAFKA_SIDECAR_RUN_DIR`, else `/run/kafka-sidecar`
for root and `$XDG_RUNTIME_DIR/kafka-sidecar` for others (without that variable `/run/user/UID/kafka-sidecar`). A
daemon uses only a directory of its own user that nobody else may write (0750: its group may send records).

**live** marks the settings that `kafka-sidecar reload` gives to a running daemon
([operations.md](operations.md#reload)). A change of anything else needs `kafka-sidecar run --takeover`, and a reload
that finds one refuses it by name.

*This page is printed by `kafka-sidecar config show --reference` from the settings table in
`sidecar/config/settings.py`, and a test compares them: edit the table.*
"""

_TOPICS = """
## `[topics."PATTERN"]`: other values for some topics

`PATTERN` is a topic's name, or a glob: `*` any text, `?` one character, `[ab]` one of these; upper and lower case
differ. **The first table of the file whose pattern matches a topic counts for it, alone.** Settings that it leaves out
are as for all topics. On the command line: `-X 'topics."audit-*".acks=1'`; as a variable:
`KAFKA_SIDECAR__TOPICS__audit-events__ACKS=1`. There the name keeps its case, as a client's does.

Tables that only variables name come after those of the file, and those of `-X` come last. Variables have no order:
among them names come before globs, and two globs that may match the same topic are refused. A table that can
never be the first for any topic causes a warning.

```toml
[topics."metrics.*"]
acks = 0
compression.type = "lz4"

[topics."audit-*"]
compression.type = "zstd"
compression.zstd.level = 9
linger.ms = 200
rate = 1_000_000
```

`rate` and `records.per.second` count records as clients hand them over. A client over the rate is held, not refused:
`send()` continues until its own window is full, then it waits. After silence, a tenth of a second's worth passes at
once. One larger submission passes whole, and the wait after it pays for it.

| key | values | live | meaning |
|---|---|---|---|
"""

_CLIENTS = """
## `[clients.NAME]`: rules for clients of that name

`NAME` is the `client_name` of a Producer, as it is: no glob. Without any such table every member of the daemon's group
may use every name. A table adds only the rules that it names. [security.md](security.md#on-the-host) says what they
protect from.

```toml
[clients.billing]
uids = ["billing"]
token.file = "/etc/kafka-sidecar/billing.token"
topics.allow = ["billing-*", "audit"]
topics.deny = ["billing-secret"]

[clients.batch]
gids = ["etl", 1042]
records.per.second = 5_000
over.limit = "discard"

[daemon]
unlisted_clients = "deny"
```

A name with `uids` or `gids` is for these users and members of these groups alone: root too must be listed. A token is
asked for in addition. Rates count as those of topics do. With `discard` a submission over the rate fails whole.

| key | values | live | meaning |
|---|---|---|---|
"""

_REFUSED = """
## Kafka's settings that are not taken

| name | why |
|---|---|
"""

_RULES = """
## Rules between settings

- `acks` 0 or 1, or `retries` 0: idempotence is off. With `enable.idempotence = true` they are refused.
- `max.in.flight.requests.per.connection` over 5 with idempotence is refused, also where idempotence is only the
  default.
- `delivery.timeout.ms` must be at least `linger.ms` + `request.timeout.ms`; the default is raised with a
  warning.
- The same holds for each `[topics."PATTERN"]`: a set `delivery.timeout.ms` that is too short is refused, the
  default is raised.
- A topic's records are idempotent exactly when `enable.idempotence` is on and the topic's `acks` is `all`.
- `partitioner.ignore.keys` is for `murmur2` only; `partitioner.rack.aware` needs `client.rack`.
- A first backoff over its maximum is lowered to it, with a warning.
- `daemon.request_buffers_bytes` ≥ 2 × `max.request.size`; `buffer.memory` ≥ 2 × (`max.request.size` + one page)
  and ≥ 64 pages, as one topic may hold half of the pool at most.
"""

_TITLES = {
    "kafka": "`[kafka]`: Kafka's own settings, under Kafka's names",
    "daemon": "`[daemon]`: processes and limits",
    "pool": "`[pool]`: the shared segment",
    "recover": "`[recover]`: records of a dead worker or daemon",
    "dead_letters": "`[dead_letters]`: failed records whose client is gone",
    "log": "`[log]`: what is logged",
    "http": "`[http]`: metrics, health and the page",
}


def reference_markdown() -> str:
    """The whole page."""
    parts = [_HEAD]
    for table, title in _TITLES.items():
        parts.append(f"\n## {title}\n\n| name | default | values | live | meaning |\n|---|---|---|---|---|\n")
        parts += [_line(row) for row in SETTINGS if row.table == table]
    parts.append(_CLIENTS)
    parts += [f"| `{row.name}` | {_values(row)} | live | {row.doc} |\n" for row in CLIENT_KEYS.values()]
    parts.append(_TOPICS)
    parts += [
        f"| `{row.name}` | {_values(row)} | {'' if row.name in SETTLED_TOPIC_KEYS else 'live'} | {row.doc} |\n"
        for row in TOPIC_KEYS.values()
    ]
    parts.append(_RULES)
    parts.append(_REFUSED)
    parts += [f"| `{name}` | {why} |\n" for name, why in REFUSED.items()]
    parts += [f"| `{prefix}*` | {why} |\n" for prefix, why in REFUSED_PREFIXES.items()]
    return "".join(parts)


def _line(row: Setting) -> str:
    default = "(unset)" if row.default is None else f"`{json.dumps(row.default)}`"
    live = "live" if is_live(row.name) else ""
    return f"| `{row.key}` | {default} | {_values(row)} | {live} | {row.doc} |\n"


def _values(row: Setting) -> str:
    bounds = row.bounds_text()
    return bounds if row.choices else ", ".join(part for part in (str(row.kind), bounds) if part)
