"""LAST_RECORD: reads the question, and checks that its sender may ask it. Sans-IO.

ControlEndpoint and ClientAnswers call it, on the controller's loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from client_stub.contract.wire import CLIENT_NAME_BYTES_MAX, KEY_BYTES_MAX, TOPIC_BYTES_MAX
from sidecar.common.errors import Refused
from sidecar.config.client_rules import Caller, ClientRules


class AskedRecord(NamedTuple):
    topic: str
    key: bytes
    name: str
    token: Any
    max_wait_ms: float
    creates: bool


def asked_record(fields: Sequence[Any]) -> AskedRecord:
    """From the fields after the kind. Raises Refused."""
    if len(fields) < len(AskedRecord._fields):
        raise Refused("MALFORMED_FRAME", f"LAST_RECORD has {len(fields)} fields of 6.")
    question = AskedRecord(*fields[: len(AskedRecord._fields)])
    topic, key, name, _, wait_ms, creates = question
    if not isinstance(topic, str) or not 0 < len(topic.encode()) <= TOPIC_BYTES_MAX:
        raise Refused("MALFORMED_FRAME", f"LAST_RECORD takes a topic of 1 to {TOPIC_BYTES_MAX} bytes.")
    if not isinstance(key, bytes) or not 0 < len(key) <= KEY_BYTES_MAX:
        raise Refused("MALFORMED_FRAME", f"LAST_RECORD takes a key of 1 to {KEY_BYTES_MAX} bytes.")
    if not isinstance(name, str) or len(name.encode()) > CLIENT_NAME_BYTES_MAX:
        raise Refused(
            "MALFORMED_FRAME", f"LAST_RECORD takes a client name of at most {CLIENT_NAME_BYTES_MAX} bytes."
        )
    if isinstance(wait_ms, bool) or not isinstance(wait_ms, int | float) or not wait_ms >= 0:
        raise Refused("MALFORMED_FRAME", "LAST_RECORD waits for a time of 0 ms or more.")
    if not isinstance(creates, bool):
        raise Refused("MALFORMED_FRAME", "LAST_RECORD says whether to make the topic.")
    return question


def check_sender(rules: ClientRules, question: AskedRecord, caller: Caller) -> None:
    """Raises Refused for a client that could not send to the topic under this name."""
    why = rules.refusal(question.name, caller)
    if why is not None:
        raise Refused("NOT_ADMITTED", why)
    rules.check_token(question.name, question.token, caller)
    rule = rules.of(question.name)
    why = None if rule is None else rule.topic_refusal(question.topic)
    if why is not None:
        raise Refused("TOPIC_AUTHORIZATION_FAILED", why)
