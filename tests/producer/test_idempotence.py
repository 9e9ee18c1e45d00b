"""Rule S4: one producer id, sequences without holes, order over retries; scenarios ID-02 to ID-10 and
ID-13."""

from __future__ import annotations

from uuid import UUID

import pytest

from client_stub.contract.wire import LocalCode, Persistence
from sidecar.common.errors import Code
from sidecar.producer.effects import InitProducerId, Renumbered
from sidecar.producer.lanes import EPOCH_MAX
from sidecar.producer.producer_batch import ProducerBatch

from .harness import PRODUCER_ID, TOPIC, Core, answer, payloads_of, snapshot_of

pytestmark = pytest.mark.rule("S4")


def identity(batch: ProducerBatch) -> tuple[int, int, int]:
    return batch.producer_id, batch.epoch, batch.base_sequence


def test_one_producer_id_and_sequences_by_record_count_per_partition() -> None:
    """ID-02."""
    core = Core(leaders=(1, 1), producer_id=False)
    core.append("a")
    assert core.poll() == []
    assert core.of(InitProducerId) == [InitProducerId()]
    core.poll(50)
    assert core.of(InitProducerId) == [], "asked once"
    core.sender.on_producer_id(PRODUCER_ID, 0, core.now_ms)
    (first,) = core.poll()
    core.acknowledge(first)
    second = core.send("b", "c")
    third = core.send("d")
    other = core.send("e", partition=1)
    batches = [request.batches[0] for request in (first, second, third, other)]
    assert [identity(b) for b in batches] == [(PRODUCER_ID, 0, n) for n in (0, 1, 3, 0)]


def test_the_first_batch_under_an_id_goes_alone() -> None:
    """A broker takes an unknown producer id at any sequence. If the first batch is refused before its sequence is
    looked at (NOT_ENOUGH_REPLICAS, CORRUPT_MESSAGE), a second one in flight would be appended before it. Found by the
    simulation."""
    core = Core(known=False)
    first = core.send("a")
    core.append("b")
    assert core.poll() == []
    core.respond(first, answer(0, Code.NOT_ENOUGH_REPLICAS))
    (again,) = core.poll(200)
    assert payloads_of(again.batches) == ["a"]
    core.acknowledge(again)
    (second,) = core.poll()
    assert identity(second.batches[0]) == (PRODUCER_ID, 0, 1)


def test_sequences_wrap_as_kafkas_do() -> None:
    core = Core()
    core.acknowledge(core.send("a"))
    request = core.send("b")
    sequences = request.batches[0].queue.sequences
    assert sequences is not None
    core.acknowledge(request)
    sequences.next_sequence = sequences.acked_next = 2**31 - 1
    request = core.send("c", "d")
    assert request.batches[0].base_sequence == 2**31 - 1
    assert core.send("e").batches[0].base_sequence == 1


@pytest.mark.parametrize("lost", [1, 2, 3, 4, 5])
def test_lost_answers_are_sent_again_as_they_were_and_in_order(lost: int) -> None:
    """ID-03: the broker has them all, no answer came; each is sent again under its own identity, one at a
    time.
    """
    core = Core()
    requests = [core.send(n) for n in range(lost)]
    before = [identity(request.batches[0]) for request in requests]
    core.sender.on_disconnect(1, core.now_ms)
    again = []
    core.clock.advance(200)
    for n in range(lost):
        (request,) = core.poll()
        again.append(identity(request.batches[0]))
        assert core.poll() == [], "the next one waits for this one's answer"
        core.acknowledge(request, base_offset=n)
    core.poll()
    assert again == before
    assert [batch.base_offset for batch in core.decided] == list(range(lost))
    assert all(batch.persistence == Persistence.PERSISTED for batch in core.decided)


def test_no_more_than_five_batches_of_a_partition_are_unsettled() -> None:
    """A broker's memory; more could not be told from a gap after a lost answer."""
    core = Core(leaders=(1,))
    for n in range(5):
        core.send(n)
    core.append("sixth")
    core.move_leaders((2,))
    assert core.poll() == [], "not even through the free connection to a new leader"


def test_nothing_is_sent_more_than_five_batches_ahead_of_one_without_an_answer() -> None:
    """The old leader has the first batch and stays silent, the new one acks what follows. Were six of those to go,
    the new leader would no longer know the first again, and refuse it as a gap though it stands in the log. Found
    by the simulation."""
    core = Core(leaders=(1,))
    core.send(0)
    core.move_leaders((2,))
    for n in range(1, 5):
        core.acknowledge(core.send(n))
    core.append("sixth")
    assert core.poll() == []
    core.sender.on_disconnect(1, core.now_ms)
    (again,) = core.poll(200)
    core.acknowledge(again)
    assert payloads_of(core.poll()[0].batches) == ["sixth"]


def test_a_failed_first_batch_holds_the_later_ones() -> None:
    """ID-04: LEADER_NOT_AVAILABLE, OUT_OF_ORDER, OUT_OF_ORDER; a fourth is queued. No epoch bump."""
    core = Core()
    requests = [core.send(n) for n in range(3)]
    core.append(3)
    core.respond(requests[0], answer(0, Code.LEADER_NOT_AVAILABLE))
    core.respond(requests[1], answer(0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
    core.respond(requests[2], answer(0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
    core.clock.advance(200)
    for n in range(4):
        (request,) = core.poll()
        assert payloads_of(request.batches) == [n]
        assert identity(request.batches[0]) == (PRODUCER_ID, 0, n)
        core.acknowledge(request, base_offset=n)
    core.poll()
    assert [batch.base_offset for batch in core.decided] == [0, 1, 2, 3]
    assert core.ids.epoch_bumps == 0


def test_a_retry_is_not_passed_by_later_batches() -> None:
    """SN-04: five in flight, the first answered NOT_LEADER while later ones are queued."""
    core = Core(leaders=(1,))
    requests = [core.send(n) for n in range(5)]
    for n in range(5, 20):
        core.append(n)
    core.respond(requests[0], answer(0, Code.NOT_LEADER_OR_FOLLOWER))
    core.move_leaders((2,))
    (retry,) = core.poll()
    assert identity(retry.batches[0]) == (PRODUCER_ID, 0, 0)
    for request in requests[1:]:
        core.respond(request, answer(0, Code.NOT_LEADER_OR_FOLLOWER))
    core.acknowledge(retry)
    while not core.sender.is_idle:
        for request in core.poll(200):
            core.acknowledge(request)
    assert payloads_of(core.decided) == list(range(20))


def test_answers_out_of_order() -> None:
    """ID-05: the second succeeds, the first is retried; or the first turns out to be there already."""
    core = Core()
    first, second = core.send("a"), core.send("b")
    core.acknowledge(second, base_offset=1)
    core.poll()
    assert core.decided == [], "told behind the first: callbacks of a partition run in order"
    core.respond(first, answer(0, Code.REQUEST_TIMED_OUT))
    (first,) = core.poll(200)
    assert core.decided == []
    core.respond(first, answer(0, Code.DUPLICATE_SEQUENCE_NUMBER))
    core.poll()
    assert [batch.base_offset for batch in core.decided] == [-1, 1]
    assert [batch.code for batch in core.decided] == [0, 0]
    assert core.ids.epoch_bumps == 0


def test_a_parked_batch_completes_when_the_one_before_it_is_given_up() -> None:
    """Nothing stays parked: the first runs out of time in doubt, the second is told right behind it."""
    core = Core()
    first, second = core.send("a"), core.send("b")
    core.acknowledge(second, base_offset=1)
    core.respond(first, answer(0, Code.REQUEST_TIMED_OUT))
    core.poll()
    assert core.decided == []
    core.poll(core.config.delivery_timeout_ms)
    core.poll()
    assert [(batch.code != 0, batch.base_offset) for batch in core.decided] == [(True, -1), (False, 1)]


def test_a_real_gap_takes_a_new_epoch_for_its_partition_only() -> None:
    """ID-06: OUT_OF_ORDER right after the last acked. The other partition keeps its epoch until it is
    drained.
    """
    core = Core(leaders=(1, 1))
    core.acknowledge(core.send("a"))
    gap = core.send("b")
    other = core.send("x", partition=1)
    core.respond(gap, answer(0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
    core.poll()
    assert core.of(Renumbered) == [Renumbered((gap.batches[0],))]
    core.append("y", partition=1)
    (again,) = core.poll(200)
    assert identity(again.batches[0]) == (PRODUCER_ID, 1, 0), "and p1 waits: its old epoch is still in flight"
    core.acknowledge(again)
    core.acknowledge(other)
    (late,) = core.poll()
    assert payloads_of(late.batches) == ["y"]
    assert identity(late.batches[0]) == (PRODUCER_ID, 1, 0)
    assert core.ids.epoch_bumps == 1


def test_two_partitions_with_gaps_take_one_new_epoch() -> None:
    """ID-06: no cascade of bumps."""
    core = Core(leaders=(1, 1))
    core.append("a", partition=0)
    core.append("b", partition=1)
    (request,) = core.poll()
    core.respond(request, answer(0, 45), answer(1, 45))
    (again,) = core.poll(200)
    assert [identity(batch) for batch in again.batches] == [(PRODUCER_ID, 1, 0)] * 2
    assert core.ids.epoch_bumps == 1


def test_renumbering_waits_until_nothing_of_the_partition_is_in_flight() -> None:
    """The broker may still append what is on the wire; only then may the same records get other numbers."""
    core = Core()
    first, second = core.send("a"), core.send("b")
    core.respond(first, answer(0, 45))
    assert core.poll(200) == []
    assert core.of(Renumbered) == []
    core.respond(second, answer(0, 45))
    (again,) = core.poll()
    assert core.of(Renumbered) == [Renumbered((second.batches[0], first.batches[0]))], "newest first"
    assert payloads_of(again.batches) == ["a"]
    assert identity(again.batches[0]) == (PRODUCER_ID, 1, 0)


def test_a_batch_of_unknown_outcome_is_asked_after_before_it_is_renumbered() -> None:
    """Its answer was lost: only its re-send under the old number tells whether the broker has it."""
    core = Core()
    first, second = core.send("a"), core.send("b")
    core.respond(first, answer(0, Code.TOPIC_AUTHORIZATION_FAILED))
    core.sender.on_disconnect(1, core.now_ms)
    (again,) = core.poll(200)
    assert again.batches[0] is second.batches[0]
    assert identity(again.batches[0]) == (PRODUCER_ID, 0, 1)
    core.respond(again, answer(0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
    core.poll()
    (again,) = core.poll(400)
    assert identity(again.batches[0]) == (PRODUCER_ID, 1, 0)


def test_unknown_producer_id_starts_over_when_the_log_start_is_known() -> None:
    """ID-07: retention took the batches by which the broker knew the id."""
    core = Core()
    core.acknowledge(core.send("a"), base_offset=1000)
    request = core.send("b")
    core.respond(request, answer(0, Code.UNKNOWN_PRODUCER_ID, log_start_offset=1010))
    (request,) = core.poll(200)
    assert identity(request.batches[0]) == (PRODUCER_ID, 1, 0)
    core.acknowledge(request, base_offset=1011)
    core.poll()
    assert core.decided[-1].base_offset == 1011


def test_unknown_producer_id_with_unknown_log_start_is_asked_again_as_it_is() -> None:
    """ID-07."""
    core = Core()
    core.acknowledge(core.send("a"))
    request = core.send("b")
    core.respond(request, answer(0, Code.UNKNOWN_PRODUCER_ID, log_start_offset=-1))
    (request,) = core.poll(200)
    assert identity(request.batches[0]) == (PRODUCER_ID, 0, 1)
    assert core.ids.epoch_bumps == 0


def test_unknown_producer_id_for_a_batch_that_may_be_in_the_log_fails_it() -> None:
    """Under a new number nobody could recognise the second copy; told as possibly persisted, never
    doubled."""
    core = Core()
    core.send("a")
    core.sender.on_disconnect(1, core.now_ms)
    (request,) = core.poll(200)
    core.respond(request, answer(0, Code.UNKNOWN_PRODUCER_ID, log_start_offset=5))
    core.poll()
    (batch,) = core.decided
    assert (batch.code, batch.persistence) == (Code.UNKNOWN_PRODUCER_ID, Persistence.POSSIBLY_PERSISTED)
    assert identity(core.send("b").batches[0]) == (PRODUCER_ID, 1, 0)


def test_a_final_failure_leaves_no_hole() -> None:
    """ID-08: the first fails MESSAGE_TOO_LARGE, the second therefore OUT_OF_ORDER; it is sent again and
    acked.
    """
    core = Core()
    first, second = core.send("a"), core.send("b")
    core.respond(first, answer(0, Code.MESSAGE_TOO_LARGE))
    core.respond(second, answer(0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
    core.poll()
    (failed,) = core.decided
    assert (failed.code, failed.persistence) == (Code.MESSAGE_TOO_LARGE, Persistence.NOT_PERSISTED)
    (again,) = core.poll(200)
    assert payloads_of(again.batches) == ["b"]
    assert identity(again.batches[0]) == (PRODUCER_ID, 0, 0), "the number that is free, and no new epoch"
    core.acknowledge(again)
    core.poll()
    assert [batch.code for batch in core.decided] == [10, 0]


def test_records_that_are_too_large_take_no_epoch_each_time() -> None:
    """A client that sends pairs above max.message.bytes took an epoch with each, and all partitions began again."""
    core = Core()
    core.snapshot = snapshot_of(
        {TOPIC: [1]}, version=2, topic_id=UUID(int=1)
    )  # as a broker of today names it
    core.poll()
    core.acknowledge(core.send("first"))
    core.respond(core.send("of a log that it did not know"), answer(0, Code.MESSAGE_TOO_LARGE))
    core.acknowledge(core.send("known"))
    epoch = core.ids.identity.epoch
    for number in range(5):
        core.append(f"a{number}")
        (whole,) = [core.send(f"b{number}")]
        core.respond(whole, answer(0, Code.MESSAGE_TOO_LARGE))
        for _ in range(2):
            for half in core.poll(1):
                core.respond(half, answer(0, Code.MESSAGE_TOO_LARGE))
        core.acknowledge(core.send(f"c{number}"))
    core.poll()
    assert core.ids.identity.epoch == epoch
    codes = [batch.code for batch in core.decided]
    assert codes == [0, Code.MESSAGE_TOO_LARGE, 0, *5 * [Code.MESSAGE_TOO_LARGE, Code.MESSAGE_TOO_LARGE, 0]]
    last = core.send("last")
    assert identity(last.batches[0]) == (PRODUCER_ID, epoch, 6)
    core.snapshot = snapshot_of({TOPIC: [1]}, version=3, topic_id=UUID(int=2))
    core.poll()
    core.respond(last, answer(0, Code.MESSAGE_TOO_LARGE))
    core.poll()
    assert identity(core.send("of the new log").batches[0])[:2] == (PRODUCER_ID, epoch + 1), (
        "which knows no number"
    )


def test_numbers_that_may_be_in_doubt_are_not_used_again() -> None:
    """A copy of an attempt whose answer was lost may still be on its way to the broker."""
    core = Core()
    core.send("a", "b")
    core.sender.on_disconnect(1, core.now_ms)
    (again,) = core.poll(200)
    core.respond(again, answer(0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
    (again,) = core.poll(200)
    core.respond(again, answer(0, Code.TOPIC_AUTHORIZATION_FAILED))
    core.poll()
    assert identity(core.send("c").batches[0])[:2] == (PRODUCER_ID, 2), "its own doubt took the first"


class TestExpiryOfTheFirstInFlight:
    """ID-09: delivery.timeout.ms 1500 ends the first batch. What of the later ones?"""

    def test_a_later_success_shows_that_nothing_is_missing(self) -> None:
        core = Core(delivery_timeout_ms=1500)
        core.send("a")
        core.clock.advance(1000)
        second = core.send("b")
        core.poll(600)
        core.append("c")
        assert core.poll() == [], "nobody knows yet which number comes next"
        core.acknowledge(second)
        assert core.poll() == [], "the expired one's answer is still out"
        core.sender.on_disconnect(1, core.now_ms)
        (third,) = core.poll()
        assert identity(third.batches[0]) == (PRODUCER_ID, 0, 2)
        assert core.ids.epoch_bumps == 0

    def test_a_later_failure_takes_a_new_epoch(self) -> None:
        core = Core(delivery_timeout_ms=1500)
        first = core.send("a")
        core.clock.advance(1000)
        second = core.send("b")
        core.poll(600)
        core.respond(first, answer(0, Code.NOT_ENOUGH_REPLICAS))
        core.respond(second, answer(0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
        (again,) = core.poll(200)
        assert payloads_of(again.batches) == ["b"]
        assert identity(again.batches[0]) == (PRODUCER_ID, 1, 0)

    def test_with_none_in_flight_after_it_takes_a_new_epoch(self) -> None:
        core = Core(delivery_timeout_ms=1500)
        first = core.send("a")
        core.poll(1600)
        core.append("b")
        assert core.poll() == []
        core.respond(first, answer(0, Code.REQUEST_TIMED_OUT))
        (request,) = core.poll()
        assert identity(request.batches[0]) == (PRODUCER_ID, 1, 0)

    def test_a_late_success_resolves_it(self) -> None:
        core = Core(delivery_timeout_ms=1500)
        first = core.send("a")
        core.poll(1600)
        core.acknowledge(first)
        request = core.send("b")
        assert identity(request.batches[0]) == (PRODUCER_ID, 0, 1)
        assert [batch.code for batch in core.decided] == [LocalCode.EXPIRED], "told once"

    def test_one_that_never_left_leaves_no_trace(self) -> None:
        core = Core(delivery_timeout_ms=1500)
        core.links.down.add(1)
        core.append("a")
        core.poll(1600)
        core.links.down.clear()
        request = core.send("b")
        assert identity(request.batches[0]) == (PRODUCER_ID, 0, 0)
        assert core.ids.epoch_bumps == 0


def test_when_epochs_run_out_a_new_producer_id_is_asked_for() -> None:
    """ID-10: queued batches wait for it, then drain; closing meanwhile finishes."""
    core = Core(producer_id=False)
    core.poll()
    core.sender.on_producer_id(PRODUCER_ID, EPOCH_MAX, core.now_ms)
    request = core.send("a")
    core.append("b")
    core.respond(request, answer(0, 45))
    assert core.poll(200) == []
    assert core.of(InitProducerId) == [InitProducerId()]
    core.sender.begin_close(core.now_ms)
    core.sender.on_producer_id(PRODUCER_ID + 1, 0, core.now_ms)
    (request,) = core.poll(200)
    assert identity(request.batches[0]) == (PRODUCER_ID + 1, 0, 0)
    core.acknowledge(request)
    (request,) = core.poll()
    assert identity(request.batches[0]) == (PRODUCER_ID + 1, 0, 1)
    core.acknowledge(request)
    core.poll()
    assert core.sender.is_idle


def test_force_close_does_not_wait_for_a_producer_id() -> None:
    """ID-10."""
    core = Core(producer_id=False)
    core.append("a")
    core.poll()
    core.sender.force_close(core.now_ms)
    core.poll()
    assert [batch.code for batch in core.decided] == [LocalCode.ABORTED]
    assert core.sender.is_idle


def test_invalid_producer_epoch_fails_the_batch_and_later_ones_start_over() -> None:
    core = Core()
    core.respond(core.send("a"), answer(0, Code.INVALID_PRODUCER_EPOCH))
    core.poll()
    (batch,) = core.decided
    assert (batch.code, batch.persistence) == (Code.INVALID_PRODUCER_EPOCH, Persistence.NOT_PERSISTED)
    assert identity(core.send("b").batches[0]) == (PRODUCER_ID, 1, 0)


def test_a_loading_coordinators_answer_without_an_id_is_never_produced_under() -> None:
    """Measured: code 14 with producer id -1. Producing under -1 works and is not idempotent."""
    core = Core(producer_id=False)
    core.append("a")
    core.poll()
    core.sender.on_producer_id_error(Code.COORDINATOR_LOAD_IN_PROGRESS, core.now_ms)
    assert core.poll() == []
    assert core.of(InitProducerId) == []
    core.poll(100)
    assert core.of(InitProducerId) == [InitProducerId()]
    core.sender.on_producer_id(-1, -1, core.now_ms)
    assert core.poll() == []
    core.poll(200)
    assert core.of(InitProducerId) == [InitProducerId()]
    core.sender.on_producer_id(PRODUCER_ID, 0, core.now_ms)
    assert len(core.poll()) == 1


def test_a_refused_producer_id_fails_what_waits_and_recovers_when_granted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """ID-13: CLUSTER_AUTHORIZATION_FAILED, then granted. The refusal is a line of the log once."""
    core = Core(producer_id=False)
    core.append("a")
    core.poll()
    core.sender.on_producer_id_error(Code.CLUSTER_AUTHORIZATION_FAILED, core.now_ms)
    core.poll()
    (batch,) = core.decided
    assert (batch.code, batch.persistence) == (31, Persistence.NOT_PERSISTED)
    assert "IDEMPOTENT_WRITE" in batch.text
    core.append("b")
    for _ in range(20):
        core.poll(1000)
        core.sender.on_producer_id_error(Code.CLUSTER_AUTHORIZATION_FAILED, core.now_ms)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    core.append("b")
    core.poll(1000)
    core.sender.on_producer_id(PRODUCER_ID, 0, core.now_ms)
    (request,) = core.poll()
    assert payloads_of(request.batches) == ["b"]


def test_a_batch_of_unknown_outcome_is_not_given_up_for_its_number_of_tries() -> None:
    """ID-13: retries 1, but NOT_ENOUGH_REPLICAS_AFTER_APPEND means it may be there: only the deadline ends
    it.
    """
    core = Core(retries=1)
    request = core.send("a")
    for _ in range(3):
        core.respond(request, answer(0, Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
        (request,) = core.poll(2000)
    core.acknowledge(request)
    core.poll()
    assert [batch.code for batch in core.decided] == [0]


def test_a_definite_refusal_is_given_up_after_its_retries() -> None:
    core = Core(retries=1)
    request = core.send("a")
    core.respond(request, answer(0, Code.NOT_ENOUGH_REPLICAS))
    (request,) = core.poll(200)
    core.respond(request, answer(0, Code.NOT_ENOUGH_REPLICAS))
    core.poll()
    (batch,) = core.decided
    assert (batch.code, batch.persistence) == (Code.NOT_ENOUGH_REPLICAS, Persistence.NOT_PERSISTED)
