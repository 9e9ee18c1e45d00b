"""A ClusterLinks that notes what it is told, and waiting for a condition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from sidecar.common.model import Node
from sidecar.net.kafka.authentication import Authenticator
from sidecar.net.kafka.broker_link import BrokerLink
from sidecar.net.kafka.cluster_links import ClusterLinks
from sidecar.net.kafka.link_security import LinkSecurity
from sidecar.protocol.connection import OnTaken
from sidecar.protocol.connection_states import ConnectionConfig
from sidecar.protocol.messages import Buffer
from tests.configs import config_with
from tests.configs import security as plaintext
from tests.patience import PATIENCE_S


async def until(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Wait until the condition holds, over turns of the loop; TimeoutError when it never does."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - a condition over sockets, no event to wait for
            await asyncio.sleep(0.002)


class NotingLinks:
    """ClusterLinks with its callbacks written down: ``states`` and ``responses``. In plaintext by default."""

    usual: LinkSecurity | None = None
    """For links that are given none: a suite of tests runs in plaintext and in TLS."""

    def __init__(
        self,
        security: LinkSecurity | None = None,
        authenticator: Authenticator | None = None,
        logs_first_refusal: bool = False,
        **config: Any,
    ) -> None:
        self.states: list[tuple[int, bool, str | None]] = []
        self.responses: list[tuple[int, bytes]] = []
        self.links = ClusterLinks(
            client_id="test",
            config=config_with(ConnectionConfig, **config),
            security=security or NotingLinks.usual or plaintext(),
            authenticator=authenticator,
            logs_first_refusal=logs_first_refusal,
            on_state=lambda *state: self.states.append(state),
            on_response=lambda link, correlation_id, body, now_ms: self.responses.append(
                (correlation_id, body)
            ),
        )

    async def connect(self, node: Node) -> BrokerLink:
        found: list[BrokerLink] = []

        def is_ready() -> bool:
            link = self.links.ready(node)
            found[:] = [] if link is None else [link]
            return link is not None

        await until(is_ready)
        return found[0]


def send_buffers(
    link: BrokerLink, correlation_id: int, buffers: Sequence[Buffer], on_taken: OnTaken, **given: Any
) -> None:
    """Send, and call ``on_taken`` also for a message that the kernel has taken at once."""
    if link.send_buffers(correlation_id, buffers, on_taken, **given):
        on_taken(True)


def node_of(port: int, host: str = "127.0.0.1", id: int = 1) -> Node:
    return Node(id, host, port)
