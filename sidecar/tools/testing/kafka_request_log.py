"""The request log of a broker, from which tests judge versions, counts and intervals of requests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from sidecar.tools.testing.kafka_node import KafkaNode

_LINE = re.compile(r"^(\d+) .*kafka\.request\.logger - Completed request:(\{.*\})$")


class LoggedRequest(NamedTuple):
    """``api`` as Kafka names it ("PRODUCE"); ``arrived_ms`` counts from the start of the node's JVM."""

    node_id: int
    api: str
    version: int
    client_id: str
    arrived_ms: float
    request: dict[str, Any]
    response: dict[str, Any]

    @property
    def topics(self) -> list[str]:
        """Topic names of a METADATA request; empty when it asks for the brokers only."""
        return [str(topic["name"]) for topic in self.request.get("topics") or []]


def logged_requests(nodes: Iterable[KafkaNode], client_id: str, *apis: str) -> list[LoggedRequest]:
    """Return the answered requests of one client, by node and then in the order of their answers.

    ``apis`` limits them to these names. The cluster must have been started with ``log_requests``.
    """
    return [
        each
        for node in nodes
        for each in _read(node)
        if each.client_id == client_id and (not apis or each.api in apis)
    ]


def _read(node: KafkaNode) -> Iterator[LoggedRequest]:
    for line in node.log_path.read_text(errors="replace").splitlines():
        match = _LINE.match(line)
        if match is None:
            continue  # another line, or a last line that is not complete yet
        entry = json.loads(match.group(2))
        header = entry["requestHeader"]
        yield LoggedRequest(
            node.node_id,
            header["requestApiKeyName"],
            int(header["requestApiVersion"]),
            str(header["clientId"]),
            int(match.group(1)) - float(entry["totalTimeMs"]),
            entry["request"],
            entry["response"],
        )
