"""The producers that are compared: ours by each of its calls, and the libraries that it replaces.

All run with the guarantees of an idempotent producer (``acks=all``), linger at 5 ms unless a run says otherwise, and
no compression.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sidecar.tools.bench.peers.peer import Peer, TimedPeer

__all__ = ["KINDS", "Peer", "TimedPeer", "make_peer", "make_timed_peer"]


def make_peer(kind: str, target: str) -> Peer:
    """The peer of that kind; only its own library is imported. Raises KeyError for an unknown kind."""
    return _makers()[kind](target)


def make_timed_peer(kind: str, target: str, linger_ms: float) -> TimedPeer:
    """A peer that reports each record's outcome as it comes; for ours ``linger_ms`` is set in the daemon."""
    if kind == "sidecar":
        from sidecar.tools.bench.peers.sidecar_peers import SidecarTimed

        return SidecarTimed(target)
    if kind == "confluent":
        from sidecar.tools.bench.peers.confluent_peers import ConfluentTimed

        return ConfluentTimed(target, linger_ms)
    raise KeyError(kind)


def _makers() -> dict[str, Callable[[str], Peer]]:
    return {
        "sidecar-callbacks": lambda target: _sidecar("SidecarCallbacks", target),
        "sidecar-send": lambda target: _sidecar("SidecarFutures", target),
        "sidecar-send-many": lambda target: _sidecar("SidecarSendMany", target),
        "sidecar-send-arrow": lambda target: _sidecar("SidecarArrow", target),
        "sidecar-result": lambda target: _sidecar("SidecarOneByOne", target),
        "sidecar-twin": lambda target: _confluent("TwinPolled", target),
        "confluent-polled": lambda target: _confluent("ConfluentPolled", target),
        "confluent-callbacks": lambda target: _confluent("ConfluentCallbacks", target),
        "confluent-batch": lambda target: _confluent("ConfluentBatch", target),
        "kafka-python": _kafka_python,
        "aiokafka": _aiokafka,
    }


def _sidecar(name: str, target: str) -> Peer:
    from sidecar.tools.bench.peers import sidecar_peers

    peer: Peer = getattr(sidecar_peers, name)(target)
    return peer


def _confluent(name: str, target: str) -> Peer:
    from sidecar.tools.bench.peers import confluent_peers

    peer: Peer = getattr(confluent_peers, name)(target)
    return peer


def _kafka_python(target: str) -> Peer:
    from sidecar.tools.bench.peers.kafka_python_peer import KafkaPython

    return KafkaPython(target)


def _aiokafka(target: str) -> Peer:
    from sidecar.tools.bench.peers.aiokafka_peer import Aiokafka

    return Aiokafka(target)


KINDS: Final = tuple(_makers())
