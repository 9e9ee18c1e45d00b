"""Tools that this host lacks for a Kafka or Spark, asked before anything is started."""

from __future__ import annotations

from sidecar.testing.kafka_jars import KafkaUnavailable, check_available, java_command


def missing_for_kafka(*, needs_jars: bool) -> str | None:
    """One sentence that names the Debian package; None when Java is here and, with ``needs_jars``, Kafka's jars can be
    had."""
    try:
        if needs_jars:
            check_available()
        else:
            java_command()
    except KafkaUnavailable as error:
        return str(error)
    return None
