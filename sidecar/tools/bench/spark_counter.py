"""The floor of Spark's Python path: a data source whose writer takes whole Arrow batches and only counts their rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow


class RowCounter(DataSource):
    @classmethod
    def name(cls) -> str:
        return "row_counter"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _Writer()


class _Writer(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        for batch in iterator:
            len(batch)
        return WriterCommitMessage()
