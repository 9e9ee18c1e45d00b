"""Goal: a worker dies before or after each of its stores, and its successor ends with every record in the log once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sidecar.common.errors import Code
from sidecar.shm.client_table import ClientTable
from sidecar.shm.segment import Segment
from tests.reading_back import row_of
from tests.worker.adoption_harness import accept, check_end
from tests.worker.store_moments import Recorder, restore, successor

from .slot_harness import CLIENT_ID, MemoryBroker, SlotHarness


def finish_client(harness: SlotHarness, submissions: int) -> None:
    """The stub sends again what was not accepted."""
    row = row_of(ClientTable(harness.segment), CLIENT_ID)
    session, _ = harness.attach(None if row is None else row.secret)
    position = session.streams[1].position if 1 in session.streams else 0
    accept(harness, session, range(position, submissions))


def live(harness: SlotHarness, submissions: int, record: Callable[[], None]) -> None:
    session, _ = harness.attach()
    for number in range(submissions):
        if number == 1:
            harness.know_topic()
        if number == 2:
            harness.broker.refuse_once = {0: Code.NOT_ENOUGH_REPLICAS}
        accept(harness, session, range(number, number + 1))
        record()
        harness.turn()
        record()
    for _ in range(4):
        harness.turn()
        record()


@pytest.mark.slow
@pytest.mark.parametrize("is_interrupted", [False, True])
def test_every_store(monkeypatch: pytest.MonkeyPatch, segment: Segment, is_interrupted: bool) -> None:
    """A worker dies before or after each of its stores; also in each store of the adoption that follows."""
    submissions = 4
    broker = MemoryBroker()
    with Recorder(monkeypatch, segment, broker) as recorder:
        first = SlotHarness(segment, broker, 1)
        live(first, submissions, recorder.take)
    check_end(first, submissions)
    moments = list(recorder.moments.values())
    assert len(moments) > 60
    if is_interrupted:
        seconds: list[tuple[bytes, MemoryBroker]] = []
        for moment, state in moments[:: max(1, len(moments) // 12)]:
            restore(segment, moment)
            second_broker = state.copy()
            with Recorder(monkeypatch, segment, second_broker) as again:
                harness = successor(segment, second_broker)
                harness.ask()
                finish_client(harness, submissions)
                harness.run()
            seconds += list(again.moments.values())[::5]
        moments = seconds
    for moment, state in moments:
        restore(segment, moment)
        following = successor(segment, state.copy())
        following.ask()
        finish_client(following, submissions)
        following.run()
        check_end(following, submissions)
