"""Goal: a record is counted once, whatever else comes in the same turn as its acceptance."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from client_stub.errors import error_for
from client_stub.session import Session
from client_stub.wire import Kind, LocalCode
from tests.stub.test_session import Scene

CANCELLED = error_for(LocalCode.CANCELLED, "closed")


@pytest.mark.parametrize(
    "end",
    [
        lambda scene: scene.session.cancel(lambda sent: CANCELLED),
        lambda scene: scene.run.tell([Kind.REFUSED, "TOPIC_LIMIT", "too many", 1]),
        lambda scene: scene.run.tell([Kind.REFUSED, "MALFORMED_FRAME", "no"]),
    ],
    ids=["closed", "topic refused", "client refused"],
)
def test_a_record_that_fails_in_the_turn_of_its_acceptance_is_accepted_once(
    end: Callable[[Scene], object],
) -> None:
    """Its bytes were released twice, and stats() told of more accepted records than were sent."""
    scene = Scene()
    session: Session = scene.session
    outbox = scene.run.outbox
    scene.run.add()
    assert [message[0] for message in scene.drain()] == [Kind.SUBMIT]
    scene.run.tell([Kind.ACCEPTED, 1 << 20, [[1, 1]]])
    end(scene)
    outbox.settle(session.released, session.finished, is_news=True)
    assert outbox.accepted_count == 1
    assert outbox._released_bytes == len(scene.run.made[0][1])
    assert len(scene.run.made[0][2]) == 1
