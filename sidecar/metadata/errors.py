"""Errors for callers that wait for metadata. Texts name the topic, the partition, or the caller's own timeout."""

from __future__ import annotations

from typing import Final

from sidecar.common.errors import Code

_TOPIC_TEXTS: Final[dict[int, str]] = {
    Code.UNKNOWN_TOPIC_OR_PARTITION: "Topic {topic!r} does not exist in the cluster.",
    Code.LEADER_NOT_AVAILABLE: "Topic {topic!r} has no leader yet.",
    Code.INVALID_TOPIC_EXCEPTION: "{topic!r} is not a valid topic name.",
    Code.TOPIC_AUTHORIZATION_FAILED: "Not authorized to access topic {topic!r}.",
}


def topic_error_text(topic: str, code: int) -> str:
    """One sentence for a topic's error code in a metadata answer."""
    return _TOPIC_TEXTS.get(code, "The cluster answers for topic {topic!r} with error {code}.").format(
        topic=topic, code=code
    )


class MetadataError(Exception):
    """Base class of errors that Metadata raises."""


class MetadataClosed(MetadataError):
    """The daemon is closing (Kafka: KafkaException of Metadata.awaitUpdate)."""

    def __init__(self) -> None:
        super().__init__("Requested metadata update after close")


class MetadataAuthenticationError(MetadataError):
    """The brokers refuse the connection; no topic can be looked up."""


class SaslAuthenticationError(MetadataAuthenticationError):
    """The brokers refuse the daemon's login."""


class TopicAuthorizationError(MetadataError):
    def __init__(self, topic: str) -> None:
        super().__init__(topic_error_text(topic, Code.TOPIC_AUTHORIZATION_FAILED))
        self.topic = topic


class InvalidTopicError(MetadataError):
    def __init__(self, topic: str) -> None:
        super().__init__(topic_error_text(topic, Code.INVALID_TOPIC_EXCEPTION))
        self.topic = topic


class EmptyPartitionListError(MetadataError):
    """The cluster has the topic, reports no error, and names no partition."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"The cluster knows topic {topic!r} but names no partition of it.")
        self.topic = topic


class MetadataTimeout(MetadataError, TimeoutError):
    """The caller's timeout is over. ``__cause__`` is the cluster's last error about the topic, if any."""
