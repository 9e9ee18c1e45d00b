"""[clients.NAME] at a worker: its door, forbidden topics, rates over time, and rules that change under clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from client_stub.contract.wire import Kind, LocalCode, Persistence, SubmitFlag
from sidecar.config.client_rules import ClientRule, ClientRules, digest_of
from tests.worker.harness import Harness
from tests.worker.port_harness import Peer, PortHarness
from tests.worker.test_topics import snapshot


@pytest.fixture
def port_harness(tmp_path: Path) -> Iterator[PortHarness]:
    harness = Harness(tmp_path / "segment")
    yield PortHarness(harness)
    harness.close()


def use(port_harness: PortHarness, *rules: ClientRule, denies_unlisted: bool = False) -> None:
    """As a reload brings them."""
    stubs = port_harness.harness.rooms.stubs
    stubs.limits.use(ClientRules({rule.name: rule for rule in rules}, denies_unlisted=denies_unlisted))
    stubs.clients.apply_rules(port_harness.clock.now_ms())
    stubs.holds.timed_due(float("inf"))


def refused(peer: Peer) -> str:
    answer = peer.attach()
    assert answer[:2] == [Kind.REFUSED, "NOT_ALLOWED"]
    return str(answer[2])


def failures(peer: Peer) -> list[tuple[int, int, str]]:
    """(seq, code, text) of what failed, none of it possibly persisted."""
    peer.port_harness.port.end_turn(peer.port_harness.clock.now_ms())
    found = peer.outcomes()
    assert {each.persistence for each in found} <= {Persistence.NOT_PERSISTED}
    return [(each.seq, each.code, each.text) for each in found if each.code]


def test_a_ticket_in_the_hands_of_another_user_opens_nothing(port_harness: PortHarness) -> None:
    use(port_harness, ClientRule("billing", uids=(1001,)))
    peer = port_harness.connect("billing")
    port_harness.endpoint.users[peer.routing_id] = 1002
    assert "of uid 1002 is not admitted" in refused(peer)
    port_harness.endpoint.users[peer.routing_id] = 1001
    assert peer.attach()[0] == Kind.WELCOME


def test_a_ticket_ends_with_its_token(port_harness: PortHarness) -> None:
    use(port_harness, ClientRule("billing", tokens=(digest_of("old"),)))
    peer = port_harness.connect("billing")
    assert "ticket" in refused(peer)
    peer.token_digest = digest_of("old")
    assert peer.attach()[0] == Kind.WELCOME
    use(port_harness, ClientRule("billing", tokens=(digest_of("old"), digest_of("new"))))
    assert peer.heard(Kind.REFUSED) == []
    use(port_harness, ClientRule("billing", tokens=(digest_of("new"),)))
    assert peer.heard(Kind.REFUSED)[0][:2] == [Kind.REFUSED, "NOT_ALLOWED"]
    assert "ticket" in refused(peer.again(b"again"))


def test_an_unlisted_name_is_detached_and_keeps_what_was_accepted(port_harness: PortHarness) -> None:
    peer, other = port_harness.client("app"), port_harness.client("listed")
    peer.submit()
    use(port_harness, ClientRule("listed"), denies_unlisted=True)
    (answer,) = peer.heard(Kind.REFUSED)
    assert "daemon.unlisted_clients is deny" in answer[2]
    assert other.heard(Kind.REFUSED) == []
    assert port_harness.counted("records_accepted_total") == 1
    assert port_harness.counted("clients_connected") == 1
    peer.submit(2)
    assert peer.heard(Kind.HELLO_AGAIN), "the session has ended"
    use(port_harness)
    assert peer.again(b"again").attach()[3], "its row was kept: it knows where its streams stand"


def test_a_forbidden_topic_fails_its_own_records_at_once(port_harness: PortHarness) -> None:
    use(port_harness, ClientRule("app", deny=("secret",)))
    peer = port_harness.client("app")
    peer.submit(topic="secret")
    peer.submit(stream=2, topic="open")
    peer.submit(2, topic="secret")
    found = failures(peer)
    assert [(seq, code) for seq, code, _ in found] == [
        (1, LocalCode.TOPIC_UNAUTHORIZED),
        (2, LocalCode.TOPIC_UNAUTHORIZED),
    ]
    assert 'topics.deny of [clients.app] has "secret"' in found[0][2]
    assert port_harness.topics.missing.names == {"open"}, (
        "Kafka is not asked for the other: it would create it"
    )
    assert port_harness.topics.in_use() == {"open"}


def test_a_topic_is_withdrawn_and_given_back(port_harness: PortHarness) -> None:
    peer = port_harness.client("app")
    peer.submit()
    use(port_harness, ClientRule("app", allow=("other",)))
    peer.submit(2)
    assert [seq for seq, _, _ in failures(peer)] == [2]
    use(port_harness)
    peer.submit(3)
    assert [seq for seq, _, _ in failures(peer)] == [2]
    assert port_harness.topics.waiting.entry_count == 2


def test_a_topic_that_was_forbidden_first_is_asked_for_once_it_is_allowed(port_harness: PortHarness) -> None:
    use(port_harness, ClientRule("app", deny=("t",)))
    peer = port_harness.client("app")
    peer.submit()
    assert port_harness.topics.missing.names == set()
    use(port_harness)
    peer.submit(2)
    assert port_harness.topics.missing.names == {"t"}
    assert port_harness.topics.in_use() == {"t"}


def test_records_that_fail_at_the_door_take_nothing_of_the_rate_of_their_topic(tmp_path: Path) -> None:
    """A client that may not send to a topic must not keep those waiting that may."""
    harness = Harness(tmp_path / "segment", patterns={"t": {"records.per.second": 10}})
    try:
        port_harness = PortHarness(harness)
        use(port_harness, ClientRule("app", deny=("t",)))
        stranger, good = port_harness.client("app"), port_harness.client("good")
        for seq in range(1, 30):
            stranger.submit(seq)
        assert len(failures(stranger)) == 29
        good.submit()
        assert not good.heard(Kind.HOLD)
        assert port_harness.topics.waiting.entry_count == 1
    finally:
        harness.close()


def test_a_client_that_may_not_send_to_a_topic_ends_nobody_s_linger_there(port_harness: PortHarness) -> None:
    use(port_harness, ClientRule("app", deny=("t",)))
    stranger, good = port_harness.client("app"), port_harness.client("good")
    port_harness.topics.on_snapshot(snapshot(t=1), 0.0)
    good.submit(1)
    (batch,) = port_harness.harness.rooms.core.accumulator.batches_of("t", None)
    stranger.submit(flags=SubmitFlag.FLUSH)
    stranger.send([Kind.FLUSH, 1, 1])
    assert not batch.expedited
    good.submit(2, flags=SubmitFlag.FLUSH)
    assert batch.expedited


def test_a_rate_of_a_name_holds_all_its_clients_and_nobody_else(port_harness: PortHarness) -> None:
    use(port_harness, ClientRule("app", records_per_second=10))
    one, other, free = port_harness.client("app"), port_harness.client("app"), port_harness.client("free")
    for seq in (1, 2):
        one.submit(seq)
    other.submit()
    free.submit()
    assert [bool(peer.heard(Kind.HOLD)) for peer in (one, other, free)] == [False, True, False]
    port_harness.clock.advance(1_000)
    port_harness.holds.timed_due(port_harness.clock.now_ms())
    port_harness.port.end_turn(port_harness.clock.now_ms())
    assert other.heard(Kind.RESUME)


def test_names_without_a_table_leave_nothing_behind(port_harness: PortHarness) -> None:
    """A client that comes again and again under new names must not fill the worker's memory."""
    use(port_harness, ClientRule("app", records_per_second=10))
    for number in range(8):
        port_harness.client(f"name-{number}").submit()
    port_harness.client("app").submit()
    assert list(port_harness.harness.rooms.stubs.limits._rates) == ["app"]


def test_a_rate_over_time_is_exact(port_harness: PortHarness) -> None:
    """10 seconds at 5 records per second, asked for 50 times a second."""
    use(port_harness, ClientRule("app", records_per_second=5, discards=True))
    peer = port_harness.client("app")
    for seq in range(1, 501):
        peer.submit(seq)
        port_harness.clock.advance(20)
        peer.send([Kind.ACK, max((each.number for each in peer.outcomes()), default=0)])
        assert not peer.heard(Kind.HOLD)
    assert port_harness.counted("records_accepted_total") == 500
    assert 50 <= 500 - port_harness.counted("records_discarded_total") <= 51


def test_discards_fail_with_a_name_and_are_counted_by_topic(port_harness: PortHarness) -> None:
    use(port_harness, ClientRule("app", records_per_second=10, discards=True))
    peer = port_harness.client("app")
    for seq in range(1, 5):
        peer.submit(seq)
    found = failures(peer)
    assert {code for _, code, _ in found} == {LocalCode.QUOTA_EXCEEDED}
    assert "client app is at its records.per.second of 10 (over.limit = discard)" in found[0][2]
    reported = port_harness.harness.rooms.settlement.failures.take()
    assert reported is not None
    (row,) = reported.rows
    assert (row.topic, row.client, row.text) == ("t", "app", found[0][2])
    assert row.count == len(found) == port_harness.counted("records_discarded_total")


def test_a_rate_that_is_raised_lets_held_streams_go(port_harness: PortHarness) -> None:
    use(port_harness, ClientRule("app", records_per_second=1))
    peer = port_harness.client("app")
    for seq in (1, 2):
        peer.submit(seq)
    assert peer.heard(Kind.HOLD)
    use(port_harness)
    port_harness.port.end_turn(port_harness.clock.now_ms())
    assert peer.heard(Kind.RESUME)
    peer.submit(2)
    assert port_harness.counted("records_accepted_total") == 2
