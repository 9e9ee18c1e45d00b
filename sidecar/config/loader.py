"""Reads the configuration: defaults, then the TOML file, then KAFKA_SIDECAR__ variables, then -X; later ones win.

Commands call it in their main thread, before a daemon starts and at its reload; no worker does.

Every fault is one sentence that names the setting, its source, and what to do.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any

from client_stub.contract.tcp import MISSING_TEXT
from client_stub.zmtp.keys import KeyFileError, read_key_file
from sidecar.config.client_settings import CLIENT_KEYS
from sidecar.config.client_tables import client_rules
from sidecar.config.file_mode import mode_fault, open_secret_files
from sidecar.config.hints import ENVIRONMENT_PREFIX, misspelt_variables, other_client_hint
from sidecar.config.properties_file import parse_properties
from sidecar.config.refused_settings import refusal
from sidecar.config.rules import conclude
from sidecar.config.secret_sources import HIDDEN, SecretError, expand_path, secret_faults
from sidecar.config.setting import OWN_TABLES, Setting, Value
from sidecar.config.settings import (
    BY_NAME,
    SETTINGS,
    TOPIC_KEYS,
    ConfigError,
    SidecarConfig,
    nearest,
)
from sidecar.config.tls_settings import has_tls
from sidecar.config.topic_patterns import is_glob, overlap
from sidecar.config.values import value_of
from sidecar.net.tls.tls_context import tls_fault_of

_NAMED_TABLES = ("clients", "topics")
_COMMAND_LINE = "-X"
PROPERTIES = ".properties"
"""The suffix of files in Java's format, as Kafka's tools use; all others are TOML."""


class _Gathered:
    """The values of one run of the loader, in which later sources replace earlier ones, and all faults found."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.values: dict[str, Value] = {row.name: row.default for row in SETTINGS}
        self.sources: dict[str, str] = {}
        self.clients: dict[str, dict[str, Value]] = {}
        self.topics: dict[str, dict[str, Value]] = {}
        self.faults: list[str] = []
        self.warnings: list[str] = []

    def put(self, name: str, raw: object, source: str) -> None:
        """Set ``name`` to ``raw``. The name is Kafka's, or ``TABLE.KEY``."""
        if name.startswith("clients."):
            self._put_client(name.removeprefix("clients."), raw, source)
            return
        if name.startswith("topics."):
            self._put_topic(name.removeprefix("topics."), raw, source)
            return
        row = BY_NAME.get(name.removeprefix("kafka."))
        if row is None:
            self._unknown(name, source)
            return
        value = self._convert(row, name, raw, source, hidden=row.secret)
        if row.is_path and isinstance(value, str):
            value = self._expand(value, name, source)
        if row.secret and source == _COMMAND_LINE:
            self.warnings.append(
                f"{row.name} is on the command line, where others on this host can read it: put it into the file, "
                f"or into a separate file."
            )
        if value is not None:
            self.values[row.name] = value
            self.sources[row.name] = source

    def _expand(self, path: str, name: str, source: str) -> str | None:
        try:
            return expand_path(path, self.environment)
        except SecretError as error:
            self.faults.append(f'{name} = "{path}" ({source}): {error}.')
            return None

    def _put_client(self, rest: str, raw: object, source: str) -> None:
        key = next((key for key in CLIENT_KEYS if rest.endswith("." + key)), None)
        if key is None:
            self.faults.append(
                f'Unknown setting "clients.{rest}" ({source}): [clients.NAME] takes {", ".join(CLIENT_KEYS)}.'
            )
            return
        name = rest[: -len(key) - 1].strip('"')
        row = CLIENT_KEYS[key]
        value = self._convert(row, f"clients.{rest}", raw, source, hidden=row.secret)
        if row.is_path and isinstance(value, str):
            value = self._expand(value, f"clients.{rest}", source)
        if value is not None:
            self.clients.setdefault(name, {})[key] = value

    def _put_topic(self, rest: str, raw: object, source: str) -> None:
        if rest.startswith('"') and '".' in rest[1:]:
            pattern, _, key = rest[1:].partition('".')
        else:
            found = [known for known in TOPIC_KEYS if rest.endswith("." + known)]
            key = max(found, key=len, default=rest.rpartition(".")[2])
            pattern = rest[: -len(key) - 1]
        name = f'topics."{pattern}".{key}'
        row = TOPIC_KEYS.get(key)
        if row is None or not pattern:
            guess = nearest(key, TOPIC_KEYS)
            takes = f'[topics."PATTERN"] takes {", ".join(TOPIC_KEYS)}'
            only = f"{key} is one for all topics, in [{BY_NAME[key].table}]; " if key in BY_NAME else ""
            hint = f'did you mean "{guess}"?' if guess and not only else f"{only}{takes}."
            self.faults.append(f"Unknown setting {name} ({source}): {hint}")
            return
        value = self._convert(row, name, raw, source)
        if value is not None:
            self.topics.setdefault(pattern, {})[key] = value

    def _unknown(self, name: str, source: str) -> None:
        why = refusal(name.removeprefix("kafka.")) or refusal(name.replace("_", "."))
        if why is not None:
            if source.endswith(PROPERTIES) and "serializer" in name:
                self.warnings.append(f"{name} ({source}) has no effect here: {why}.")
                return
            self.faults.append(f"{name} ({source}) is not taken: {why}.")
            return
        instead = other_client_hint(name.removeprefix("kafka."))
        if instead is not None:
            self.faults.append(f'Unknown setting "{name}" ({source}): {instead}.')
            return
        # A table instead of a secret: the names of its keys may be the secret.
        secret = next((row.name for row in SETTINGS if row.secret and name.startswith(f"{row.name}.")), None)
        if secret is not None:
            self.faults.append(f"{secret} ({source}): must be text, not a table.")
            return
        guess = nearest(name, BY_NAME)
        hint = f'did you mean "{guess}"?' if guess else "`kafka-sidecar config show` lists all of them."
        self.faults.append(f'Unknown setting "{name}" ({source}): {hint}')

    def _convert(self, row: Setting, name: str, raw: object, source: str, *, hidden: bool = False) -> Value:
        try:
            return value_of(row, raw)
        except ValueError:
            expected = row.kind if not row.choices else ""
            bounds = row.bounds_text()
            rule = ", ".join(part for part in (f"a {expected}" if expected else "", bounds) if part)
            if row.is_size:
                rule += ", in bytes or as 64KB or 128MB"
            self.faults.append(f"{name} = {HIDDEN if hidden else _shown(raw)} ({source}): must be {rule}.")
            return None


def load_config(
    path: Path | None = None,
    overrides: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
    *,
    need_servers: bool = True,
) -> SidecarConfig:
    """Read, convert and check the whole configuration. ``overrides`` are the ``key=value`` words of -X.

    ``need_servers=False`` lets ``config show`` print defaults without any broker. Raises ConfigError with one sentence
    per fault.
    """
    environment = os.environ if environment is None else environment
    gathered = _Gathered(environment)
    if path is not None:
        for name, raw in _read_file(path).items():
            gathered.put(name, raw, str(path))
    _put_variables(gathered, environment)
    gathered.faults += misspelt_variables(environment, ((row.table, row.key) for row in SETTINGS))
    for word in overrides:
        name, equals, raw = word.partition("=")
        if not equals:
            gathered.faults.append(f"-X {word}: must be key=value, such as -X linger.ms=5.")
            continue
        gathered.put(name.strip(), raw.strip(), _COMMAND_LINE)
    # One that is given and empty is a fault, also where it may be left out.
    absent = "bootstrap.servers" not in gathered.sources and not need_servers
    if absent:
        gathered.values["bootstrap.servers"] = ["localhost:9092"]
    config = SidecarConfig(
        gathered.values,
        clients=gathered.clients,
        topics=gathered.topics,
        sources=gathered.sources,
        warnings=tuple(gathered.warnings),
        file="" if path is None else str(path),
    )
    try:
        config = conclude(config)
        gathered.faults += secret_faults(config.values)
        if has_tls(config.values):
            fault = tls_fault_of(config.values)
            gathered.faults += [] if fault is None else [fault]
        fault = curve_fault(config)
        gathered.faults += [] if fault is None else [fault]
        rules, faults = client_rules(config.clients)
        gathered.faults += faults
        warnings = (*config.warnings, *open_secret_files(config.values, config.clients))
        config = replace(config, client_rules=rules, warnings=warnings)
    except ConfigError as error:
        raise ConfigError([*gathered.faults, *error.sentences]) from None
    if gathered.faults:
        raise ConfigError(gathered.faults)
    return config


def curve_fault(config: SidecarConfig) -> str | None:
    """Why daemon.listen cannot be served with the installed packages; None if it can, or is not set."""
    if not config.text("daemon.listen"):
        return None
    if find_spec("nacl") is None:
        return f"daemon.listen: {MISSING_TEXT}."
    try:
        read_key_file(config.text("daemon.curve_key_file"), is_client=False)
    except KeyFileError as error:
        return f"daemon.curve_key_file: {error}"
    return None


def _has(document: object, dotted: str) -> bool:
    """Whether nested TOML tables have this dotted key."""
    for part in dotted.split("."):
        if not isinstance(document, dict) or part not in document:
            return False
        document = document[part]
    return True


def _read_file(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            content = file.read().decode()
        if path.name.endswith(PROPERTIES):
            return _checked(path, found, dict(parse_properties(content)))
        document = tomllib.loads(content)
    except FileNotFoundError:
        raise ConfigError([f"Configuration file {path} does not exist: give another with -c."]) from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError([f"Configuration file {path} cannot be read: {why}."]) from None
    except tomllib.TOMLDecodeError as error:
        hint = f" If it has lines as linger.ms=5, name it *{PROPERTIES}." if parse_properties(content) else ""
        raise ConfigError([f"Configuration file {path} is not valid TOML: {error}.{hint}"]) from None
    flat: dict[str, object] = {}
    for table, keys_of_table in document.items():
        if not isinstance(keys_of_table, dict):
            guess = BY_NAME.get(table)
            hint = (
                f"put it under [{guess.table}]" if guess else "settings belong into tables, such as [kafka]"
            )
            raise ConfigError([f'"{table}" ({path}) is outside of any table: {hint}.'])
        if table not in ("kafka", *OWN_TABLES, *_NAMED_TABLES):
            known = ("kafka", *OWN_TABLES, *_NAMED_TABLES)
            # A line such as linger.ms = 5 above all tables is a table to TOML.
            names = (name for name in BY_NAME if name.startswith(f"{table}."))
            loose = next((name for name in names if _has(document, name)), None)
            if loose is not None:
                raise ConfigError(
                    [f'"{loose}" ({path}) is outside of any table: put it under [{BY_NAME[loose].table}].']
                )
            guess_table = nearest(table, known)
            hint = f"did you mean [{guess_table}]?" if guess_table else f"tables are {', '.join(known)}."
            raise ConfigError([f"Unknown table [{table}] ({path}): {hint}"])
        if table in _NAMED_TABLES:
            for entry, keys in keys_of_table.items():
                if (table, entry) == ("clients", "unlisted") and not isinstance(keys, dict):
                    raise ConfigError(
                        [f'clients.unlisted ({path}): write unlisted_clients = "{keys}" into [daemon].']
                    )
                if not isinstance(keys, dict):
                    raise ConfigError(
                        [f'[{table}] has "{entry}" ({path}): write [{table}."{entry}"] and its keys.']
                    )
                flat.update({f'{table}."{entry}".{key}': value for key, value in _flatten(keys).items()})
        else:
            prefix = "" if table == "kafka" else f"{table}."
            flat.update({prefix + key: value for key, value in _flatten(keys_of_table).items()})
    return _checked(path, found, flat)


def _checked(path: Path, found: os.stat_result, flat: dict[str, object]) -> dict[str, object]:
    fault = mode_fault(path, found, flat)
    if fault:
        raise ConfigError([fault])
    return flat


def _flatten(table: Mapping[str, Any]) -> dict[str, object]:
    """Flatten a table: TOML reads a bare ``linger.ms = 5`` as nested tables, and Kafka's names are flat."""
    flat: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat.update({f"{key}.{inner}": each for inner, each in _flatten(value).items()})
        else:
            flat[key] = value
    return flat


def _put_variables(gathered: _Gathered, environment: Mapping[str, str]) -> None:
    """Put the environment's variables. They have no order, so settings whose meaning would depend on one are refused;
    full topic names come before globs.
    """
    in_file = set(gathered.topics)
    names: dict[str, str] = {}
    for variable in sorted(environment, key=lambda each: (is_glob(each), each)):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        name = _name_of_variable(variable)
        if name in names:
            gathered.faults.append(f"{names[name]} and {variable} both set {name}: keep one of them.")
        names[name] = variable
        gathered.put(name, environment[variable], variable)
        entry = name.partition('."')[2].rpartition('".')[0]
        if entry.isupper():
            gathered.warnings.append(
                f"{variable} is for the name {entry}, in upper case: names keep their case."
            )
    globs = [pattern for pattern in gathered.topics if pattern not in in_file and is_glob(pattern)]
    for one, other in combinations(globs, 2):
        if overlap(one, other):
            gathered.faults.append(
                f'The variables for topics."{one}" and topics."{other}" may match the same topic, and the first '
                "table counts, but variables have no order: put these tables into the file."
            )


def _name_of_variable(variable: str) -> str:
    """KAFKA_SIDECAR__KAFKA__LINGER_MS → linger.ms; KAFKA_SIDECAR__TOPICS__Orders__ACKS → topics."Orders".acks."""
    table, _, rest = variable[len(ENVIRONMENT_PREFIX) :].partition("__")
    table = table.lower()
    if table in _NAMED_TABLES and rest:
        # From the right: a topic's name may contain two underscores, and no key does.
        entry, _, key = rest.rpartition("__")
        return f'{table}."{entry}".{key.lower().replace("_", ".")}'
    rest = rest.lower()
    if table == "kafka" or not rest:
        return (rest or table).replace("__", ".").replace("_", ".")
    return f"{table}.{rest}"


def _shown(raw: object) -> str:
    return f'"{raw}"' if isinstance(raw, str) else str(raw)
