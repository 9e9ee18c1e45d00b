"""The floor of Spark's Python path: a data source whose writers take whole Arrow batches and only count their rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow


class RowCounter(DataSource):
    @classmethod
    def name(cls) -> str:
        return "row_counter"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _Writer()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return _StreamWriter()


class _Writer(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        return _counted(iterator)


class _StreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        return _counted(iterator)


def _counted(batches: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
    for batch in batches:
        len(batch)
    return WriterCommitMessage()
