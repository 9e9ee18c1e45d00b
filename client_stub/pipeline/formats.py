"""Key and value of an output in the format that the file names: by Spark's own functions, with a schema file.

Everything is found out on the driver, before any task: a schema that cannot be read, a package of Spark that is
missing, columns that do not fit the schema.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType, VariantType

from client_stub.pipeline.file import Fault, PartFormat, Pipeline, PipelineFaults
from client_stub.pipeline.keys import AVRO, JSON
from client_stub.pipeline.packages import package_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLASSES: Final = {AVRO: "org.apache.spark.sql.avro.CatalystDataToAvro"}
"""Format → the class that its package brings."""


class Encoding(NamedTuple):
    """How one part of a record is encoded: what the plan says of it, and the function for its column."""

    text: str
    type: DataType
    encode: Callable[[Column], Column]


class _Misfit(Exception):
    """The text says what does not fit, and what to do."""

    def __init__(self, key: str, what: str, todo: str) -> None:
        super().__init__(what)
        self.key = key
        self.todo = todo


class Formats:
    """Of one pipeline in one session."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        self._jvm: Any = spark._jvm
        self._pipeline = pipeline

    def encoding(self, index: int, part: str, kind: DataType) -> Encoding:
        """That of ``part`` of output ``index``, whose expression has the type ``kind``. Raises PipelineFaults."""
        wanted = self._pipeline.outputs[index].formats[part]
        try:
            if wanted.name == JSON:
                return _json(kind)
            self._check_package(wanted.name)
            return self._avro(wanted, kind)
        except _Misfit as misfit:
            key = f"{part}{misfit.key}"
            fault: Fault = self._pipeline.fault(
                ("output", index, key), f"{key}: {misfit}", misfit.todo.format(part=part)
            )
            raise PipelineFaults([fault]) from None

    def _check_package(self, name: str) -> None:
        if not self._jvm.org.apache.spark.util.Utils.classIsLoadable(CLASSES[name]):
            package = package_of(name)
            raise _Misfit(
                "_format",
                f"{name} needs a package that this Spark session lacks",
                f"start it with --packages {package}",
            )

    def _avro(self, wanted: PartFormat, kind: DataType) -> Encoding:
        from pyspark.sql.avro.functions import to_avro

        assert wanted.schema is not None
        text = _content(wanted.schema)
        try:
            schema = self._jvm.org.apache.avro.Schema.Parser().parse(text)
        except Exception as error:
            raise _Misfit(
                "_schema", f"{wanted.schema} is no schema of Avro: {_cause(error)}", "correct the file"
            ) from None
        try:
            self._jvm.org.apache.spark.sql.avro.AvroSerializer(self._java_type(kind), schema, True)
        except Exception as error:
            raise _unlike(wanted.schema, error) from None
        return Encoding(
            f"{AVRO} {schema.getFullName()} ({wanted.schema.name})",
            BinaryType(),
            lambda column: to_avro(column, text),
        )

    def _java_type(self, kind: DataType) -> Any:
        return self._jvm.org.apache.spark.sql.types.DataType.fromJson(kind.json())


def _json(kind: DataType) -> Encoding:
    if not isinstance(kind, StructType | ArrayType | MapType | VariantType):
        raise _Misfit(
            "_format",
            f"{kind.simpleString()} cannot be made JSON, only a struct, map, array or variant",
            "write {part} = 'struct(*)', or leave it raw",
        )
    return Encoding(JSON, StringType(), f.to_json)


def _content(file: Path) -> str:
    try:
        return file.read_text()
    except OSError as error:
        raise _Misfit(
            "_schema", f"{file} cannot be read: {error.strerror}", "name the schema's file"
        ) from None
    except UnicodeDecodeError:
        raise _Misfit("_schema", f"{file} is no UTF-8", "name the schema's file") from None


def _unlike(schema: Path, error: Exception) -> _Misfit:
    return _Misfit(
        "", f"the type does not fit {schema.name}: {_cause(error)}", "correct the expression or the schema"
    )


def _cause(error: Exception) -> str:
    """The innermost reason, in one line without its position in what Spark does not show."""
    reason = getattr(error, "java_exception", None)
    if reason is None:
        raise error
    while reason.getCause() is not None:
        reason = reason.getCause()
    text, *_ = str(reason.getMessage()).splitlines() or [""]
    return text.rstrip(". ")
