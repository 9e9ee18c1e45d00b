"""Spark finds this package by its name, which makes ``format("kafka_sidecar")`` known without registration.

It only names the data source of ``client_stub.spark``.
"""

from client_stub.spark.datasource import KafkaSidecarDataSource as DefaultSource

__all__ = ["DefaultSource"]
