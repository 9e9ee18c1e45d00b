"""Rule S4 where a broker forgets: by time, by the records' timestamps, with the topic. It then takes any first
sequence, so nothing may be under way beside a batch that it might take so."""

from __future__ import annotations

from uuid import UUID

import pytest

from client_stub.contract.wire import Persistence
from sidecar.common.errors import Code
from sidecar.metadata.snapshot import MetadataSnapshot, TopicState
from sidecar.producer.broker_memory import IDLE_MS, TIMESTAMP_AGE_MS
from sidecar.producer.effects import AskBroker
from sidecar.producer.in_flight import ProduceRequest

from .harness import TOPIC, Core, answer, payloads_of

pytestmark = pytest.mark.rule("S4")

OLD_MS = int(TIMESTAMP_AGE_MS) + 1
DAYS_MS = 3 * 86_400_000


def acknowledged(core: Core, *payloads: object, **arguments: int) -> None:
    core.acknowledge(core.send(*payloads, **arguments))
    core.poll()


def waits(core: Core, *payloads: object, **arguments: int) -> None:
    core.append(*payloads, **arguments)
    assert core.poll() == []


def snapshot_with(core: Core, topic_id: int | None) -> MetadataSnapshot:
    topic = core.snapshot.topics[TOPIC]
    topics = {TOPIC: TopicState(TOPIC, None if topic_id is None else UUID(int=topic_id), 0, topic.partitions)}
    return MetadataSnapshot.build(core.snapshot.version + 1, "cluster", core.snapshot.nodes, topics)


def resent(core: Core, requests: list[ProduceRequest]) -> ProduceRequest:
    """Their connection was lost; the first goes again."""
    core.sender.on_disconnect(1, core.now_ms)
    (request,) = core.poll(400)
    assert request.batches[0] is requests[0].batches[0]
    return request


# --- when a batch goes alone ---------------------------------------------------------------------------------


def test_after_a_silence_the_next_batch_goes_alone() -> None:
    """The broker may have forgotten the id: the batch is refused once, and nothing was appended before it."""
    core = Core(known=False)
    acknowledged(core, "before")
    core.clock.advance(IDLE_MS)
    first = core.send("a")
    waits(core, "b")
    core.respond(first, answer(0, Code.NOT_ENOUGH_REPLICAS))
    (again,) = core.poll(200)
    core.acknowledge(again)
    (second,) = core.poll()
    assert [payloads_of(request.batches) for request in (again, second)] == [["a"], ["b"]]


def test_under_steady_load_the_window_is_full() -> None:
    """Answers slower than a second, and five batches under way all the time."""
    core = Core(known=False)
    acknowledged(core, "first")
    in_flight = [core.send(n) for n in range(5)]
    for n in range(5, 30):
        core.clock.advance(IDLE_MS * 3)
        core.append(n)
        core.acknowledge(in_flight.pop(0))
        in_flight += core.poll()
        assert len(in_flight) == 5


def test_a_backlog_of_an_outage_is_not_sent_one_by_one() -> None:
    """Records made while nobody answered are as old as delivery.timeout.ms lets them be."""
    core = Core(known=False)
    acknowledged(core, "first", age_ms=120_000)
    for n in range(5):
        core.send(n, age_ms=120_000)


@pytest.mark.parametrize("age_ms", [OLD_MS, DAYS_MS])
def test_old_records_go_one_batch_at_a_time(age_ms: int) -> None:
    """A backfill under load: the broker forgets at its next check, though it has just answered."""
    core = Core(known=False)
    acknowledged(core, "first", age_ms=age_ms)
    for n in range(3):
        request = core.send(n, age_ms=age_ms)
        waits(core, n + 0.5, age_ms=age_ms)
        core.acknowledge(request)
        (request,) = core.poll()
        core.acknowledge(request)
        core.poll()


def test_nothing_goes_next_to_an_old_batch() -> None:
    """Neither behind it, nor it behind others. A broker forgets all of an id by its last batch, also a young one
    whose answer was lost and that is sent again."""
    core = Core(known=False)
    acknowledged(core, "first")
    young = core.send("young")
    waits(core, "old", age_ms=DAYS_MS)
    core.acknowledge(young)
    (old,) = core.poll()
    waits(core, "behind")
    core.acknowledge(old)
    (request,) = core.poll()
    assert payloads_of(request.batches) == ["behind"]
    waits(core, "later")
    core.acknowledge(request)
    assert payloads_of(core.poll()[0].batches) == ["later"]


def test_a_topic_whose_broker_stamps_records_has_no_old_ones() -> None:
    """LogAppendTime: the broker remembers by its own timestamp."""
    core = Core(known=False)
    first = core.send("first", age_ms=DAYS_MS)
    core.respond(first, answer(0, append_time_ms=core.clock.timestamp_ms()))
    for n in range(5):
        core.send(n, age_ms=DAYS_MS)


def test_the_answer_to_a_duplicate_tells_the_records_own_timestamp() -> None:
    """Kafka answers a batch that it knows with the timestamp that stands in its log, also where callers make it."""
    core = Core(known=False)
    first = core.send("first", age_ms=DAYS_MS)
    core.respond(first, answer(0, append_time_ms=core.clock.timestamp_ms() - DAYS_MS))
    core.send("a", age_ms=DAYS_MS)
    waits(core, "b", age_ms=DAYS_MS)


# --- topics made anew ----------------------------------------------------------------------------------------


def test_a_topic_made_anew_knows_nobody() -> None:
    core = Core(known=False)
    core.snapshot = snapshot_with(core, 1)
    acknowledged(core, "first")
    core.snapshot = snapshot_with(core, 2)
    request = core.send("a")
    waits(core, "b")
    core.acknowledge(request)
    core.poll()
    core.send("c")


def test_a_topic_made_anew_may_stamp_records_otherwise() -> None:
    core = Core(known=False)
    core.snapshot = snapshot_with(core, 1)
    first = core.send("first", age_ms=DAYS_MS)
    core.respond(first, answer(0, append_time_ms=core.clock.timestamp_ms()))
    core.snapshot = snapshot_with(core, 2)
    request = core.send("a", age_ms=DAYS_MS)
    assert request.batches[0].goes_alone
    core.sender.on_disconnect(1, core.now_ms)
    core.poll()
    assert core.of(AskBroker)


def test_a_topic_that_was_gone_for_a_while_knows_nobody() -> None:
    """From a broker without topic ids only its absence tells."""
    core = Core(known=False)
    acknowledged(core, "first")
    present = snapshot_with(core, None)
    core.snapshot = MetadataSnapshot.build(2, "cluster", present.nodes, {})
    core.poll()
    core.snapshot = present
    core.send("a")
    waits(core, "b")


def test_an_answer_of_the_old_topic_says_nothing_of_the_new_one() -> None:
    core = Core(known=False)
    core.snapshot = snapshot_with(core, 1)
    acknowledged(core, "first")
    late = core.send("late")
    core.snapshot = snapshot_with(core, 2)
    core.poll()
    core.acknowledge(late)
    core.poll()
    core.send("a")
    waits(core, "b")


def test_other_news_of_a_topic_leave_its_memory() -> None:
    core = Core(known=False)
    core.snapshot = snapshot_with(core, 1)
    acknowledged(core, "first")
    core.snapshot = snapshot_with(core, 1)
    core.send("a")
    core.send("b")


# --- forgotten all the same, while batches were under way -------------------------------------------------------


def test_overtaken_after_a_refusal_it_fails_and_order_is_kept() -> None:
    """Java's answer too: behind the later record it must not go, and it is surely not there."""
    core = Core()
    first, second = core.send("a"), core.send("b")
    core.append("c")
    core.respond(first, answer(0, Code.NOT_ENOUGH_REPLICAS))
    core.acknowledge(second)
    (again,) = core.poll(200)
    core.respond(again, answer(0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
    (third,) = core.poll()
    assert [(batch.code, *payloads_of([batch])) for batch in core.decided] == [(45, "a"), (0, "b")]
    assert core.decided[0].persistence == Persistence.NOT_PERSISTED
    assert "forgot the producer id" in core.decided[0].text
    assert (payloads_of(third.batches), third.batches[0].epoch) == (["c"], 1)


def test_overtaken_after_a_lost_answer_it_is_possibly_persisted() -> None:
    """Under another number it might be there twice."""
    core = Core()
    first, second = core.send("a"), core.send("b")
    core.acknowledge(second)
    again = resent(core, [first])
    core.respond(again, answer(0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
    core.poll()
    assert [batch.persistence for batch in core.decided] == [
        Persistence.POSSIBLY_PERSISTED,
        Persistence.PERSISTED,
    ]


def test_a_refuted_doubt_returns_when_a_later_batch_is_in_the_log() -> None:
    """One fails for good, the answers of the two behind it are lost. The first of these is refused as a gap, which is
    proof enough, and then the other one turns out to be there."""
    core = Core()
    requests = [core.send(value) for value in "xab"]
    core.respond(requests[0], answer(0, Code.TOPIC_AUTHORIZATION_FAILED))
    again = resent(core, requests[1:])
    core.respond(again, answer(0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
    (second,) = core.poll(400)
    assert payloads_of(second.batches) == ["b"]
    core.acknowledge(second)
    core.poll()
    assert [payloads_of([batch]) for batch in core.decided] == [["x"], ["a"], ["b"]]
    assert [batch.persistence for batch in core.decided] == [
        Persistence.NOT_PERSISTED,
        Persistence.POSSIBLY_PERSISTED,
        Persistence.PERSISTED,
    ]
    assert core.send("c").batches[0].epoch == 1


def test_records_left_by_a_refused_batch_do_not_follow_a_later_one() -> None:
    """One of its records is invalid, the other is to be sent again. The answer of the next batch is lost, and it goes
    to a topic that was recreated meanwhile, which takes any first sequence."""
    core = Core()
    first, second = core.send("bad", "good"), core.send("later")
    core.respond(first, answer(0, Code.INVALID_RECORD, record_errors=((0, "no key"),)))
    again = resent(core, [second])
    core.acknowledge(again)
    core.poll(400)
    assert {str(*payloads_of([batch])): batch.persistence for batch in core.decided} == {
        "bad": Persistence.NOT_PERSISTED,
        "good": Persistence.NOT_PERSISTED,
        "later": Persistence.PERSISTED,
    }
    assert core.sender.is_idle


def test_a_gap_with_nothing_missing_proves_nothing_of_old_records() -> None:
    """The broker refuses the batch after its last acknowledgement: it has lost its state, and may have this one."""
    core = Core()
    acknowledged(core, "first")
    core.send("a", age_ms=DAYS_MS)
    core.sender.on_disconnect(1, core.now_ms)
    core.poll()
    (asks,) = core.of(AskBroker)
    core.clock.advance(1_000)
    core.accumulator.resume(asks.batch, core.now_ms)
    (again,) = core.poll()
    core.respond(again, answer(0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
    core.poll()
    assert core.decided[-1].persistence == Persistence.POSSIBLY_PERSISTED
    assert core.send("b").batches[0].epoch == 1


def test_a_log_that_was_cut_back_lacks_young_records_in_doubt_too() -> None:
    """An unclean election: the new leader lacks what the old one acknowledged, so it lacks what came behind it."""
    core = Core()
    acknowledged(core, "first")
    again = resent(core, [core.send("a")])
    core.respond(again, answer(0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
    (renumbered,) = core.poll(400)
    assert (renumbered.batches[0].epoch, renumbered.batches[0].base_sequence) == (1, 0)
    core.acknowledge(renumbered)
    core.poll()
    assert core.decided[-1].persistence == Persistence.PERSISTED


def test_an_adopted_batch_is_not_delivered_because_a_later_one_is_there() -> None:
    """The broker was asked: its last sequence is the second's. That says nothing of the first, which is not there."""
    core = Core()
    requests = [core.send("a"), core.send("b")]
    requests[1].batches[0].appended = True
    again = resent(core, requests)
    core.respond(again, answer(0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
    (second,) = core.poll(400)
    core.acknowledge(second)
    core.poll()
    assert [batch.persistence for batch in core.decided] == [
        Persistence.POSSIBLY_PERSISTED,
        Persistence.PERSISTED,
    ]


def test_an_adopted_batch_that_is_refused_before_a_later_one_that_is_there_fails_at_once() -> None:
    """It goes nowhere again, whatever becomes of the later one: that one's answer may be long in coming."""
    core = Core()
    requests = [core.send("a"), core.send("b")]
    requests[1].batches[0].appended = True
    again = resent(core, requests)
    core.respond(again, answer(0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
    (later,) = core.poll()
    (failed,) = core.decided
    assert (payloads_of([failed]), failed.persistence) == (["a"], Persistence.POSSIBLY_PERSISTED)
    assert "forgot the producer id" in failed.text
    assert payloads_of(later.batches) == ["b"]


# --- asked before it is sent again ---------------------------------------------------------------------------


def test_an_old_batch_in_doubt_waits_for_what_its_broker_says() -> None:
    """The broker may have forgotten it at any check since: then a copy is not recognised."""
    core = Core()
    core.send("a", age_ms=DAYS_MS)
    core.sender.on_disconnect(1, core.now_ms)
    core.poll()
    (asks,) = core.of(AskBroker)
    assert asks.at_ms > core.now_ms, "a backoff lies before the question"
    core.move_leaders((2,))
    assert core.poll(5_000) == [], "not even to another leader"
    core.accumulator.resume(asks.batch, core.now_ms)
    (again,) = core.poll()
    core.respond(again, answer(0, Code.NOT_ENOUGH_REPLICAS))
    core.poll()
    assert core.of(AskBroker), "and again after each attempt, since time has passed"
    core.sender.give_up(asks.batch, Code.UNKNOWN_PRODUCER_ID, "nobody knows", core.now_ms)
    core.poll()
    assert core.decided[-1].persistence == Persistence.POSSIBLY_PERSISTED
    assert core.send("b").batches[0].epoch == 1


@pytest.mark.parametrize("case", ["young", "not in doubt", "stamped by the broker"])
def test_nobody_is_asked_where_nothing_was_forgotten(case: str) -> None:
    core = Core()
    age_ms = 0 if case == "young" else DAYS_MS
    if case == "stamped by the broker":
        first = core.send("first", age_ms=DAYS_MS)
        core.respond(first, answer(0, append_time_ms=core.clock.timestamp_ms()))
    request = core.send("a", age_ms=age_ms)
    if case == "not in doubt":
        core.respond(request, answer(0, Code.NOT_ENOUGH_REPLICAS))
    else:
        core.sender.on_disconnect(1, core.now_ms)
    (again,) = core.poll(200)
    assert core.of(AskBroker) == []
    assert payloads_of(again.batches) == ["a"]


def test_an_old_batch_that_waits_for_an_answer_expires_in_doubt() -> None:
    core = Core(delivery_timeout_ms=1500)
    core.send("a", age_ms=DAYS_MS)
    core.sender.on_disconnect(1, core.now_ms)
    core.poll(2_000)
    (batch,) = core.decided
    assert batch.persistence == Persistence.POSSIBLY_PERSISTED
