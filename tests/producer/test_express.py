"""Express batches in the core: they pass batches that were never in a request, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_stub.contract.wire import LocalCode
from sidecar.common.errors import Code
from sidecar.common.model import second_of
from sidecar.producer.batch_states import BatchState
from sidecar.producer.broker_drain import BULK_SHARING, SHARING_MS
from sidecar.producer.effects import Connect
from sidecar.producer.lanes import PLAIN_LANE
from sidecar.producer.partition_queue import PASSES_MAX, give_orders
from sidecar.producer.partition_schedule import FULL_MS
from sidecar.producer.producer_batch import ProducerBatch
from sidecar.producer.topic_settings import TopicRules

from .fake_kernel import FakeBlock, FakeRecords
from .harness import TOPIC, Core, answer, payloads_of, snapshot_of

LARGE = 300


def pass_by(core: Core, *payloads: object, partition: int = 0, topic: str = TOPIC) -> None:
    block = FakeBlock([(partition, payload) for payload in payloads], 100, core.clock.timestamp_ms())
    core.accumulator.append(topic, core.lane, block, core.now_ms, express=True)  # type: ignore[arg-type]


def backlog(core: Core, *payloads: object, partition: int = 0) -> None:
    """A full batch each."""
    for payload in payloads:
        core.append(payload, partition=partition, record_bytes=LARGE)


def large_batches(**settings: object) -> Core:
    return Core(batch_size=200, max_request_size=400, **settings)


def rest_of(core: Core, partition: int = 0) -> list[object]:
    """Let everything go, one request after the other; the partition's payloads, in the order of its numbers."""
    sent: list[object] = []
    for _ in range(100):
        requests = core.poll(200.0)
        if not requests and not core.accumulator.incomplete:
            return sent
        for request in requests:
            sent += payloads_of([batch for batch in request.batches if batch.partition == partition])
            core.acknowledge(request)
    raise AssertionError("not everything goes")


def test_an_express_batch_goes_before_all_that_was_never_sent() -> None:
    core = large_batches(max_in_flight_requests_per_connection=1)
    backlog(core, "a", "b", "c")
    (first,) = core.poll()
    pass_by(core, "x")
    core.acknowledge(first)
    assert payloads_of(first.batches) == ["a"]
    assert rest_of(core) == ["x", "b", "c"]


def test_retries_go_before_express() -> None:
    core = large_batches(max_in_flight_requests_per_connection=1)
    backlog(core, "a", "b")
    (first,) = core.poll()
    pass_by(core, "x")
    core.respond(first, answer(code=Code.NOT_ENOUGH_REPLICAS))
    assert core.poll() == [], "nothing passes a batch that waits for its retry"
    (again,) = core.poll(1_000.0)
    assert again.batches == first.batches
    core.acknowledge(again)
    assert rest_of(core) == ["x", "b"]


def test_halves_of_a_batch_stay_before_express() -> None:
    core = Core(max_in_flight_requests_per_connection=1)
    first = core.send("a", "b")
    backlog(core, "c")
    pass_by(core, "x")
    core.respond(first, answer(code=Code.MESSAGE_TOO_LARGE))
    assert rest_of(core) == ["a", "b", "x", "c"]


def test_records_left_by_a_refusal_stay_before_express() -> None:
    core = Core(max_in_flight_requests_per_connection=1)
    first = core.send("a", "bad", "b")
    pass_by(core, "x")
    core.respond(first, answer(code=Code.INVALID_RECORD, record_errors=((1, None),)))
    assert rest_of(core) == ["a", "b", "x"]


def test_renumbered_batches_of_both_kinds_keep_their_order() -> None:
    """A first batch is refused for good, so those behind it start over: as they were numbered."""
    core = large_batches()
    backlog(core, "a", "b")
    first, second = core.poll()
    pass_by(core, "x")
    backlog(core, "c")
    third, fourth = core.poll()
    sent = [payloads_of(request.batches) for request in (first, second, third, fourth)]
    assert sent == [["a"], ["b"], ["x"], ["c"]]
    core.respond(first, answer(code=Code.INVALID_TIMESTAMP))
    for request in (second, third, fourth):
        core.respond(request, answer(code=Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
    pass_by(core, "y")
    assert rest_of(core) == ["b", "x", "c", "y"]
    assert core.ids.epoch_bumps == 0, "they take the numbers of the refused one"


def test_a_paused_topic_holds_express_and_continues_what_was_sent() -> None:
    core = large_batches(max_in_flight_requests_per_connection=1)
    backlog(core, "a", "b")
    (first,) = core.poll()
    pass_by(core, "x")
    core.accumulator.use_rules(TopicRules(core.config, paused=(TOPIC,)), core.now_ms)
    core.respond(first, answer(code=Code.NOT_ENOUGH_REPLICAS))
    core.poll()
    (again,) = core.poll(1_000.0)
    assert again.batches == first.batches
    core.acknowledge(again)
    assert core.poll(1_000.0) == []
    core.accumulator.use_rules(TopicRules(core.config), core.now_ms)
    core.sender.wake()
    assert rest_of(core) == ["x", "b"]


def test_a_backlog_continues_next_to_a_stream_of_express_batches_in_its_partition() -> None:
    """There is always another one when a request may go; records of the backlog would run out of time."""
    core = Core(
        batch_size=200,
        batch_growth_bytes=2_000,
        max_request_size=2_000,
        max_in_flight_requests_per_connection=1,
    )
    for payload in ("a", "b", "c"):
        core.append(payload, record_bytes=1_500)
    sent: list[list[object]] = []
    for number in range(3 * (PASSES_MAX + 1)):
        pass_by(core, number)
        (request,) = core.poll()
        sent.append(payloads_of(request.batches))
        core.acknowledge(request)
    places = [sent.index([each]) for each in ("a", "b", "c")]
    assert places == [PASSES_MAX + each * (PASSES_MAX + 1) for each in range(3)]


def test_a_batch_that_was_passed_enough_stays_after_express_records_from_before_its_own() -> None:
    """A client's record in bulk is later than its own in express."""
    core = Core(max_in_flight_requests_per_connection=1, batch_growth_bytes=200, batch_size=200)
    core.append("bulk")
    sent: list[object] = []
    for number in range(PASSES_MAX):
        pass_by(core, number, "mine", "mine")
        if number == PASSES_MAX - 2:
            core.append("mine, later")
        (request,) = core.poll()
        sent += payloads_of(request.batches)
        core.acknowledge(request)
    pass_by(core, "new", "new", "new")
    sent += rest_of(core)
    assert sent.index("mine, later") > len(sent) - 1 - sent[::-1].index("mine")
    assert sent.index("bulk") < len(sent) - 1 - sent[::-1].index("new")


@pytest.mark.parametrize("is_express", [False, True])
def test_parts_of_what_a_dead_worker_left_before_a_batch_keep_their_places(is_express: bool) -> None:
    """A record of the first is refused; its others stay before the second."""
    core = Core(max_in_flight_requests_per_connection=1, batch_size=300, batch_growth_bytes=300)
    put = pass_by if is_express else Core.append
    put(core, "bad", "a")
    put(core, "b", "c")
    queue = core.accumulator.queue(TOPIC, core.lane, 0)
    records = FakeRecords()
    block = FakeBlock([(0, "sent")], 100, core.clock.timestamp_ms())
    records.try_append(block, 0, 1, 1_000)
    sent = ProducerBatch(
        queue, records, block.chain, 0.0, 1e9, is_express=is_express, state=BatchState.BETWEEN
    )
    sent.identify(1, 0, 7)
    sent.in_doubt = True
    give_orders([sent])
    core.accumulator.adopt(sent, 1)
    core.accumulator.resume(sent, core.now_ms)
    (again,) = core.poll()
    core.respond(again, answer(code=Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
    (first,) = [request for _ in range(3) for request in core.poll(200.0)]
    assert payloads_of(first.batches) == ["bad", "a"]
    core.respond(first, answer(code=Code.INVALID_RECORD, record_errors=((0, None),)))
    assert rest_of(core) == ["a", "b", "c", "sent"]


def test_an_express_batch_does_not_linger() -> None:
    core = Core(linger_ms=50)
    pass_by(core, "x")
    assert [payloads_of(request.batches) for request in core.poll()] == [["x"]]


def test_express_batches_expire_and_fail_like_others() -> None:
    core = Core(leaders=(-1,), delivery_timeout_ms=1_000.0, request_timeout_ms=500.0)
    pass_by(core, "x")
    core.append("a")
    core.poll(1_001.0)
    core.poll()
    assert sorted(payloads_of(core.decided)) == ["a", "x"]
    assert {batch.code for batch in core.decided} == {LocalCode.EXPIRED}
    assert not core.accumulator.batches_of(TOPIC)


def test_a_deleted_topic_fails_express_too() -> None:
    core = Core(leaders=(-1,))
    pass_by(core, "x")
    core.append("a")
    core.sender.fail_partitions(TOPIC, None, Code.UNKNOWN_TOPIC_OR_PARTITION, "deleted", core.now_ms)
    core.poll()
    assert sorted(payloads_of(core.decided)) == ["a", "x"]


# --- small batches beside a backlog ---------------------------------------------------------------------------------

QUIET_TOPIC = "quiet"


def beside_a_backlog(each: int = 5, **settings: object) -> Core:
    """Five partitions with so many full batches, and a topic that has none."""
    core = large_batches(leaders=(1,) * 5, **settings)
    core.snapshot = snapshot_of({TOPIC: (1,) * 5, QUIET_TOPIC: (1,)}, version=2)
    core.accumulator.follow(core.snapshot, core.now_ms)
    for partition in range(5):
        backlog(core, *range(each), partition=partition)
    return core


def kinds_of(core: Core, polls: int = 5) -> list[bool]:
    return [request.is_quick for _ in range(polls) for request in core.poll()]


def test_a_small_batch_does_not_wait_for_the_backlog_of_other_partitions() -> None:
    core = beside_a_backlog(3)
    core.poll()
    core.append("quiet", topic=QUIET_TOPIC)
    sent = [payloads_of(request.batches) for _ in range(2) for request in core.poll()]
    assert ["quiet"] in sent[:2], "in a request of its own, and not behind all partitions"


def test_the_rest_of_a_topic_s_own_load_is_not_small() -> None:
    """A client alone has its places: it stands beside nobody."""
    core = beside_a_backlog(connections_per_broker=1)
    core.append("rest", partition=0, record_bytes=10)
    assert kinds_of(core) == [False] * core.config.max_in_flight_requests_per_connection
    core.clock.advance(FULL_MS)
    core.append("later", topic=QUIET_TOPIC)
    assert core.accumulator.queue(QUIET_TOPIC, core.lane, 0).is_quick


def test_a_backlog_has_few_requests_unanswered_next_to_small_ones() -> None:
    core = beside_a_backlog(connections_per_broker=1)
    core.append("quiet", topic=QUIET_TOPIC)
    kinds = kinds_of(core)
    assert (kinds.count(False), kinds.count(True)) == (BULK_SHARING, 1)


def test_beside_a_backlog_the_first_connection_is_for_small_ones() -> None:
    core = beside_a_backlog(connections_per_broker=2)
    before = [request for _ in range(2) for request in core.poll()]
    core.append("quiet", topic=QUIET_TOPIC)
    sent = [request for _ in range(8) for request in core.poll()]
    assert [payloads_of(request.batches) for request in sent if request.node_id == 1] == [["quiet"]]
    at_second = [request for request in sent if request.node_id == second_of(1)]
    assert len(at_second) == core.config.max_in_flight_requests_per_connection, (
        "as many as without small ones"
    )
    on_the_way = {batch.queue for request in before for batch in request.batches}
    assert not on_the_way & {batch.queue for request in at_second for batch in request.batches}


def test_a_partition_s_express_batch_goes_by_the_first_when_its_others_have_their_answer() -> None:
    core = beside_a_backlog(connections_per_broker=2)
    core.append("quiet", topic=QUIET_TOPIC)
    sent = [request for _ in range(8) for request in core.poll()]
    request = next(request for request in sent if request.node_id == second_of(1))
    partition = request.batches[0].queue.partition
    pass_by(core, "express", partition=partition)
    assert core.poll() == []
    for each in sent:
        if partition in {batch.queue.partition for batch in each.batches if batch.queue.topic == TOPIC}:
            core.acknowledge(each)
    later = [request for _ in range(8) for request in core.poll()]
    assert [payloads_of(request.batches) for request in later if request.node_id == 1] == [["express"]]


def test_a_second_connection_is_asked_for_next_to_a_backlog_and_nothing_waits_for_it() -> None:
    core = beside_a_backlog(connections_per_broker=2)
    core.links.down.add(second_of(1))
    core.append("quiet", topic=QUIET_TOPIC)
    kinds = kinds_of(core)
    assert set(core.of(Connect)) == {Connect(second_of(1))}
    assert (kinds.count(False), kinds.count(True)) == (BULK_SHARING, 1)


def test_without_its_second_connection_a_broker_has_turns_again() -> None:
    core = beside_a_backlog(connections_per_broker=2)
    core.append("quiet", topic=QUIET_TOPIC)
    sent = [request for _ in range(8) for request in core.poll()]
    core.links.down.add(second_of(1))
    core.sender.on_disconnect(second_of(1), core.now_ms)
    for request in sent:
        if request.node_id == 1:
            core.acknowledge(request)
    core.clock.advance(1_000)  # the backoff of those that were lost with it
    core.append("later", topic=QUIET_TOPIC)
    later = [request for _ in range(8) for request in core.poll()]
    assert {request.node_id for request in later} == {1}
    assert [request.is_quick for request in later].count(False) == BULK_SHARING


def test_some_time_after_the_last_small_one_the_backlog_has_all_places() -> None:
    core = beside_a_backlog(connections_per_broker=1)
    core.append("quiet", topic=QUIET_TOPIC)
    beside = [request for _ in range(5) for request in core.poll()]
    core.clock.advance(SHARING_MS)
    for request in beside:
        core.acknowledge(request)
    assert kinds_of(core) == [False] * core.config.max_in_flight_requests_per_connection


def test_some_time_after_the_last_small_one_both_connections_are_for_all() -> None:
    core = beside_a_backlog(connections_per_broker=2)
    core.append("quiet", topic=QUIET_TOPIC)
    sent = [request for _ in range(8) for request in core.poll()]
    assert core.accumulator.schedule.apart == {1}
    core.clock.advance(SHARING_MS)
    for request in sent[:2]:
        core.acknowledge(request)
    assert core.poll()
    lines = core.accumulator.schedule
    assert (lines.apart, set(lines.widened)) == (set(), {1})
    for request in sent[2:]:
        core.acknowledge(request)
    assert {request.node_id for _ in range(8) for request in core.poll()} == {1, second_of(1)}


def test_connections_with_nothing_in_flight_are_divided_once() -> None:
    """They would be one again at each poll between two small ones, and divided again by the next."""
    core = beside_a_backlog(connections_per_broker=2)
    core.append("quiet", topic=QUIET_TOPIC)
    sent = [request for _ in range(8) for request in core.poll()]
    for request in sent:
        core.acknowledge(request)
    core.append("more", topic=QUIET_TOPIC)
    assert core.poll()
    assert set(core.accumulator.schedule.widened) == core.accumulator.schedule.apart == {1}


def test_a_backlog_continues_next_to_a_stream_of_small_batches() -> None:
    """Small ones never keep the others out, nor the other way round."""
    core = beside_a_backlog(max_in_flight_requests_per_connection=1)
    kinds: list[bool] = []
    for number in range(12):
        core.append(number, topic=QUIET_TOPIC, record_bytes=10)
        (request,) = core.poll()
        kinds.append(request.is_quick)
        core.acknowledge(request)
    assert kinds.count(True) == kinds.count(False) == 6


def test_without_a_backlog_small_and_full_batches_share_a_request() -> None:
    core = Core(leaders=(1, 1), batch_size=200, max_request_size=4_000)
    core.append("full", partition=0, record_bytes=LARGE)
    core.append("small", partition=1)
    assert [len(request.batches) for request in core.poll()] == [2]


def test_a_small_batch_of_a_topic_with_other_acks_does_not_wait_for_ever() -> None:
    """One request has one acks, and full batches of another topic are there whenever one may go."""
    core = Core(
        lane=PLAIN_LANE,
        enable_idempotence=False,
        acks=1,
        rules={QUIET_TOPIC: {"acks": "0"}},
        batch_size=200,
        max_request_size=4_000,
        max_in_flight_requests_per_connection=1,
    )
    core.snapshot = snapshot_of({TOPIC: (1,), QUIET_TOPIC: (1,)}, version=2)
    backlog(core, 0)
    (request,) = core.poll()
    core.append("quiet", topic=QUIET_TOPIC)
    acks = []
    for number in range(1, 5):
        backlog(core, number)
        core.acknowledge(request)
        (request, *_) = sent = core.poll()
        acks += [each.acks for each in sent]
    assert 0 in acks


@pytest.mark.parametrize("in_flight", [1, 5])
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_each_client_s_records_keep_their_order(in_flight: int, data: st.DataObject) -> None:
    """Whatever is refused for now, answered late, or split. A client changes from bulk to express only with nothing
    left there, and back at any time."""
    core = Core(
        leaders=(1, 1),
        batch_size=200,
        max_request_size=400,
        max_in_flight_requests_per_connection=in_flight,
    )
    left_in_bulk: dict[int, int] = dict.fromkeys(range(3), 0)
    bulk: set[tuple[int, int]] = set()
    log: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    numbers = dict.fromkeys(range(3), 0)
    open_requests = []

    def settle() -> None:
        for batch in core.decided:
            assert batch.code == 0
            for payload in batch.records.payloads:  # type: ignore[attr-defined]
                if payload in bulk:
                    left_in_bulk[payload[0]] -= 1
        core.decided.clear()

    for _ in range(data.draw(st.integers(5, 40))):
        client, partition = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 1))
        payload = client, numbers[client]
        numbers[client] += 1
        if client and not left_in_bulk[client] and data.draw(st.booleans()):
            pass_by(core, payload, partition=partition)
        else:
            bulk.add(payload)
            left_in_bulk[client] += 1
            core.append(payload, partition=partition)
        open_requests += core.poll(data.draw(st.sampled_from((0.0, 1.0, 200.0))))
        while open_requests and data.draw(st.booleans()):
            _answer(core, open_requests.pop(0), log, is_refused=data.draw(st.booleans()))
            open_requests += core.poll()
        settle()
    for _ in range(500):
        while open_requests:
            _answer(core, open_requests.pop(0), log, is_refused=False)
        open_requests += core.poll(200.0)
        settle()
        if not core.accumulator.incomplete:
            break
    assert sorted(payload for each in log.values() for payload in each) == sorted(
        (client, number) for client, count in numbers.items() for number in range(count)
    )
    for each in log.values():
        for client in numbers:
            own = [number for of, number in each if of == client]
            assert own == sorted(own)


def _answer(core: Core, request: object, log: dict[int, list[tuple[int, int]]], *, is_refused: bool) -> None:
    """As a broker: what follows a refused batch is out of order."""
    results = []
    for batch in request.batches:  # type: ignore[attr-defined]
        sequences = batch.queue.sequences
        is_next = sequences is not None and sequences.in_flight and sequences.in_flight[0] is batch
        if is_refused:
            results.append(answer(batch.partition, Code.NOT_ENOUGH_REPLICAS))
        elif not is_next:
            results.append(answer(batch.partition, Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
        else:
            log[batch.partition] += batch.records.payloads
            results.append(answer(batch.partition))
    core.respond(request, *results)  # type: ignore[arg-type]
