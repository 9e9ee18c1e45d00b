"""Goal: a worker's explanation has its stages, each with what it waits for, for those who may see it."""

from __future__ import annotations

import pytest

from sidecar.common.control import Explain, Explained
from sidecar.common.control_codec import decode_message, encode_message
from sidecar.common.explanation import EVERY_USER
from sidecar.shm.segment import Segment
from sidecar.shm.stage_records import StageEnd

from .slot_harness import MemoryBroker, SlotHarness
from .stage_harness import ID, Stager, know_topic


@pytest.fixture
def harness(segment: Segment) -> SlotHarness:
    harness = SlotHarness(segment, MemoryBroker(), 1)
    know_topic(harness)
    return harness


def explain(harness: SlotHarness, name: str = "", uid: int = EVERY_USER) -> Explained:
    answer = harness.rooms.explainer.explain(Explain(7, name, uid), harness.now_ms)
    assert decode_message(encode_message(answer)[4:]) == answer, "as the controller reads it"
    return answer


def test_open_and_sealed_stages_are_explained(harness: SlotHarness) -> None:
    stager = Stager(harness)
    stager.open(1, 41, "run-a")
    stager.send(1, [b"x"] * 3)
    token = stager.seal(1)
    stager.open(2, 42)
    stager.send(2, [b"y"])
    sealed, opened = sorted(explain(harness).stages, key=lambda row: row.number)
    assert (sealed.transactional_id, sealed.number, sealed.owner) == (ID, 41, "run-a")
    assert (sealed.is_sealed, sealed.records, sealed.token) == (True, 3, token.decode())
    assert sealed.age_ms >= 0 and sealed.left_ms > 0 and sealed.size_bytes > 0
    assert (opened.is_sealed, opened.records, opened.token, opened.left_ms) == (False, 1, "", -1.0)
    assert opened.age_ms >= 0
    assert explain(harness).stage_count == 2
    for name, count in ((ID, 2), (stager.session.name, 2), ("nobody", 0)):
        answer = explain(harness, name)
        assert (len(answer.stages), answer.is_known) == (count, bool(count))
    for stage in harness.rooms.stages:
        stage.user = 1_000 + 1
    assert len(explain(harness, uid=1_000).stages) == 2
    assert explain(harness, uid=1_001).stages == ()


def test_included_and_dropped_stages_are_not_explained(harness: SlotHarness) -> None:
    stager = Stager(harness)
    stager.open(1)
    stager.send(1, [b"x"])
    (stage,) = harness.rooms.stages
    harness.rooms.stages.drop(stage, StageEnd.DROPPED)
    assert explain(harness).stages == ()
