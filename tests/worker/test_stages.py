"""Stages of a worker: nothing is sent of one that no transaction has included, and all of one that was."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from uuid import UUID

import msgpack
import pytest

from client_stub.contract.wire import STAGE_BIT, Kind, LocalCode, StagePart, TxnEffect
from sidecar.common.errors import Code
from sidecar.config.client_rules import Caller
from sidecar.deadletter.salvage import Salvage
from sidecar.metadata.snapshot import MetadataSnapshot
from sidecar.producer.transaction_states import TransactionState
from sidecar.shm import layout
from sidecar.shm.layout import LANES_MAX, STAGES_MAX
from sidecar.shm.segment import Segment
from sidecar.worker.streams.refusal import MalformedFrame
from sidecar.worker.stubs.client_watch import UNSEEN_MS_MAX
from sidecar.worker.transactions.stage_token import unpack_stage_token

from .manual_worker import EPOCH
from .slot_harness import NODE, STAMP_MS, TOPIC, TOPIC_STATE, MemoryBroker, SlotHarness
from .stage_harness import (
    ID,
    Includer,
    Stager,
    adopted,
    know_topic,
    lane_of,
    ledger,
    messages,
    send_all,
    step,
)


@pytest.fixture
def harness(segment: Segment) -> SlotHarness:
    harness = SlotHarness(segment, MemoryBroker(), 1)
    know_topic(harness)
    return harness


def send_some(harness: SlotHarness) -> None:
    harness.topics.waiting.go_on(harness.now_ms)
    for _ in range(5):
        harness.turn()


def values(harness: SlotHarness) -> list[bytes]:
    return sorted(value for log in harness.broker.log.values() for value in log)


def test_included_stage_is_sent_and_another_one_is_not(harness: SlotHarness) -> None:
    one, other, third = Stager(harness), Stager(harness, b"o" * 20), Stager(harness, b"p" * 20)
    for stager in (one, other, third):
        stager.open(1)
    for number in range(6):  # submission by submission
        for name, stager in ((b"a", one), (b"b", other), (b"c", third)):
            assert stager.send(1, [name + b"%d" % number, name + b"%d'" % number], [0, 1])
    tokens = [stager.seal(1) for stager in (one, other, third)]
    assert ledger(harness) == {"accepted": 36, "staged": 36}
    send_all(harness)
    assert values(harness) == []
    includer = Includer(harness)
    answer = includer.include(tokens[0], tokens[2])
    assert answer[0] == 0 and answer[3][0] == 24
    send_all(harness)
    for partition in (0, 1):
        log = harness.broker.log[partition]
        for name in (b"a", b"c"):
            assert [value[:2] for value in log if value.startswith(name)] == [
                name + b"%d" % n for n in range(6)
            ]
        assert not [value for value in log if value.startswith(b"b")]
    assert ledger(harness) == {"accepted": 36, "delivered": 24, "staged": 12}
    inclusion = includer.lane.inclusion
    assert inclusion is not None and inclusion.rows is not None
    assert [(topic, partition, rows) for topic, partition, _, _, rows in inclusion.rows] == [
        ("t", 0, 12),
        ("t", 1, 12),
    ]


def test_records_before_and_after_the_include_are_in_batches_of_their_own(harness: SlotHarness) -> None:
    """They are in other chains, and a batch has records of one."""
    stager = Stager(harness)
    token = stager.stage(1, [b"staged"] * 3, [0, 0, 0])
    includer = Includer(harness)
    harness.accept(includer.session, [b"before"], [0], transaction=1)
    assert includer.include(token)[0] == 0
    harness.topics.waiting.go_on(harness.now_ms)
    harness.accept(includer.session, [b"later"], [0], transaction=1)
    send_all(harness)
    assert harness.broker.log[0] == [b"before", b"staged", b"staged", b"staged", b"later"]


def test_a_token_is_taken_once(harness: SlotHarness) -> None:
    token = Stager(harness).stage(1, [b"a"])
    includer = Includer(harness)
    assert includer.include(token)[0] == 0
    send_all(harness)
    includer.lane.manager.state = TransactionState.READY
    includer.begin(2)
    code, _, text, included = includer.include(token)
    assert (code, included) == (LocalCode.STAGE_UNKNOWN, None)
    assert "was included by a transaction already" in text


def test_refused_include_includes_nothing(harness: SlotHarness) -> None:
    token, other = Stager(harness).stage(1, [b"a"]), Stager(harness, b"o" * 20)
    gone = other.stage(1, [b"b"])
    other.drop(1)
    includer = Includer(harness)
    for bad, why in (
        (gone, "was dropped by drop_stages()"),
        (b"nonsense", "is no token of a stage"),
        (token[:-4] + b"AAAA", "is of another transactional id"),
        (token[:8] + b"AAAA" + token[12:], "is of another daemon"),
        (token, "is named twice"),
    ):
        code, _, text, _ = includer.include(token, bad)
        assert code == LocalCode.STAGE_UNKNOWN and why in text, (text, why)
        assert text.endswith(". Nothing is included.")
    assert ledger(harness)["staged"] == 1
    assert includer.include(token)[0] == 0
    send_all(harness)
    assert values(harness) == [b"a"]


def test_refused_drop_says_nothing_of_an_include(harness: SlotHarness) -> None:
    code, _, text, count = Stager(harness).drop_many(tokens=[b"nonsense"])
    assert (code, count) == (LocalCode.STAGE_UNKNOWN, 0)
    assert text == 'Token "nonsense" is no token of a stage.'


def test_token_of_an_earlier_worker_of_its_id_is_not_known_any_more(harness: SlotHarness) -> None:
    """With another number of workers an id may come to another one, once no stage of it is left."""
    token = unpack_stage_token(Stager(harness).stage(1, [b"a"]))
    assert token is not None
    text = Includer(harness).include(token._replace(slot=3).pack())[2]
    assert "is not known any more" in text


def test_second_include_of_a_transaction_is_refused(harness: SlotHarness) -> None:
    stager, other = Stager(harness), Stager(harness, b"o" * 20)
    token, second = stager.stage(1, [b"a"]), other.stage(1, [b"b"])
    includer = Includer(harness)
    first = includer.include(token, request=1)
    assert includer.include(token, request=1) == first, "a repeat gets the one result"
    code, _, text, _ = includer.include(second, request=2)
    assert code == LocalCode.TXN_WRONG_STATE and "one include has all its tokens" in text


def test_empty_stage_includes_nothing(harness: SlotHarness) -> None:
    stager = Stager(harness)
    stager.open(1)
    token = stager.seal(1)
    assert token and not lane_of(harness).stages
    assert Includer(harness).include(token) == [0, 0, "", [0, 0]]


def test_sealing_again_gives_the_same_token(harness: SlotHarness) -> None:
    stager = Stager(harness)
    token = stager.stage(1, [b"a"])
    assert token == stager.seal(1)
    assert 0 < len(token) <= 64 and token.decode().isprintable()


def test_client_that_opens_another_stage_has_the_answers_to_the_ones_before(harness: SlotHarness) -> None:
    stager, token = Stager(harness), b""
    for number in range(1, 4):
        token = stager.stage(number, [b"a"])
        assert list(stager.session.stages or ()) == [number]
    assert stager.seal(3) == token
    stager.session.is_gone = True
    harness.rooms.stages.check()
    assert ledger(harness) == {"accepted": 3, "staged": 3}, "sealed ones are nobody's"


def test_stage_that_lost_a_record_is_not_sealed(harness: SlotHarness) -> None:
    stager = Stager(harness)
    stager.open(1)
    stager.send(1, [b"a", b"b"])
    assert stager.seal(1, records=3) == b""
    (answer,) = stager.told
    assert answer[2] == LocalCode.STAGE_UNKNOWN and "has 2 records of 3" in answer[4]
    step(harness)
    assert ledger(harness) == {"accepted": 2, "aborted": 2}


def test_seal_does_not_wait_for_a_stream_that_was_ended_since(harness: SlotHarness) -> None:
    stager = Stager(harness)
    stager.open(1)
    stager.send(1, [b"a"])
    stager._frame(Kind.STAGE_SEAL, 1, 2, payload=msgpack.packb([[1, 1], [2, 1]]))
    step(harness)
    harness.rooms.stubs.intake.end_stream(stager.session, 1, 1)
    assert 1 not in stager.session.streams
    assert stager.send(1, [b"b"], topic="u")
    step(harness)
    ((what, number, code, *_),) = messages(stager.session, Kind.STAGE)
    assert (what, number, code) == (StagePart.SEAL, 1, 0)


def test_open_stage_ends_with_its_client(harness: SlotHarness) -> None:
    stager, other = Stager(harness), Stager(harness, b"o" * 20)
    stager.open(1)
    stager.send(1, [b"a", b"b"])
    token = other.stage(1, [b"c"])
    for each in (stager, other):
        harness.rooms.stubs.port.end(each.session, harness.now_ms, for_good=True)
    step(harness)
    assert ledger(harness) == {"accepted": 3, "staged": 1, "aborted": 2}
    assert Includer(harness).include(token)[0] == 0, "a sealed one belongs to nobody"


def test_open_stage_of_a_client_out_of_sight_ends_with_its_connection(harness: SlotHarness) -> None:
    stager, other, plain = Stager(harness), Stager(harness, b"o" * 20), harness.attach(None, b"p" * 20)[0]
    for each in (stager, other):
        each.open(1)
        each.send(1, [b"a"])
    port, clients = harness.rooms.stubs.port, harness.rooms.stubs.clients
    port.is_connected = lambda session: session is other.session  # type: ignore[method-assign]
    clients.end_unseen(harness.now_ms)
    clients.end_unseen(harness.now_ms + UNSEEN_MS_MAX - 1)
    assert not stager.session.is_gone
    clients.end_unseen(harness.now_ms + UNSEEN_MS_MAX)
    assert stager.session.is_gone and not other.session.is_gone and not plain.is_gone
    step(harness)
    assert ledger(harness) == {"accepted": 2, "staged": 1, "aborted": 1}


def test_client_of_a_stage_is_told_nothing_about_its_records(harness: SlotHarness) -> None:
    stager = Stager(harness)
    token = stager.stage(1, [b"a", b"b"], [0, 1])
    Includer(harness).include(token)
    send_all(harness)
    assert stager.session.row.next_number == 1
    assert (stager.session.unsettled_records, stager.session.unsettled_bytes) == (0, 0)


def test_aborted_transaction_ends_the_stages_that_it_included(harness: SlotHarness) -> None:
    stager = Stager(harness)
    token = stager.stage(1, [b"a", b"b"])
    includer = Includer(harness)
    includer.include(token)
    harness.rooms.lanes.abort(includer.lane, harness.now_ms)
    send_all(harness)
    assert values(harness) == []
    assert ledger(harness) == {"accepted": 2, "aborted": 2}
    includer.lane.manager.state = TransactionState.READY
    harness.rooms.brokers.transactions._step_lane(includer.lane, harness.now_ms)
    assert not includer.lane.stages


def test_stages_are_dropped_by_number_and_by_token(harness: SlotHarness) -> None:
    stager = Stager(harness)
    tokens = []
    for number in range(4):
        stager.open(1 + number, number)
        stager.send(1 + number, [b"%d" % number])
        tokens.append(stager.seal(1 + number))
    assert stager.drop_many(up_to=1) == [0, 0, "", 2]
    assert stager.drop_many(tokens=tokens[2:3]) == [0, 0, "", 1]
    assert stager.drop_many(tokens=tokens[1:3]) == [0, 0, "", 2], "again, as after a worker's death"
    assert stager.drop_many(tokens=[b"nonsense"])[:2] == [LocalCode.STAGE_UNKNOWN, TxnEffect.ABORTABLE]
    assert ledger(harness) == {"accepted": 4, "aborted": 3, "staged": 1}
    assert Includer(harness).include(tokens[3])[0] == 0


def test_sealed_stage_that_nobody_includes_expires(harness: SlotHarness) -> None:
    stager = Stager(harness)
    token = stager.stage(1, [b"a"])
    stages = harness.rooms.stages
    stages.check()
    assert ledger(harness)["staged"] == 1
    stages.timeout_ms = 0
    stages.check()
    step(harness)
    assert ledger(harness) == {"accepted": 1, "aborted": 1}
    text = Includer(harness).include(token)[2]
    assert "nobody included it within daemon.stage_timeout_ms" in text


@pytest.mark.parametrize("deaths", [1, 2])
def test_sealed_and_open_stages_survive_their_worker(harness: SlotHarness, deaths: int) -> None:
    sealed, opened, lost = Stager(harness), Stager(harness, b"o" * 20), Stager(harness, b"p" * 20)
    token = sealed.stage(1, [b"s1", b"s2"], [0, 1])
    opened.open(1)
    opened.send(1, [b"o1", b"o2"], [0, 1])
    lost.open(1)
    lost.send(1, [b"lost"])
    secret = opened.session.row.secret
    successor = harness
    for _ in range(deaths):
        successor = adopted(successor)
        assert ledger(successor) == {"accepted": 5, "staged": 5}
    again = Stager(successor, b"o" * 20, secret)
    again._streams["t"], again._sent[1] = 1, 2
    again.open(1)
    assert again.send(1, [b"o3"], [0])
    second = again.seal(1)
    successor.give_up()
    successor.rooms.brokers.transactions.check_clients()
    step(successor)
    assert ledger(successor) == {"accepted": 6, "staged": 5, "aborted": 1}
    includer = Includer(successor)
    assert includer.include(token, second)[0] == 0
    send_all(successor)
    assert values(successor) == [b"o1", b"o2", b"o3", b"s1", b"s2"]


def test_include_that_was_not_stored_whole_is_none(harness: SlotHarness) -> None:
    """The worker dies between the stores of two stages: the client asks again, and both are there."""
    one, other = Stager(harness), Stager(harness, b"o" * 20)
    tokens = [one.stage(1, [b"a"]), other.stage(1, [b"b"])]
    includer = Includer(harness)
    lane = includer.lane
    first = next(iter(lane.stages.values()))
    harness.rooms.memory.stages.include(first.row, lane.number, 1)
    successor = adopted(harness)
    assert ledger(successor) == {"accepted": 2, "staged": 2}
    send_all(successor)
    assert values(successor) == []
    manager = lane_of(successor).manager
    assert Includer(successor).include(*tokens)[0] == 0
    assert manager.has_included


def test_include_continues_after_the_death_of_its_worker(harness: SlotHarness) -> None:
    one, other, third = Stager(harness), Stager(harness, b"o" * 20), Stager(harness, b"p" * 20)
    for stager in (one, other, third):
        stager.open(1)
    for number in range(4):
        for name, stager in ((b"a", one), (b"b", other), (b"c", third)):
            stager.send(1, [name + b"%d" % number], [0])
    tokens = [stager.seal(1) for stager in (one, other, third)]
    includer = Includer(harness)
    secret = includer.session.row.secret
    assert includer.include(tokens[0], tokens[2])[0] == 0
    harness.topics.waiting.go_on(harness.now_ms)
    harness.broker.is_silent = True
    harness.turn()
    harness.turn()
    harness.broker.is_silent = False
    assert harness.broker.log[0]
    following = SlotHarness(harness.segment, harness.broker, 2)
    session, _ = following.attach(secret, b"i" * 20)
    assert session.lane is not None and session.lane.session is session
    following.rooms.lanes.adopted(following.now_ms)
    following.rooms.stages.adopted(following.now_ms)
    know_topic(following)
    following.ask()
    for queue in following.accumulator.lanes[session.lane.number]:
        assert queue.sequences is not None
        queue.sequences.awaits_number = False
    send_all(following)
    assert harness.broker.log[0] == [b"a0", b"c0", b"a1", b"c1", b"a2", b"c2", b"a3", b"c3"]
    assert ledger(following) == {"accepted": 12, "delivered": 8, "staged": 4}


def test_last_stage_of_a_worker_and_one_more(harness: SlotHarness) -> None:
    stager = Stager(harness)
    for number in range(1, STAGES_MAX + 1):
        stager.open(number)
    assert not messages(stager.session, Kind.STAGE)
    stager.open(STAGES_MAX + 1)
    ((what, number, code, effect, text),) = messages(stager.session, Kind.STAGE)
    assert (what, number, code) == (StagePart.STATE, STAGES_MAX + 1, LocalCode.STAGE_TOO_MANY)
    assert effect == TxnEffect.RETRIABLE and "1024 stages" in text
    stager.send(STAGES_MAX + 1, [b"goes nowhere"])
    stager.drop(7)
    stager.open(STAGES_MAX + 2)
    assert stager.send(STAGES_MAX + 2, [b"a"]) and stager.seal(STAGES_MAX + 2)
    assert ledger(harness) == {"accepted": 1, "staged": 1}
    with pytest.raises(MalformedFrame, match="stages for one transactional id"):
        stager.open(STAGES_MAX + 3, name="another")


def test_submission_of_a_stage_without_a_lane_goes_back_to_its_stub(harness: SlotHarness) -> None:
    for number in range(LANES_MAX):
        assert harness.rooms.lanes.open(f"id-{number}", None) is not None
    stager = Stager(harness)
    stager.open(1)
    assert not stager.send(1, [b"a"])
    fields = [EPOCH, 1, 2, "t", STAMP_MS, 1, 0, 1]
    intake = harness.rooms.stubs.intake
    assert not intake.submit(stager.session, fields, b"x", harness.now_ms, 0, STAGE_BIT | 1)
    told = [msgpack.unpackb(frames[0]) for frames in stager.session.outbox]
    assert [each[0] for each in told] == [Kind.STAGE, Kind.REFUSED]
    assert told[0][3] == LocalCode.TXN_TOO_MANY
    assert told[1][1::2] == ["TOPIC_TABLE_FULL", 1]


def test_full_share_drops_stages_of_another_owner_then_fails(harness: SlotHarness) -> None:
    """Plain clients have the rest of the pool; a stage never waits for a commit that cannot come."""
    stager, other = Stager(harness), Stager(harness, b"o" * 20)
    shares = harness.rooms.stubs.shares
    shares.staged_bytes_max = 6 * shares.page_bytes
    payload = [b"x" * (shares.page_bytes * 3 // 4)]
    stager.open(1, 1, owner="dead run")
    for _ in range(3):
        assert stager.send(1, payload)
    old = stager.seal(1)
    other.open(1, 2, owner="this run")
    for _ in range(5):
        assert other.send(1, payload)
    assert not messages(other.session, Kind.STAGE), "the dead run's went first"
    for _ in range(5):
        assert other.send(1, payload), "taken by position"
    ((what, _, code, effect, text),) = messages(other.session, Kind.STAGE)
    assert (what, code, effect) == (StagePart.STATE, LocalCode.STAGE_FULL, TxnEffect.ABORTABLE)
    plain = harness.attach(None, b"p" * 20)[0]
    fields = [EPOCH, 1, 1, "t", STAMP_MS, 1, 0, 1]
    assert harness.rooms.stubs.intake.submit(plain, fields, b"\x92\xc0\xc4\x01x", harness.now_ms)
    assert f'Stage 2 of "{ID}"' in text and "pool.staged_share" in text
    assert other.seal(1) == b""
    step(harness)
    found = ledger(harness)
    assert found["aborted"] == found["accepted"] - 1 and "staged" not in found
    assert "another owner's stages" in Includer(harness).include(old)[2]
    harness.rooms.pages.release_idle(harness.now_ms + 10_000)
    assert (shares.staged_bytes, harness.pool.taken_count) == (0, 1), "the plain client's page"


@pytest.mark.parametrize("is_recreated", [False, True])
def test_topic_that_was_made_again_since_a_stage_got_records_for_it_fails_the_commit(
    segment: Segment, is_recreated: bool
) -> None:
    def snapshot(topic_id: int) -> MetadataSnapshot:
        topic = dataclasses.replace(TOPIC_STATE, topic_id=UUID(int=topic_id))
        return MetadataSnapshot.build(topic_id, "cluster", {1: NODE}, {TOPIC: topic})

    harness = SlotHarness(segment, MemoryBroker(), 1)
    harness.topics.on_snapshot(snapshot(1), harness.now_ms)
    token = Stager(harness).stage(1, [b"a"])
    harness.topics.on_snapshot(snapshot(2 if is_recreated else 1), harness.now_ms)
    includer = Includer(harness)
    assert includer.include(token)[0] == 0
    manager = includer.lane.manager
    assert (manager.state is TransactionState.ABORTABLE) is is_recreated
    if is_recreated:
        assert manager.cause[0] == LocalCode.TOPIC_DELETED and manager.cause[1].startswith(
            "t: the topic was deleted"
        )
        harness.rooms.lanes.abort(includer.lane, harness.now_ms)
        send_all(harness)
        assert ledger(harness) == {"accepted": 1, "aborted": 1}


def test_record_of_a_stage_that_cannot_be_sent_fails_the_commit_by_name(harness: SlotHarness) -> None:
    stager = Stager(harness)
    stager.open(1)
    stager.send(1, [b"a", b"nowhere"], [0, 77])
    token = stager.seal(1)
    includer = Includer(harness)
    includer.include(token)
    send_some(harness)
    assert includer.lane.manager.state is TransactionState.IN_TRANSACTION, "the partition may appear"
    harness.now_ms += harness.config.max_block_ms
    harness.topics.waiting.expire(harness.now_ms)
    manager = includer.lane.manager
    assert manager.state is TransactionState.ABORTABLE
    assert (
        manager.cause[0] == LocalCode.INVALID_PARTITION
        and "t: Invalid partition given with record: 77" in manager.cause[1]
    )
    found = ledger(harness)
    assert found["aborted"] == 1


def test_stage_of_another_user_needs_the_same_name(harness: SlotHarness) -> None:
    stager = Stager(harness)
    stager.session.caller = Caller(1001, frozenset())
    token = stager.stage(1, [b"a"])
    includer = Includer(harness)
    includer.session.caller, includer.session.name = Caller(1002, frozenset()), "another"
    code, _, text, _ = includer.include(token)
    assert code == LocalCode.STAGE_UNKNOWN and "is another user's" in text
    stager.session.name = "another"
    assert stager.drop_many(up_to=9)[3] == 1, "its own user may drop it, whatever its name"


def test_area_that_an_earlier_version_wrote_to_is_emptied_at_the_first_stage(segment: Segment) -> None:
    segment.prepare_slot(0)
    area = segment.slot(0).area
    size = layout.STAGES_MAX * layout.STAGE_BYTES
    area[layout.STAGES_OFFSET : layout.STAGES_OFFSET + size] = b"\x02" * size
    harness = SlotHarness(segment, MemoryBroker(), 1)
    know_topic(harness)
    assert not list(harness.rooms.memory.stages) and not list(harness.rooms.stages)
    assert Stager(harness).stage(1, [b"a"])
    assert len(list(harness.rooms.memory.stages)) == 1


@pytest.mark.parametrize(
    ("kind", "fields", "payload"),
    [
        (Kind.STAGE_OPEN, [1, 1, "run"], b""),
        (Kind.STAGE_OPEN, [0, 1, "run", ID], b""),
        (Kind.STAGE_OPEN, [1 << 32, 1, "run", ID], b""),
        (Kind.STAGE_OPEN, [1, 1 << 64, "run", ID], b""),
        (Kind.STAGE_OPEN, [1, 1, "r" * 65, ID], b""),
        (Kind.STAGE_OPEN, [1, 1, "run", ""], b""),
        (Kind.STAGE_OPEN, [1, 1, "run", "i" * 161], b""),
        (Kind.STAGE_SEAL, [1], b"\x90"),
        (Kind.STAGE_SEAL, [1, -1], b"\x90"),
        (Kind.STAGE_SEAL, [1, 1], b""),
        (Kind.STAGE_SEAL, [1, 1], b"\x91\x91\x01"),
        (Kind.STAGE_SEAL, [1, 1], b"\xc1"),
        (Kind.STAGE_DROP, [], b""),
        (Kind.STAGE_DROP, ["1"], b""),
        (Kind.STAGES_DROP, [1, ID], b"\x90"),
        (Kind.STAGES_DROP, [1, ID, -1], b"\x90"),
        (Kind.STAGES_DROP, [1, ID, None], b"\x91\xa1x"),
        (Kind.TXN_INCLUDE, [1, 1], b"\x90"),
        (Kind.TXN_INCLUDE, [1], b"\x90"),
    ],
)
def test_malformed_frame_about_stages_is_refused_and_changes_nothing(
    harness: SlotHarness, kind: Kind, fields: list[object], payload: bytes
) -> None:
    stager = Stager(harness)
    stager.open(1)
    stager.send(1, [b"a"])
    with pytest.raises(MalformedFrame):
        stager._frame(kind, *fields, payload=payload)
    assert stager.seal(1)


def test_submission_of_a_transaction_by_a_client_that_stages_is_refused(harness: SlotHarness) -> None:
    stager, plain = Stager(harness), harness.attach(None, b"p" * 20)[0]
    stager.open(1)
    stager.send(1, [b"a"])
    intake = harness.rooms.stubs.intake
    for session, stream, number in ((stager.session, 1, 1), (stager.session, 1, 0)):
        fields = [EPOCH, stream, 2, "t", STAMP_MS, 1, 0, 1]
        with pytest.raises(MalformedFrame):
            intake.submit(session, fields, b"\x92\xc0\xc4\x01x", harness.now_ms, 0, number)
    fields = [EPOCH, 1, 1, "t", STAMP_MS, 1, 0, 1]
    assert not intake.submit(plain, fields, b"\x92\xc0\xc4\x01x", harness.now_ms, 0, STAGE_BIT | 1)
    assert stager.seal(1)


def test_copy_of_a_segment_has_no_record_of_a_stage_to_send_again(tmp_path: Path) -> None:
    """A record that no transaction has included must not come into its topic as a dead letter that is replayed."""
    path = tmp_path / "left.segment"
    segment = Segment.create(
        path,
        page_bytes=4096,
        buffer_memory_bytes=256 << 10,
        clients_max=4,
        instance_id=b"instance-of-test",
    )
    harness = SlotHarness(segment, MemoryBroker(), 1)
    know_topic(harness)
    plain = harness.attach(None, b"p" * 20)[0]
    harness.accept(plain, [b"plain"], [0])
    assert Stager(harness).stage(1, [b"staged", b"too"])
    segment.close()
    with Salvage.open(path) as salvage:
        assert [letter.topic for letter in salvage.undelivered()] == ["t"]
        assert (salvage.found.records, salvage.found.of_transactions) == (1, 2)


def test_stage_of_another_user_is_not_dropped_for_the_share(harness: SlotHarness) -> None:
    stager, other = Stager(harness), Stager(harness, b"o" * 20)
    stager.session.caller, stager.session.name = Caller(1001, frozenset()), "billing"
    other.session.caller = Caller(1002, frozenset())
    shares = harness.rooms.stubs.shares
    shares.staged_bytes_max = 3 * shares.page_bytes
    payload = [b"x" * (shares.page_bytes * 3 // 4)]
    stager.open(1, owner="theirs")
    assert stager.send(1, payload) and stager.seal(1)
    other.open(1, owner="mine")
    for _ in range(4):
        other.send(1, payload)
    ((_, _, code, *_),) = messages(other.session, Kind.STAGE)
    assert code == LocalCode.STAGE_FULL
    step(harness)
    assert ledger(harness)["staged"] == 1


def test_operator_drops_any_stage(harness: SlotHarness) -> None:
    stager, operator = Stager(harness), Stager(harness, b"o" * 20)
    stager.session.caller, stager.session.name = Caller(1001, frozenset()), "billing"
    token = stager.stage(1, [b"a"])
    operator.session.caller = Caller(1002, frozenset())
    assert operator.drop_many(tokens=[token])[0] == LocalCode.STAGE_UNKNOWN
    assert operator.drop_many(up_to=9) == [0, 0, "", 0]
    operator.session.caller = Caller(0, frozenset())
    assert operator.drop_many(tokens=[token]) == [0, 0, "", 1]


def test_lane_that_is_lost_keeps_no_row_of_the_stages_it_included(harness: SlotHarness) -> None:
    token = Stager(harness).stage(1, [b"a"])
    includer = Includer(harness)
    includer.include(token)
    manager = includer.lane.manager
    manager.batch_failed("t", 0, Code.PRODUCER_FENCED, "Another producer has it.")
    assert manager.state is TransactionState.FATAL
    step(harness)
    send_all(harness)
    harness.rooms.brokers.transactions.check_clients()
    assert not includer.lane.stages
    assert ledger(harness) == {"accepted": 1, "aborted": 1}


def test_greatest_numbers_of_a_stage_are_kept(harness: SlotHarness) -> None:
    stager = Stager(harness)
    stager.open((1 << 32) - 1, (1 << 64) - 1, "o" * 64, "i" * 160)
    assert stager.send((1 << 32) - 1, [b"a"])
    (row,) = harness.rooms.memory.stages
    assert (row.client_number, row.caller_number) == ((1 << 32) - 1, (1 << 64) - 1)
    assert stager.seal((1 << 32) - 1)
    (stage,) = adopted(harness).rooms.stages
    assert (stage.caller_number, stage.records) == ((1 << 64) - 1, 1)


def test_lane_stays_for_a_client_whose_stage_is_one_too_many(harness: SlotHarness) -> None:
    """Its records come under the lane's number, which another id would get."""
    stager, other = Stager(harness), Stager(harness, b"o" * 20)
    for number in range(1, STAGES_MAX + 1):
        other.open(number, name="another")
    assert harness.rooms.lanes.open(ID, None) is not None
    stager.open(1)
    ((_, _, code, *_),) = messages(stager.session, Kind.STAGE)
    assert code == LocalCode.STAGE_TOO_MANY
    lane = lane_of(harness)
    lane.manager.abandon()  # as its producer leaves
    step(harness)
    assert lane_of(harness) is lane is stager.session.lane


def test_lane_of_stages_goes_with_the_last_client_that_stages(harness: SlotHarness) -> None:
    stager = Stager(harness)
    stager.open(1)
    stager.send(1, [b"a"])
    stager.drop(1)
    transactions = harness.rooms.brokers.transactions
    transactions.check_clients()
    assert lane_of(harness).has_stagers and not lane_of(harness).stages
    stager.open(2)
    assert stager.send(2, [b"b"]) and stager.seal(2)
    harness.rooms.stubs.port.end(stager.session, harness.now_ms, for_good=True)
    harness.give_up()
    transactions.check_clients()
    assert not lane_of(harness).has_stagers and lane_of(harness).stages
    stager.drop_many(up_to=9)
    transactions.check_clients()
    harness.rooms.pages.release_idle(harness.now_ms + 10_000)
    transactions.check_clients()
    assert len(harness.rooms.lanes) == 0 and not harness.chain_table.ids()
