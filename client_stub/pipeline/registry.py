"""The schema registry of a pipeline, asked by the driver alone: ids of schemas, and Confluent's prefix of a record.

Its login is used by this process and is no setting of Spark, so that no task, plan or page of Spark has it.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from client_stub.pipeline.file import Registry
from client_stub.pipeline.misfit import Misfit

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

log = logging.getLogger("client_stub")

MAGIC: Final = b"\0"
TIMEOUT_S: Final = 10
RETRIES: Final = 1
UNAUTHORIZED, FORBIDDEN, CONFLICT, UNPROCESSABLE = 401, 403, 409, 422
NOT_THERE: Final = range(40400, 40500)
"""Codes of a subject, version or schema that is not there; registries differ in the last digits."""


class Registered(NamedTuple):
    """A schema with its id; the id is None where it is only known that it may be registered."""

    subject: str
    text: str
    kind: str
    id: int | None


def prefix(schema_id: int, indexes: Sequence[int] | None = None) -> bytes:
    """What stands before a record in Confluent's format; ``indexes`` lead to a message of Protobuf in its file."""
    head = MAGIC + schema_id.to_bytes(4)
    if indexes is None:
        return head
    # The first message of a file, by far the most frequent, has a form of one byte.
    numbers = [0] if list(indexes) == [0] else [len(indexes), *indexes]
    return head + b"".join(_zigzag(number) for number in numbers)


def _zigzag(number: int) -> bytes:
    number <<= 1
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


class SchemaRegistry:
    """Raises Misfit, with the key of the file at which the user corrects it."""

    def __init__(self, settings: Registry) -> None:
        self._settings = settings
        self._client: SchemaRegistryClient | None = None
        self._dead: Misfit | None = None

    def latest(self, subject: str) -> Registered:
        """The newest schema of a subject."""
        found = self._ask("get_latest_version", subject)
        if found is None:
            raise Misfit(
                "_schema",
                f"{self._settings.url} has no subject {subject}",
                "name a schema file, or correct the topic",
            )
        self._check_references(subject, found.schema)
        return Registered(
            subject, found.schema.schema_str, found.schema.schema_type or "AVRO", found.schema_id
        )

    def find(self, subject: str, text: str, kind: str, file: Path) -> Registered:
        """The schema's id. Without auto_register a schema that is not there is a fault, and one that the subject's
        rule does not take always is.
        """
        schema = _schema(text, kind)
        # As it is, and in its normal form: registries differ in whether white space counts.
        found = self._ask("lookup_schema", subject, schema) or self._ask(
            "lookup_schema", subject, schema, True
        )
        if found is not None:
            return Registered(subject, text, kind, found.schema_id)
        if self._ask("test_compatibility", subject, schema) is False:
            raise Misfit(
                "_schema",
                f"{file.name} is not compatible with the latest version of subject {subject}",
                "correct the schema, or change the subject's compatibility",
            )
        if self._settings.auto_register:
            return Registered(subject, text, kind, None)
        body = "{schema: .}" if kind == "AVRO" else f'{{schema: ., schemaType: "{kind}"}}'
        raise Misfit(
            "_schema",
            f"{file.name} is not registered for subject {subject}",
            f"register it: jq -Rs '{body}' {file} | curl --json @- {self._settings.url}/subjects/{subject}/versions, "
            "or set auto_register = true in [registry]",
        )

    def register(self, schema: Registered) -> int:
        """Register it, and return its id."""
        found = self._ask("register_schema", schema.subject, _schema(schema.text, schema.kind))
        return int(found)

    def _ask(self, call: str, subject: str, *arguments: Any) -> Any:
        """The registry's answer; None for a subject, or a schema of it, that it does not have."""
        if self._dead is not None:
            raise self._dead
        try:
            if self._client is None:
                self._client = self._connected()
            return getattr(self._client, call)(subject, *arguments)
        except Misfit:
            raise
        except _package().SchemaRegistryError as error:
            if error.error_code in NOT_THERE:
                return None
            raise self._refused(subject, error) from None
        except Exception as error:
            # Its HTTP client, TLS and the system each have their own errors.
            self._dead = Misfit(
                "url",
                f"the registry {self._settings.url} cannot be reached: {error or type(error).__name__}",
                "start it, or correct url",
                of_registry=True,
            )
        raise self._dead

    def _connected(self) -> SchemaRegistryClient:
        settings = self._settings
        conf: dict[str, Any] = {"url": settings.url, "timeout": TIMEOUT_S, "max.retries": RETRIES}
        for name, value in (
            ("ssl.ca.location", settings.ca_file),
            ("ssl.certificate.location", settings.cert_file),
            ("ssl.key.location", settings.key_file),
        ):
            if value is not None:
                conf[name] = value
        if settings.user is not None:
            password = _secret("password_file", settings.password, settings.password_file)
            conf["basic.auth.user.info"] = f"{settings.user}:{password}"
        elif settings.token is not None or settings.token_file is not None:
            token = _secret("token_file", settings.token, settings.token_file)
            conf |= {
                "bearer.auth.credentials.source": "STATIC_TOKEN",
                "bearer.auth.token": token,
                "bearer.auth.logical.cluster": settings.logical_cluster or "",
            }
        client: SchemaRegistryClient = _package().SchemaRegistryClient(conf)
        return client

    def _refused(self, subject: str, error: Any) -> Misfit:
        status, url = error.http_status_code, self._settings.url
        text = " ".join(str(error.error_message).split()).rstrip(".")
        if status in (UNAUTHORIZED, FORBIDDEN):
            whole = status == UNAUTHORIZED
            self._dead = Misfit(
                "url",
                f"the registry {url} refuses {'the login' if whole else f'access to subject {subject}'} ({status})",
                "set user and password_file, or token_file, to those of an account that may read it",
                of_registry=True,
            )
            return self._dead
        if status in (CONFLICT, UNPROCESSABLE):
            return Misfit("_schema", f"subject {subject} does not take it: {text}", "correct the schema")
        return Misfit(
            "url",
            f"the registry {url} answers {status}: {text}",
            "correct url, or see its log",
            of_registry=True,
        )

    @staticmethod
    def _check_references(subject: str, schema: Schema) -> None:
        if schema.references:
            raise Misfit(
                "_schema",
                f"the schema of subject {subject} refers to others, which is not supported",
                "name a schema file without references",
            )


def _schema(text: str, kind: str) -> Schema:
    schema: Schema = _package().Schema(text, schema_type=kind)
    return schema


def _package() -> Any:
    """The client of confluent-kafka."""
    try:
        import confluent_kafka.schema_registry as package
    except ImportError:
        raise Misfit(
            "url",
            "a registry needs the client of confluent-kafka, which is not installed",
            "pip install 'kafka-sidecar[registry]'",
            of_registry=True,
        ) from None
    return package


def _secret(key: str, value: str | None, file: str | None) -> str:
    if file is None:
        return value or ""
    try:
        with Path(file).open() as opened:
            mode = os.fstat(opened.fileno()).st_mode
            text = opened.read().strip()
    except OSError as error:
        raise Misfit(
            key, f"{file} cannot be read: {error.strerror}", "name the file", of_registry=True
        ) from None
    if stat.S_ISREG(mode) and mode & stat.S_IROTH:
        log.warning(
            "%s = %s: every user of this host may read this file (mode %04o): chmod o= %s.",
            key,
            file,
            stat.S_IMODE(mode),
            file,
        )
    return text
