"""A topic that may not be written to: SE-06 on the fake broker."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from client_stub import errors
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.waiting import wait_until

from .harness import Harness

pytestmark = [pytest.mark.process]

TOPIC_AUTHORIZATION_FAILED = 29


@pytest.mark.rule("M9")
def test_se_06_denied_then_granted(harness: Harness) -> None:
    """SE-06: denied in metadata, and denied by the broker when the topic was known. The record fails at once and
    alone, and other topics go on. After the grant records flow with no restart."""
    _, other = harness.primed()
    topic = harness.new_topic()

    def denied(entity: Any) -> Any:
        code = ErrorCode(TOPIC_AUTHORIZATION_FAILED)
        return dataclasses.replace(
            entity,
            topics=tuple(
                dataclasses.replace(each, error_code=code, partitions=()) if each.name == topic else each
                for each in entity.topics
            ),
        )

    def is_denied(error: errors.SidecarError | None) -> bool:
        return isinstance(error, errors.TopicAuthorizationFailed) and error.persistence == 0

    with harness.sender(topic) as sender, other:
        rule = harness.kafka.add(on(Api.METADATA, times=ALWAYS).edit_answer(denied))
        for _ in range(2):
            sender.send()
            assert is_denied(sender.outcomes()[-1].error)
            assert topic in str(sender.outcomes()[-1].error)
            other.send()
        assert other.offsets() == [0, 1, 2]
        assert not harness.produced(topic)
        rule.remove()
        wait_until(lambda: sender.send().exception(10) is None, "a record to be delivered after the grant")
        harness.kafka.add(on(Api.PRODUCE, topic=topic).refuse(TOPIC_AUTHORIZATION_FAILED))
        sender.send()
        assert is_denied(sender.outcomes()[-1].error)
        sender.send()
        assert sender.outcomes()[-1].error is None
        harness.balance(sender, other)
