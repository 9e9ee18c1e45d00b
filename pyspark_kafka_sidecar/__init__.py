"""Found by Spark because of its name: makes ``format("kafka_sidecar")`` known with no registration.

It names the data source of ``client_stub.spark`` and knows nothing else.
"""

from client_stub.spark.datasource import KafkaSidecarDataSource as DefaultSource

__all__ = ["DefaultSource"]
