"""Deadlines: SN-06, SN-07, ID-09, BP-06, ER-01 with delivery.timeout.ms = 1.5 s on the fake broker."""

from __future__ import annotations

import dataclasses
import random
import re
from typing import Any

import pytest

from client_stub import errors
from client_stub.errors import SidecarError
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_frames import Api, Request
from sidecar.tools.testing.waiting import wait_until

from .harness import Harness, Outcome, sequences
from .java_producers import NOT_TOLD

pytestmark = [pytest.mark.process]

SETTINGS = {"delivery.timeout.ms": 1_500, "request.timeout.ms": 1_400}

LEADER_NOT_AVAILABLE, REQUEST_TIMED_OUT, MESSAGE_TOO_LARGE = 5, 7, 10
NOT_PERSISTED, POSSIBLY_PERSISTED = 0, 1


def timed_out(outcome: Outcome) -> SidecarError:
    """It failed for its time, counted from when it was appended; in our words or Java's."""
    error = outcome.error
    if error is not None and error.persistence is NOT_TOLD and "Expiring" not in str(error):
        # Java tells the broker's last error when the deadline finds the batch refused just then.
        assert error.retriable, error
        return error
    assert isinstance(error, errors.DeliveryTimeout), error
    waited = re.search(r"(\d+) ms ha(?:ve|s) passed", str(error))
    assert waited is not None, str(error)
    assert int(waited[1]) >= 1_500
    return error


def has_sequence(sequence: int) -> Any:
    """A rule's ``where``: the request carries that base sequence."""

    def asked(request: Request) -> bool:
        return any(batch.header.base_sequence == sequence for batch in request.batches)

    return asked


def test_sn_06_never_sent(harness: Harness) -> None:
    """SN-06 i: no leader. Both partitions expire, certainly not persisted, and nothing was sent."""
    topic = harness.new_topic(2)
    for partition in (0, 1):
        harness.kafka.move_leader(topic, partition, -1)
    with harness.sender(topic) as sender:
        for number in range(4):
            sender.send(number % 2)
        for outcome in sender.outcomes():
            assert timed_out(outcome).persistence == NOT_PERSISTED
        harness.balance(sender)
    assert not harness.produced(topic)


def test_sn_06_in_flight_then_answered_late(harness: Harness) -> None:
    """SN-06 ii and iv: not answered in time: possibly persisted; the late answer changes nothing, no retry after it."""
    topic, sender = harness.primed()
    with sender:
        held = harness.kafka.add(on(Api.PRODUCE, topic=topic, times=ALWAYS).hold_answer())
        sender.send()
        assert timed_out(sender.outcomes()[1]).persistence == POSSIBLY_PERSISTED
        held.remove()
        sender.send()
        assert sender.outcomes()[2].error is None
        harness.balance(sender)
    sent = [request.batches[0].records for request in harness.produced(topic)]
    # Once, and once more between request.timeout.ms and the deadline; nothing of it after the late answer.
    assert sum(f"{sender.name}/1|".encode() in batch for batch in sent) <= 2
    assert f"{sender.name}/2|".encode() in sent[-1]
    assert len(harness.kafka.records(topic)) == 3


def test_sn_06_in_backoff(harness: Harness) -> None:
    """SN-06 iii: refused again and again: fails at its deadline, certainly not persisted."""
    topic, sender = harness.primed(2)
    with sender:
        refused = harness.kafka.add(on(Api.PRODUCE, topic=topic, times=ALWAYS).refuse(LEADER_NOT_AVAILABLE))
        for partition in (0, 1):
            sender.send(partition)
        for outcome in sender.outcomes()[2:]:
            error = timed_out(outcome)
            # The deadline may find a retry on the wire: then nobody knows.
            in_backoff = "waiting to be sent again after LEADER_NOT_AVAILABLE" in str(error)
            assert error.persistence == (NOT_PERSISTED if in_backoff else POSSIBLY_PERSISTED)
        assert refused.hits > 2
        harness.balance(sender)


def test_sn_07_slow_answers_are_possibly_persisted(harness: Harness) -> None:
    """SN-07: the broker has them, its answer comes too late: possibly persisted, apart from the other two."""
    topic, sender = harness.primed()
    with sender:
        harness.kafka.add(on(Api.PRODUCE, topic=topic).delay_answer(2_500))
        harness.kafka.add(on(Api.PRODUCE, topic=topic, times=ALWAYS).hold_answer())
        for _ in range(10):
            sender.send()
        told = sender.outcomes()[1:]
        assert [timed_out(outcome).persistence for outcome in told] == [POSSIBLY_PERSISTED] * 10
        harness.kafka.clear_rules()
        harness.balance(sender)


def test_id_09_later_batch_succeeds(harness: Harness) -> None:
    """ID-09: the first expires in doubt while the second is acked: that settles it, no bump, sequences go on."""
    topic, sender = harness.primed()
    with sender:
        first = harness.kafka.add(on(Api.PRODUCE, topic=topic).answer_with(REQUEST_TIMED_OUT).hold_answer())
        harness.kafka.add(
            on(Api.PRODUCE, topic=topic, times=ALWAYS, where=has_sequence(1)).answer_with(REQUEST_TIMED_OUT)
        )
        harness.send_apart(sender, 2)
        first.release()
        assert sender.deliveries[2].result(10).offset == 2
        assert timed_out(sender.outcomes()[1]).persistence == POSSIBLY_PERSISTED
        sender.send()
        assert [outcome.offset for outcome in sender.outcomes()[2:]] == [2, 3]
        harness.balance(sender)
    sent = sequences(harness.produced(topic))
    assert sent[-1] == (sent[0][0], 3)


def test_id_09_refused_to_its_end(harness: Harness) -> None:
    """ID-09: the first expires refused, the second waits behind it: epoch + 1, and sequences begin again.

    A retry that is under way at that very moment leaves doubt, and rightly: then it is done once more.
    """
    assert any(refused_to_its_end(harness) for _ in range(3))


def refused_to_its_end(harness: Harness) -> bool:
    """False if the first expired in doubt."""
    topic, sender = harness.primed()
    with sender:
        first = harness.kafka.add(
            on(Api.PRODUCE, topic=topic, times=ALWAYS, where=has_sequence(1)).refuse(LEADER_NOT_AVAILABLE)
        )
        sender.send()
        first.wait(8)
        sender.send()
        persistence = timed_out(sender.outcomes()[1]).persistence
        assert sender.outcomes()[2].offset == 1
        harness.balance(sender)
    sent = sequences(harness.produced(topic))
    assert sent[-1] == (sent[0][0] + 1, 0)
    return persistence == NOT_PERSISTED


def test_id_09_in_doubt_with_nothing_after_it(harness: Harness) -> None:
    """ID-09: the only batch in flight expires in doubt: the next record goes under epoch + 1."""
    topic, sender = harness.primed()
    with sender:
        lost = harness.kafka.add(on(Api.PRODUCE, topic=topic, times=ALWAYS).cut())
        sender.send()
        assert timed_out(sender.outcomes()[1]).persistence == POSSIBLY_PERSISTED
        lost.remove()
        sender.send()
        assert sender.outcomes()[2].offset == 1
        harness.balance(sender)
    sent = sequences(harness.produced(topic))
    assert sent[-1] == (sent[0][0] + 1, 0)


def test_id_09_a_batch_that_never_left(harness: Harness) -> None:
    """ID-09: expired before it was sent: no bump at all, here or on another topic."""
    _, elsewhere = harness.primed()
    topic = harness.new_topic()
    harness.kafka.move_leader(topic, 0, -1)
    with elsewhere, harness.sender(topic) as sender:
        elsewhere.send()
        elsewhere.offsets()
        sender.send()
        assert timed_out(sender.outcomes()[0]).persistence == NOT_PERSISTED
        harness.kafka.move_leader(topic, 0, 1)
        sender.send()
        assert sender.outcomes()[1].offset == 0
        elsewhere.send()
        elsewhere.offsets()
        harness.balance(sender, elsewhere)
    epoch = sequences(harness.produced(elsewhere.topic))[0][0]
    assert sequences(harness.produced(elsewhere.topic)) == [(epoch, 0), (epoch, 1), (epoch, 2)]
    assert sequences(harness.produced(topic)) == [(epoch, 0)]


def test_bp_06_memory_comes_back_once(harness: Harness) -> None:
    """BP-06: requests that time out, expire and are answered late, that fail, that are split: the pool stays whole
    (looked at when the module ends)."""
    topic, sender = harness.primed()
    with sender:
        held = harness.kafka.add(on(Api.PRODUCE, topic=topic, times=ALWAYS).hold_answer())
        for _ in range(20):
            sender.send(size=20_000)
        assert all(outcome.error for outcome in sender.outcomes()[1:])
        held.remove()
        harness.kafka.add(on(Api.PRODUCE, topic=topic).refuse(MESSAGE_TOO_LARGE))
        sender.send()
        assert isinstance(sender.outcomes()[-1].error, errors.RecordTooLarge)
        harness.balance(sender)


def test_ac_07_split(harness: Harness) -> None:
    """AC-07: a batch that the broker finds too large is halved until it fits; a single record fails alone."""
    topic, sender = harness.primed()
    harness.kafka.message_bytes_max = 2_000
    try:
        with sender:
            held = harness.kafka.add(on(Api.PRODUCE, topic=topic).hold_answer())
            harness.send_apart(sender, 1)
            for _ in range(30):
                sender.send(size=300)
            sender.send(size=3_000)
            held.release()
            *good, large = sender.outcomes()
            assert [outcome.offset for outcome in good] == list(range(32))
            assert isinstance(large.error, errors.RecordTooLarge)
            harness.balance(sender)
    finally:
        harness.kafka.message_bytes_max = 1_048_588


def test_ac_07_two_halves(harness: Harness) -> None:
    """AC-07: two records in one batch, MESSAGE_TOO_LARGE: each goes by itself, both are acked where they lie."""
    topic, size = harness.new_topic(), 8_400

    def has_two(request: Request) -> bool:
        return any(batch.header.record_count == 2 for batch in request.batches)

    too_large = harness.kafka.add(on(Api.PRODUCE, topic=topic, where=has_two).refuse(MESSAGE_TOO_LARGE))

    def two_went_together() -> bool:
        held = harness.kafka.add(on(Api.PRODUCE, topic=topic, times=5).hold_answer())
        for number in range(1, 6):
            sender.send(size=size)
            held.wait(number)
        for _ in range(2):
            sender.send(size=size)
        held.release()
        sender.outcomes()
        return bool(too_large.hits)

    with harness.sender(topic) as sender:
        for _ in range(30):  # Java learns from these how well they compress
            sender.send(size=size)
            sender.outcomes()
        wait_until(two_went_together, "two records in one batch")
        assert sender.offsets() == list(range(len(sender.deliveries)))
        harness.balance(sender)


@pytest.mark.parametrize("bursts", [20, pytest.param(1_000, marks=pytest.mark.long)])
def test_er_01_one_completion_each(harness: Harness, bursts: int) -> None:
    """ER-01: successes, refusals, cuts, lost and doubled answers and expiry mixed: each record is told once, the
    outcomes of a partition in order, and the log agrees."""
    chance = random.Random(4)
    topic, sender = harness.primed(4)

    def sometimes(share: float) -> Any:
        return lambda request: chance.random() < share

    def doubled(entity: Any) -> Any:
        return dataclasses.replace(entity, responses=entity.responses * 2)

    kafka = harness.kafka

    def add_faults() -> None:
        for rule in (
            on(Api.PRODUCE, topic=topic, times=ALWAYS, where=sometimes(0.04)).cut_answer(),
            on(Api.PRODUCE, topic=topic, times=ALWAYS, where=sometimes(0.04)).cut(),
            on(Api.PRODUCE, topic=topic, times=ALWAYS, where=sometimes(0.1)).refuse(LEADER_NOT_AVAILABLE),
            on(Api.PRODUCE, topic=topic, times=ALWAYS, where=sometimes(0.1)).answer_with(REQUEST_TIMED_OUT),
            on(Api.PRODUCE, topic=topic, times=ALWAYS, where=sometimes(0.1)).edit_answer(doubled),
        ):
            kafka.add(rule)

    add_faults()
    with sender:
        for burst in range(bursts):
            if burst == bursts // 2:  # partition 3 is out of reach until its records have expired
                # The first rule that fits decides: a later one would let a retry in five of partition 3 pass.
                kafka.clear_rules()
                kafka.add(
                    on(Api.PRODUCE, topic=topic, partition=3, times=ALWAYS).refuse(LEADER_NOT_AVAILABLE)
                )
                add_faults()
            for number in range(1_000):
                sender.send(number % 4)
            sender.deliveries[-4].exception(20)  # partition 0: it goes on
        outcomes = sender.outcomes()
        kafka.clear_rules()
        harness.balance(sender)
    assert sum(outcome.error is None for outcome in outcomes) >= bursts * 500
    assert any(outcome.error is not None for outcome in outcomes)
    for partition in range(4):
        order = [number for number in sender.order if number >= 4 and (number - 4) % 4 == partition]
        assert order == sorted(order)
