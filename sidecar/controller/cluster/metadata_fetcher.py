"""MetadataFetcher: fetches cluster metadata once for all workers.

One asyncio task drives the sans-IO Metadata over its own links. Any number of requests for an update cause one request
to a broker (rule M6). When no known broker answers, the bootstrap addresses are asked again (rule S6).
"""

from __future__ import annotations

import asyncio
import logging
import random as random_module
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from sidecar.common.clock import MonotonicClock
from sidecar.common.control import TopicError
from sidecar.common.errors import Code
from sidecar.common.model import Node
from sidecar.controller.cluster.awaitable_metadata import AwaitableMetadata
from sidecar.controller.event_wait import happens_within
from sidecar.metadata.answer import MetadataAnswer, parse_metadata
from sidecar.metadata.metadata import Metadata, MetadataConfig, UpdateResult
from sidecar.metadata.snapshot import MetadataSnapshot
from sidecar.net.kafka.broker_link import BrokerLink
from sidecar.net.kafka.cluster_links import ClusterLinks
from sidecar.net.kafka.connector import LinkError
from sidecar.net.kafka.link_security import LinkSecurity
from sidecar.protocol.connection_states import ConnectionConfig
from sidecar.protocol.messages import ApiKey, ProtocolError
from sidecar.protocol.metadata import metadata_request

if TYPE_CHECKING:
    from sidecar.net.kafka.authentication import Authenticator

log = logging.getLogger(__name__)

IDLE_WAIT_MS = 60_000.0


class MetadataListener(Protocol):
    """Calls that the fetcher makes on its owner."""

    def snapshot_changed(self, result: UpdateResult) -> None:
        """Called when the cluster has answered."""
        ...

    def topic_errors_changed(self, errors: Mapping[str, TopicError]) -> None:
        """Called with the topics that the answer refuses; empty when it refuses none any more."""
        ...

    def cluster_error_changed(self, text: str) -> None:
        """Called with one sentence after each failed attempt; with "" when a broker answers again."""
        ...


class MetadataFetcher:
    """The task that keeps the controller's Metadata up to date. Belongs to the loop's thread."""

    def __init__(
        self,
        bootstrap: Sequence[tuple[str, int]],
        *,
        client_id: str | None,
        metadata_config: MetadataConfig,
        connection_config: ConnectionConfig,
        security: LinkSecurity,
        listener: MetadataListener,
        authenticator: Authenticator | None = None,
        allow_auto_create_topics: bool = True,
        clock: MonotonicClock | None = None,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        if not bootstrap:
            raise ValueError("bootstrap.servers names no broker; give at least one host:port.")
        self.metadata = Metadata(metadata_config, random)
        self._may_rebootstrap = metadata_config.metadata_recovery_strategy == "rebootstrap"
        self._rebootstrap_trigger_ms = metadata_config.metadata_recovery_rebootstrap_trigger_ms
        self._request_timeout_ms = connection_config.request_timeout_ms
        self._unanswered_since_ms: float | None = None
        """Since when an update has been due without success."""
        self._clock = clock or MonotonicClock()
        self.awaitable = AwaitableMetadata(self.metadata, self._clock, self.wake)
        self.last_error = ""
        self.is_login_refused = False
        """Whether the last error is that the brokers refuse the login."""
        self._bootstrap = _bootstrap_nodes(bootstrap)
        self._use_bootstrap = True
        self._failed: set[int] = set()
        self._connected: set[int] = set()
        self._auto_create = allow_auto_create_topics
        self._listener = listener
        self._random = random
        self._reported_errors: Mapping[str, TopicError] = {}
        self._links = ClusterLinks(
            client_id=client_id,
            config=connection_config,
            security=security,
            on_state=self._on_link_state,
            authenticator=authenticator,
            clock=self._clock,
            random=random,
        )
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # Requests of the owner

    @property
    def snapshot(self) -> MetadataSnapshot:
        return self.metadata.snapshot

    def start(self) -> None:
        """Start the task; the first request goes out at once."""
        self.metadata.request_update()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def use(self, bootstrap: Sequence[tuple[str, int]], connection_config: ConnectionConfig) -> None:
        """Use these bootstrap addresses and this connection configuration from now on."""
        self._links.use(connection_config)
        nodes = _bootstrap_nodes(bootstrap)
        if nodes == self._bootstrap:
            return
        old, self._bootstrap = self._bootstrap, nodes
        for node in old:
            self._links.close(node.id)
            self._failed.discard(node.id)
        if self.last_error:
            self.metadata.request_update()
        self.wake()

    async def close(self) -> None:
        """Stop the task, close the links, and wake every waiter."""
        self.metadata.close()
        self.awaitable.notify()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._links.close_all()

    def add_topics(self, topics: Iterable[str]) -> None:
        """Note that these topics are in use; unknown ones are requested."""
        now_ms = self._clock.now_ms()
        for topic in topics:
            if self.metadata.add(topic, now_ms):
                self.wake()

    def recheck(self, topics: Iterable[str]) -> None:
        """Check again whether these topics are gone, and report it."""
        self.metadata.recheck(topics)

    def records_sent(self, topics: Iterable[str]) -> None:
        """Note that records of these topics were sent since the last call, which keeps the topics in use."""
        self.metadata.records_sent(topics, self._clock.now_ms())
        self.wake()

    def request_update(self) -> int:
        """Request an update as soon as the backoff allows. Returns the version that it will exceed."""
        version = self.metadata.request_update()
        self.wake()
        return version

    def log_slow_start(self) -> None:
        """Before the very first answer: log a wait that has lasted SILENT_MS.

        Otherwise nothing would be logged until every address of bootstrap.servers has used its time to connect, 10 s
        each.
        """
        if self.last_error or self.snapshot.nodes:
            return
        now_ms = self._clock.now_ms()
        slow = (self._links.slow_step(node.id, now_ms) for node in self._bootstrap)
        step = next(filter(None, slow), "")
        if step:
            self._report_error(f"{step}.")

    def connected(self) -> list[tuple[int, float | None]]:
        """(broker id, since when a request is unanswered) of each broker with a connection; None if no request is
        open.
        """
        return [
            (link.node.id, link.last_used_ms if link.awaited_count else None)
            for link in self._links.ready_links
            if link.node.id >= 0
        ]

    def wake(self) -> None:
        """Make the task look at the Metadata now."""
        self._woken.set()

    async def fetch_all_topics(
        self, timeout_ms: float = 10_000.0, topics: Iterable[str] | None = None
    ) -> MetadataAnswer:
        """Request all topics of the cluster once (or these), without changing the topics in use.

        Never creates a topic. Raises LinkError when no broker has answered within ``timeout_ms``.
        """
        deadline_ms = self._clock.now_ms() + timeout_ms
        asked = None if topics is None else list(topics)
        while True:
            link = self._choose_link()
            left_ms = deadline_ms - self._clock.now_ms()
            if link is not None:
                return await self._ask(link, asked, max(1.0, left_ms), allow_auto_create=False)
            if left_ms <= 0:
                raise LinkError(self.last_error or f"No broker answered within {timeout_ms:g} ms.")
            await self._wait(min(left_ms, self._next_attempt_ms()))

    # The task

    async def _run(self) -> None:
        while True:
            try:
                await self._step()
            except asyncio.CancelledError:
                raise
            except Exception:
                # Metadata must continue whatever one answer caused; the backoff prevents a busy loop.
                log.exception("Metadata update failed unexpectedly.")
                self._failed_update(None, "The last metadata answer could not be handled; see the log.")

    async def _step(self) -> None:
        now_ms = self._clock.now_ms()
        delay_ms = self.metadata.time_to_next_update(now_ms)
        if delay_ms > 0:
            await self._wait(delay_ms)
            return
        self._check_rebootstrap_trigger(now_ms)
        link = self._choose_link()
        if link is None:
            await self._wait(self._next_attempt_ms())
            return
        asked = self.metadata.topics
        try:
            answer = await self._ask(
                link, asked, self._answer_timeout_ms(now_ms), allow_auto_create=self._auto_create
            )
        except (LinkError, ProtocolError) as error:
            if isinstance(error, ProtocolError):
                link.close(f"{link.node}: {error}")
            self._failed_update(link.node, str(error))
            return
        self._take(link, answer, asked)

    def _take(self, link: BrokerLink, answer: MetadataAnswer, asked: frozenset[str]) -> None:
        self._links.throttle(link.node.id, answer.throttle_ms)
        if answer.error_code == Code.REBOOTSTRAP_REQUIRED and self._may_rebootstrap:
            self._rebootstrap()
            self._failed_update(link.node, f"{link.node} asks to bootstrap again.")
            return
        if answer.error_code == Code.CLUSTER_AUTHORIZATION_FAILED:
            self.metadata.failed_update(self._clock.now_ms(), f"{link.node} refuses us: not authorized.")
            self._report_error(f"{link.node} refuses us: not authorized.")
            return
        if answer.error_code or not answer.brokers:
            # A broker that is just starting knows no brokers; using its answer would lose everything known.
            self._failed_update(link.node, f"{link.node} names no brokers (error {answer.error_code}).")
            return
        self._unanswered_since_ms = None
        result = self.metadata.update(answer, self._clock.now_ms(), requested=asked)
        self._failed.clear()
        self._use_bootstrap = False
        self._links.update_nodes(answer.brokers)
        for node in self._bootstrap:
            # Bootstrap addresses are only a way in: from here on the brokers are asked by their own names.
            bootstrap_link = self._links.link(node.id)
            if bootstrap_link is not None and bootstrap_link.in_flight_count == 0:
                self._links.close(node.id)
        self._report_error("")
        self._listener.snapshot_changed(result)
        errors = self.metadata.topic_errors
        if errors or self._reported_errors:
            # Also errors reported before, as records that came since wait for this answer.
            self._reported_errors = errors
            self._listener.topic_errors_changed(errors)
        self.awaitable.notify()

    async def _ask(
        self,
        link: BrokerLink,
        topics: Iterable[str] | None,
        timeout_ms: float | None,
        *,
        allow_auto_create: bool,
    ) -> MetadataAnswer:
        version = link.version(ApiKey.METADATA)
        if version is None:
            raise ProtocolError(
                f"{link.node} speaks none of Metadata v4 to v13: Apache Kafka 1.0 or newer is needed."
            )
        names = None if topics is None else sorted(topics)
        request = metadata_request(version, names, allow_auto_topic_creation=allow_auto_create)
        return parse_metadata(await link.request(request, timeout_ms=timeout_ms))

    # Which broker

    def _choose_link(self) -> BrokerLink | None:
        """A link that can be asked now. If there is none, starts connecting where that is allowed, and returns None."""
        candidates = self._candidates()  # first: it forgets the failures once every broker has failed
        ready = [
            link
            for link in self._links.ready_links
            if link.node.id not in self._failed and self._links.is_ready(link.node.id)
        ]
        if ready:
            # The least loaded; a bootstrap address only if there is no broker.
            return min(ready, key=lambda link: (link.node.id < 0, link.in_flight_count))
        if any(self._links.next_attempt_delay_ms(node.id, 0.0) == float("inf") for node in candidates):
            return None  # connecting: its end wakes the task
        now_ms = self._clock.now_ms()
        possible = [node for node in candidates if self._links.next_attempt_delay_ms(node.id, now_ms) <= 0]
        if possible:
            return self._links.ready(possible[int(self._random() * len(possible)) % len(possible)])
        return None

    def _candidates(self) -> list[Node]:
        """The brokers to try: the known ones that have not failed since the last answer, or when all have, the
        bootstrap addresses.
        """
        known = list(self.metadata.snapshot.nodes.values())
        if not self._use_bootstrap and known:
            left = [node for node in known if node.id not in self._failed]
            if left:
                return left
            if not self._may_rebootstrap:
                self._failed.clear()
                return known
            self._rebootstrap()
        left = [node for node in self._bootstrap if node.id not in self._failed]
        if left:
            return left
        # All bootstrap addresses failed as well: start over, with known brokers first.
        self._failed.clear()
        self._use_bootstrap = not known
        return known or self._bootstrap

    def _check_rebootstrap_trigger(self, now_ms: float) -> None:
        """Use the bootstrap addresses again when brokers accept connections but never answer (KIP-1102)."""
        if self._unanswered_since_ms is None:
            self._unanswered_since_ms = now_ms
        elif (
            self._may_rebootstrap
            and not self._use_bootstrap
            and now_ms - self._unanswered_since_ms >= self._rebootstrap_trigger_ms
        ):
            self._unanswered_since_ms = now_ms
            self._failed.update(self.metadata.snapshot.nodes)
            self._rebootstrap()

    def _answer_timeout_ms(self, now_ms: float) -> float | None:
        """The timeout of an answer in ms, if the trigger comes before request.timeout.ms; else None."""
        if not self._may_rebootstrap or self._use_bootstrap or self._unanswered_since_ms is None:
            return None
        left_ms = self._unanswered_since_ms + self._rebootstrap_trigger_ms - now_ms
        return max(1.0, left_ms) if left_ms < self._request_timeout_ms else None

    def _rebootstrap(self) -> None:
        self._use_bootstrap = True
        self._failed.difference_update(node.id for node in self._bootstrap)

    def _next_attempt_ms(self) -> float:
        """Time in ms until a broker may be tried; 0 where its backoff has ended since ``_choose_link`` looked."""
        now_ms = self._clock.now_ms()
        delays = [self._links.next_attempt_delay_ms(node.id, now_ms) for node in self._candidates()]
        # The end of a connect wakes the task.
        return IDLE_WAIT_MS if float("inf") in delays else min(delays)

    def _on_link_state(self, node_id: int, connected: bool, error: str | None) -> None:
        if connected:
            self._connected.add(node_id)
        elif error is not None and not self.metadata.is_closed:
            if node_id in self._connected:
                self.metadata.request_update()  # a broker that drops the connection may be gone (M7)
            self._note_failure(node_id, error)
        if not connected:
            self._connected.discard(node_id)
        self.wake()

    def _failed_update(self, node: Node | None, text: str) -> None:
        self.metadata.failed_update(self._clock.now_ms())
        if node is not None:
            self._note_failure(node.id, text)
        else:
            self._report_error(text)

    def _note_failure(self, node_id: int, text: str) -> None:
        """Note that a broker failed. It is reported only when no other broker is left to ask."""
        self._failed.add(node_id)
        everyone = list(self.metadata.snapshot.nodes)
        if self._may_rebootstrap or not everyone:
            everyone += [node.id for node in self._bootstrap]
        if self._failed.issuperset(everyone):
            self._report_error(text, is_refused=self._links.is_refused(node_id))

    def _report_error(self, text: str, *, is_refused: bool = False) -> None:
        if text:
            addresses = ", ".join(f"{node.host}:{node.port}" for node in self._bootstrap)
            if is_refused:
                text = f"Kafka does not let this daemon in (bootstrap.servers {addresses}): {text}"
            else:
                text = f"Kafka is not reachable (bootstrap.servers {addresses}): {text}"
        self.is_login_refused = is_refused
        self.awaitable.refusal = text if is_refused else ""
        if text or self.last_error:
            self.last_error = text
            self._listener.cluster_error_changed(text)
            self.awaitable.notify()

    async def _wait(self, delay_ms: float) -> None:
        """Wait until something happens, at most ``delay_ms``.

        Call it right after checking, without an await in between: events before the call are forgotten here.
        """
        self._woken.clear()
        await happens_within(self._woken, min(delay_ms, IDLE_WAIT_MS) / 1000)


def _bootstrap_nodes(addresses: Sequence[tuple[str, int]]) -> list[Node]:
    """The bootstrap addresses as nodes, with negative ids, as they are not brokers."""
    return [Node(-1 - index, host, port) for index, (host, port) in enumerate(addresses)]


__all__ = ["AwaitableMetadata", "MetadataFetcher"]
