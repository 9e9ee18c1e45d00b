"""Settings of the Java producer that this daemon does not take: each with the sentence why, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_SERIALIZER = "records arrive as bytes; serialize in the application before send()"
_TRANSACTIONS = "transactions are begun by clients, and this version has none; leave it out"
_SASL = "this version has no SASL; leave it out"
_TLS = "TLS comes from OpenSSL as Python has it; leave it out"
_METRICS = "the daemon's metrics are at http.listen, /metrics; leave it out"

REFUSED: Final[Mapping[str, str]] = {
    "key.serializer": _SERIALIZER,
    "value.serializer": _SERIALIZER,
    "interceptor.classes": "no Java class can be loaded here; do it in the application before send()",
    "partitioner.class": "no Java class can be loaded here; choose with partitioner, or give send() a partition",
    "metric.reporters": _METRICS,
    "metrics.num.samples": _METRICS,
    "metrics.recording.level": _METRICS,
    "metrics.sample.window.ms": _METRICS,
    "auto.include.jmx.reporter": _METRICS,
    "enable.metrics.push": "client metrics are not pushed to brokers (KIP-714); scrape /metrics at http.listen",
    "config.providers": "values come from the file, KAFKA_SIDECAR__ variables and -X; leave it out",
    "transactional.id": _TRANSACTIONS,
    "transaction.timeout.ms": _TRANSACTIONS,
    "transaction.two.phase.commit.enable": _TRANSACTIONS,
    "security.providers": _TLS,
}
REFUSED_PREFIXES: Final[Mapping[str, str]] = {"sasl.": _SASL, "ssl.": _TLS}


def refusal(name: str) -> str | None:
    """Why a setting that Kafka knows is not taken; None for any other name."""
    why = REFUSED.get(name)
    if why is None:
        why = next((text for prefix, text in REFUSED_PREFIXES.items() if name.startswith(prefix)), None)
    return why
