"""The keys of a pipeline file: docs/pipeline.md prints its reference from these rows, and file.py checks by them.

On the driver, in the process of the pipeline's command or of spark-submit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

INTERVAL: Final = re.compile(r"[1-9]\d*(ms|s|m|h)")
VARIABLE: Final = re.compile(r"\$\{([A-Za-z_]\w*)\}")
RAW, JSON, AVRO, PROTOBUF = FORMATS = ("raw", "json", "avro", "protobuf")
"""Of a value or a key."""
TOPIC, RECORD, TOPIC_RECORD = SUBJECTS = ("topic", "record", "topic-record")
"""Names of a schema's subject."""


class KeyKind(NamedTuple):
    """A kind of value: its name for the reference, and what it must be."""

    name: str
    wanted: str
    fits: Callable[[Any], bool]
    is_sql: bool = False
    """SQL is taken as it is: the environment is never pasted into it."""
    is_secret: bool = False
    """A secret comes from the environment, never from the file, and no fault shows it."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_variable(value: Any) -> bool:
    return isinstance(value, str) and VARIABLE.fullmatch(value) is not None


def _is_trigger(value: Any) -> bool:
    return isinstance(value, str) and (
        value in ("once", "available-now") or INTERVAL.fullmatch(value) is not None
    )


def _is_options(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(each, str | int | float | bool) for each in value.values()
    )


TEXT: Final = KeyKind("text", "a text that is not empty", _is_text)
FLAG: Final = KeyKind("flag", "true or false", lambda value: isinstance(value, bool))
SQL: Final = KeyKind("SQL", "an SQL statement", _is_text, is_sql=True)
EXPRESSION: Final = KeyKind("SQL expression", "an SQL expression", _is_text, is_sql=True)
OPTIONS: Final = KeyKind("table", "a table of texts, numbers and flags", _is_options)
VALUES: Final = KeyKind("table", "a table of values", lambda value: isinstance(value, Mapping))
TRIGGER: Final = KeyKind("text", '"once", "available-now" or an interval such as "10s"', _is_trigger)
FORMAT: Final = KeyKind("text", '"raw", "json", "avro" or "protobuf"', lambda value: value in FORMATS)
SUBJECT: Final = KeyKind("text", '"topic", "record" or "topic-record"', lambda value: value in SUBJECTS)
SECRET: Final = KeyKind("variable", 'a variable, "${NAME}"', _is_variable, is_secret=True)
DELIVERY: Final = KeyKind("text", '"at_least_once"', lambda value: value in ("at_least_once", "exactly_once"))


class Key(NamedTuple):
    """One row of the reference."""

    table: str
    name: str
    kind: KeyKind
    text: str
    default: Any = None
    is_required: bool = False


KEYS: Final = (
    Key(
        "pipeline",
        "name",
        TEXT,
        "Names the Spark application and the owner of the checkpoint.",
        is_required=True,
    ),
    Key(
        "pipeline",
        "trigger",
        TRIGGER,
        '`"once"` is a batch. The others are streams: `"available-now"` takes all that is there and ends, an interval '
        "runs until it is stopped.",
        "once",
    ),
    Key(
        "pipeline",
        "checkpoint",
        TEXT,
        "The folder by which a stream continues after a restart. Required for streams, and only for them.",
    ),
    Key("source", "format", TEXT, "Any format of Spark. `kafka` is Spark's own source."),
    Key("source", "path", TEXT, "A file, a folder or a glob, relative to where the run starts."),
    Key("source", "table", TEXT, "A table of Spark's catalog, in place of `format` and `path`."),
    Key("source", "schema", TEXT, "The columns in DDL; without it they are inferred, where the format can."),
    Key("source", "options", OPTIONS, "Options of the format.", {}),
    Key("step", "name", TEXT, "The name of the view that later steps and outputs read.", is_required=True),
    Key(
        "step",
        "sql",
        SQL,
        "One SELECT. Earlier steps and `source` are its tables, `:name` is a parameter.",
        is_required=True,
    ),
    Key(
        "step",
        "params",
        VALUES,
        "Parameters and their defaults. `--set name=value` overrides them in all steps; they are bound as literals.",
        {},
    ),
    Key("output", "from", TEXT, "The step whose rows are sent.", "the last step"),
    Key("output", "topic", TEXT, "The topic of all rows."),
    Key("output", "topic_expr", EXPRESSION, "The topic of each row, in place of `topic`."),
    Key("output", "key", EXPRESSION, "The key, as string or binary, or for `key_format`."),
    Key(
        "output",
        "value",
        EXPRESSION,
        "The value, as string or binary, or for `value_format`.",
        is_required=True,
    ),
    Key(
        "output",
        "value_format",
        FORMAT,
        "How Spark encodes the value: `raw` is a string or binary as it is, `json` a struct, map or array, `avro` and "
        "`protobuf` what the schema describes.",
        RAW,
    ),
    Key(
        "output",
        "value_schema",
        TEXT,
        "The schema file, relative to the pipeline file: `.avsc`, `.proto`, or a descriptor set of protoc. Left out: "
        "the latest one of the registry.",
    ),
    Key("output", "value_message", TEXT, "The message of `protobuf`.", "the first one"),
    Key("output", "key_format", FORMAT, "As `value_format`.", RAW),
    Key("output", "key_schema", TEXT, "As `value_schema`."),
    Key("output", "key_message", TEXT, "As `value_message`.", "the first one"),
    Key(
        "output",
        "registry",
        FLAG,
        "Whether `avro` and `protobuf` have the prefix with the schema's id in `[registry]`.",
        "if there is one",
    ),
    Key("output", "headers", EXPRESSION, "A map<string,binary> or array<struct<key:string,value:binary>>."),
    Key("output", "partition", EXPRESSION, "The partition; else the daemon's partitioner decides."),
    Key("output", "timestamp", EXPRESSION, "The record's time, as timestamp or bigint in ms since 1970."),
    Key("output", "delivery", DELIVERY, "The only value today.", "at_least_once"),
    Key(
        "output",
        "tombstones",
        FLAG,
        "Whether a null value is meant as Kafka's null; else its row is bad.",
        False,
    ),
    Key(
        "output",
        "bad_rows",
        VALUES,
        "`{ topic = ... }` or `{ path = ... }`: where bad rows go. Without it a bad row ends the run.",
    ),
    Key(
        "output.bad_rows",
        "topic",
        TEXT,
        "The topic of bad rows, as JSON with reason and source file in headers.",
    ),
    Key("output.bad_rows", "path", TEXT, "The folder of bad rows, as files of JSON lines."),
    Key("registry", "url", TEXT, "The registry, as Confluent's API has it.", is_required=True),
    Key(
        "registry",
        "subject",
        SUBJECT,
        "The subject of a schema: `TOPIC-value` or `TOPIC-key`, the record's full name, or `TOPIC-RECORD`.",
        TOPIC,
    ),
    Key("registry", "auto_register", FLAG, "Whether `run` registers a schema that is not there.", False),
    Key("registry", "user", TEXT, "The user of a login by password."),
    Key("registry", "password", SECRET, "Its password, from the environment."),
    Key("registry", "password_file", TEXT, "The file of the password."),
    Key("registry", "token", SECRET, "A bearer token, in place of a user."),
    Key("registry", "token_file", TEXT, "The file of the token."),
    Key("registry", "logical_cluster", TEXT, "Of a token for Confluent Cloud: the registry's name there."),
    Key("registry", "ca_file", TEXT, "Certificates that are trusted, in PEM.", "those of certifi"),
    Key("registry", "cert_file", TEXT, "The driver's certificate, in PEM."),
    Key("registry", "key_file", TEXT, "Its key, in PEM."),
    Key("sidecar", "run_dir", TEXT, "The daemon's run directory on each host.", "as of the stub"),
    Key(
        "sidecar",
        "autostart",
        FLAG,
        "Whether a host without a daemon gets one, with the settings of the table `[kafka]`, in place of `run_dir`.",
        False,
    ),
)

TABLES: Final = {
    "pipeline": False,
    "source": False,
    "step": True,
    "output": True,
    "registry": False,
    "sidecar": False,
}
"""Table → whether the file may have several of it."""


def keys_of(table: str) -> dict[str, Key]:
    return {key.name: key for key in KEYS if key.table == table}


def reference() -> str:
    """The reference as Markdown, one table for each table of the file."""
    lines: list[str] = []
    for table in dict.fromkeys(key.table for key in KEYS):
        title = f"`[[{table}]]`" if TABLES.get(table) else f"`[{table}]`"
        if table == "output.bad_rows":
            title = "`bad_rows` of an output"
        lines += [f"### {title}", "", "| key | value | default | meaning |", "|---|---|---|---|"]
        lines += [
            f"| `{key.name}` | {key.kind.name} | {_default(key)} | {key.text} |"
            for key in keys_of(table).values()
        ]
        lines.append("")
    return "\n".join(lines)


def _default(key: Key) -> str:
    if key.is_required:
        return "required"
    if key.default is None or key.default == {}:
        return ""
    if isinstance(key.default, bool):
        return f"`{str(key.default).lower()}`"
    return key.default if " " in key.default else f"`{key.default}`"
