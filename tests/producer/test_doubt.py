"""Doubt: what may be in the log stays so through every refusal that a broker gives before it looks for duplicates
(docs/broker-facts.md, "What is refused before the duplicate check")."""

from __future__ import annotations

import pytest

from client_stub.contract.wire import Persistence
from sidecar.common.errors import Code
from sidecar.producer.effects import Renumbered, Split
from sidecar.producer.in_flight import ProduceRequest

from .harness import Core, answer, payloads_of

UNKNOWN_SERVER_ERROR = -1
UNSUPPORTED_COMPRESSION = 76
JUDGES_RECORDS = (Code.INVALID_RECORD, Code.INVALID_TIMESTAMP)
TOO_LARGE = (Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE)
FINAL = (
    Code.INVALID_TOPIC_EXCEPTION,
    21,  # INVALID_REQUIRED_ACKS
    Code.TOPIC_AUTHORIZATION_FAILED,
    Code.CLUSTER_AUTHORIZATION_FAILED,
    43,  # UNSUPPORTED_FOR_MESSAGE_FORMAT
    44,  # POLICY_VIOLATION
    UNSUPPORTED_COMPRESSION,
    *JUDGES_RECORDS,
)
PASSING = (
    Code.CORRUPT_MESSAGE,
    Code.UNKNOWN_TOPIC_OR_PARTITION,
    Code.LEADER_NOT_AVAILABLE,
    Code.NOT_LEADER_OR_FOLLOWER,
    Code.NOT_ENOUGH_REPLICAS,
    Code.KAFKA_STORAGE_ERROR,
    Code.FENCED_LEADER_EPOCH,
    Code.UNKNOWN_LEADER_EPOCH,
    Code.UNKNOWN_TOPIC_ID,
    Code.INCONSISTENT_TOPIC_ID,
)

pytestmark = [pytest.mark.rule("A6"), pytest.mark.rule("S4")]


def sent_again(core: Core, *payloads: str) -> ProduceRequest:
    """The batch was sent, its answer was lost, and here is its second attempt."""
    core.send(*payloads)
    core.sender.on_disconnect(1, core.now_ms)
    (again,) = core.poll(400)
    return again


@pytest.mark.parametrize("code", FINAL)
def test_a_refusal_before_the_duplicate_check_proves_nothing(code: int) -> None:
    """The first copy may be in the log: sent again in part under new numbers, its good records would be doubled, and
    the others are not surely absent."""
    core = Core()
    again = sent_again(core, "a", "b")
    errors = ((0, "refused"),) if code in JUDGES_RECORDS else ()
    core.respond(again, answer(0, code, record_errors=errors))
    core.poll()
    (batch,) = core.decided
    assert (batch.code, batch.persistence) == (code, Persistence.POSSIBLY_PERSISTED)
    assert core.of(Split) == core.of(Renumbered) == []
    assert core.send("c").batches[0].epoch == 1, "what follows starts over"


@pytest.mark.parametrize("code", [*FINAL, *TOO_LARGE])
def test_half_of_a_batch_that_may_be_there_whole_is_in_doubt_too(code: int) -> None:
    """Its answer was lost, then the topic's limit was lowered and it was split: neither half is surely absent."""
    core = Core()
    again = sent_again(core, "a", "b")
    core.respond(again, answer(0, Code.MESSAGE_TOO_LARGE))
    for value in "ab":
        (half,) = core.poll(400)
        assert payloads_of(half.batches) == [value]
        core.respond(half, answer(0, code, record_errors=((0, "refused"),)))
    core.poll()
    assert payloads_of(core.decided) == ["a", "b"]
    assert {batch.persistence for batch in core.decided} == {Persistence.POSSIBLY_PERSISTED}


@pytest.mark.parametrize("code", PASSING)
def test_a_passing_refusal_leaves_the_doubt_for_the_deadline(code: int) -> None:
    core = Core(delivery_timeout_ms=1500)
    again = sent_again(core, "a", "b")
    core.respond(again, answer(0, code))
    core.links.down.add(1)
    core.poll(2000)
    (batch,) = core.decided
    assert batch.persistence == Persistence.POSSIBLY_PERSISTED


def test_half_that_never_left_is_in_doubt_as_well() -> None:
    core = Core(delivery_timeout_ms=1500)
    again = sent_again(core, "a", "b")
    core.respond(again, answer(0, Code.MESSAGE_TOO_LARGE))
    core.links.down.add(1)
    core.poll(2000)
    assert payloads_of(core.decided) == ["a", "b"]
    assert {batch.persistence for batch in core.decided} == {Persistence.POSSIBLY_PERSISTED}


def test_halves_of_a_batch_in_doubt_are_not_renumbered() -> None:
    """The batch behind it failed for good, so the partition is to start over. But nobody has found out yet whether
    the whole is in the log, and the halves would stand there again. Found by the simulation."""
    core = Core()
    core.send("first", "second")
    failed = core.send("x")
    core.respond(failed, answer(0, Code.TOPIC_AUTHORIZATION_FAILED))
    core.sender.on_disconnect(1, core.now_ms)
    (whole,) = core.poll(400)
    core.respond(whole, answer(0, Code.MESSAGE_TOO_LARGE))
    for number, value in enumerate(("first", "second")):
        (half,) = core.poll(400)
        assert payloads_of(half.batches) == [value]
        assert (half.batches[0].epoch, half.batches[0].base_sequence) == (0, number)
        core.respond(half, answer(0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
    core.poll()
    assert [(*payloads_of([batch]), batch.persistence) for batch in core.decided] == [
        ("first", Persistence.POSSIBLY_PERSISTED),
        ("second", Persistence.POSSIBLY_PERSISTED),
        ("x", Persistence.NOT_PERSISTED),
    ]
    assert core.send("next").batches[0].epoch == 1


def test_a_half_in_the_log_shows_that_the_whole_is_not() -> None:
    """The answer to a batch with one record too large for the topic was lost. Its first part is taken, which a broker
    that had the whole would refuse as out of order, unless it has forgotten the producer id. So the others are
    delivered, and it is not said that the large record is surely absent."""
    core = Core()
    again = sent_again(core, "a", "b", "large", "c")
    core.respond(again, answer(0, Code.MESSAGE_TOO_LARGE))
    (first,) = core.poll(400)
    assert payloads_of(first.batches) == ["a", "b"]
    core.acknowledge(first)
    (second,) = core.poll()
    assert payloads_of(second.batches) == ["large", "c"]
    core.respond(second, answer(0, Code.MESSAGE_TOO_LARGE))
    (large,) = core.poll(400)
    assert payloads_of(large.batches) == ["large"]
    core.respond(large, answer(0, Code.MESSAGE_TOO_LARGE))
    (last,) = core.poll(400)
    assert payloads_of(last.batches) == ["c"] and last.batches[0].epoch == 1
    core.acknowledge(last)
    core.poll()
    assert {(*payloads_of([batch]), batch.persistence) for batch in core.decided} == {
        ("a", "b", Persistence.PERSISTED),
        ("large", Persistence.POSSIBLY_PERSISTED),
        ("c", Persistence.PERSISTED),
    }


def test_a_half_that_is_taken_does_not_make_the_others_surely_absent() -> None:
    """A broker that forgets producer ids soon takes the half though it has the whole. The other half, which was never
    sent by itself and runs out of time, may be there. Found by the simulation."""
    core = Core()
    again = sent_again(core, "a", "b", "c", "d")
    core.respond(again, answer(0, Code.MESSAGE_TOO_LARGE))
    (first,) = core.poll(400)
    core.acknowledge(first)
    core.links.down.add(1)
    core.poll(200_000)
    assert {(*payloads_of([batch]), batch.persistence) for batch in core.decided} == {
        ("a", "b", Persistence.PERSISTED),
        ("c", "d", Persistence.POSSIBLY_PERSISTED),
    }


def test_the_doubt_of_a_half_survives_renumbering_and_single_failures() -> None:
    core = Core()
    again = sent_again(core, "a", "b", "large", "c", "bad")
    core.respond(again, answer(0, Code.MESSAGE_TOO_LARGE))
    (first,) = core.poll(400)
    assert payloads_of(first.batches) == ["a", "b"]
    core.acknowledge(first)
    (second,) = core.poll()
    core.respond(second, answer(0, Code.MESSAGE_TOO_LARGE))
    (large,) = core.poll(400)
    core.respond(large, answer(0, Code.MESSAGE_TOO_LARGE))
    (last,) = core.poll(400)
    assert payloads_of(last.batches) == ["c", "bad"] and last.batches[0].epoch == 1
    core.respond(last, answer(0, Code.INVALID_RECORD, record_errors=((1, "bad"),)))
    (good,) = core.poll(400)
    assert payloads_of(good.batches) == ["c"]
    core.respond(good, answer(0, Code.TOPIC_AUTHORIZATION_FAILED))
    core.poll()
    assert {(*payloads_of([batch]), batch.persistence) for batch in core.decided} == {
        ("a", "b", Persistence.PERSISTED),
        ("large", Persistence.POSSIBLY_PERSISTED),
        ("bad", Persistence.POSSIBLY_PERSISTED),
        ("c", Persistence.POSSIBLY_PERSISTED),
    }


def test_a_batch_that_its_broker_did_not_have_is_split_without_doubt() -> None:
    """A worker died, and the broker was asked: it knows the producer id and has nothing of the batch."""
    core = Core()
    again = sent_again(core, "large", "a")
    again.batches[0].was_absent = True
    core.respond(again, answer(0, Code.MESSAGE_TOO_LARGE))
    (large,) = core.poll(400)
    core.respond(large, answer(0, Code.MESSAGE_TOO_LARGE))
    (last,) = core.poll(400)
    core.acknowledge(last)
    core.poll()
    assert {(*payloads_of([batch]), batch.persistence) for batch in core.decided} == {
        ("large", Persistence.NOT_PERSISTED),
        ("a", Persistence.PERSISTED),
    }


def test_half_after_a_batch_that_waits_for_its_doubt_is_asked_about_once() -> None:
    """The batch before it is surely not in the log and waits for a new number, which it gets when nothing behind it is
    in doubt. So that gap is never filled: sent again and again the half would be told the same until its
    delivery.timeout.ms, with the whole partition waiting for it. Found by the simulation."""
    core = Core()
    refused, before = core.send("refused"), core.send("before")
    core.send("a", "b")
    core.respond(refused, answer(0, Code.TOPIC_AUTHORIZATION_FAILED))
    core.respond(before, answer(0, Code.NOT_ENOUGH_REPLICAS))
    core.sender.on_disconnect(1, core.now_ms)
    (whole,) = core.poll(400)
    core.respond(whole, answer(0, Code.MESSAGE_TOO_LARGE))
    for number, value in enumerate("ab", start=2):
        (half,) = core.poll(2_000)
        assert payloads_of(half.batches) == [value]
        assert (half.batches[0].epoch, half.batches[0].base_sequence) == (0, number)
        core.respond(half, answer(0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
    (again,) = core.poll()
    assert payloads_of(again.batches) == ["before"]
    assert (again.batches[0].epoch, again.batches[0].base_sequence) == (1, 0)
    core.acknowledge(again)
    core.poll()
    assert {(*payloads_of([batch]), batch.code, batch.persistence) for batch in core.decided} == {
        ("refused", Code.TOPIC_AUTHORIZATION_FAILED, Persistence.NOT_PERSISTED),
        ("a", Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Persistence.POSSIBLY_PERSISTED),
        ("b", Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Persistence.POSSIBLY_PERSISTED),
        ("before", Code.NONE, Persistence.PERSISTED),
    }
    assert core.sender.is_idle


@pytest.mark.parametrize("is_given_up", ["before", "after"])
@pytest.mark.parametrize("code", [Code.REQUEST_TIMED_OUT, Code.NOT_ENOUGH_REPLICAS])
def test_no_batch_gets_another_number_after_a_later_one_given_up_in_doubt(
    code: int, is_given_up: str
) -> None:
    """The broker had taken "a" (its answer was lost) or refused it, lost the producer id, and taken "c" without "b".
    The answer to "c" was lost for good. It calls "a" out of order, though nothing is missing before it: so "c" is
    there. Under another number "a" would be there twice, or it and "b" would stand behind "c". Found by the
    simulation, before and after "c" was given up."""
    core = Core()
    core.acknowledge(core.send("known"))
    first, refused, last = core.send("a"), core.send("b"), core.send("c")
    core.respond(first, answer(0, code))
    core.respond(refused, answer(0, Code.NOT_ENOUGH_REPLICAS))
    core.respond(last, answer(0, UNKNOWN_SERVER_ERROR if is_given_up == "before" else Code.REQUEST_TIMED_OUT))
    (again,) = core.poll(400)
    assert payloads_of(again.batches) == ["a"]
    core.respond(again, answer(0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
    for again in core.poll(400):
        (payload,) = payloads_of(again.batches)
        assert payload == ("c" if is_given_up == "after" else "b")
        core.respond(
            again, answer(0, UNKNOWN_SERVER_ERROR if payload == "c" else Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
        )
    core.poll()
    is_in_doubt = code == Code.REQUEST_TIMED_OUT
    assert [(*payloads_of([batch]), batch.persistence) for batch in core.decided] == [
        ("known", Persistence.PERSISTED),
        ("a", Persistence.POSSIBLY_PERSISTED if is_in_doubt else Persistence.NOT_PERSISTED),
        ("b", Persistence.NOT_PERSISTED),
        ("c", Persistence.POSSIBLY_PERSISTED),
    ]
    assert core.send("next").batches[0].epoch == 1


def test_a_batch_in_doubt_after_a_gap_gets_no_other_number_before_one_given_up_in_doubt() -> None:
    """A batch was refused for good, so a number is missing before those in doubt. OUT_OF_ORDER for them tells no more
    of the one behind them that was given up. It may be there."""
    core = Core()
    core.acknowledge(core.send("known"))
    gap, doubted, last = core.send("gap"), core.send("a"), core.send("c")
    core.respond(doubted, answer(0, Code.REQUEST_TIMED_OUT))
    core.respond(last, answer(0, UNKNOWN_SERVER_ERROR))
    core.respond(gap, answer(0, Code.TOPIC_AUTHORIZATION_FAILED))
    (again,) = core.poll(400)
    assert payloads_of(again.batches) == ["a"]
    core.respond(again, answer(0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
    core.poll()
    assert {(*payloads_of([batch]), batch.persistence) for batch in core.decided} == {
        ("known", Persistence.PERSISTED),
        ("gap", Persistence.NOT_PERSISTED),
        ("a", Persistence.POSSIBLY_PERSISTED),
        ("c", Persistence.POSSIBLY_PERSISTED),
    }


def test_a_refuted_doubt_is_never_reported_as_surely_not_persisted() -> None:
    """The log was cut back, or the broker has lost the producer id since it took the batch: the refusal is the same.
    The batch goes out under another number, and a later failure does not say that no copy is there. Found by the
    simulation."""
    core = Core(delivery_timeout_ms=3_000)
    core.acknowledge(core.send("known"))
    core.respond(core.send("a"), answer(0, Code.REQUEST_TIMED_OUT))
    (again,) = core.poll(400)
    core.respond(again, answer(0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
    (under_another,) = core.poll(400)
    assert under_another.batches[0].epoch == 1
    core.respond(under_another, answer(0, Code.NOT_ENOUGH_REPLICAS))
    core.links.down.add(1)
    core.poll(3_000)
    assert [(*payloads_of([batch]), batch.persistence) for batch in core.decided] == [
        ("known", Persistence.PERSISTED),
        ("a", Persistence.POSSIBLY_PERSISTED),
    ]


def test_the_rest_of_a_batch_goes_out_after_a_later_one_given_up_in_doubt() -> None:
    """A broker that knows the producer id has not taken the later one without it. To fail it would cost records."""
    core = Core()
    core.acknowledge(core.send("known"))
    first, second = core.send("bad", "good"), core.send("c")
    core.respond(second, answer(0, Code.REQUEST_TIMED_OUT))
    core.respond(first, answer(0, Code.INVALID_RECORD, record_errors=((0, "refused"),)))
    (again,) = core.poll(400)
    assert payloads_of(again.batches) == ["c"]
    core.respond(again, answer(0, Code.TOPIC_AUTHORIZATION_FAILED))
    (rest,) = core.poll()
    assert [(*payloads_of([batch]), batch.epoch) for batch in rest.batches] == [("good", 1)]
    core.acknowledge(rest)
    core.poll()
    assert {(*payloads_of([batch]), batch.persistence) for batch in core.decided} == {
        ("known", Persistence.PERSISTED),
        ("bad", Persistence.NOT_PERSISTED),
        ("c", Persistence.POSSIBLY_PERSISTED),
        ("good", Persistence.PERSISTED),
    }
