"""Idempotence under faults: ID-02 … ID-10, SN-04, SN-05 on the fake broker, which keeps sequences as Kafka does."""

from __future__ import annotations

import pytest

from client_stub import errors
from client_stub.contract.wire import Persistence
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.record_batches import BatchRecord
from sidecar.tools.testing.waiting import wait_until

from .harness import Harness, sequences

pytestmark = [pytest.mark.process]

UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, NOT_LEADER, REQUEST_TIMED_OUT = 3, 5, 6, 7
MESSAGE_TOO_LARGE, DUPLICATE_SEQUENCE, OUT_OF_ORDER, UNKNOWN_PRODUCER_ID = 10, 46, 45, 59
CLUSTER_AUTHORIZATION_FAILED = 31


def test_id_02_sequences_have_no_holes(harness: Harness) -> None:
    """ID-02: one producer id; each partition's sequences begin at 0 and grow by the number of records."""
    topic, sender = harness.primed(3)
    with sender:
        for number in range(300):
            sender.send(number % 3)
        sender.offsets()
        harness.balance(sender)
    identities = set()
    for partition in range(3):
        expected = 0
        for batch in harness.kafka.batches(topic, partition):
            identities.add((batch.header.producer_id, batch.header.epoch))
            assert batch.header.base_sequence == expected
            expected += batch.header.record_count
        assert expected == 101
    assert len(identities) == 1


@pytest.mark.parametrize("lost", [1, 2, 3, 4, 5])
def test_id_03_lost_answers(harness: Harness, lost: int) -> None:
    """ID-03: appended, the answers lost, 1 to 5 at once: one copy each, the original offset, in order."""
    topic, sender = harness.primed()
    with sender:
        held = harness.kafka.add(on(Api.PRODUCE, topic=topic).hold_answer().cut_answer())
        harness.send_apart(sender, lost)
        harness.kafka.add(on(Api.PRODUCE, topic=topic).cut_answer())  # the first retry's answer is lost too
        held.release()
        assert sender.offsets() == list(range(lost + 1))
        harness.balance(sender)
    assert harness.kafka.duplicates(topic) > 0
    assert {epoch for epoch, _ in sequences(harness.produced(topic))} == {
        sequences(harness.produced(topic))[0][0]
    }


def test_id_04_a_refused_first_batch_holds_later_ones(harness: Harness) -> None:
    """ID-04: five in flight, the first LEADER_NOT_AVAILABLE, the others OUT_OF_ORDER for it: again one at a time, in
    order, the sixth behind them, no bump."""
    topic, sender = harness.primed()
    with sender:
        first = harness.kafka.add(on(Api.PRODUCE, topic=topic).refuse(LEADER_NOT_AVAILABLE).hold_answer())
        harness.send_apart(sender, 5)
        sender.send()
        first.release()
        assert sender.offsets() == [0, 1, 2, 3, 4, 5, 6]
        harness.balance(sender)
    sent = harness.produced(topic)
    codes = [request.codes[topic, 0] for request in sent]
    assert codes == [0, LEADER_NOT_AVAILABLE, *[OUT_OF_ORDER] * 4, *[0] * 6]
    epoch = sequences(sent)[0][0]
    assert sequences(sent) == [(epoch, n) for n in (0, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 6)]


def test_sn_04_the_retry_comes_next(harness: Harness) -> None:
    """SN-04: after a held NOT_LEADER, five in flight, the next request of the partition is its retry, same sequence."""
    topic, sender = harness.primed()
    with sender:
        first = harness.kafka.add(on(Api.PRODUCE, topic=topic).refuse(NOT_LEADER).hold_answer())
        harness.send_apart(sender, 5)
        for _ in range(15):
            sender.send()
        before = len(harness.produced(topic))
        first.release()
        sender.offsets()
        harness.balance(sender)
    sent = sequences(harness.produced(topic))
    assert sent[before] == sent[1]


def test_id_05_second_ok_first_unknown(harness: Harness) -> None:
    """ID-05: the first answered REQUEST_TIMED_OUT though it was appended, the second ok: both acked where they lie."""
    topic, sender = harness.primed()
    with sender:
        first = harness.kafka.add(on(Api.PRODUCE, topic=topic).answer_with(REQUEST_TIMED_OUT).hold_answer())
        harness.send_apart(sender, 2)
        first.release()
        assert sender.offsets() == [0, 1, 2]
        harness.balance(sender)


def test_id_05_duplicate_sequence_is_success(harness: Harness) -> None:
    """ID-05: DUPLICATE_SEQUENCE_NUMBER is success with an unknown offset."""
    topic, sender = harness.primed()
    with sender:
        harness.kafka.add(on(Api.PRODUCE, topic=topic).answer_with(DUPLICATE_SEQUENCE))
        sender.send()
        sender.outcomes()
        sender.send()
        assert sender.offsets() == [0, -1, 2]
        harness.balance(sender)


def test_id_06_a_gap_takes_one_new_epoch(harness: Harness) -> None:
    """ID-06: OUT_OF_ORDER for the batch right after the last acked, while the other partition has one in flight. One
    bump: the partition begins again at 0, the other one when its own is answered; no cascade."""
    topic, sender = harness.primed(2)
    with sender:
        harness.kafka.add(on(Api.PRODUCE, topic=topic, partition=0).refuse(OUT_OF_ORDER))
        behind = harness.kafka.add(on(Api.PRODUCE, topic=topic, partition=1).hold_answer())
        sender.send(1)
        behind.wait()
        sender.send(0)
        assert sender.deliveries[3].result(10).offset == 1
        behind.release()
        for partition in (1, 0):
            sender.send(partition)
            sender.outcomes()
        assert sender.offsets() == [0, 0, 1, 1, 2, 2]
        harness.balance(sender)
    sent = harness.produced(topic)
    old, new = sequences(sent)[0][0], sequences(sent)[0][0] + 1
    assert sequences(sent, 0) == [(old, 0), (old, 1), (new, 0), (new, 1)]
    assert sequences(sent, 1) == [(old, 0), (old, 1), (new, 0)]


def test_id_06_a_gap_right_after_the_last_acked(harness: Harness) -> None:
    """ID-06: OUT_OF_ORDER with nothing unsettled before it, and for the two in flight behind it: epoch + 1 once, all
    three begin again at 0. The other partition, with a batch in flight, keeps its epoch until that is settled."""
    topic, sender = harness.primed(2)
    with sender:
        other = harness.kafka.add(on(Api.PRODUCE, topic=topic, partition=1).hold_answer())
        sender.send(1)
        other.wait()
        refused = harness.kafka.add(
            on(Api.PRODUCE, topic=topic, partition=0).refuse(OUT_OF_ORDER).hold_answer()
        )
        harness.send_apart(sender, 3)
        refused.release()
        assert [delivery.result(10).offset for delivery in sender.deliveries[3:]] == [1, 2, 3]
        sender.send(1)
        other.release()
        sender.offsets()
        sender.send(1)
        assert [outcome.offset for outcome in sender.outcomes()[-2:]] == [2, 3]
        harness.balance(sender)
    sent = harness.produced(topic)
    epoch = sequences(sent)[0][0]
    assert sequences(sent, 0) == [(epoch, n) for n in range(4)] + [(epoch + 1, n) for n in range(3)]
    assert sequences(sent, 1) == [(epoch, 0), (epoch, 1), (epoch + 1, 0), (epoch + 1, 1)]


def test_id_07_unknown_producer_id_start_unknown(harness: Harness) -> None:
    """ID-07: UNKNOWN_PRODUCER_ID that does not tell the log's start: asked again as it was."""
    topic, sender = harness.primed()
    with sender:
        harness.kafka.add(on(Api.PRODUCE, topic=topic).refuse(UNKNOWN_PRODUCER_ID))
        sender.send()
        assert sender.offsets() == [0, 1]
        harness.balance(sender)
    _, refused, again = sequences(harness.produced(topic))
    assert refused == again


def test_id_07_deleted_records_and_a_forgotten_id(harness: Harness) -> None:
    """ID-07: after DeleteRecords to the end, and after the broker forgot the id, sends just work."""
    topic, sender = harness.primed()
    with sender:
        harness.kafka.delete_records(topic, 0)
        sender.send()
        assert sender.offsets()[-1] == 1
        harness.kafka.forget_producers(topic, 0)
        sender.send()
        assert sender.offsets()[-1] == 2
    assert [record.offset for record in harness.kafka.records(topic)] == [1, 2]


def test_id_08_the_freed_sequence_is_used_again(harness: Harness) -> None:
    """ID-08: the first of two in flight fails for good, the second OUT_OF_ORDER: it goes again, no hole is left."""
    topic, sender = harness.primed()
    with sender:
        first = harness.kafka.add(on(Api.PRODUCE, topic=topic).refuse(MESSAGE_TOO_LARGE).hold_answer())
        harness.send_apart(sender, 2)
        first.release()
        ok, failed, second = sender.outcomes()
        assert isinstance(failed.error, errors.RecordTooLarge)
        assert failed.error.persistence == 0
        assert (ok.offset, second.offset) == (0, 1)
        sender.send()
        assert sender.outcomes()[-1].offset == 2
        harness.balance(sender)


def test_id_10_epochs_run_out(harness: Harness) -> None:
    """ID-10: a bump is due at epoch 32767: a new producer id, what was queued is delivered under it."""
    topic, sender = harness.primed()
    with sender:
        # The bump that is due: the broker refuses a sequence for good.
        harness.kafka.next_identity = (77_000, 32_767)
        harness.replace_worker()
        sender.send()
        sender.offsets()
        assert harness.kafka.batches(topic)[-1].header.producer_id == 77_000
        asked = len(harness.kafka.requests(Api.INIT_PRODUCER_ID))
        harness.kafka.add(on(Api.PRODUCE, topic=topic).refuse(OUT_OF_ORDER))
        for _ in range(3):
            sender.send()
        assert sender.offsets() == [0, 1, 2, 3, 4]
        harness.balance(sender)
    assert len(harness.kafka.requests(Api.INIT_PRODUCER_ID)) == asked + 1
    last = harness.kafka.batches(topic)[-1].header
    has_identity = [batch.header.producer_id >= 0 for batch in harness.kafka.batches(topic)]
    assert all(has_identity), "a batch went out without an identity"
    assert (last.producer_id != 77_000, last.epoch) == (True, 0)


def test_id_13_not_allowed_then_granted(harness: Harness) -> None:
    """ID-13: CLUSTER_AUTHORIZATION_FAILED on InitProducerId: sends fail while denied and recover when granted."""
    topic = harness.new_topic()
    denied = harness.kafka.add(on(Api.INIT_PRODUCER_ID, times=ALWAYS).refuse(CLUSTER_AUTHORIZATION_FAILED))
    harness.replace_worker()
    with harness.sender(topic) as sender:
        sender.send()
        (failed,) = sender.outcomes()
        assert isinstance(failed.error, errors.ClusterAuthorizationFailed)
        assert failed.error.persistence == 0
        denied.remove()
        wait_until(lambda: sender.send().exception(10) is None, "a send to succeed after the grant")
        harness.balance(sender)


def test_sn_05_partitions_of_one_request_have_their_own_fate(harness: Harness) -> None:
    """SN-05: p0 REQUEST_TIMED_OUT, p1 ok: p1 is acked at once, p0 alone goes again."""
    kafka = harness.kafka
    topic = harness.new_topic(2)
    kafka.move_leader(topic, 1, 1)
    kafka.move_leader(topic, 0, 1)
    with harness.sender(topic) as sender:
        for partition in (0, 1):
            sender.send(partition)
        sender.offsets()
        rule = kafka.add(on(Api.PRODUCE, topic=topic, partition=0).refuse(REQUEST_TIMED_OUT))
        again = kafka.add(on(Api.PRODUCE, topic=topic, partition=0).hold())
        sender.send(0)
        sender.send(1)
        assert sender.deliveries[3].result(10).offset == 1
        again.wait()
        assert not sender.deliveries[2].done()
        again.release()
        assert sender.offsets() == [0, 0, 1, 1]
        assert rule.hits == 1
        harness.balance(sender)


def refuses_keyless(topic: str, record: BatchRecord) -> str | None:
    """The judge of a compacted topic."""
    return "a compacted topic takes no record without a key" if record.key is None else None


def test_sn_05_records_that_the_broker_refuses(harness: Harness) -> None:
    """SN-05: INVALID_RECORD with record errors: those fail with the broker's words, the others are delivered."""

    topic = harness.new_topic()
    harness.kafka.judge_record = refuses_keyless
    hold = harness.kafka.add(on(Api.METADATA, times=1).hold_answer())
    with harness.sender(topic) as sender:
        for number in range(100):
            sender.send(key=None if number % 10 == 0 else b"k")
        hold.release()
        outcomes = sender.outcomes()
        for number, outcome in enumerate(outcomes):
            if number % 10 == 0:
                assert isinstance(outcome.error, errors.InvalidRecord)
                assert "compacted" in str(outcome.error)
                assert outcome.error.persistence == 0
            else:
                assert outcome.error is None
        harness.balance(sender)


def test_sn_05_records_refused_after_a_lost_answer(harness: Harness) -> None:
    """SN-05: appended, the answer lost, and the topic becomes stricter. The batch that is sent again is judged before
    it is looked for. Nothing is doubled, and nobody hears that it is not there."""

    kafka = harness.kafka
    topic = harness.new_topic()
    gathered = kafka.add(on(Api.METADATA, times=1).hold_answer())
    lost = kafka.add(on(Api.PRODUCE, topic=topic).cut_answer())
    again = kafka.add(on(Api.PRODUCE, topic=topic).hold())
    with harness.sender(topic) as sender:
        sender.send()
        sender.send(key=b"k")
        gathered.release()
        lost.wait()
        again.wait()
        kafka.judge_record = refuses_keyless
        again.release()
        for outcome in sender.outcomes():
            assert isinstance(outcome.error, errors.InvalidRecord)
            assert outcome.error.persistence == Persistence.POSSIBLY_PERSISTED
        harness.balance(sender)
    assert [len(batch.records) for batch in kafka.batches(topic)] == [2]
