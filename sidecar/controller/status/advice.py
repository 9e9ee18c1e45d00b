"""Advice: what an operator can do about an error or a cause of waiting, one sentence each.

Constants and one function for the books of this room, on the controller's loop.
"""

from __future__ import annotations

from typing import Final

from sidecar.common.condition import WaitCause

ERROR_ADVICE: Final = {
    "TOPIC_AUTHORIZATION_FAILED": "Grant WRITE and DESCRIBE on the topic to the daemon's user, or correct the topic.",
    "CLUSTER_AUTHORIZATION_FAILED": "Grant IDEMPOTENT_WRITE on the cluster to the daemon's user.",
    "RECORD_TOO_LARGE": "Send smaller records, or raise max.request.size.",
    "MESSAGE_TOO_LARGE": "Send smaller records, or raise the topic's max.message.bytes.",
    "RECORD_LIST_TOO_LARGE": "Lower batch.size, or raise the topic's segment.bytes.",
    "METADATA_TIMEOUT": "Create the topic, or correct its name.",
    "INVALID_PARTITION": "Send to a partition that the topic has, or give it more of them.",
    "UNKNOWN_TOPIC_OR_PARTITION": "Create the topic, or correct its name.",
    "TOPIC_DELETED": "Create the topic again, or stop the program that sends to it.",
    "TIMED_OUT": "Look at the brokers, send less, or raise delivery.timeout.ms.",
    "NOT_ENOUGH_REPLICAS": "Too few replicas are in sync: look at the brokers and min.insync.replicas.",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": "Too few replicas are in sync: look at the brokers and min.insync.replicas.",
    "THROTTLING_QUOTA_EXCEEDED": "Send less, or raise the rate in [clients.NAME] and run `kafka-sidecar reload`.",
    "INVALID_TOPIC_EXCEPTION": "Correct the topic's name.",
    "INVALID_TIMESTAMP": "Look at the records' timestamps, and at message.timestamp.*.max.ms of the topic.",
    "UNSUPPORTED_COMPRESSION_TYPE": "Set compression.type to a codec that the brokers have.",
    "SASL_AUTHENTICATION_FAILED": "Correct the daemon's login: `kafka-sidecar doctor` names the step that fails.",
    "POISON_SUBMISSION": "Look at them by `kafka-sidecar replay --dry-run`, and report it.",
    "INVALID_RECORD": "The broker refuses such records: a compacted topic needs keys.",
}
"""Error name → advice."""
_WAIT_ADVICE: Final = {
    WaitCause.BROKER: "Look at that broker and at the network to it.",
    WaitCause.NO_LEADER: "A broker that has the partition must come back: look at the brokers of its replicas.",
    WaitCause.REFUSED: "The broker refuses for now: look at its log, at its replicas and min.insync.replicas.",
    WaitCause.THROTTLED: "A quota is used up: send less, or raise that of the daemon's user or client.id.",
    WaitCause.UNKNOWN_TOPIC: "Create the topic, or correct its name.",
    WaitCause.OUT_OF_RANGE: "Send to a partition that the topic has, or give it more of them.",
    WaitCause.METADATA: "Another broker is asked when request.timeout.ms is over: look at the one that is silent.",
    WaitCause.PRODUCER_ID: "The brokers give no producer id: look at their logs, and at the daemon's rights.",
    WaitCause.LOST: "Look at that broker and at the network to it: what waits is sent again by itself.",
    WaitCause.ADOPTED: "Nothing to do: they are sent again once the broker has said what it has of them.",
    WaitCause.UNANSWERED: "Look at that broker's process and disk.",
    WaitCause.LINGER: "Nothing to do: linger.ms is not over.",
    WaitCause.PAUSED: "`kafka-sidecar resume` lets the topic continue.",
    WaitCause.QUEUED: "More is sent than the broker takes: look at its load, or send less.",
}
CURE: Final = "advertised.listeners"
"""An error with these words names its own cure."""


def wait_advice(cause: str, error: str = "") -> str:
    """Advice about records that wait for ``cause``. ``error``: a broker's name for it, or a sentence."""
    if cause == WaitCause.BROKER and CURE in error:
        return "What waits is delivered once the broker can be connected to."
    own = ERROR_ADVICE.get(error, "") if cause == WaitCause.REFUSED else ""
    return own or _WAIT_ADVICE[WaitCause(cause)]


def failure_advice(error: str, cause: str, *, is_retriable: bool) -> str:
    """Advice about failed records. ``cause``: for what they waited until their time was over, a WaitCause or the name
    of a broker's error; empty for none.
    """
    if cause in _WAIT_ADVICE:
        return _WAIT_ADVICE[WaitCause(cause)]
    if cause:
        return wait_advice(WaitCause.REFUSED, cause)
    return ERROR_ADVICE.get(error, "Sending the records again may succeed." if is_retriable else "")
