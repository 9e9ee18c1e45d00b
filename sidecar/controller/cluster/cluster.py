"""The cluster as the controller knows it: fetches metadata once for all workers and pushes changes to them.

The Daemon owns it, on the controller's loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from sidecar.common.clock import MonotonicClock
from sidecar.common.condition import SILENT_MS, BrokerRow, BrokerState
from sidecar.common.control import LoginToken, NeedTopics, TopicError, TopicErrors, UpdateMetadataReply
from sidecar.common.errors import Refused
from sidecar.common.wording import counted
from sidecar.config.rules import config_of, parse_address
from sidecar.config.sasl_settings import OAUTHBEARER
from sidecar.config.settings import SidecarConfig
from sidecar.controller.cluster.committed_records import CommittedRecords
from sidecar.controller.cluster.metadata_fetcher import MetadataFetcher
from sidecar.controller.cluster.topic_list import TopicList
from sidecar.controller.cluster.update_metadata import MetadataPusher
from sidecar.controller.workers.worker_process import WorkerProcess
from sidecar.metadata.errors import (
    InvalidTopicError,
    MetadataAuthenticationError,
    MetadataClosed,
    MetadataError,
    MetadataTimeout,
    SaslAuthenticationError,
    TopicAuthorizationError,
)
from sidecar.metadata.metadata import MetadataConfig, UpdateResult
from sidecar.metadata.snapshot import MetadataSnapshot
from sidecar.net.kafka.cluster_links import ClusterLinks, OnState
from sidecar.net.kafka.connector import LinkError, authenticator_of
from sidecar.net.kafka.link_security import LinkSecurity
from sidecar.protocol.connection_states import ConnectionConfig
from sidecar.protocol.messages import ProtocolError

if TYPE_CHECKING:
    from sidecar.controller.cluster.token_keeper import TokenKeeper

log = logging.getLogger(__name__)

TOPICS_TIMEOUT_MS = 10_000.0
TOPICS_TIMEOUT_UNREACHABLE_MS = 2_000.0
TOPICS_WAIT_MS_MAX = 30_000.0
"""The longest wait of one question. Its connection to the control endpoint may last twice as long."""
TOPICS_WAITED_MAX = 100
"""The most topics that one question may wait for."""
LOOKED_UP_MAX = 10_000
"""When this many topics are in use, questions look up no further ones, as callers need no token."""


_REFUSALS: Final[dict[type[MetadataError], str]] = {
    MetadataTimeout: "METADATA_TIMEOUT",
    TopicAuthorizationError: "TOPIC_AUTHORIZATION_FAILED",
    InvalidTopicError: "INVALID_TOPIC_EXCEPTION",
    SaslAuthenticationError: "SASL_AUTHENTICATION_FAILED",
    MetadataAuthenticationError: "KAFKA_UNREACHABLE",
    MetadataClosed: "NOT_READY",
}


class Cluster:
    """Connects the metadata fetcher and the UpdateMetadata push to the table of workers. Belongs to the loop.

    ``error`` says in a sentence why Kafka does not answer; empty while it does.
    """

    def __init__(self, config: SidecarConfig) -> None:
        self.error = ""
        self._on_change: Callable[[], None] = lambda: None
        self._topic_errors: Mapping[str, TopicError] = {}
        self._workers: dict[int, WorkerProcess] = {}
        self._pusher = MetadataPusher(os.getpid())
        self._all_topics = TopicList(time.monotonic)
        self._authenticator = authenticator_of(config.values)
        if self._authenticator is not None:
            self._authenticator.on_token_refused = self.token_refused
        self._tokens = _token_keeper(config, self._token_came)
        self._security = LinkSecurity(config.values, MonotonicClock())
        self._connection_config = config_of(ConnectionConfig, config.values)
        self._client_id = config.text("client.id")
        self._fetcher = MetadataFetcher(
            _addresses(config),
            client_id=self._client_id,
            metadata_config=config_of(MetadataConfig, config.values),
            connection_config=self._connection_config,
            security=self._security,
            listener=self,
            authenticator=self._authenticator,
        )
        self.committed_records = CommittedRecords(
            self._new_links, self._fetcher.fetch_all_topics, MonotonicClock()
        )

    @property
    def snapshot(self) -> MetadataSnapshot:
        return self._fetcher.snapshot

    @property
    def cluster_id(self) -> str | None:
        return self.snapshot.cluster_id

    @property
    def answered_ms(self) -> float:
        """The monotonic time in ms at which the cluster last answered."""
        return self._fetcher.metadata.last_success_ms

    @property
    def is_known(self) -> bool:
        """Whether the cluster has answered at least once."""
        return bool(self.snapshot.nodes)

    def start(self) -> None:
        if self._tokens is not None:
            self._tokens.start()
        self._fetcher.start()

    def use(self, config: SidecarConfig) -> None:
        """Use the brokers and the connection settings of this configuration from now on."""
        if self._authenticator is not None:
            self._authenticator.change(config.values)
        self._use_tokens(config)
        self._security.use(config.values)
        self._connection_config = config_of(ConnectionConfig, config.values)
        self._fetcher.use(_addresses(config), self._connection_config)
        self.committed_records.use(self._connection_config)

    def _new_links(self, on_state: OnState) -> ClusterLinks:
        return ClusterLinks(
            client_id=self._client_id,
            config=self._connection_config,
            security=self._security,
            on_state=on_state,
            authenticator=self._authenticator,
        )

    def _use_tokens(self, config: SidecarConfig) -> None:
        """Use a new token source; the old source's token is used while it is valid, or until the new source has given
        one.
        """
        tokens = _token_keeper(config, self._token_came)
        if tokens is not None and self._tokens is not None and tokens.settings == self._tokens.settings:
            return
        if self._tokens is not None:
            self._tokens.close()
            if tokens is not None:
                tokens.message = self._tokens.message  # for workers that join before the first new token
        self._tokens = tokens
        if tokens is not None:
            tokens.start()

    def became_active(self, controller_epoch: int, on_change: Callable[[], None]) -> None:
        """Let workers join from now on, under this epoch; ``on_change`` is called after each change."""
        self._pusher.became_active(controller_epoch)
        self._on_change = on_change

    async def know(self, topics: Iterable[str], timeout_s: float) -> bool:
        """Fetch these topics before they are used. Returns True once they or their errors are known, False after the
        timeout.
        """
        names = frozenset(topics)
        self._fetcher.add_topics(names)
        try:
            async with asyncio.timeout(timeout_s):
                while not (self.is_known and all(self._is_answered(name) for name in names)):
                    await self._fetcher.awaitable.await_update(
                        self._fetcher.request_update(), timeout_s * 1000
                    )
        except (MetadataError, TimeoutError):
            return False
        return True

    def _is_answered(self, topic: str) -> bool:
        return self.snapshot.partition_count(topic) is not None or topic in self._topic_errors

    async def close(self) -> None:
        self._pusher.close()
        if self._tokens is not None:
            self._tokens.close()
        self.committed_records.close()
        await self._fetcher.close()

    # ---- workers

    def worker_joined(self, worker: WorkerProcess) -> None:
        """Send everything known to a worker that is ready (U1)."""
        self._workers[worker.identity.index] = worker
        if self._tokens is not None:
            worker.channel.send(self._tokens.message)
        self._pusher.worker_joined(worker.identity.index, worker.identity.epoch, worker.channel.send)
        if self._topic_errors or self.error:
            worker.channel.send(self._errors())

    def _token_came(self, message: LoginToken) -> None:
        """Use a new token on our own links and on those of every worker."""
        assert self._authenticator is not None
        self._authenticator.put_token(message)
        for worker in self._workers.values():
            worker.channel.send(message)

    def token_refused(self, fingerprint: bytes) -> None:
        """Fetch the next token, once for all, as a broker refuses the present one on a link of ours or of a worker."""
        if self._tokens is not None:
            self._tokens.refused(fingerprint)

    def worker_left(self, worker: WorkerProcess) -> None:
        if self._workers.get(worker.identity.index) is worker:
            del self._workers[worker.identity.index]
            self._pusher.worker_left(worker.identity.index)

    def topics_needed(self, message: NeedTopics) -> None:
        """Handle a worker's message that it needs or uses topics, or wants the cluster to be asked again."""
        if message.topics:
            self._need(message.topics)
        if message.used:
            self._fetcher.add_topics(message.used)
            self._fetcher.records_sent(message.used)
        if message.refresh:
            self._fetcher.request_update()

    def update_replied(self, worker: WorkerProcess, reply: UpdateMetadataReply) -> None:
        """Handle a worker's reply to its last update: taken or refused."""
        self._pusher.replied(worker.identity.index, reply)

    @property
    def expiries(self) -> list[tuple[str, float]]:
        """(description, Unix time) of the expiries of the links' certificates; empty without TLS."""
        return self._security.expiries

    def connected_brokers(self, now_ms: float) -> tuple[BrokerRow, ...]:
        """Rows of the brokers that the controller is connected to; a broker that owes an answer for SILENT_MS is
        silent. A row changes only when its state does.
        """
        return tuple(
            BrokerRow(broker_id, str(BrokerState.UP), 0.0)
            if since_ms is None or now_ms - since_ms < SILENT_MS
            else BrokerRow(broker_id, str(BrokerState.SILENT), since_ms, in_flight=1)
            for broker_id, since_ms in self._fetcher.connected()
        )

    def tick(self) -> None:
        """Called once a second: logs a start that takes long, and notices a token that is due by the wall clock."""
        self._fetcher.log_slow_start()
        if self._tokens is not None:
            self._tokens.tick(time.time() * 1e3)

    def refresh(self) -> None:
        """Ask the cluster again as soon as that is allowed."""
        self._fetcher.request_update()

    def _need(self, topics: Iterable[str]) -> None:
        wanted = list(topics)
        self._fetcher.recheck(wanted)
        self._fetcher.add_topics(wanted)
        # A topic that was already asked for and refused is not new, but still needs an update.
        if any(self.snapshot.partition_count(topic) is None for topic in wanted):
            self._fetcher.request_update()

    # ---- from the fetcher

    def snapshot_changed(self, result: UpdateResult) -> None:
        """Push the differences to the workers."""
        if not result.old.nodes:
            log.info(
                "Kafka answers: cluster %s, %s.",
                result.new.cluster_id,
                counted(len(result.new.nodes), "broker"),
            )
        self._pusher.snapshot_changed(*result)
        self._on_change()

    def topic_errors_changed(self, errors: Mapping[str, TopicError]) -> None:
        """Send the topics' errors to the workers, which fail or hold their records."""
        self._topic_errors = dict(errors)
        self._send_errors()

    def cluster_error_changed(self, text: str) -> None:
        """Log the begin and the end of an error, and send it to the workers."""
        if text and not self.error:
            log.warning("%s", text)
        elif self.error and not text:
            log.info("Kafka is reachable again.")
        changed = text != self.error
        self.error = text
        if changed:
            self._send_errors()
            self._on_change()

    def _send_errors(self) -> None:
        for worker in self._workers.values():
            worker.channel.send(self._errors())

    def _errors(self) -> TopicErrors:
        return TopicErrors(self._topic_errors, self.error, self._fetcher.is_login_refused)

    # ---- questions of clients

    async def last_record(self, topic: str, key: bytes, max_wait_ms: float, creates: bool) -> list[object]:
        """The fields of LAST_RECORD_REPLY. Raises Refused."""
        partition, record = await self.committed_records.last(topic, key, max_wait_ms, creates=creates)
        if record is None:
            return [partition, None]
        headers = [[name, value] for name, value in record.headers]
        return [partition, [record.offset, record.timestamp_ms, record.value, headers]]

    # ---- the CLI's question

    async def topics(self, names: list[str] | None, max_wait_ms: float | None = None) -> list[list[object]]:
        """The list of TOPICS_REPLY for these topics or all, from a new answer of the cluster. Creates no topic.

        With ``max_wait_ms`` it waits for these topics as a first record would (rule M5). Raises Refused when no broker
        answers, or when a topic is not available.
        """
        if names is not None and max_wait_ms is not None:
            return await self._wait_for(names, min(max_wait_ms, TOPICS_WAIT_MS_MAX))
        if self._fetcher.is_login_refused:
            raise Refused("SASL_AUTHENTICATION_FAILED", self.error)
        if names is None:
            return await self._all_topics.get(self._fetch_topics)
        return await self._fetch_topics(names)

    async def _fetch_topics(self, names: list[str] | None = None) -> list[list[object]]:
        timeout_ms = TOPICS_TIMEOUT_UNREACHABLE_MS if self.error else TOPICS_TIMEOUT_MS
        try:
            answer = await self._fetcher.fetch_all_topics(timeout_ms, names)
        except (LinkError, ProtocolError) as error:
            raise Refused("KAFKA_UNREACHABLE", self.error or str(error)) from None
        return [
            [
                topic.name,
                topic.error_code,
                [
                    [each.partition, each.leader, list(each.isr), list(each.replicas), list(each.offline)]
                    for each in topic.partitions
                ],
            ]
            for topic in answer.topics
            if names is not None or not topic.is_internal
        ]

    async def _wait_for(self, names: list[str], max_wait_ms: float) -> list[list[object]]:
        unknown = [name for name in names if self.snapshot.partition_count(name) is None]
        if (
            len(names) > TOPICS_WAITED_MAX
            or len(self._fetcher.metadata.topics) + len(unknown) > LOOKED_UP_MAX
        ):
            raise Refused(
                "TOO_MANY_TOPICS", "Too many topics are being looked up; ask for fewer, or try again later."
            )
        wait = self._fetcher.awaitable.wait_on_metadata
        try:
            async with asyncio.TaskGroup() as group:
                waits = [group.create_task(wait(name, max_wait_ms)) for name in names]
        except ExceptionGroup as errors:
            if not all(isinstance(each, MetadataError) for each in errors.exceptions):
                raise
            raise refused(errors.exceptions[0], self.error) from None
        return [
            [
                name,
                0,
                [
                    [index, state.leader, list(state.isr), list(state.replicas), list(state.offline)]
                    for index, state in enumerate(each.result().partitions)
                    if state is not None
                ],
            ]
            for name, each in zip(names, waits, strict=True)
        ]


def _addresses(config: SidecarConfig) -> list[tuple[str, int]]:
    addresses = [parse_address(server) for server in config.words("bootstrap.servers")]
    return [address for address in addresses if address is not None]


def _token_keeper(config: SidecarConfig, on_token: Callable[[LoginToken], None]) -> TokenKeeper | None:
    """The keeper of tokens; None, without its imports, unless the login uses tokens."""
    if (
        not config.text("security.protocol").startswith("SASL")
        or config.values["sasl.mechanism"] != OAUTHBEARER
    ):
        return None
    from sidecar.controller.cluster.token_keeper import TokenKeeper

    return TokenKeeper(config.values, on_token)


def refused(error: BaseException, cluster_error: str = "") -> Refused:
    """The refusal of a TOPICS that waited in vain. ``cluster_error`` says in a sentence why no broker answers."""
    code = next((code for kind, code in _REFUSALS.items() if isinstance(error, kind)), "FAILED")
    why = cluster_error or error.__cause__
    text = f"{error} {why}" if isinstance(error, MetadataTimeout) and why else str(error)
    return Refused(code, text, cluster_error)
