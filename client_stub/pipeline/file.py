"""Reads a pipeline file. All faults are found in one go, each with its line and what to do.

On the driver, in the process of the pipeline's command or of spark-submit.
"""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

from client_stub.pipeline.keys import AVRO, KEYS, PROTOBUF, RAW, RECORD, TABLES, TOPIC, VARIABLE, Key, keys_of
from client_stub.pipeline.positions import Path as KeyPath
from client_stub.pipeline.positions import Positions
from client_stub.pipeline.status import FAILED

_URL: Final = re.compile(r"https?://[^@\s/?#]+(/[^@\s?#]*)?")
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_SYNTAX: Final = re.compile(r"(.*) \(at line (\d+), column \d+\)")
SERVERS: Final = "bootstrap.servers"
OF_FILES: Final = frozenset({"avro", "binaryFile", "csv", "json", "orc", "parquet", "text", "xml"})
"""Formats of Spark whose rows are in files."""
SOURCE: Final = "source"
"""The view of the source."""


class Fault(NamedTuple):
    """One thing that is wrong in the file."""

    file: str
    line: int
    what: str
    todo: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}, {self.todo}"


def in_order(faults: Iterable[Fault]) -> list[Fault]:
    """By line, each once."""
    return sorted(set(faults), key=lambda fault: fault.line)


class PipelineFaults(Exception):
    """The pipeline cannot run. The text has one line for each fault; ``status`` is that of the command."""

    def __init__(self, faults: list[Fault], status: int = FAILED) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = faults
        self.status = status


@dataclass
class Source:
    format: str
    path: str | None
    table: str | None
    schema: str | None
    options: dict[str, str]


@dataclass
class SqlStep:
    name: str
    sql: str
    params: dict[str, Any]


class PartFormat(NamedTuple):
    """How the key or the value of an output becomes bytes, if not as it is."""

    name: str
    schema: Path | None
    """None for the latest one of the registry."""
    message: str | None
    """Of Protobuf; None for the first one."""
    has_prefix: bool
    """Whether the registry's id of the schema comes first."""


@dataclass
class Registry:
    """The table [registry]."""

    url: str
    subject: str
    auto_register: bool
    user: str | None
    password: str | None = field(repr=False)
    password_file: str | None
    token: str | None = field(repr=False)
    token_file: str | None
    logical_cluster: str | None
    ca_file: str | None
    cert_file: str | None
    key_file: str | None


@dataclass
class Output:
    """``expressions``: part of a record → its SQL. ``formats``: those of key and value that are not raw."""

    view: str
    topic: str | None
    expressions: dict[str, str]
    formats: dict[str, PartFormat]
    takes_tombstones: bool
    bad_topic: str | None
    bad_path: str | None

    @property
    def label(self) -> str:
        """How reports name it."""
        return self.topic or self.expressions["topic"]

    @property
    def keeps_bad_rows(self) -> bool:
        return self.bad_topic is not None or self.bad_path is not None


@dataclass
class Pipeline:
    file: str
    name: str
    trigger: str
    checkpoint: str | None
    source: Source
    steps: list[SqlStep]
    outputs: list[Output]
    registry: Registry | None
    run_dir: str | None
    daemon: dict[str, str] | None
    """With autostart: Kafka's settings of the daemon that each host starts for itself."""
    servers: str | None
    """Without autostart: brokers of the cluster that the daemon must have."""
    positions: Positions = field(repr=False)
    faults: list[Fault] = field(default_factory=list)
    """All that is wrong in the file, of a pipeline that is only checked."""
    broken: frozenset[KeyPath] = frozenset()
    """The tables with a fault, such as ("source",) and ("step", 0)."""

    @property
    def is_stream(self) -> bool:
        return self.trigger != "once"

    def sink_options(self) -> dict[str, str]:
        """Those of the sink by which it finds, or starts, the daemon of each host."""
        if self.daemon is not None:
            return {"sidecar.autostart": "true"} | {
                f"kafka.{name}": each for name, each in self.daemon.items()
            }
        options = {"sidecar.run_dir": self.run_dir, "kafka.bootstrap.servers": self.servers}
        return {name: each for name, each in options.items() if each is not None}

    def reads(self, step: SqlStep) -> tuple[str, ...]:
        """The views before it that its SQL names."""
        names = [SOURCE]
        for each in self.steps:
            if each is step:
                break
            names.append(each.name)
        return tuple(
            name for name in names if name and re.search(rf"\b{re.escape(name)}\b", step.sql, re.IGNORECASE)
        )

    def fault(self, path: KeyPath, what: str, todo: str) -> Fault:
        return Fault(self.file, self.positions.line(path), what, todo)


def read_pipeline(file: Path, settings: Mapping[str, str], environment: Mapping[str, str]) -> Pipeline:
    """Read ``file``. ``settings`` are those of ``--set``. Raises PipelineFaults with all that is wrong."""
    pipeline = read_with_faults(file, settings, environment)
    if pipeline.faults:
        raise PipelineFaults(pipeline.faults)
    return pipeline


def read_with_faults(file: Path, settings: Mapping[str, str], environment: Mapping[str, str]) -> Pipeline:
    """As ``read_pipeline``, for a check that continues with what is right. Raises PipelineFaults for a file that is no
    TOML.
    """
    shown = str(file)
    try:
        text = file.read_text(encoding="utf-8-sig")  # an editor may have left a mark at the start
        content = tomllib.loads(text)
    except OSError as error:
        raise PipelineFaults(
            [Fault(shown, 1, f"the file cannot be read: {error.strerror}", "name a pipeline file")]
        ) from None
    except UnicodeDecodeError:
        raise PipelineFaults([Fault(shown, 1, "the file is no UTF-8", "save it as UTF-8")]) from None
    except tomllib.TOMLDecodeError as error:
        found = _SYNTAX.fullmatch(str(error))
        what, line = (found[1], int(found[2])) if found else (str(error), len(text.splitlines()) or 1)
        raise PipelineFaults(
            [Fault(shown, line, f"no TOML: {what[0].lower()}{what[1:]}", "correct the line")]
        ) from None
    return _FileReader(shown, content, Positions(text), settings, environment).pipeline()


class _FileReader:
    def __init__(
        self,
        file: str,
        content: dict[str, Any],
        positions: Positions,
        settings: Mapping[str, str],
        environment: Mapping[str, str],
    ) -> None:
        self._file = file
        self._content = content
        self._positions = positions
        self._settings = settings
        self._environment = environment
        self._faults: list[Fault] = []
        self._broken: set[KeyPath] = set()

    def pipeline(self) -> Pipeline:
        self._check_tables()
        pipeline = self._table("pipeline", ("pipeline",), self._content.get("pipeline"))
        source = self._source()
        steps = list(self._steps())
        registry = self._registry()
        outputs = list(self._outputs([step.name for step in steps]))
        sidecar = self._table("sidecar", ("sidecar",), self._content.get("sidecar", {}))
        kafka = self._kafka()
        daemon = self._daemon(sidecar, kafka) if sidecar["autostart"] else None
        if daemon is None:
            self._check_own_settings(kafka)
        self._check_checkpoint(pipeline)
        self._check_settings(steps)
        return Pipeline(
            self._file,
            pipeline["name"] or "",
            pipeline["trigger"],
            pipeline["checkpoint"],
            source,
            steps,
            outputs,
            registry,
            sidecar["run_dir"],
            daemon,
            None if daemon is not None else kafka.get(SERVERS),
            self._positions,
            in_order(self._faults),
            frozenset(self._broken),
        )

    # --- tables -------------------------------------------------------------------------------------

    def _check_tables(self) -> None:
        known = [*TABLES, "kafka"]
        for name, value in self._content.items():
            if name not in known:
                self._add((name,), f"table '{name}' is not known", _nearest(name, known))
            elif TABLES.get(name) and not _is_tables(value):
                self._add((name,), f"[{name}] may be there several times", f"write [[{name}]]")
            elif not TABLES.get(name) and not isinstance(value, Mapping):
                self._add((name,), f"{name} is a table of which there is one", f"write [{name}]")
        for name in ("pipeline", "source", "output"):
            if name not in self._content:
                self._broken.add((name,))
                self._add(
                    (), f"the table {name} is missing", f"add {'[[output]]' if TABLES[name] else f'[{name}]'}"
                )

    def _table(self, table: str, path: KeyPath, content: Any) -> dict[str, Any]:
        """The values of all keys of a table; None or the default for those that are missing or wrong."""
        keys = keys_of(table)
        found = {key.name: None if " " in str(key.default or "") else key.default for key in keys.values()}
        if not isinstance(content, Mapping):
            return found
        for name, value in content.items():
            key = keys.get(name)
            if key is None:
                where = path[-1] if isinstance(path[-1], str) else path[0]
                self._add((*path, name), f"key '{name}' is not known in {where}", _nearest(name, list(keys)))
            elif not key.kind.fits(value):
                shown = "***" if key.kind.is_secret else _shown(value)
                self._add((*path, name), f"{name} = {shown} must be {key.kind.wanted}", "correct the value")
            else:
                found[name] = self._with_environment((*path, name), key, value)
        for key in keys.values():
            if key.is_required and key.name not in content:
                self._add(path, f"{key.name} is missing", f"add {key.name} = ...")
        return found

    def _with_environment(self, path: KeyPath, key: Key, value: Any) -> Any:
        """``value`` with each ``${NAME}`` replaced, which SQL never is."""
        if key.kind.is_sql:
            if isinstance(value, str) and VARIABLE.search(value):
                self._add(
                    path,
                    "the environment is not put into SQL",
                    'make it a parameter of the step: params = { name = "${NAME}" } and :name',
                )
            return value
        if isinstance(value, Mapping):
            return {name: self._with_environment(path, key, each) for name, each in value.items()}
        return self._replaced(path, value)

    def _replaced(self, path: KeyPath, value: Any) -> Any:
        if not isinstance(value, str):
            return value

        def replace(found: re.Match[str]) -> str:
            if found[1] not in self._environment:
                self._add(path, f"the environment has no {found[1]}", f"set {found[1]} before the run")
            return self._environment.get(found[1], "")

        return VARIABLE.sub(replace, value)

    # --- their contents -----------------------------------------------------------------------------

    def _source(self) -> Source:
        path: KeyPath = ("source",)
        found = self._table("source", path, self._content.get("source"))
        if (
            found["table"] is None
            and found["format"] is None
            and isinstance(self._content.get("source"), dict)
        ):
            self._add(path, "format is missing", 'add format = "parquet", or table = "..."')
        if found["table"] is not None and (found["format"] or found["path"]):
            self._add(
                ("source", "table"), "table excludes format and path", "leave out the one or the others"
            )
        options = {name: _option_text(each) for name, each in (found["options"] or {}).items()}
        has_path = found["path"] is not None or "path" in map(str.lower, options)
        # Without one Spark would read nothing, and say nothing.
        if found["format"] in OF_FILES and not has_path and path not in self._broken:
            self._add(path, f"{found['format']} needs a path", 'add path = "FOLDER"')
        return Source(found["format"] or "", found["path"], found["table"], found["schema"], options)

    def _steps(self) -> Iterator[SqlStep]:
        seen = {SOURCE}
        for index, content in enumerate(_tables(self._content.get("step"))):
            path: KeyPath = ("step", index)
            found = self._table("step", path, content)
            name = found["name"] or ""
            if name and not _NAME.fullmatch(name):
                self._add(
                    (*path, "name"),
                    f"{name!r} cannot be the name of a view",
                    "take letters, digits and underscores",
                )
            elif name.lower() in seen:
                self._add((*path, "name"), f"there is another view '{name}'", "give each step its own name")
            seen.add(name.lower())
            params = {each: self._set(path, each, value) for each, value in (found["params"] or {}).items()}
            yield SqlStep(name, found["sql"] or "", params)

    def _outputs(self, steps: list[str]) -> Iterator[Output]:
        views = list(dict.fromkeys([SOURCE, *filter(None, steps)]))
        for index, content in enumerate(_tables(self._content.get("output"))):
            path: KeyPath = ("output", index)
            found = self._table("output", path, content)
            view = found["from"] or [SOURCE, *steps][-1]
            if view not in views:
                self._add((*path, "from"), f"there is no step '{view}'", _nearest(view, views))
            if (found["topic"] is None) == (found["topic_expr"] is None):
                self._add(path, "an output has topic or topic_expr, one of them", "name the topic")
            if found["delivery"] == "exactly_once":
                self._add(
                    (*path, "delivery"),
                    "delivery = exactly_once is not available in this version",
                    "leave it out: a retried task may write its rows again",
                )
            bad = self._bad_rows(path, found["bad_rows"])
            names = ("topic", "key", "value", "headers", "partition", "timestamp")
            expressions = {
                name: text
                for name in names
                if (text := found["topic_expr" if name == "topic" else name]) is not None
            }
            yield Output(
                view,
                found["topic"],
                expressions,
                dict(self._formats(path, found)),
                bool(found["tombstones"]),
                bad["topic"],
                bad["path"],
            )

    def _formats(self, path: KeyPath, found: Mapping[str, Any]) -> Iterator[tuple[str, PartFormat]]:
        has_registry = "registry" in self._content
        uses_registry = has_registry if found["registry"] is None else found["registry"]
        if uses_registry and not has_registry:
            self._add((*path, "registry"), "there is no table [registry]", "add it with its url")
        for part in ("key", "value"):
            name, schema, message = (found[f"{part}_{key}"] for key in ("format", "schema", "message"))
            takes_schema = name in (AVRO, PROTOBUF)
            has_prefix = takes_schema and uses_registry
            if takes_schema and schema is None and not (has_prefix and self._subject() == TOPIC):
                self._add(
                    (*path, f"{part}_format"),
                    f"{part}_format = {name} needs a schema",
                    f'add {part}_schema = "FILE"',
                )
            for key, value, is_right in (
                ("schema", schema, takes_schema),
                ("message", message, name == PROTOBUF),
            ):
                if value is not None and not is_right:
                    self._add(
                        (*path, f"{part}_{key}"),
                        f"{part}_{key} is not for {part}_format = {name}",
                        f"leave it out, or correct {part}_format",
                    )
            if has_prefix and found["topic"] is None and self._subject() != RECORD:
                self._add(
                    (*path, "topic_expr"),
                    "the topic of a row, and so the subject of its schema, is not known before it is sent",
                    f'take subject = "{RECORD}" in [registry], or topic',
                )
            if found[part] is None:
                if name != RAW:
                    self._add((*path, f"{part}_format"), f"there is no {part}", f"add {part} = ...")
            elif name != RAW:
                yield part, PartFormat(name, schema and Path(self._file).parent / schema, message, has_prefix)

    def _subject(self) -> str:
        table = self._content.get("registry")
        return str(table.get("subject", TOPIC)) if isinstance(table, Mapping) else TOPIC

    def _registry(self) -> Registry | None:
        content = self._content.get("registry")
        path: KeyPath = ("registry",)
        found = self._table("registry", path, content)
        if not isinstance(content, Mapping):
            return None
        url = found["url"] or ""
        if url and not _URL.fullmatch(url):
            what = "url must be http://HOST:PORT or https://HOST, without a user or password"
            self._add(
                (*path, "url"), what, "correct the value; user and password_file have keys of their own"
            )
        for name in ("password", "token"):
            if found[name] is not None and found[f"{name}_file"] is not None:
                self._add((*path, name), f"{name} excludes {name}_file", "leave out the one or the other")
        has_password = found["password"] is not None or found["password_file"] is not None
        if has_password != (found["user"] is not None):
            self._add(path, "a login has user, and password or password_file", "give both")
        if has_password and (found["token"] is not None or found["token_file"] is not None):
            self._add(path, "a token excludes user and password", "leave out the one or the other")
        return Registry(**found)

    def _bad_rows(self, path: KeyPath, content: Any) -> dict[str, Any]:
        found = self._table("output.bad_rows", (*path, "bad_rows"), content)
        if content is not None and (found["topic"] is None) == (found["path"] is None):
            self._add((*path, "bad_rows"), "bad_rows has topic or path, one of them", "name one")
        return found

    def _kafka(self) -> dict[str, str]:
        """The settings of [kafka] by Kafka's names, whether or not their dots are quoted."""
        content = self._content.get("kafka", {})
        found: dict[str, str] = {}

        def flatten(path: KeyPath, table: Mapping[str, Any]) -> None:
            for name, value in table.items():
                if isinstance(value, Mapping):
                    flatten((*path, name), value)
                    continue
                full = ".".join(map(str, (*path[1:], name)))
                if not isinstance(value, str | int | float):
                    what = f"{full} must be a text, number or flag"  # it may be a secret
                    self._add((*path, name), what, "correct the value")
                else:
                    found[full] = _option_text(self._replaced((*path, name), value))

        flatten(("kafka",), content if isinstance(content, Mapping) else {})
        return found

    def _daemon(self, sidecar: Mapping[str, Any], kafka: dict[str, str]) -> dict[str, str]:
        """Of the daemon that each host starts for itself."""
        if sidecar["run_dir"] is not None:
            self._add(("sidecar", "run_dir"), "autostart excludes run_dir", "leave out the one or the other")
        if SERVERS not in kafka:
            self._add(
                ("sidecar", "autostart"),
                "autostart needs the brokers",
                f'add [kafka] with "{SERVERS}" = "host:9092"',
            )
        return kafka

    def _check_own_settings(self, kafka: Mapping[str, str]) -> None:
        """A daemon that runs already has its settings; only its cluster can be asked for."""
        for name in kafka:
            if name != SERVERS:
                self._add(
                    ("kafka", name),
                    f"{name} is a setting of the daemon, which all its clients share",
                    "put it into the daemon's configuration, or let each host start one: autostart = true",
                )

    def _check_checkpoint(self, pipeline: Mapping[str, Any]) -> None:
        if pipeline["trigger"] != "once" and pipeline["checkpoint"] is None:
            self._add(("pipeline", "trigger"), "a stream needs a checkpoint", 'add checkpoint = "folder"')
        elif pipeline["trigger"] == "once" and pipeline["checkpoint"] is not None:
            self._add(
                ("pipeline", "checkpoint"),
                "a batch has no checkpoint",
                'leave it out, or make it a stream: trigger = "available-now"',
            )

    # --- parameters ---------------------------------------------------------------------------------

    def _set(self, path: KeyPath, name: str, default: Any) -> Any:
        """The value of a parameter: the default, or what ``--set`` says, of the default's type."""
        if not isinstance(default, _LITERALS):
            self._add(
                (*path, "params"),
                f"parameter {name} = {_shown(default)} must be a text, number, flag, date or time",
                "correct the value",
            )
            return None
        text = self._settings.get(name)
        if text is None:
            return default
        try:
            return _as_type_of(default, text)
        except ValueError:
            kind = type(default).__name__
            self._add(
                (*path, "params"),
                f"--set {name}={text} is no {kind}, as its default {_shown(default)} is",
                f"give a value of type {kind}",
            )
            return default

    def _check_settings(self, steps: list[SqlStep]) -> None:
        known = sorted({name for step in steps for name in step.params})
        for name in self._settings:
            if name not in known:
                line = self._positions.line(("step", 0))
                what = f"--set {name}: no step has this parameter"
                self._faults.append(Fault(self._file, line, what, _nearest(name, known)))

    def _add(self, path: KeyPath, what: str, todo: str) -> None:
        self._faults.append(Fault(self._file, self._positions.line(path), what, todo))
        if path:
            self._broken.add(path[:2] if path[0] in ("step", "output") else path[:1])


_LITERALS: Final = (str, bool, int, float, datetime.date, datetime.datetime)


def _as_type_of(default: Any, text: str) -> Any:
    """``text`` of ``--set`` as a value of the default's type. Raises ValueError."""
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise ValueError(text)
        return text == "true"
    if isinstance(default, datetime.datetime):
        return datetime.datetime.fromisoformat(text)
    if isinstance(default, datetime.date):
        return datetime.date.fromisoformat(text)
    if isinstance(default, int | float):
        return type(default)(text)
    return text


def _option_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, Mapping) for each in value)


def _tables(value: Any) -> list[Any]:
    return value if _is_tables(value) else []


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{...}"  # options of a source may have a password
    text = repr(value) if not isinstance(value, str) else f'"{value}"'
    return text if len(text) <= 60 else f"{text[:57]}..."


def _nearest(name: str, known: list[str]) -> str:
    found = get_close_matches(name, known, n=1, cutoff=0.5)
    if found:
        return f"did you mean '{found[0]}'?"
    return f"known are {', '.join(known)}" if known else "leave it out"


assert {key.table.split(".")[0] for key in KEYS} == set(TABLES)
