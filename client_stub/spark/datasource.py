"""The data source ``kafka_sidecar``: batch and streaming writes, at least once.

Constructor and writer() run in a planner process on the driver's host, write() in executor processes; what
write() needs is carried by the writer's pickled attributes, what commit() needs by the messages.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as api
from pyspark.sql.datasource import DataSource, WriterCommitMessage
from pyspark.sql.types import StructType

from client_stub.spark.columns import find_columns
from client_stub.spark.options import read_options
from client_stub.spark.topic_check import check_topic
from client_stub.spark.writer import TaskWritten, write_batches

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import Row
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceStreamArrowWriter,
        DataSourceStreamWriter,
    )
else:
    DataSourceArrowWriter = api.DataSourceArrowWriter
    DataSourceStreamWriter = api.DataSourceStreamWriter
    # PySpark 4.0 has no Arrow writer for streams; its rows are gathered into batches below.
    DataSourceStreamArrowWriter = getattr(api, "DataSourceStreamArrowWriter", None)

ROWS_PER_BATCH = 10_000


class KafkaSidecarDataSource(DataSource):
    """``df.write.format("kafka_sidecar").option("topic", ...).mode("append").save()``; see docs/protocol.md
    of the project for what happens on the wire and docs/spark.md for the options."""

    @classmethod
    def name(cls) -> str:
        return "kafka_sidecar"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Raises ValueError for a mode, an option or a column that cannot be honoured."""
        if overwrite:
            raise ValueError('kafka_sidecar: save mode Overwrite not allowed; use mode("append").')
        return BatchWriter(schema, dict(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """Append and complete modes; in complete mode every trigger writes the whole result again."""
        if DataSourceStreamArrowWriter is None:
            return RowStreamWriter(schema, dict(self.options))
        return StreamWriter(schema, dict(self.options))


class _TaskWriter:
    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        self._options = read_options(options)
        self._columns = find_columns(schema, self._options.topic)
        check_topic(self._options)


class BatchWriter(_TaskWriter, DataSourceArrowWriter):
    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        return write_batches(iterator, self._columns, self._options)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to do: every record was acked before its task returned."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing can be taken back: at least once."""


if DataSourceStreamArrowWriter is not None:

    class StreamWriter(_TaskWriter, DataSourceStreamArrowWriter):
        def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
            return write_batches(iterator, self._columns, self._options)

        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            """Nothing to do: every record was acked before its task returned."""

        def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            """Nothing can be taken back: at least once; the micro-batch is replayed."""


class RowStreamWriter(_TaskWriter, DataSourceStreamWriter):
    """For PySpark 4.0, whose streams hand over rows."""

    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        super().__init__(schema, options)
        self._schema = schema

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return write_batches(self._batches(iterator), self._columns, self._options)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: every record was acked before its task returned."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing can be taken back: at least once; the micro-batch is replayed."""

    def _batches(self, rows: Iterator[Row]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self._schema)
        while chunk := list(itertools.islice(rows, ROWS_PER_BATCH)):
            yield pa.RecordBatch.from_pylist([row.asDict(recursive=True) for row in chunk], schema=schema)


__all__ = ["KafkaSidecarDataSource", "TaskWritten"]
