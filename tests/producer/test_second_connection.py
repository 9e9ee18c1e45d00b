"""The second connection to a broker: used while the first is full, and never by a partition whose records are on
their way through the other one."""

from __future__ import annotations

import pytest

from sidecar.common.model import broker_of, second_of
from sidecar.producer.effects import Connect
from sidecar.producer.in_flight import ProduceRequest
from sidecar.producer.lanes import PLAIN_LANE

from .harness import TOPIC, Core, answer, payloads_of

FIRST = 1
SECOND = second_of(FIRST)


def full_core(
    waiting: str = "abcd", *, second: bool = True, connections_per_broker: int = 2
) -> tuple[Core, list[ProduceRequest]]:
    """Four partitions of one broker, a record a request: "a0" and "b0" of the first two fill its first connection, and
    "a1" to "d1" of those that are named wait."""
    core = Core(
        leaders=(FIRST,) * 4,
        batch_size=100,
        max_request_size=250,
        max_in_flight_requests_per_connection=2,
        connections_per_broker=connections_per_broker,
    )
    if not second:
        core.links.down.add(SECOND)
    core.append("a0", partition=0)
    core.append("b0", partition=1)
    in_flight = core.poll()
    assert [request.node_id for request in in_flight] == [FIRST, FIRST]
    for name in waiting:
        core.append(f"{name}1", partition="abcd".index(name))
    return core, in_flight


def sent(requests: list[ProduceRequest]) -> list[tuple[int, list[str]]]:
    return [(request.node_id, payloads_of(request.batches)) for request in requests]


def test_ids_of_connections() -> None:
    assert [broker_of(node_id) for node_id in (0, 5, second_of(0), second_of(5), -1)] == [0, 5, 0, 5, -1]
    assert len({0, 5, second_of(0), second_of(5)}) == 4


def test_it_is_asked_for_when_the_first_is_full_and_nothing_waits_for_it() -> None:
    core, (first, _) = full_core(second=False)
    assert core.poll() == []
    assert core.of(Connect) == [Connect(SECOND)]
    core.acknowledge(first)
    assert sent(core.poll()) == [(FIRST, ["a1"])]


def test_with_one_connection_a_broker_none_is_asked_for() -> None:
    core, _ = full_core(connections_per_broker=1)
    assert core.poll() == []
    assert core.effects == []


def test_it_is_for_a_whole_request_that_waits() -> None:
    """Less than max.request.size is what stands there when a broker pauses."""
    core, _ = full_core("a", second=False)
    assert core.poll() == []
    assert core.effects == []
    core.append("c1", partition=2)
    assert core.poll() == []
    assert core.of(Connect) == [Connect(SECOND)]


@pytest.mark.rule("S4")
def test_half_of_the_partitions_go_by_it_first_those_that_can_at_once() -> None:
    core, _ = full_core()
    assert core.poll() == []
    assert core.sender.next_wakeup_ms == 0.0
    assert sent(core.poll()) == [(SECOND, ["c1"]), (SECOND, ["d1"])]


@pytest.mark.rule("S4")
def test_a_partition_changes_over_when_its_answers_are_there() -> None:
    core, (_, first_of_b) = full_core("ab")
    assert [
        *core.poll(),
        *core.poll(),
    ] == []  # "b1" is to go by the second, and "b0" is on its way by the first
    core.acknowledge(first_of_b)
    assert sent(core.poll()) == [(FIRST, ["a1"]), (SECOND, ["b1"])]


@pytest.mark.rule("S4")
def test_retries_stay_on_their_connection_while_the_partition_is_in_flight() -> None:
    core, _ = full_core("abd")
    core.poll()
    (d1,) = core.poll()
    core.append("d2", partition=3)
    assert sent(core.poll()) == [(SECOND, ["d2"])]
    core.respond(d1, answer(3, 19))  # NOT_ENOUGH_REPLICAS; "d2" has no answer yet
    core.poll()
    assert sent(core.poll(150)) == [(SECOND, ["d1"])]


def test_with_nothing_in_flight_one_is_enough_again() -> None:
    core, in_flight = full_core()
    core.poll()
    in_flight += core.poll()
    while in_flight:
        core.acknowledge(in_flight.pop(0))
        in_flight += core.poll()
    core.append("b2", partition=1)
    core.append("d2", partition=3)
    assert sent(core.poll()) == [(FIRST, ["b2"]), (FIRST, ["d2"])]


def test_forgotten_partition_has_no_share_of_the_connections() -> None:
    """Brokers that are never idle keep their second connection, so their shares end with the queues."""
    core, (first_of_a, first_of_b) = full_core("ab")
    core.poll()
    shares = core.accumulator.schedule.widened[FIRST]
    queue = core.accumulator.queue(TOPIC, core.lane, 0)
    assert queue in shares
    core.acknowledge(first_of_a)
    (second_of_a,) = core.poll()
    core.acknowledge(second_of_a)
    core.poll()
    core.accumulator.forget_topic(TOPIC, core.lane)
    assert queue not in shares
    assert FIRST in core.accumulator.schedule.widened and not first_of_b.ended


def test_without_it_everything_goes_by_the_first() -> None:
    core, (first_of_a, first_of_b) = full_core()
    core.poll()
    _, d1 = core.poll()
    identity = (d1.batches[0].producer_id, d1.batches[0].epoch, d1.batches[0].base_sequence)
    core.links.down.add(SECOND)
    core.sender.on_disconnect(SECOND, core.now_ms, reason="reset by peer")
    core.acknowledge(first_of_a)
    core.acknowledge(first_of_b)
    found = [*core.poll(), *core.poll(500)]
    for request in found[:]:
        core.acknowledge(request)
    found += [*core.poll(), *core.poll()]
    assert {request.node_id for request in found} == {FIRST}
    batches = [batch for request in found for batch in request.batches]
    assert sorted(payloads_of(batches)) == ["a1", "b1", "c1", "d1"]
    (again,) = [batch for batch in batches if batch.partition == 3]
    assert (again.producer_id, again.epoch, again.base_sequence) == identity


def test_the_loss_of_a_second_connection_names_the_brokers_own_id() -> None:
    core, _ = full_core()
    core.poll()
    core.poll()
    core.sender.force_close(core.now_ms)
    core.poll()
    (last,) = [batch for batch in core.decided if batch.partition == 3]
    assert f"sent to broker {FIRST} and not answered" in last.text


def test_a_partition_whose_leader_moves_waits_for_no_connection_of_the_old_one() -> None:
    core, _ = full_core("ab")
    core.poll()
    core.poll()  # "b1" waits to change over
    core.move_leaders((FIRST, 2, FIRST, FIRST))
    core.sender.on_disconnect(FIRST, core.now_ms)
    found = [*core.poll(), *core.poll(500)]
    assert {request.node_id for request in found for batch in request.batches if batch.partition == 1} == {2}


@pytest.mark.rule("S5")
def test_a_throttle_mutes_both_connections() -> None:
    core, (_, first_of_b) = full_core("ab")
    core.poll()
    core.poll()
    core.respond(first_of_b, answer(1), throttle_ms=400)
    assert core.poll(399) == []
    assert {request.node_id for request in core.poll(1)} == {FIRST, SECOND}


def test_a_batch_that_cannot_be_encoded_holds_nothing_back() -> None:
    """One that has expired meanwhile, too: the partition changes over when nothing of it is on the wire."""
    core, (_, first_of_b) = full_core("ab")
    core.poll()
    core.poll()
    (batch,) = first_of_b.batches
    core.sender.give_up(batch, 7, "expired", core.now_ms)
    core.sender.on_batch_unsendable(first_of_b, batch, "damaged", core.now_ms)
    core.sender.on_request_not_sent(first_of_b, core.now_ms)
    assert [queue.partition for line in core.accumulator.schedule.ready[SECOND] for queue in line] == [1]


@pytest.mark.rule("S5")
def test_records_without_an_answer_all_go_by_the_first() -> None:
    """With acks=0 nobody says when a broker has read the last ones: through the other connection, later ones of the
    partition could pass them."""
    core = Core(
        leaders=(FIRST,) * 4,
        batch_size=100,
        max_request_size=250,
        acks=0,
        enable_idempotence=False,
        lane=PLAIN_LANE,
        connections_per_broker=2,
    )
    core.append("c0", partition=2)
    assert sent(core.poll()) == [(FIRST, ["c0"])]
    core.links.stalled_since[FIRST] = core.now_ms
    for partition, name in enumerate("ab"):
        core.append(f"{name}0", partition=partition)
        core.poll()
    for partition, name in enumerate("abcd"):
        core.append(f"{name}1", partition=partition)
    found = [*core.poll(), *core.poll(), *core.poll()]
    core.links.stalled_since.clear()
    core.take_bytes(FIRST)
    for requests in core.turns():
        found += requests
    assert {request.node_id for request in found} == {FIRST}
    assert sorted(payloads_of([batch for request in found for batch in request.batches])) == [
        "a1",
        "b1",
        "c1",
        "d1",
    ]


def test_for_records_without_an_answer_no_second_one_is_asked_for() -> None:
    core = Core(
        batch_size=100,
        max_request_size=250,
        acks=0,
        enable_idempotence=False,
        lane=PLAIN_LANE,
        connections_per_broker=2,
    )
    core.links.down.add(SECOND)
    core.links.stalled_since[FIRST] = core.now_ms
    for number in range(9):
        core.append(f"a{number}")
        core.poll()
        assert not core.of(Connect)
