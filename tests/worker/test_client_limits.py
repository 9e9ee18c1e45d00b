"""[clients.NAME] at a worker: its door, forbidden topics, rates over time, and rules that change under clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from client_stub.contract.wire import Kind, LocalCode, Persistence, SubmitFlag
from sidecar.config.client_rules import ClientRule, ClientRules, digest_of
from tests.worker.port_stage import Peer, PortStage
from tests.worker.scene import Scene
from tests.worker.test_topics import snapshot


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[PortStage]:
    scene = Scene(tmp_path / "segment")
    yield PortStage(scene)
    scene.close()


def use(stage: PortStage, *rules: ClientRule, denies_unlisted: bool = False) -> None:
    """As a reload brings them."""
    stubs = stage.scene.rooms.stubs
    stubs.limits.use(ClientRules({rule.name: rule for rule in rules}, denies_unlisted=denies_unlisted))
    stubs.port.apply_rules(stage.clock.now_ms())
    stubs.intake.holds.timed_due(float("inf"))


def refused(peer: Peer) -> str:
    answer = peer.attach()
    assert answer[:2] == [Kind.REFUSED, "NOT_ALLOWED"]
    return str(answer[2])


def failures(peer: Peer) -> list[tuple[int, int, str]]:
    """(seq, code, text) of what failed, none of it possibly persisted."""
    peer.stage.port.end_turn(peer.stage.clock.now_ms())
    found = peer.outcomes()
    assert {each.persistence for each in found} <= {Persistence.NOT_PERSISTED}
    return [(each.seq, each.code, each.text) for each in found if each.code]


def test_a_ticket_in_the_hands_of_another_user_opens_nothing(stage: PortStage) -> None:
    use(stage, ClientRule("billing", uids=(1001,)))
    peer = stage.connect("billing")
    stage.endpoint.users[peer.routing_id] = 1002
    assert "of uid 1002 is not admitted" in refused(peer)
    stage.endpoint.users[peer.routing_id] = 1001
    assert peer.attach()[0] == Kind.WELCOME


def test_a_ticket_ends_with_its_token(stage: PortStage) -> None:
    use(stage, ClientRule("billing", tokens=(digest_of("old"),)))
    peer = stage.connect("billing")
    assert "ticket" in refused(peer)
    peer.token_digest = digest_of("old")
    assert peer.attach()[0] == Kind.WELCOME
    use(stage, ClientRule("billing", tokens=(digest_of("old"), digest_of("new"))))
    assert peer.heard(Kind.REFUSED) == []
    use(stage, ClientRule("billing", tokens=(digest_of("new"),)))
    assert peer.heard(Kind.REFUSED)[0][:2] == [Kind.REFUSED, "NOT_ALLOWED"]
    assert "ticket" in refused(peer.again(b"again"))


def test_an_unlisted_name_is_detached_and_keeps_what_was_accepted(stage: PortStage) -> None:
    peer, other = stage.client("app"), stage.client("listed")
    peer.submit()
    use(stage, ClientRule("listed"), denies_unlisted=True)
    (answer,) = peer.heard(Kind.REFUSED)
    assert "daemon.unlisted_clients is deny" in answer[2]
    assert other.heard(Kind.REFUSED) == []
    assert stage.counted("records_accepted_total") == 1
    assert stage.counted("clients_connected") == 1
    peer.submit(2)
    assert peer.heard(Kind.HELLO_AGAIN), "the session has ended"
    use(stage)
    assert peer.again(b"again").attach()[3], "its row was kept: it knows where its streams stand"


def test_a_forbidden_topic_fails_its_own_records_at_once(stage: PortStage) -> None:
    use(stage, ClientRule("app", deny=("secret",)))
    peer = stage.client("app")
    peer.submit(topic="secret")
    peer.submit(stream=2, topic="open")
    peer.submit(2, topic="secret")
    found = failures(peer)
    assert [(seq, code) for seq, code, _ in found] == [
        (1, LocalCode.TOPIC_UNAUTHORIZED),
        (2, LocalCode.TOPIC_UNAUTHORIZED),
    ]
    assert 'topics.deny of [clients.app] has "secret"' in found[0][2]
    assert stage.topics.missing.names == {"open"}, "Kafka is not asked for the other: it would create it"
    assert stage.topics.in_use() == {"open"}


def test_a_topic_is_withdrawn_and_given_back(stage: PortStage) -> None:
    peer = stage.client("app")
    peer.submit()
    use(stage, ClientRule("app", allow=("other",)))
    peer.submit(2)
    assert [seq for seq, _, _ in failures(peer)] == [2]
    use(stage)
    peer.submit(3)
    assert [seq for seq, _, _ in failures(peer)] == [2]
    assert stage.topics.waiting.entry_count == 2


def test_a_topic_that_was_forbidden_first_is_asked_for_once_it_is_allowed(stage: PortStage) -> None:
    use(stage, ClientRule("app", deny=("t",)))
    peer = stage.client("app")
    peer.submit()
    assert stage.topics.missing.names == set()
    use(stage)
    peer.submit(2)
    assert stage.topics.missing.names == {"t"}
    assert stage.topics.in_use() == {"t"}


def test_records_that_fail_at_the_door_take_nothing_of_the_rate_of_their_topic(tmp_path: Path) -> None:
    """A client that may not send to a topic must not keep those waiting that may."""
    scene = Scene(tmp_path / "segment", patterns={"t": {"records.per.second": 10}})
    try:
        stage = PortStage(scene)
        use(stage, ClientRule("app", deny=("t",)))
        stranger, good = stage.client("app"), stage.client("good")
        for seq in range(1, 30):
            stranger.submit(seq)
        assert len(failures(stranger)) == 29
        good.submit()
        assert not good.heard(Kind.HOLD)
        assert stage.topics.waiting.entry_count == 1
    finally:
        scene.close()


def test_a_client_that_may_not_send_to_a_topic_ends_nobody_s_linger_there(stage: PortStage) -> None:
    use(stage, ClientRule("app", deny=("t",)))
    stranger, good = stage.client("app"), stage.client("good")
    stage.topics.on_snapshot(snapshot(t=1), 0.0)
    good.submit(1)
    (batch,) = stage.scene.rooms.core.accumulator.batches_of("t", None)
    stranger.submit(flags=SubmitFlag.FLUSH)
    stranger.send([Kind.FLUSH, 1, 1])
    assert not batch.expedited
    good.submit(2, flags=SubmitFlag.FLUSH)
    assert batch.expedited


def test_a_rate_of_a_name_holds_all_its_clients_and_nobody_else(stage: PortStage) -> None:
    use(stage, ClientRule("app", records_per_second=10))
    one, other, free = stage.client("app"), stage.client("app"), stage.client("free")
    for seq in (1, 2):
        one.submit(seq)
    other.submit()
    free.submit()
    assert [bool(peer.heard(Kind.HOLD)) for peer in (one, other, free)] == [False, True, False]
    stage.clock.advance(1_000)
    stage.intake.holds.timed_due(stage.clock.now_ms())
    stage.port.end_turn(stage.clock.now_ms())
    assert other.heard(Kind.RESUME)


def test_names_without_a_table_leave_nothing_behind(stage: PortStage) -> None:
    """A client that comes again and again under new names must not fill the worker's memory."""
    use(stage, ClientRule("app", records_per_second=10))
    for number in range(8):
        stage.client(f"name-{number}").submit()
    stage.client("app").submit()
    assert list(stage.scene.rooms.stubs.limits._rates) == ["app"]


def test_a_rate_over_time_is_exact(stage: PortStage) -> None:
    """10 seconds at 5 records per second, asked for 50 times a second."""
    use(stage, ClientRule("app", records_per_second=5, discards=True))
    peer = stage.client("app")
    for seq in range(1, 501):
        peer.submit(seq)
        stage.clock.advance(20)
        peer.send([Kind.ACK, max((each.number for each in peer.outcomes()), default=0)])
        assert not peer.heard(Kind.HOLD)
    assert stage.counted("records_accepted_total") == 500
    assert 50 <= 500 - stage.counted("records_discarded_total") <= 51


def test_discards_fail_with_a_name_and_are_counted_by_topic(stage: PortStage) -> None:
    use(stage, ClientRule("app", records_per_second=10, discards=True))
    peer = stage.client("app")
    for seq in range(1, 5):
        peer.submit(seq)
    found = failures(peer)
    assert {code for _, code, _ in found} == {LocalCode.QUOTA_EXCEEDED}
    assert "client app is at its records.per.second of 10 (over.limit = discard)" in found[0][2]
    reported = stage.scene.rooms.settlement.failures.take()
    assert reported is not None
    (row,) = reported.rows
    assert (row.topic, row.client, row.text) == ("t", "app", found[0][2])
    assert row.count == len(found) == stage.counted("records_discarded_total")


def test_a_rate_that_is_raised_lets_held_streams_go(stage: PortStage) -> None:
    use(stage, ClientRule("app", records_per_second=1))
    peer = stage.client("app")
    for seq in (1, 2):
        peer.submit(seq)
    assert peer.heard(Kind.HOLD)
    use(stage)
    stage.port.end_turn(stage.clock.now_ms())
    assert peer.heard(Kind.RESUME)
    peer.submit(2)
    assert stage.counted("records_accepted_total") == 2
