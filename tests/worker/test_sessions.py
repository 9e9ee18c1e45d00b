"""Goal: rules of attaching, of what stays when a client goes, and of when its row is given to somebody else."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from sidecar.common.errors import Refused
from sidecar.common.tickets import attach_ticket
from sidecar.config.client_rules import digest_of
from sidecar.shm.client_table import ClientTable
from sidecar.shm.segment import SegmentError
from sidecar.worker.streams.session import ClientSession, StreamState
from sidecar.worker.streams.sessions import SILENCE_MS_MAX
from sidecar.worker.streams.topic_queue import TopicQueue
from tests.worker.harness import EPOCH, GRACE_MS, KEY, Harness


def fields_of(client_id: bytes, /, **changes: Any) -> list[Any]:
    values = {
        "version": 1,
        "client_id": client_id,
        "name": "billing",
        "pid": 1,
        "worker_epoch": EPOCH,
        "ticket": attach_ticket(KEY, client_id, "billing", EPOCH),
        "secret": None,
    }
    return list((values | changes).values())


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"version": 99}, "UNSUPPORTED_VERSION"),
        ({"client_id": b"short"}, "MALFORMED_FRAME"),
        ({"worker_epoch": EPOCH - 1}, "STALE_EPOCH"),
        ({"ticket": b"\0" * 32}, "NOT_ALLOWED"),
        ({"ticket": None}, "NOT_ALLOWED"),
        ({"name": "somebody else"}, "NOT_ALLOWED"),
    ],
)
def test_a_client_that_was_not_admitted_does_not_attach(
    harness: Harness, changes: dict[str, Any], code: str
) -> None:
    with pytest.raises(Refused) as refusal:
        harness.sessions.attach(b"r", fields_of(secrets.token_bytes(20), **changes), 0.0)
    assert refusal.value.code == code


def test_a_ticket_of_rules_that_a_reload_brings_here_a_moment_later_leaves_the_client_what_it_has(
    harness: Harness,
) -> None:
    """The controller has the new rules already. NOT_ADMITTED would make the stub fail all that it has sent."""
    client_id = secrets.token_bytes(20)
    session, _ = harness.sessions.attach(b"r", fields_of(client_id), 0.0)
    harness.sessions.detach(session, 0.0)
    ahead = attach_ticket(KEY, client_id, "billing", EPOCH, digest_of("token"))
    with pytest.raises(Refused) as refusal:
        harness.sessions.attach(b"r2", fields_of(client_id, ticket=ahead, secret=session.row.secret), 0.0)
    assert refusal.value.code == "NOT_ALLOWED"
    assert harness.sessions.attach(b"r3", fields_of(client_id, secret=session.row.secret), 0.0)[1]


def test_no_room_for_another_client_is_a_refusal_that_may_pass(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(position: int, size: int) -> None:
        raise SegmentError("0 MiB cannot be allocated: No space left on device")

    client_id = secrets.token_bytes(20)
    with monkeypatch.context() as patched:
        patched.setattr(harness.segment, "allocate", full)
        with pytest.raises(Refused, match="No space left") as refusal:
            harness.sessions.attach(b"r", fields_of(client_id), 0.0)
    assert refusal.value.code == "NO_MEMORY"
    session, _ = harness.sessions.attach(b"r", fields_of(client_id), 0.0)
    assert session.row.index == 0, "the row was given back"


def test_a_second_client_cannot_take_the_id_of_another(harness: Harness) -> None:
    client_id = secrets.token_bytes(20)
    session, _ = harness.sessions.attach(b"first", fields_of(client_id), 0.0)
    session.row.place_stream(1, harness.chain.chain_id)
    for secret in (None, b"\0" * 16):
        with pytest.raises(Refused, match="already uses"):
            harness.sessions.attach(b"thief", fields_of(client_id, secret=secret), 0.0)
    assert harness.sessions.by_routing_id.get(b"first") is not None


def test_a_client_that_never_heard_of_its_row_gets_another(harness: Harness) -> None:
    """Its worker died between row and WELCOME, or it lost patience: it has no secret, and nothing was accepted."""
    client_id = secrets.token_bytes(20)
    first, _ = harness.sessions.attach(b"first", fields_of(client_id), 0.0)
    second, known = harness.sessions.attach(b"second", fields_of(client_id), 1.0)
    assert not known
    assert second.row.secret != first.row.secret
    assert [row.client_id for row in ClientTable(harness.segment).rows()] == [client_id]
    assert harness.sessions.by_routing_id.get(b"first") is None
    assert harness.sessions.by_routing_id.get(b"second") is second


def test_a_client_that_comes_back_finds_its_streams_and_unread_outcomes(harness: Harness) -> None:
    client_id = secrets.token_bytes(20)
    before, known = harness.sessions.attach(b"first", fields_of(client_id), 0.0)
    assert not known
    before.streams[1] = StreamState(before, 1, TopicQueue("t", 0, harness.chain), 41)
    before.unsettled_records = 7
    harness.sessions.detach(before, 1.0)
    after, known = harness.sessions.attach(b"second", fields_of(client_id, secret=before.row.secret), 2.0)
    assert known
    assert after.row is before.row
    assert after.streams[1].position == 41
    assert after.streams[1].session is after
    assert after.unsettled_records == 7
    assert harness.sessions.by_routing_id.get(b"first") is None


def test_a_gone_clients_row_outlives_its_grace_while_records_of_it_live(harness: Harness) -> None:
    session = harness.client()
    session.unsettled_records = 1
    harness.sessions.detach(session, 0.0)
    assert harness.sessions.reclaim(GRACE_MS - 1) == []
    assert harness.sessions.reclaim(GRACE_MS) == [session]  # its grace is over, its row is not free
    assert harness.sessions.of_row(session.row.index) is session
    harness.sessions.records_settled(session.row.index, session.row.generation, 1, 10)
    harness.sessions.reclaim(GRACE_MS + 1)
    assert harness.sessions.of_row(session.row.index) is None


def test_a_dead_client_gets_no_grace(harness: Harness) -> None:
    """Also one that was lost sight of before it was known to be dead."""
    session = harness.client()
    harness.sessions.detach(session, 0.0)
    harness.sessions.detach(session, 1.0, for_good=True)
    assert harness.sessions.reclaim(2.0) == [session]
    assert list(ClientTable(harness.segment).rows()) == []


def test_a_client_that_was_given_up_comes_back_as_another(harness: Harness) -> None:
    client_id = b"g" * 20
    gone, _ = harness.sessions.attach(b"first", fields_of(client_id), 0.0)
    gone.unsettled_records = 1
    harness.sessions.detach(gone, 0.0)
    (over,) = harness.sessions.reclaim(GRACE_MS)
    harness.acker.abandon(over)
    with pytest.raises(Refused, match="given up") as refused:
        harness.sessions.attach(b"second", fields_of(client_id, secret=gone.row.secret), GRACE_MS + 1)
    assert refused.value.code == "NOT_ADMITTED", "the stub takes a new id, and fails what it had sent"


def test_the_table_has_a_bound_and_says_so(harness: Harness) -> None:
    for _ in range(16):
        harness.client()
    with pytest.raises(Refused, match=r"16 of 16 rows are taken.*clients_max"):
        harness.client()


def test_a_thousand_clients_leave_nothing_behind(harness: Harness) -> None:
    for _ in range(1000):
        harness.sessions.detach(harness.client(), 0.0, for_good=True)
        harness.sessions.reclaim(0.0)
    assert list(harness.sessions) == []
    assert list(ClientTable(harness.segment).rows()) == []


def test_silence_is_noticed(harness: Harness) -> None:
    quiet: ClientSession = harness.client()
    assert harness.sessions.expel_silent(SILENCE_MS_MAX) == []
    assert harness.sessions.expel_silent(SILENCE_MS_MAX + 1) == [quiet]
