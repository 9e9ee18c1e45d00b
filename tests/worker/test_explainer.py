"""Goal: a worker's explanation is bounded, and counts what it leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from client_stub.contract.wire import Kind
from sidecar.common.control import Explain, Explained
from sidecar.common.control_codec import decode_message, encode_message
from sidecar.common.explanation import EVERY_USER

from .port_stage import RECORD
from .test_reporter import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path / "segment", partitions=3)
    yield stage
    stage.scene.close()


def explain(stage: Stage, name: str = "", uid: int = EVERY_USER) -> Explained:
    question = Explain(7, name, uid)
    assert decode_message(encode_message(question)[4:]) == question, "as the worker reads it"
    answer = stage.scene.rooms.explainer.explain(question, stage.clock.now_ms())
    assert decode_message(encode_message(answer)[4:]) == answer, "as the controller reads it"
    assert answer.serial == 7
    return answer


def test_the_rows_that_wait_longest_are_there_and_all_are_counted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.worker.explainer.WAITING_ROWS_MAX", 2)
    for topic in ("a", "b", "c"):
        stage.know(topic)
        stage.submit(stage.client(), topic=topic, payload=RECORD * 3)
        stage.worker.loop.run(10.0)
    answer = explain(stage)
    assert answer.unread == 0
    assert answer.row_count == 3 and [row.topic for row in answer.rows] == ["a", "b"]
    assert all((row.records, row.cause) == (3, "broker") for row in answer.rows)
    (row,) = explain(stage, "c").rows
    assert explain(stage, f"c-{row.partition}").rows == (row,)
    monkeypatch.setattr("sidecar.worker.explainer.BATCHES_READ_MAX", 1)
    answer = explain(stage)
    assert answer.row_count == 1, "the oldest is looked at first"
    assert answer.unread == 2


def test_so_many_clients_are_shown_and_all_are_counted(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.worker.explainer.CLIENT_ROWS_MAX", 2)
    stage.know("t")
    for seq in range(1, 4):
        peer = stage.client()
        for each in range(1, seq + 1):
            stage.submit(peer, each)
    answer = explain(stage, "client")
    assert ([row.records for row in answer.clients], answer.client_count) == ([3, 2], 3)


def test_a_name_that_nobody_has_is_said(stage: Stage) -> None:
    stage.know("t")
    stage.submit(stage.client(), topic="unknown")
    assert [explain(stage, name).is_known for name in ("t", "t-1", "unknown", "client", "")] == [True] * 5
    assert [explain(stage, name).is_known for name in ("x", "t-", "t-999", "cli")] == [False] * 4
    (row,) = explain(stage, "unknown").rows
    assert (row.cause, row.submissions, row.records) == ("unknown_topic", 1, -1)
    assert row.deadline_ms > row.since_ms


def test_a_user_sees_the_clients_of_that_user_alone(stage: Stage) -> None:
    """Also of a key, whose number is beyond all uids."""
    key = 1 << 47
    for uid, name in ((1_000, "mine"), (2_000, "theirs"), (key, "remote")):
        peer = stage.connect(name)
        stage.endpoint.users[peer.routing_id] = uid
        assert peer.attach()[0] == Kind.WELCOME
        stage.submit(peer, topic=f"of-{name}")
        stage.worker.loop.run(10.0)
    assert explain(stage).client_count == 3
    for uid, name in ((1_000, "mine"), (key, "remote")):
        answer = explain(stage, uid=uid)
        assert ([row.client for row in answer.clients], answer.client_count) == ([name], 1)
        assert {row.client for row in answer.rows} <= {"", name}
        assert explain(stage, name, uid).is_known
        answer = explain(stage, "theirs", uid)
        assert (answer.is_known, answer.rows, answer.clients) == (False, (), ())
