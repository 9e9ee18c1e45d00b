"""Spark through the sidecar: ``register(spark)``, then ``df.write.format("kafka_sidecar")``.

Spark finds the format by itself through the package ``pyspark_kafka_sidecar``, unless some other ``pyspark_*``
module of the environment is broken (that disables discovery silently); register() always works. Only this folder
imports pyspark, and it uses the stub by its front door.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession, *, check: bool = True) -> None:
    """Make the format ``kafka_sidecar`` known to this session. Repeating it does no harm.

    ``check`` runs one task that imports the format. Raises RuntimeError, which says what to set, when the Python of
    Spark's workers does not have it.
    """
    from client_stub.spark.datasource import KafkaSidecarDataSource
    from client_stub.spark.worker_check import check_workers

    if check:
        check_workers(spark)
    spark.dataSource.register(KafkaSidecarDataSource)
