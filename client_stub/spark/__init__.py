"""Spark through the sidecar: ``register(spark)``, then ``df.write.format("kafka_sidecar")``.

Spark discovers the format through the package ``pyspark_kafka_sidecar``. A broken ``pyspark_*`` module of another
package disables this discovery silently; register() always works. Only this folder imports pyspark, and it uses only
the public API of the stub.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
