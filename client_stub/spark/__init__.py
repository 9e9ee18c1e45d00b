"""Spark through the sidecar: ``register(spark)``, then ``df.write.format("kafka_sidecar")``; or the calls write() and
write_partition(), which need no registration.

Spark discovers the format through the package ``pyspark_kafka_sidecar``. A broken ``pyspark_*`` module of another
package disables this discovery silently; register() always works. Only this folder imports pyspark, and it uses only
the public API of the stub.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import Row

    from client_stub.spark.calls import Written


def register(spark: SparkSession, *, check: bool = True) -> None:
    """Register the format ``kafka_sidecar`` in this session. Repeated calls are harmless.

    ``check`` runs one task that imports the format. Raises RuntimeError, which says what to set, when the Python of
    Spark's workers does not have it.
    """
    from client_stub.spark.datasource import KafkaSidecarDataSource
    from client_stub.spark.worker_check import check_workers

    if check:
        check_workers(spark)
    spark.dataSource.register(KafkaSidecarDataSource)


def write(df: DataFrame, /, **options: object) -> Written:
    """Write the rows of ``df``, as ``format("kafka_sidecar")`` does with the same options. For foreachBatch, in any
    output mode.

    Returns when the brokers have acknowledged every row. Raises ValueError before any task for an option or a column
    that is not supported, and Spark's PythonException for a task that failed.
    """
    from client_stub.spark.calls import write_frame

    return write_frame(df, options)


def write_partition(rows: Iterable[Row], /, **options: object) -> int:
    """Write the rows of one task, which runs this call. For foreachPartition; same options and columns.

    Returns how many rows the brokers have acknowledged: all. Raises ValueError for an option, and RuntimeError.
    """
    from client_stub.spark.calls import write_iterator

    return write_iterator(rows, options)
