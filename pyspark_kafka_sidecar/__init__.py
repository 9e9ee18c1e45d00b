"""Spark finds this package by its name, which makes ``format("kafka_sidecar")`` known without registration.

It only names the data source of ``client_stub.spark``. Where that cannot be imported, the format says why: an error
here would end the discovery of all formats, in silence.
"""

import sys

try:
    from client_stub.spark.datasource import KafkaSidecarDataSource as DefaultSource
except ImportError as error:
    from pyspark.sql.datasource import DataSource

    WHY = f"kafka_sidecar: Python of Spark's driver ({sys.executable}) cannot write: {' '.join(str(error).split())}"

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """Fails on the driver, in one sentence, before any task."""

        @classmethod
        def name(cls) -> str:
            return "kafka_sidecar"

        def __init__(self, options: dict[str, str]) -> None:
            raise RuntimeError(WHY)


__all__ = ["DefaultSource"]
