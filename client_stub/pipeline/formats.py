"""Key and value of an output in the format that the file names: by Spark's own functions, with a schema.

On the driver, in the process of the pipeline's command or of spark-submit.

Everything is found out on the driver, before any task: a schema that cannot be read, a package of Spark that is
missing, columns that do not fit the schema, what the registry says.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType, VariantType

from client_stub.pipeline.file import PartFormat, Pipeline, PipelineFaults
from client_stub.pipeline.keys import AVRO, JSON, PROTOBUF, RECORD, TOPIC, TOPIC_RECORD
from client_stub.pipeline.misfit import Misfit
from client_stub.pipeline.packages import package_of
from client_stub.pipeline.protobuf_schema import ProtobufSchema, compile_text, read_schema
from client_stub.pipeline.registry import Registered, SchemaRegistry, prefix

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLASSES: Final = {
    AVRO: "org.apache.spark.sql.avro.CatalystDataToAvro",
    PROTOBUF: "org.apache.spark.sql.protobuf.CatalystDataToProtobuf",
}
"""Format → the class that its package brings."""
UNKNOWN_ID: Final = 0
"""Of a schema that is not registered before the run: no registry gives it."""


class Encoding(NamedTuple):
    """How one part of a record is encoded: what the plan says of it, and the function for its column."""

    text: str
    type: DataType
    encode: Callable[[Column], Column]


class _Schema(NamedTuple):
    """A schema of either format. ``source`` is the text for the registry, None for a descriptor set."""

    name: str
    source: str | None
    protobuf: ProtobufSchema | None


class Formats:
    """Of one pipeline in one session. Each schema and each id is looked up once."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        self._jvm: Any = spark._jvm
        self._pipeline = pipeline
        self._registry = None if pipeline.registry is None else SchemaRegistry(pipeline.registry)
        self._encodings: dict[tuple[int, str, str], Encoding] = {}
        self._pending: dict[Registered, tuple[int, str]] = {}
        """Schemas that are not registered yet → the output and the part that need them first."""
        self._ids: dict[Registered, int] = {}

    def encoding(self, index: int, part: str, kind: DataType) -> Encoding:
        """That of ``part`` of output ``index``, whose expression has the type ``kind``. Raises PipelineFaults."""
        key = (index, part, kind.json())
        if key not in self._encodings:
            try:
                self._encodings[key] = self._encoding(index, part, kind)
            except Misfit as misfit:
                raise self._faults(index, part, misfit) from None
        return self._encodings[key]

    def register(self) -> None:
        """Register the schemas that are not yet; a run does this before it sends. Raises PipelineFaults."""
        for schema, (index, part) in self._pending.items():
            assert self._registry is not None
            try:
                self._ids[schema] = self._registry.register(schema)
            except Misfit as misfit:
                raise self._faults(index, part, misfit) from None
        self._pending.clear()

    # --- parts --------------------------------------------------------------------------------------

    def _encoding(self, index: int, part: str, kind: DataType) -> Encoding:
        wanted = self._pipeline.outputs[index].formats[part]
        if wanted.name == JSON:
            return _json(kind)
        self._check_package(wanted.name)
        registered = None if wanted.schema is not None else self._latest(index, part, wanted.name)
        schema = self._read(wanted, registered)
        self._check_type(wanted, schema, kind)
        origin = "" if wanted.schema is None else f" ({wanted.schema.name})"
        text = f"{wanted.name} {schema.name}{origin}"
        encode = self._encoder(schema)
        if not wanted.has_prefix:
            return Encoding(text, BinaryType(), encode)
        registered = registered or self._find(index, part, wanted, schema)
        if registered.id is None:
            self._pending.setdefault(registered, (index, part))
        named = "a new id" if registered.id is None else f"id {registered.id}"
        indexes = None if schema.protobuf is None else [schema.protobuf.number]

        def with_prefix(column: Column) -> Column:
            number = registered.id or self._ids.get(registered, UNKNOWN_ID)
            return f.concat(f.lit(prefix(number, indexes)), encode(column))

        return Encoding(f"{text}, subject {registered.subject}, {named}", BinaryType(), with_prefix)

    def _check_package(self, name: str) -> None:
        if not self._jvm.org.apache.spark.util.Utils.classIsLoadable(CLASSES[name]):
            package = package_of(name)
            raise Misfit(
                "_format",
                f"{name} needs a package that this Spark session lacks",
                f"start it with --packages {package}",
            )

    def _read(self, wanted: PartFormat, registered: Registered | None) -> _Schema:
        if wanted.name == PROTOBUF:
            if wanted.schema is None:
                assert registered is not None
                found = compile_text(registered.text, wanted.message)
                return _Schema(found.message, registered.text, found)
            found = read_schema(wanted.schema, wanted.message)
            source = _content(wanted.schema) if wanted.schema.suffix == ".proto" else None
            return _Schema(found.message, source, found)
        text = registered.text if wanted.schema is None and registered else _content(wanted.schema)
        try:
            schema = self._jvm.org.apache.avro.Schema.Parser().parse(text)
        except Exception as error:
            raise Misfit(
                "_schema", f"{_named(wanted)} is no schema of Avro: {_cause(error)}", "correct the file"
            ) from None
        return _Schema(schema.getFullName(), text, None)

    def _check_type(self, wanted: PartFormat, schema: _Schema, kind: DataType) -> None:
        java_type = self._jvm.org.apache.spark.sql.types.DataType.fromJson(kind.json())
        classes = self._jvm.org.apache.spark.sql
        try:
            if schema.protobuf is None:
                parsed = self._jvm.org.apache.avro.Schema.Parser().parse(schema.source)
                classes.avro.AvroSerializer(java_type, parsed, True)
                return
            if not isinstance(kind, StructType):
                raise Misfit(
                    "_format",
                    f"{kind.simpleString()} is no message of Protobuf, only a struct is",
                    "write {part} = 'struct(*)', or leave it raw",
                )
            content = self._jvm.scala.Some(schema.protobuf.descriptor_set)
            message = classes.protobuf.utils.ProtobufUtils.buildDescriptor(schema.name, content)
            classes.protobuf.ProtobufSerializer(java_type, message, True)
        except Misfit:
            raise
        except Exception as error:
            raise Misfit(
                "",
                f"the type does not fit {_named(wanted)}: {_cause(error)}",
                "correct the expression or the schema",
            ) from None

    @staticmethod
    def _encoder(schema: _Schema) -> Callable[[Column], Column]:
        if schema.protobuf is None:
            from pyspark.sql.avro.functions import to_avro

            return lambda column: to_avro(column, schema.source or "")
        from pyspark.sql.protobuf.functions import to_protobuf

        descriptor_set = schema.protobuf.descriptor_set
        return lambda column: to_protobuf(column, schema.name, binaryDescriptorSet=descriptor_set)

    # --- registry -----------------------------------------------------------------------------------

    def _latest(self, index: int, part: str, name: str) -> Registered:
        assert self._registry is not None
        found = self._registry.latest(f"{self._pipeline.outputs[index].topic}-{part}")
        if found.kind != name.upper():
            raise Misfit(
                "_format", f"the schema of subject {found.subject} is of {found.kind}", "correct the format"
            )
        return found

    def _find(self, index: int, part: str, wanted: PartFormat, schema: _Schema) -> Registered:
        assert (
            wanted.schema is not None and self._pipeline.registry is not None and self._registry is not None
        )
        if schema.source is None:
            raise Misfit(
                "_schema", "a registry takes no descriptor set", "name the .proto file that it was made of"
            )
        if schema.protobuf is not None and schema.protobuf.imports:
            raise Misfit(
                "_schema",
                f"{wanted.schema.name} imports {schema.protobuf.imports[0]}, and references in a registry are not "
                "supported",
                "put its messages into one file",
            )
        topic = self._pipeline.outputs[index].topic
        subjects = {TOPIC: f"{topic}-{part}", RECORD: schema.name, TOPIC_RECORD: f"{topic}-{schema.name}"}
        subject = subjects[self._pipeline.registry.subject]
        return self._registry.find(subject, schema.source, wanted.name.upper(), wanted.schema)

    def _faults(self, index: int, part: str, misfit: Misfit) -> PipelineFaults:
        if misfit.of_registry:
            return PipelineFaults([self._pipeline.fault(("registry", misfit.key), str(misfit), misfit.todo)])
        key = f"{part}{misfit.key}"
        todo = misfit.todo.replace("{part}", part)
        return PipelineFaults([self._pipeline.fault(("output", index, key), f"{key}: {misfit}", todo)])


def _named(wanted: PartFormat) -> str:
    return "the registry's latest one" if wanted.schema is None else str(wanted.schema)


def _json(kind: DataType) -> Encoding:
    if not isinstance(kind, StructType | ArrayType | MapType | VariantType):
        raise Misfit(
            "_format",
            f"{kind.simpleString()} cannot be made JSON, only a struct, map, array or variant",
            "write {part} = 'struct(*)', or leave it raw",
        )
    return Encoding(JSON, StringType(), f.to_json)


def _content(file: Path | None) -> str:
    assert file is not None
    try:
        return file.read_text()
    except OSError as error:
        raise Misfit(
            "_schema", f"{file} cannot be read: {error.strerror}", "name the schema's file"
        ) from None
    except UnicodeDecodeError:
        raise Misfit("_schema", f"{file} is no UTF-8", "name the schema's file") from None


def _cause(error: Exception) -> str:
    """The innermost reason, in one line without what Spark adds at its end."""
    # PySpark keeps the JVM's exception, under one of two names, whether or not it has a class of its own for it.
    reason = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if reason is None:
        raise error
    while reason.getCause() is not None:
        reason = reason.getCause()
    text, *_ = str(reason.getMessage()).splitlines() or [""]
    return text.partition(" SQLSTATE:")[0].rstrip(". ")
