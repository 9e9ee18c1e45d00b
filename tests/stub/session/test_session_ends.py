"""Goal: a record that the daemon has accepted is counted and sent once, whatever the daemon says next."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from client_stub.contract.wire import Kind, LocalCode
from client_stub.errors import DaemonLost, error_for
from client_stub.session.session import Session
from client_stub.session.states import State
from tests.stub.session.test_session import Harness

CANCELLED = error_for(LocalCode.CANCELLED, "closed")


@pytest.mark.parametrize(
    "end",
    [
        lambda harness: harness.session.cancel(lambda sent: CANCELLED),
        lambda harness: harness.run.tell([Kind.REFUSED, "TOPIC_LIMIT", "too many", 1]),
        lambda harness: harness.run.tell([Kind.REFUSED, "MALFORMED_FRAME", "no"]),
    ],
    ids=["closed", "topic refused", "client refused"],
)
def test_a_record_that_fails_in_the_turn_of_its_acceptance_is_accepted_once(
    end: Callable[[Harness], object],
) -> None:
    """Its bytes were released twice, and stats() told of more accepted records than were sent."""
    harness = Harness()
    session: Session = harness.session
    outbox = harness.run.outbox
    harness.run.add()
    assert [message[0] for message in harness.drain()] == [Kind.SUBMIT]
    harness.run.tell([Kind.ACCEPTED, 1 << 20, [[1, 1]]])
    end(harness)
    released, finished, _ = session.streams.take_progress()
    outbox.settle(released, finished, is_news=True)
    assert outbox.accepted_count == 1
    assert outbox._released_bytes == len(harness.run.made[0][1])
    assert len(harness.run.made[0][2]) == 1


def test_records_accepted_after_draining_are_in_doubt_once_the_client_is_forgotten() -> None:
    """DRAINING counted them as never sent. Their bytes were gone with WELCOME, and a new stream sent them without."""
    harness = Harness()
    run, session = harness.run, harness.session
    run.add()
    ((_, _, stream, seq, topic, *_),) = harness.drain()
    run.tell([Kind.DRAINING, "bye", [[stream, seq - 1]]])
    run.worker.topics[stream], run.worker.positions[stream] = topic, seq
    run.cut(forget=False)
    run.pass_time(1.0)
    (released,) = session.streams.take_progress()[0]
    assert released.was_accepted and session.attachment.state is State.ATTACHED
    run.cut(forget=True)
    run.pass_time(2_000.0)
    assert session.attachment.state is State.ATTACHED
    assert harness.drain() == [], "it is not sent again"
    ((error,),) = (told for _, _, told in run.made)
    assert isinstance(error, DaemonLost) and error.persistence == 1
