"""A broker's record of its requests: its own request log, the judge of versions, counts and distances."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from sidecar.testing.kafka_node import KafkaNode

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
        """The names of a METADATA request; empty when it asks for the brokers only."""
        return [str(topic["name"]) for topic in self.request.get("topics") or []]


def logged_requests(nodes: Iterable[KafkaNode], client_id: str, *apis: str) -> list[LoggedRequest]:
    """The answered requests of one client, by node and then in the order of their answers.

    ``apis`` limits it to these; the cluster must have been started with ``log_requests``.
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
            continue  # also a last line that is half written: it is whole the next time
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
