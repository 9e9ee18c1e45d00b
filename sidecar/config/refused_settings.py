"""Settings of the Java producer that this daemon refuses: each with the reason, and what to do.

The loader reads it when a name is none of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_SERIALIZER = "records arrive as bytes; serialize in the application before send()"
_TRANSACTIONS = (
    "transactions are begun by clients: give it to Producer(transactional_id=...); leave it out here"
)
_KERBEROS = "this version has no Kerberos (GSSAPI); leave it out"
_HANDLER = (
    "no Java class can be loaded here, and none is needed for the mechanisms of sasl.mechanism; leave it out"
)
_JWT = "brokers check tokens, a producer does not; leave it out"
_TLS = "TLS comes from OpenSSL as Python has it; leave it out"
METRICS_ARE_SCRAPED = "the daemon's metrics are at http.listen, /metrics; leave it out"

REFUSED: Final[Mapping[str, str]] = {
    "key.serializer": _SERIALIZER,
    "value.serializer": _SERIALIZER,
    "interceptor.classes": "no Java class can be loaded here; do it in the application before send()",
    "partitioner.class": "no Java class can be loaded here; choose with partitioner, or give send() a partition",
    "metric.reporters": METRICS_ARE_SCRAPED,
    "metrics.num.samples": METRICS_ARE_SCRAPED,
    "metrics.recording.level": METRICS_ARE_SCRAPED,
    "metrics.sample.window.ms": METRICS_ARE_SCRAPED,
    "auto.include.jmx.reporter": METRICS_ARE_SCRAPED,
    "enable.metrics.push": "client metrics are not pushed to brokers (KIP-714); scrape /metrics at http.listen",
    "config.providers": "values come from the file, KAFKA_SIDECAR__ variables and -X; leave it out",
    "transactional.id": _TRANSACTIONS,
    "transaction.timeout.ms": _TRANSACTIONS,
    "transaction.two.phase.commit.enable": "no broker offers it yet (KIP-939); leave it out",
    "security.providers": _TLS,
    "sasl.login.class": _HANDLER,
    "sasl.login.callback.handler.class": _HANDLER,
    "sasl.client.callback.handler.class": _HANDLER,
    "sasl.oauthbearer.expected.audience": _JWT,
    "sasl.oauthbearer.expected.issuer": _JWT,
    "sasl.oauthbearer.clock.skew.seconds": _JWT,
    "sasl.oauthbearer.sub.claim.name": _JWT,
    "sasl.oauthbearer.scope.claim.name": _JWT,
}
REFUSED_PREFIXES: Final[Mapping[str, str]] = {
    "sasl.kerberos.": _KERBEROS,
    "sasl.oauthbearer.jwks.": _JWT,
    "ssl.": _TLS,
}


def refusal(name: str) -> str | None:
    """Why a setting of Kafka is refused; None for any other name."""
    why = REFUSED.get(name)
    if why is None:
        why = next((text for prefix, text in REFUSED_PREFIXES.items() if name.startswith(prefix)), None)
    return why
