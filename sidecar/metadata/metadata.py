"""Metadata: decides which topics to ask for and when to ask the cluster again, and holds its last answer. Sans-IO.

Rules M1-M9. It belongs to the controller and is driven by ``controller/metadata_fetcher.py``. (Kafka: Metadata,
ProducerMetadata; the topic expiry marker is from the 0.10 Metadata.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from sidecar.common.backoff import ExponentialBackoff
from sidecar.common.control import TopicError
from sidecar.common.errors import Code
from sidecar.metadata.answer import MetadataAnswer, TopicAnswer
from sidecar.metadata.errors import (
    EmptyPartitionListError,
    InvalidTopicError,
    MetadataAuthenticationError,
    MetadataClosed,
    MetadataError,
    TopicAuthorizationError,
    topic_error_text,
)
from sidecar.metadata.merge import merge_topic
from sidecar.metadata.snapshot import EMPTY_SNAPSHOT, MetadataSnapshot, TopicState

EXPIRY_NOT_SET: Final = -1.0
"""Expiry of a topic that no update has covered yet (Kafka: TOPIC_EXPIRY_NEEDS_UPDATE)."""
NEVER_MS: Final = float("-inf")
DELETION_ANSWERS: Final = 3
"""A known topic counts as deleted only after this many answers in a row that do not have it ..."""
DELETION_MS: Final = 2_000.0
"""... over at least this many ms: one broker that lags must not cost accepted records."""
NO_PARTITIONS: Final = 0xFF09  # client_stub.contract.wire.LocalCode.NO_PARTITIONS
FINAL_TOPIC_ERRORS: Final = frozenset({Code.TOPIC_AUTHORIZATION_FAILED, Code.INVALID_TOPIC_EXCEPTION})
"""Errors for which asking again soon does not help. Every other topic error requests another update."""


@dataclass(frozen=True, slots=True)
class MetadataConfig:
    """Times in milliseconds, by Kafka's names with underscores.

    ``topic_metadata_refresh_interval_ms`` is the old producer's setting; None if unused. Negative: refresh only after
    a failure; 0: after each send; positive: at this interval while records are sent.
    """

    metadata_max_age_ms: float
    metadata_max_idle_ms: float
    retry_backoff_ms: float
    retry_backoff_max_ms: float
    topic_metadata_refresh_interval_ms: float | None
    metadata_recovery_strategy: str
    """``none``: after the first answer, only brokers of the last answer are asked. Otherwise bootstrap again if none
    of them can be asked (KIP-899), if one requests it, or after the time below without an answer (KIP-1102).
    """
    metadata_recovery_rebootstrap_trigger_ms: float


class UpdateResult(NamedTuple):
    """The result of one successful update."""

    old: MetadataSnapshot
    new: MetadataSnapshot
    expired: frozenset[str] = frozenset()
    """Topics dropped because they are unused; they are not deleted."""
    gone: frozenset[str] = frozenset()
    """Deleted topics that ``old`` lacks: they had expired here, and workers may still know them."""


class Metadata:
    """The cluster's last known state, and the topics in use. ``now_ms`` is monotonic. Belongs to one thread."""

    def __init__(self, config: MetadataConfig, random: Callable[[], float]) -> None:
        self._config = config
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random)
        self._expiry_ms: dict[str, float] = {}
        self._new_topics: set[str] = set()
        self._errors: dict[str, TopicError] = {}
        self._unknown_since: dict[str, tuple[float, int]] = {}
        self._gone: set[str] = set()
        """Topics in use that count as deleted and have not come back."""
        self._last_success_ms = NEVER_MS
        self._failures = 0
        self._equal_answers = 0
        self._next_allowed_ms = NEVER_MS
        self._need_update = False
        self._authentication_error: str | None = None
        self.is_closed = False
        self.snapshot = EMPTY_SNAPSHOT

    # Knowledge

    @property
    def version(self) -> int:
        """Number of successful updates."""
        return self.snapshot.version

    @property
    def last_success_ms(self) -> float:
        """When the last successful answer came; NEVER_MS before the first."""
        return self._last_success_ms

    @property
    def need_update(self) -> bool:
        return self._need_update or bool(self._new_topics)

    @property
    def topics(self) -> frozenset[str]:
        """Topics in use, for which the next update asks."""
        return frozenset(self._expiry_ms)

    @property
    def topic_errors(self) -> Mapping[str, TopicError]:
        """Topics in use for which the last answer had an error (M9: each topic separately)."""
        return dict(self._errors)

    # Wishes

    def add(self, topic: str, now_ms: float) -> bool:
        """Note that a record for ``topic`` exists. True, with an update requested, only if the topic is new
        (M1, M2).
        """
        expiry_ms = self._expiry_ms.get(topic)
        if expiry_ms is None:
            self._expiry_ms[topic] = EXPIRY_NOT_SET
            self._new_topics.add(topic)
            return True
        if expiry_ms != EXPIRY_NOT_SET:
            self._expiry_ms[topic] = now_ms + self._config.metadata_max_idle_ms
        return False

    def recheck(self, topics: Iterable[str]) -> None:
        """Report again whether these topics are deleted, even if that was reported before."""
        self._gone.difference_update(topics)

    def request_update(self) -> int:
        """Request an update. Returns the version that a caller must wait to be exceeded (M3)."""
        self._need_update = True
        return self.version

    def records_sent(self, topics: Iterable[str], now_ms: float) -> None:
        """Note that records of these topics were sent: renews their expiry (M2), and serves
        topic.metadata.refresh.interval.ms (M7).
        """
        any_sent = False
        for topic in topics:
            any_sent = True
            self.add(topic, now_ms)
        interval_ms = self._config.topic_metadata_refresh_interval_ms
        if not any_sent or interval_ms is None or interval_ms < 0:
            return
        if now_ms - self._last_success_ms >= interval_ms:
            self._need_update = True

    # When to ask

    def time_to_next_update(self, now_ms: float) -> float:
        """Milliseconds until the cluster should be asked: 0 for now, ``inf`` for not before a request (M6)."""
        if self.is_closed:
            return float("inf")
        allowed_in_ms = max(0.0, self._next_allowed_ms - now_ms)
        if self.need_update:
            return allowed_in_ms
        if self._last_success_ms == NEVER_MS:
            return allowed_in_ms
        if self._config.topic_metadata_refresh_interval_ms is not None:
            return float("inf")
        due_in_ms = max(0.0, self._last_success_ms + self._config.metadata_max_age_ms - now_ms)
        return max(due_in_ms, allowed_in_ms)

    # Answers

    def update(
        self, answer: MetadataAnswer, now_ms: float, *, requested: frozenset[str] | None = None
    ) -> UpdateResult:
        """Apply a successful answer. ``requested``: the topics of the request (default: all in use).

        A topic added while the request was under way stays new, so the next request asks for it.
        """
        requested = self.topics if requested is None else requested
        old = self.snapshot
        self._need_update = False
        self._new_topics -= requested
        gone_before = frozenset(self._gone)
        expired = self._expire(requested, now_ms)
        answers = {topic.name: topic for topic in answer.topics}
        topics: dict[str, TopicState] = {}
        for name in self._expiry_ms:
            heard = answers.get(name) if name in requested else None
            state = self._topic_state(
                name, heard, old.topics.get(name), now_ms, was_requested=name in requested
            )
            if state is not None:
                topics[name] = state
        nodes = {node.id: node for node in answer.brokers}
        cluster_id = answer.cluster_id if answer.cluster_id is not None else old.cluster_id
        self.snapshot = MetadataSnapshot.build(old.version + 1, cluster_id, nodes, topics, previous=old)
        self._note_answer(old, now_ms)
        if self._has_gaps(requested):
            self._need_update = True
        return UpdateResult(
            old, self.snapshot, expired, frozenset(self._gone - gone_before - old.topics.keys())
        )

    def failed_update(self, now_ms: float, authentication_error: str | None = None) -> None:
        """Note a failed request: the next one waits for its backoff. An authentication error is kept for one waiter
        (M4).
        """
        self._failures += 1
        self._equal_answers = 0
        self._next_allowed_ms = now_ms + self._backoff_ms(self._failures - 1)
        if authentication_error is not None:
            self._authentication_error = authentication_error

    def close(self) -> None:
        """Stop asking. Waiters get MetadataClosed."""
        self.is_closed = True

    # Questions of a waiter at each wake-up

    def check_update(self, last_version: int) -> bool:
        """Whether an update newer than ``last_version`` has come.

        Raises MetadataClosed, and MetadataAuthenticationError once per failure (M4).
        """
        if self._authentication_error is not None:
            text, self._authentication_error = self._authentication_error, None
            raise MetadataAuthenticationError(text)
        if self.version > last_version:
            return True
        if self.is_closed:
            raise MetadataClosed
        return False

    def check_topic(self, topic: str) -> TopicState | None:
        """The topic's state if a record can be sent, None if metadata must be awaited (M5).

        Raises TopicAuthorizationError or InvalidTopicError at once, because waiting does not help.
        """
        error = self._errors.get(topic)
        if error is not None and error.code == Code.TOPIC_AUTHORIZATION_FAILED:
            raise TopicAuthorizationError(topic)
        if error is not None and error.code == Code.INVALID_TOPIC_EXCEPTION:
            raise InvalidTopicError(topic)
        found = self.snapshot.topics.get(topic)
        return found if found is not None and found.partitions else None

    def why_not(self, topic: str) -> MetadataError | None:
        """The last known reason why a record of this topic cannot be sent yet; None if there is none."""
        error = self._errors.get(topic)
        if error is None:
            return None
        return EmptyPartitionListError(topic) if error.code == NO_PARTITIONS else MetadataError(error.text)

    # Inside

    def _expire(self, requested: frozenset[str], now_ms: float) -> frozenset[str]:
        expired = set()
        for topic, expiry_ms in list(self._expiry_ms.items()):
            if expiry_ms == EXPIRY_NOT_SET:
                if topic in requested:
                    self._expiry_ms[topic] = now_ms + self._config.metadata_max_idle_ms
            elif expiry_ms <= now_ms:
                del self._expiry_ms[topic]
                self._errors.pop(topic, None)
                self._unknown_since.pop(topic, None)
                self._gone.discard(topic)
                expired.add(topic)
        return frozenset(expired)

    def _topic_state(
        self,
        name: str,
        heard: TopicAnswer | None,
        old: TopicState | None,
        now_ms: float,
        *,
        was_requested: bool,
    ) -> TopicState | None:
        """State of one topic after this answer. An error of one topic affects no other (M9)."""
        if not was_requested:
            return old
        if heard is None:
            return old
        if heard.error_code == 0 and heard.partitions:
            self._errors.pop(name, None)
            self._unknown_since.pop(name, None)
            self._gone.discard(name)
            return merge_topic(heard, old)
        if heard.error_code == 0:
            self._errors[name] = TopicError(NO_PARTITIONS, str(EmptyPartitionListError(name)))
            return old
        self._errors[name] = TopicError(heard.error_code, topic_error_text(name, heard.error_code))
        if heard.error_code != Code.UNKNOWN_TOPIC_OR_PARTITION or name in self._gone:
            return old
        since_ms, answers = self._unknown_since.get(name, (now_ms, 0))
        answers += 1
        if answers >= DELETION_ANSWERS and now_ms - since_ms >= DELETION_MS:
            self._unknown_since.pop(name, None)
            self._gone.add(name)
            return None
        self._unknown_since[name] = (since_ms, answers)
        return old

    def _note_answer(self, old: MetadataSnapshot, now_ms: float) -> None:
        """Set the backoff after a success: short if something changed, longer after each answer without a change
        (KIP-580).
        """
        self._failures = 0
        self._authentication_error = None
        is_equal = old.version > 0 and old.nodes == self.snapshot.nodes and old.topics == self.snapshot.topics
        self._equal_answers = self._equal_answers + 1 if is_equal else 0
        self._last_success_ms = now_ms
        self._next_allowed_ms = now_ms + self._backoff_ms(self._equal_answers)

    def _backoff_ms(self, attempts: int) -> float:
        # Jitter may lengthen the wait, but never shorten it below the configured backoff.
        return max(self._config.retry_backoff_ms, self._backoff.backoff_ms(attempts))

    def _has_gaps(self, requested: frozenset[str]) -> bool:
        """Whether another answer may bring something that is still missing about the requested topics (M7)."""
        for name in requested & self.topics:
            error = self._errors.get(name)
            if error is not None:
                if error.code not in FINAL_TOPIC_ERRORS:
                    return True
                continue
            state = self.snapshot.topics.get(name)
            if state is None or len(self.snapshot.available_partitions(name)) < len(state.partitions):
                return True
        return False
