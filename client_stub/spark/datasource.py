"""The data source ``kafka_sidecar``: batch and streaming writes, at least once.

The constructor and writer() run in a planner process on the driver's host, and write() in executor processes. The
writer's pickled attributes carry the data for write(), and the messages carry the data for commit().
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Never

from pyspark.sql import datasource as api
from pyspark.sql.datasource import DataSource, WriterCommitMessage
from pyspark.sql.types import StructType

from client_stub.spark.columns import find_columns
from client_stub.spark.exactly_once.commit import commit_batch, drop_batch
from client_stub.spark.options import read_options
from client_stub.spark.topic_check import check_topic, check_topic_of_stream
from client_stub.spark.worker_garbage import freeze_modules
from client_stub.spark.write_report import TaskWritten, write_commit
from client_stub.spark.writer import write_batches, write_rows

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
    # PySpark 4.0 has no Arrow writer for streams, and hands over rows.
    DataSourceStreamArrowWriter = getattr(api, "DataSourceStreamArrowWriter", None)

ONLY_WRITES: Final = "kafka_sidecar: the format only writes; read with format('kafka')."


class KafkaSidecarDataSource(DataSource):
    """Use: ``df.write.format("kafka_sidecar").option("topic", ...).mode("append").save()``.

    docs/spark.md has the options, and docs/protocol.md shows the messages on the wire.
    """

    @classmethod
    def name(cls) -> str:
        return "kafka_sidecar"

    def schema(self) -> str:
        """Asked for by a table or view without columns, and by a read."""
        raise ValueError(
            f"{ONLY_WRITES} A table or view to INSERT INTO names its columns: CREATE TABLE name (topic STRING, value "
            "STRING) USING kafka_sidecar."
        )

    def reader(self, schema: StructType) -> Never:
        raise ValueError(ONLY_WRITES)

    def streamReader(self, schema: StructType) -> Never:
        raise ValueError(ONLY_WRITES)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The batch writer. Raises ValueError for a mode, an option or a column that is not supported."""
        if overwrite:
            raise ValueError('kafka_sidecar: save mode Overwrite not allowed; use mode("append").')
        return BatchWriter(schema, dict(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """The stream writer, for append and complete mode. In complete mode every trigger writes the whole result
        again.
        """
        if DataSourceStreamArrowWriter is None:
            return RowStreamWriter(schema, dict(self.options))
        return StreamWriter(schema, dict(self.options))


class _TaskWriter:
    _check = staticmethod(check_topic)

    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        self._options = read_options(options)
        self._columns = find_columns(schema, self._options.topic)
        self._check(self._options)
        freeze_modules()

    def _commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._options.exactly_once is not None:
            commit_batch(messages, self._options, self._options.exactly_once)

    def _abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._options.exactly_once is not None:
            drop_batch(messages, self._options, self._options.exactly_once)


class _StreamTaskWriter(_TaskWriter):
    _check = staticmethod(check_topic_of_stream)


class BatchWriter(_TaskWriter, DataSourceArrowWriter):
    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        super().__init__(schema, options)
        if self._options.exactly_once is not None:
            self._options = self._options._replace(exactly_once=self._options.exactly_once.of_new_run())

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        return write_batches(iterator, self._columns, self._options)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """At least once, every record was acked before its task returned: only the report is left to write."""
        self._commit(messages)
        write_commit(self._options.report, messages)
        freeze_modules()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """At least once, nothing can be taken back. The report has what the tasks that ended have sent."""
        self._abort(messages)
        write_commit(self._options.report, messages)


if DataSourceStreamArrowWriter is not None:

    class StreamWriter(_StreamTaskWriter, DataSourceStreamArrowWriter):
        def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
            return write_batches(iterator, self._columns, self._options)

        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            """At least once, every record was acked before its task returned."""
            self._commit(messages)

        def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            """At least once, nothing can be taken back; the micro-batch is replayed."""
            self._abort(messages)


class RowStreamWriter(_StreamTaskWriter, DataSourceStreamWriter):
    """The stream writer for PySpark 4.0, whose streams pass rows."""

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return write_rows(iterator, self._options)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """At least once, every record was acked before its task returned."""
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """At least once, nothing can be taken back; the micro-batch is replayed."""
        self._abort(messages)


__all__ = ["KafkaSidecarDataSource", "TaskWritten"]
