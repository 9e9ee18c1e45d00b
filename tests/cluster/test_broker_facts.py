"""Goal: every row of docs/broker-facts.md holds on the broker we test with; adoption is built on them.

"A" and "B" are two connections with one identity. A change of Kafka that breaks a row here breaks a promise of ours.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import ClassVar

import pytest
from confluent_kafka import OFFSET_BEGINNING

from sidecar.protocol.init_producer_id import InitProducerIdResult
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.reading import iterate_messages
from sidecar.tools.testing.waiting import wait_until

from .raw_producer import Answer, RawProducer

pytestmark = [pytest.mark.kafka, pytest.mark.process]

TOPIC = "facts"
PARTITIONS = 40
OUT_OF_ORDER = 45
INVALID_EPOCH = 47
COORDINATOR_LOAD_IN_PROGRESS = 14
YEAR_2013_MS = 1_375_000_000_000

Identity = tuple[int, int]


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaCluster]:
    """It looks twice a second for producers to forget, by its default age of a day."""
    with KafkaCluster(
        light=True,
        topics={TOPIC: PARTITIONS},
        properties={"producer.id.expiration.check.interval.ms": "500"},
    ) as cluster:
        yield cluster


class Room:
    """A partition that no other test uses."""

    answers: ClassVar[list[InitProducerIdResult]] = []
    """To every InitProducerId, from the broker's first one on."""

    def __init__(self, broker: KafkaCluster, partition: int) -> None:
        self._broker = broker
        self.partition = partition
        self._open: list[RawProducer] = []
        self.identity: Identity = wait_until(self._identity, "a producer id")

    def connect(self, partition: int | None = None) -> RawProducer:
        where = self.partition if partition is None else partition
        self._open.append(RawProducer(self._broker.bootstrap_servers, TOPIC, where))
        return self._open[-1]

    def log(self) -> list[bytes]:
        # Not from 0: one test deletes what is in its partition.
        first = dict.fromkeys(range(PARTITIONS), OFFSET_BEGINNING)
        messages = iterate_messages(self._broker.bootstrap_servers, TOPIC, start=first)
        return [message.value() for message in messages if message.partition() == self.partition]

    def wait_forgotten(self) -> None:
        with RawProducer(self._broker.bootstrap_servers, TOPIC, self.partition) as asker:
            wait_until(lambda: self.identity[0] not in asker.describe(), "the producer id to be forgotten")

    def close(self) -> None:
        for each in self._open:
            each.close()

    def _identity(self) -> Identity | None:
        told = self.connect().init_producer_id()
        self.answers.append(told)
        return None if told.error_code else (told.identity.producer_id, told.identity.epoch)


_partitions = itertools.count(0, 2)
"""Every other one: the next is for tests that need two."""


@pytest.fixture
def room(broker: KafkaCluster) -> Iterator[Room]:
    made = Room(broker, next(_partitions))
    yield made
    made.close()


def appended(*offsets: int) -> list[Answer]:
    return [Answer(0, offset) for offset in offsets]


def s(number: int) -> bytes:
    return b"s%d" % number


def produce(by: RawProducer, room: Room, *numbers: int) -> list[Answer]:
    return [by.produce(room.identity, number, s(number)) for number in numbers]


def test_unread_answer_is_recognised(room: Room) -> None:
    """A sent 0 and never read its answer; B sends it again."""
    a, b = room.connect(), room.connect()
    a.send(room.identity, 0, s(0))
    wait_until(lambda: room.identity[0] in b.describe(), "A's batch to be there")
    assert produce(b, room, 0, 1) == appended(0, 1)
    assert room.log() == [s(0), s(1)]


def test_half_a_request_completed_late(room: Room) -> None:
    a, b = room.connect(), room.connect()
    request = a.request(room.identity, 0, s(0))
    a.send_bytes(request[:60])
    assert produce(b, room, 0, 1) == appended(0, 1)
    a.send_bytes(request[60:])
    assert a.answer() == Answer(0, 0)
    assert room.log() == [s(0), s(1)]


def test_a_writer_that_was_thought_dead(room: Room) -> None:
    """Why nobody touches a slot before its owner is dead: its next sequence takes ours."""
    a, b = room.connect(), room.connect()
    assert produce(b, room, *range(8)) == appended(*range(8))
    assert produce(a, room, 0)[0].code == OUT_OF_ORDER
    assert a.produce(room.identity, 8, b"other") == Answer(0, 8)
    assert produce(b, room, 8) == appended(8), "dropped without a word"
    assert room.log() == [*map(s, range(8)), b"other"]


@pytest.mark.parametrize("size", [1, 10])
def test_the_last_five_are_recognised(room: Room, size: int) -> None:
    a, b = room.connect(), room.connect()
    batches = [[b"%d.%d" % (batch, index) for index in range(size)] for batch in range(8)]

    def all_by(writer: RawProducer) -> list[Answer]:
        return [writer.produce(room.identity, batch * size, *values) for batch, values in enumerate(batches)]

    assert all_by(a) == appended(*range(0, 8 * size, size))
    again = all_by(b)
    assert [answer.code for answer in again] == [OUT_OF_ORDER] * 3 + [0] * 5
    assert again[3:] == appended(*range(3 * size, 8 * size, size))
    assert b.produce(room.identity, 8 * size, b"next") == Answer(0, 8 * size)
    assert room.log() == [*itertools.chain(*batches), b"next"]


def test_only_range_and_count_are_compared(room: Room) -> None:
    a, b = room.connect(), room.connect()
    assert a.produce(room.identity, 0, s(0), s(1), s(2)) == Answer(0, 0)
    assert a.produce(room.identity, 3, s(3), s(4), s(5)) == Answer(0, 3)
    wrong = [(3, 2), (3, 4), (4, 2), (0, 6), (9, 1)]
    codes = [b.produce(room.identity, first, *[b"x"] * count).code for first, count in wrong]
    assert codes == [OUT_OF_ORDER] * len(wrong)
    assert b.produce(room.identity, 3, b"x", b"y", b"z") == Answer(0, 3), "other content, dropped"
    assert b.produce(room.identity, 6, s(6)) == Answer(0, 6)
    assert room.log() == [s(number) for number in range(7)]


def test_another_codec_is_the_same_batch(room: Room) -> None:
    a, b = room.connect(), room.connect()
    assert produce(a, room, 0) == appended(0)
    assert b.produce(room.identity, 0, s(0), packed=True) == Answer(0, 0)
    assert room.log() == [s(0)]


def forgotten(room: Room, count: int = 3) -> RawProducer:
    """A producer whose id the broker has forgotten, with ``count`` records in the log."""
    a = room.connect()
    for number in range(count):
        answer = a.produce(room.identity, number, s(number), at_ms=YEAR_2013_MS)
        assert answer.code == 0
    room.wait_forgotten()
    return a


def test_a_forgotten_id_takes_any_first_sequence(room: Room) -> None:
    a = forgotten(room)
    assert a.produce(room.identity, 2, s(2)) == Answer(0, 3), "doubled, and no error says so"
    assert [each.code for each in produce(a, room, 1, 3)] == [OUT_OF_ORDER, 0]
    assert room.log() == [s(0), s(1), s(2), s(2), s(3)]


def test_all_sent_again_in_order_are_all_doubled(room: Room) -> None:
    a = forgotten(room)
    assert produce(a, room, 0, 1, 2) == appended(3, 4, 5)
    assert room.log() == [s(0), s(1), s(2)] * 2


def test_a_gap_is_taken_and_the_owed_record_refused(room: Room) -> None:
    a = forgotten(room)
    assert [each.code for each in produce(a, room, 9, 3)] == [0, OUT_OF_ORDER]


def test_unknown_ids_and_partitions_take_any_first_sequence(room: Room) -> None:
    a, other = room.connect(), room.connect(room.partition + 1)
    assert a.produce((987_654_321, 0), 5, b"x").code == 0
    assert [each.code for each in produce(other, room, 7, 8, 0)] == [0, 0, OUT_OF_ORDER]


def test_memory_goes_by_the_records_own_timestamps(room: Room) -> None:
    """Stamped long ago: forgotten at the next look. Stamped now: still known when the other one is not."""
    now = room.connect(room.partition + 1)
    assert produce(now, room, 0) == appended(0)
    a = forgotten(room, 1)
    assert produce(a, room, 0) == appended(1), "doubled"
    assert produce(now, room, 0) == appended(0), "recognised"


def test_deleted_records_are_not_forgotten(room: Room, broker: KafkaCluster) -> None:
    a = room.connect()
    assert produce(a, room, 0, 1) == appended(0, 1)
    broker.admin().delete_records(TOPIC, room.partition)
    assert produce(a, room, 1, 2) == appended(1, 2)


def test_epochs_fence_by_partition(room: Room) -> None:
    a, other = room.connect(), room.connect(room.partition + 1)
    assert produce(a, room, 0) == produce(other, room, 0) == appended(0)
    later = (room.identity[0], room.identity[1] + 1)
    assert a.produce(later, 0, b"new") == Answer(0, 1)
    assert other.produce(room.identity, 1, s(1)) == Answer(0, 1), "this partition has not seen the new epoch"
    assert produce(a, room, 1)[0].code == INVALID_EPOCH
    assert other.produce(later, 5, b"x").code == OUT_OF_ORDER
    assert other.produce(later, 0, s(0)) == Answer(0, 2), "the old epoch's batch under the new one: doubled"


def test_seven_pipelined_again(room: Room) -> None:
    a, b = room.connect(), room.connect()
    assert produce(a, room, *range(7)) == appended(*range(7))
    for number in range(7):
        b.send(room.identity, number, s(number))
    assert [b.answer().code for _ in range(7)] == [OUT_OF_ORDER] * 2 + [0] * 5
    assert room.log() == [s(number) for number in range(7)]


def test_a_lost_sequence_loses_the_record(room: Room) -> None:
    a = room.connect()
    assert produce(a, room, 0) == appended(0)
    assert a.produce(room.identity, 0, b"new") == Answer(0, 0), "success for a record that is not there"
    assert room.log() == [s(0)]


@pytest.mark.parametrize(("count", "size"), [(5, 900_000), (200, 10)])
def test_a_killed_writers_records_may_or_may_not_arrive(room: Room, count: int, size: int) -> None:
    a, b = room.connect(), room.connect()
    values = [b"%05d" % number + bytes(size - 5) for number in range(count)]
    for number, value in enumerate(values):
        a.send(room.identity, number, value)
    a.reset()
    # Nobody knows how many; but what arrived is a beginning, and the first five sent again complete it.
    for number, value in enumerate(values[:5]):
        answer = b.produce(room.identity, number, value)
        assert answer.code == 0 or (answer.code == OUT_OF_ORDER and count > 5)
    found = room.log()
    assert found == values[: len(found)]
    assert len(found) >= 5


def test_describe_producers_gives_the_last_sequence(room: Room) -> None:
    a = room.connect()
    assert a.describe() == {}
    produce(a, room, 0, 1, 2)
    assert a.describe()[room.identity[0]].last_sequence == 2


def test_no_id_is_not_idempotent(room: Room) -> None:
    """COORDINATOR_LOAD_IN_PROGRESS right after a start gives the id -1: records under it are doubled."""
    a, b = room.connect(), room.connect()
    nobody = (-1, -1)
    answers = [by.produce(nobody, -1, b"x") for by in (a, b)]
    assert answers == appended(0, 1)


def test_an_error_comes_with_no_id(room: Room) -> None:
    """The first ones after a broker's start may be refused with 14; asking again gets an id."""
    assert Room.answers
    for told in Room.answers:
        assert told.error_code in {0, COORDINATOR_LOAD_IN_PROGRESS}
        assert (told.error_code == 0) == told.identity.is_valid
