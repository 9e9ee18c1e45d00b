"""TransactionAdmin: lists, describes and aborts transactions of the cluster, for ``kafka-sidecar txn``.

It asks the brokers itself, with the daemon's settings: so it sees the transactions of every client of the cluster, and
needs no running daemon. It runs in the command's own loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from client_stub.contract.error_codes import code_row
from sidecar.common.errors import Code
from sidecar.common.model import Node
from sidecar.config.settings import SidecarConfig
from sidecar.doctor.brokers import TIMEOUT_MS, BrokerWalk, bootstrap_nodes
from sidecar.metadata.answer import MetadataAnswer, parse_metadata
from sidecar.net.kafka.connector import authenticator_of
from sidecar.protocol.coordinators import find_coordinator_request, parse_find_coordinator
from sidecar.protocol.describe_transactions import (
    ONGOING,
    DescribedTransaction,
    describe_transactions_request,
    list_transactions_request,
    parse_describe_transactions,
    parse_list_transactions,
)
from sidecar.protocol.init_producer_id import init_producer_id_request, parse_init_producer_id
from sidecar.protocol.messages import ApiKey, ProtocolError
from sidecar.protocol.metadata import metadata_request

TRIES: Final = 40
RETRY_S: Final = 0.25
"""A coordinator that loads, or still ends a transaction, is asked so often again: 10 s in all."""
_PASSING: Final = frozenset(
    {Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE, Code.CONCURRENT_TRANSACTIONS}
)


class TransactionAdminError(Exception):
    """One sentence for the user."""


class TransactionAdmin:
    """Use it from one loop, and close it."""

    def __init__(self, config: SidecarConfig) -> None:
        self._servers = bootstrap_nodes(config)
        self._walk = BrokerWalk(config.values, authenticator_of(config.values))

    def close(self) -> None:
        self._walk.close()

    async def open_transactions(self) -> list[DescribedTransaction]:
        """All that are open anywhere in the cluster, the oldest first. Raises TransactionAdminError."""
        found: list[DescribedTransaction] = []
        for broker in await self._brokers():
            await self._connect(broker)
            code, ids = parse_list_transactions(
                await self._ask(ApiKey.LIST_TRANSACTIONS, list_transactions_request(ONGOING))
            )
            if code:
                raise TransactionAdminError(
                    f"{broker.host}:{broker.port} lists nothing: {code_row(code).name}."
                )
            if ids:
                found += await self._describe(ids)
        return sorted((each for each in found if not each.error_code), key=lambda each: each.started_ms)

    async def describe(self, transactional_id: str) -> DescribedTransaction:
        """Raises TransactionAdminError, also for an id that the cluster does not know."""
        found = await self.find(transactional_id)
        if found is None:
            row = code_row(Code.TRANSACTIONAL_ID_NOT_FOUND)
            raise TransactionAdminError(f"{transactional_id}: {row.name}, {row.text}")
        return found

    async def find(self, transactional_id: str) -> DescribedTransaction | None:
        """As ``describe``, None for an id that the cluster does not know."""
        await self._connect_coordinator(transactional_id)
        (found,) = await self._describe([transactional_id])
        if found.error_code == Code.TRANSACTIONAL_ID_NOT_FOUND:
            return None
        if found.error_code:
            row = code_row(found.error_code)
            raise TransactionAdminError(f"{transactional_id}: {row.name}, {row.text}")
        return found

    async def abort(self, transactional_id: str) -> DescribedTransaction:
        """Fence the producer of this id, which aborts its open transaction. Returns what was aborted. Raises
        TransactionAdminError.
        """
        found = await self.describe(transactional_id)
        assert self._walk.opened is not None
        version = self._walk.opened.versions[ApiKey.INIT_PRODUCER_ID]
        request = init_producer_id_request(
            version, transactional_id=transactional_id, transaction_timeout_ms=found.timeout_ms
        )
        entity = await self._ask_until_decided(ApiKey.INIT_PRODUCER_ID, request)
        code = parse_init_producer_id(entity).error_code
        if code:
            row = code_row(code)
            raise TransactionAdminError(f"{transactional_id} was not aborted: {row.name}, {row.text}")
        return found

    # --- brokers ----------------------------------------------------------------------------------------

    async def _brokers(self) -> tuple[Node, ...]:
        return (await self.metadata([])).brokers

    async def metadata(self, topics: list[str]) -> MetadataAnswer:
        """Raises TransactionAdminError."""
        await self._connect_any()
        assert self._walk.opened is not None
        request = metadata_request(
            self._walk.opened.versions[ApiKey.METADATA], topics, allow_auto_topic_creation=False
        )
        return parse_metadata(await self._ask(ApiKey.METADATA, request))

    async def _connect_any(self) -> None:
        failure = "no bootstrap.servers"
        for node in self._servers:
            try:
                await self._connect(node)
            except TransactionAdminError as error:
                failure = str(error)
            else:
                return
        raise TransactionAdminError(failure)

    async def _connect(self, node: Node) -> None:
        async for finding in self._walk.walk(node):
            if finding.mark == "FAIL":
                raise TransactionAdminError(finding.text)

    async def _connect_coordinator(self, transactional_id: str) -> None:
        await self._connect_any()
        assert self._walk.opened is not None
        version = self._walk.opened.versions.get(ApiKey.FIND_COORDINATOR)
        if version is None:
            raise TransactionAdminError("The brokers have no coordinators of transactions.")
        request = find_coordinator_request(version, transactional_id, is_group=False)
        found = parse_find_coordinator(await self._ask_until_decided(ApiKey.FIND_COORDINATOR, request))
        if found.node is None:
            row = code_row(found.error_code)
            raise TransactionAdminError(f"{transactional_id} has no coordinator: {row.name}, {row.text}")
        await self._connect(found.node)

    async def _describe(self, ids: Iterable[str]) -> list[DescribedTransaction]:
        request = describe_transactions_request(ids)
        return parse_describe_transactions(await self._ask(ApiKey.DESCRIBE_TRANSACTIONS, request))

    async def _ask_until_decided(self, key: ApiKey, message: Any) -> Any:
        """As ``_ask``, again while the answer's error passes."""
        for _ in range(TRIES):
            entity = await self._ask(key, message)
            if int(entity.error_code) not in _PASSING:
                break
            await asyncio.sleep(RETRY_S)
        return entity

    async def _ask(self, key: ApiKey, message: Any) -> Any:
        assert self._walk.opened is not None
        if key not in self._walk.opened.versions:
            raise TransactionAdminError(f"The brokers do not know {key.name}: it needs Kafka 3.0.")
        try:
            return await self._walk.ask(message)
        except TimeoutError:
            raise TransactionAdminError(f"No answer to {key.name} within {TIMEOUT_MS / 1e3:g} s.") from None
        except (OSError, ProtocolError) as error:
            raise TransactionAdminError(f"{key.name}: {error}.") from None
