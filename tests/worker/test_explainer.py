"""Goal: a worker's explanation is bounded, and counts what it leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from client_stub.contract.wire import Kind
from sidecar.common.control import Explain, Explained
from sidecar.common.control_codec import decode_message, encode_message
from sidecar.common.explanation import EVERY_USER

from .port_harness import RECORD
from .test_reporter import ReporterHarness


@pytest.fixture
def port_harness(tmp_path: Path) -> Iterator[ReporterHarness]:
    port_harness = ReporterHarness(tmp_path / "segment", partitions=3)
    yield port_harness
    port_harness.harness.close()


def explain(port_harness: ReporterHarness, name: str = "", uid: int = EVERY_USER) -> Explained:
    question = Explain(7, name, uid)
    assert decode_message(encode_message(question)[4:]) == question, "as the worker reads it"
    answer = port_harness.harness.rooms.explainer.explain(question, port_harness.clock.now_ms())
    assert decode_message(encode_message(answer)[4:]) == answer, "as the controller reads it"
    assert answer.serial == 7
    return answer


def test_the_rows_that_wait_longest_are_there_and_all_are_counted(
    port_harness: ReporterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.worker.explainer.WAITING_ROWS_MAX", 2)
    for topic in ("a", "b", "c"):
        port_harness.know(topic)
        port_harness.submit(port_harness.client(), topic=topic, payload=RECORD * 3)
        port_harness.worker.loop.run(10.0)
    answer = explain(port_harness)
    assert answer.unread == 0
    assert answer.row_count == 3 and [row.topic for row in answer.rows] == ["a", "b"]
    assert all((row.records, row.cause) == (3, "broker") for row in answer.rows)
    (row,) = explain(port_harness, "c").rows
    assert explain(port_harness, f"c-{row.partition}").rows == (row,)
    monkeypatch.setattr("sidecar.worker.explainer.BATCHES_READ_MAX", 1)
    answer = explain(port_harness)
    assert answer.row_count == 1, "the oldest is looked at first"
    assert answer.unread == 2


def test_so_many_clients_are_shown_and_all_are_counted(
    port_harness: ReporterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.worker.explainer.CLIENT_ROWS_MAX", 2)
    port_harness.know("t")
    for seq in range(1, 4):
        peer = port_harness.client()
        for each in range(1, seq + 1):
            port_harness.submit(peer, each)
    answer = explain(port_harness, "client")
    assert ([row.records for row in answer.clients], answer.client_count) == ([3, 2], 3)


def test_a_name_that_nobody_has_is_said(port_harness: ReporterHarness) -> None:
    port_harness.know("t")
    port_harness.submit(port_harness.client(), topic="unknown")
    assert [explain(port_harness, name).is_known for name in ("t", "t-1", "unknown", "client", "")] == [
        True
    ] * 5
    assert [explain(port_harness, name).is_known for name in ("x", "t-", "t-999", "cli")] == [False] * 4
    (row,) = explain(port_harness, "unknown").rows
    assert (row.cause, row.submissions, row.records) == ("unknown_topic", 1, -1)
    assert row.deadline_ms > row.since_ms


def test_a_user_sees_the_clients_of_that_user_alone(port_harness: ReporterHarness) -> None:
    """Also of a key, whose number is beyond all uids."""
    key = 1 << 47
    for uid, name in ((1_000, "mine"), (2_000, "theirs"), (key, "remote")):
        peer = port_harness.connect(name)
        port_harness.endpoint.users[peer.routing_id] = uid
        assert peer.attach()[0] == Kind.WELCOME
        port_harness.submit(peer, topic=f"of-{name}")
        port_harness.worker.loop.run(10.0)
    assert explain(port_harness).client_count == 3
    for uid, name in ((1_000, "mine"), (key, "remote")):
        answer = explain(port_harness, uid=uid)
        assert ([row.client for row in answer.clients], answer.client_count) == ([name], 1)
        assert {row.client for row in answer.rows} <= {"", name}
        assert explain(port_harness, name, uid).is_known
        answer = explain(port_harness, "theirs", uid)
        assert (answer.is_known, answer.rows, answer.clients) == (False, (), ())
