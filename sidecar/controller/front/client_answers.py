"""Answers for clients at the control endpoint: a worker (HELLO), topics (TOPICS), orders of operators (ORDER).

ControlEndpoint calls it for each message, on the controller's loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

from sidecar.common.errors import Code, Refused
from sidecar.common.tickets import attach_ticket
from sidecar.config.client_rules import Caller, ClientRules
from sidecar.config.settings import SidecarConfig
from sidecar.controller.front.admission import assigned_endpoint, check_hello, transactional_id_of
from sidecar.controller.front.asked_cluster import AskedCluster
from sidecar.controller.front.asked_record import AskedRecord, check_sender
from sidecar.controller.front.orders import Orders
from sidecar.controller.front.stop_requests import StopRequests
from sidecar.controller.workers.worker_process import WorkerIdentity

AskLastRecord = Callable[[str, bytes, float, bool], Awaitable[list[object]]]
AskCluster = Callable[[list[str] | None, float | None], Awaitable[list[list[object]]]]


class ClientAnswers:
    """Called by ControlEndpoint; each answer may raise Refused. Belongs to the controller's loop."""

    def __init__(
        self,
        config: SidecarConfig,
        *,
        worker_of: Callable[[bytes, str | None], WorkerIdentity | None],
        instance_key: bytes,
        ask_cluster: AskCluster,
        ask_last_record: AskLastRecord,
        asked: AskedCluster,
        orders: Orders,
        stop_requests: StopRequests,
    ) -> None:
        """``worker_of(client id, transactional id)``: the worker of a client if it is ready. ``instance_key`` signs
        tickets.
        """
        self._worker_of = worker_of
        self._instance_key = instance_key
        self._ask_cluster = ask_cluster
        self._ask_last_record = ask_last_record
        self._asked = asked
        self._orders = orders
        self._stop_requests = stop_requests
        self.use(config)

    def use(self, config: SidecarConfig) -> None:
        """Answer by this configuration from now on."""
        self._config = config
        self.rules = ClientRules.from_mapping(config.to_mapping())

    def hello(self, fields: list[Any], caller: Caller) -> tuple[str, int, bytes] | None:
        """(endpoint, epoch, ticket) of a client's worker; None while that is not ready."""
        client_id, name, token_digest = check_hello(fields, self.rules, caller)
        if self._stop_requests.is_stopping:
            raise Refused("DRAINING", "The daemon is shutting down and takes no more clients.")
        if not self._asked.check(fields[6] if len(fields) > 6 else None, name):
            return None
        identity = self._worker_of(client_id, transactional_id_of(fields))
        if identity is None:
            return None
        return (
            assigned_endpoint(fields, caller, identity.endpoint, self._config, identity.index),
            identity.epoch,
            attach_ticket(self._instance_key, client_id, name, identity.epoch, token_digest),
        )

    async def topics(self, names: list[str] | None, max_wait_ms: float | None, caller: Caller) -> list[Any]:
        """The list of TOPICS_REPLY."""
        return await answer_topics(self._ask_cluster, self.rules, names, max_wait_ms, caller)

    async def last_record(self, question: AskedRecord, caller: Caller) -> list[object]:
        """The fields of LAST_RECORD_REPLY. Who may not send to a topic may not read it."""
        check_sender(self.rules, question, caller)
        return await self._ask_last_record(
            question.topic, question.key, question.max_wait_ms, question.creates
        )

    async def order(self, verb: str, topics: list[str], caller: Caller) -> list[object]:
        """The fields of ORDER_REPLY."""
        if self._stop_requests.is_stopping:
            raise Refused("DRAINING", "The daemon is shutting down, which delivers all that it holds.")
        done = await self._orders.carry_out(verb, topics, caller)
        await asyncio.sleep(0)  # so that daemon.json shows it before the answer arrives
        return done


async def answer_topics(
    ask: AskCluster, rules: ClientRules, names: list[str] | None, max_wait_ms: float | None, caller: Caller
) -> list[list[object]]:
    """The list of TOPICS_REPLY as this user may see it. The daemon's user and root see all.

    Waiting for a topic may create it, so the rules are checked first. Raises Refused for the first topic that the
    caller may not send to.
    """
    if names is not None and max_wait_ms is not None:
        rules.check_lookup(names, caller)
        return await ask(names, max_wait_ms)
    sees = rules.sight_of(caller) if caller.key or caller.uid not in (0, os.geteuid()) else None
    if sees is None:
        return await ask(names, None)
    if names is None:
        return [row for row in await ask(None, None) if sees(str(row[0]))]
    seen: list[str] = []
    hidden: list[list[object]] = []
    for name in names:
        if sees(name):
            seen.append(name)
        else:
            hidden.append([name, int(Code.TOPIC_AUTHORIZATION_FAILED), []])
    return (await ask(seen, None) if seen else []) + hidden
