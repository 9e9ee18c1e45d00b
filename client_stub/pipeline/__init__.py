"""Pipelines: a TOML file says source, SQL steps and topics; Spark reads, the sidecar writes, and a report counts.

``kafka-sidecar pipeline`` and ``spark-submit`` of this package run it. Needs pyspark; knows nothing of the daemon but
the stub.
"""
