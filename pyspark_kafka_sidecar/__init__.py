"""Found by Spark because of its name: makes ``format("kafka_sidecar")`` known with no registration."""

from client_stub.spark.datasource import KafkaSidecarDataSource as DefaultSource

__all__ = ["DefaultSource"]
