"""Checks the tools of this host for a Kafka or Spark, before anything is started."""

from __future__ import annotations

from sidecar.tools.testing.kafka_jars import KafkaUnavailable, check_available, java_command


def missing_for_kafka(*, needs_jars: bool) -> str | None:
    """One sentence that names the missing Debian package; None when Java is here and, with ``needs_jars``, Kafka's
    jars are available.
    """
    try:
        if needs_jars:
            check_available()
        else:
            java_command()
    except KafkaUnavailable as error:
        return str(error)
    return None
