"""Goal: a worker may die after any single store of a stage's life, and after any of the adoption that follows.

Three stages are filled submission by submission, two are included, and the third is left out and dropped. After each
death the clients come back and ask again for what they were not told. All records of both are there once and in order,
nothing of the third is, and nothing is left anywhere.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgpack
import pytest

from client_stub.contract.wire import Kind
from sidecar.producer.transaction_states import TransactionState
from sidecar.shm import layout
from sidecar.shm.client_table import ClientTable
from sidecar.shm.recovery import describe_undelivered
from sidecar.shm.segment import Segment
from sidecar.shm.stage_states import StageRowState
from tests.reading_back import row_of

from .slot_harness import MemoryBroker, SlotHarness
from .stage_harness import ID, Includer, Stager, know_topic, ledger, messages, send_all, step
from .store_recorder import StoreRecorder

NAMES: Final = ("a", "b", "x")
SUBMISSIONS: Final = 3
INCLUDER: Final = b"i" * 20


def values_of(name: str, submission: int) -> list[bytes]:
    return [b"%s%d.%d" % (name.encode(), submission, index) for index in range(3)]


@dataclass
class Told:
    """What the clients know."""

    secrets: dict[str, bytes] = field(default_factory=dict)
    tokens: dict[str, bytes] = field(default_factory=dict)
    is_included: bool = False
    is_dropped: bool = False


class StageWorld:
    """Segment, broker and clients; a worker lives in it until it dies, then the next one does."""

    def __init__(self, segment: Segment, *, is_silent: bool) -> None:
        self.segment = segment
        self.is_silent = is_silent
        """The broker does not answer at first."""
        self.broker, self.told = MemoryBroker(), Told()
        self.harness: SlotHarness

    def outside(self) -> tuple[MemoryBroker, Told]:
        return copy.deepcopy((self.broker, self.told))

    def version(self) -> object:
        told = self.told
        return self.broker.version, len(told.secrets), len(told.tokens), told.is_included, told.is_dropped

    def begin(self) -> SlotHarness:
        segment = self.segment
        incarnation = segment.slot(0).incarnation + 1 if segment.is_slot_prepared(0) else 1
        self.harness = harness = SlotHarness(segment, self.broker, incarnation)
        harness.ask()
        harness.rooms.lanes.adopted(harness.now_ms)
        harness.rooms.stages.adopted(harness.now_ms)
        know_topic(harness)
        return harness

    def secret(self, name: str, client_id: bytes) -> bytes | None:
        row = row_of(ClientTable(self.segment), client_id)
        return None if row is None else self.told.secrets.get(name)

    def stager(self, name: str) -> Stager:
        client_id = name.encode() * 20
        stager = Stager(self.harness, client_id, self.secret(name, client_id))
        self.told.secrets[name] = stager.session.row.secret
        stager._streams["t"] = 1
        return stager

    def live(self) -> None:
        """One worker goes through all."""
        self.begin()
        self.broker.is_silent = self.is_silent
        self.go_on()

    def go_on(self) -> None:
        """The clients do what is left to do."""
        harness = self.harness
        stagers = {name: self.stager(name) for name in NAMES if name not in self.told.tokens}
        for stager in stagers.values():
            stager.open(1)
        for submission in range(SUBMISSIONS):
            for name, stager in stagers.items():
                stream = stager.session.streams.get(1)
                if stream is None or stream.position <= submission:
                    assert stager.send(1, values_of(name, submission), [0, 1, 0])
        for name, stager in stagers.items():
            token = stager.seal(1, records=3 * SUBMISSIONS)
            assert token, stager.told
            self.told.tokens[name] = token
        includer = Includer(harness, INCLUDER, self.secret("i", INCLUDER))
        self.told.secrets["i"] = includer.session.row.secret
        self.send_own(includer, 1)
        if not self.told.is_included:
            answer = includer.include(self.told.tokens["a"], self.told.tokens["b"], request=1)
            assert answer[0] == 0 and answer[3][0] == 2 * 3 * SUBMISSIONS
            self.told.is_included = True
        self.send_own(includer, 2)
        harness.topics.waiting.go_on(harness.now_ms)
        for _ in range(3):
            harness.turn()
        if self.broker.is_silent:
            self.broker.is_silent = False
            harness.cut()
        answer_inquiries(harness)
        send_all(harness)
        if not self.told.is_dropped:
            includer_drops(includer, self.told.tokens["x"])
            self.told.is_dropped = True
        manager = includer.lane.manager
        manager.state, manager._in_flight = TransactionState.READY, None  # as the coordinator's answer has it
        harness.rooms.brokers.transactions._step_lane(includer.lane, harness.now_ms)
        step(harness)

    def send_own(self, includer: Includer, number: int) -> None:
        """A submission of the transaction's own, unless the journal has it."""
        stream = includer.session.streams.get(1)
        if stream is None or stream.position < number:
            values = [b"o%d.%d" % (number, index) for index in range(2)]
            self.harness.accept(includer.session, values, [0, 1], transaction=1)

    def finish(self) -> None:
        """A worker takes over, and the clients come back."""
        self.begin()
        self.broker.is_silent = False
        self.go_on()

    def check(self) -> None:
        harness = self.harness
        for partition, indexes in ((0, (0, 2)), (1, (1,))):
            log = self.broker.log.get(partition, [])
            assert not [value for value in log if value.startswith(b"x")]
            for name in ("a", "b"):
                sent = [values_of(name, each)[index] for each in range(SUBMISSIONS) for index in indexes]
                assert [value for value in log if value.startswith(name.encode())] == sent, log
            own = [b"o%d.%d" % (number, partition) for number in (1, 2)]
            assert [value for value in log if value.startswith(b"o")] == own, log
        records = 3 * SUBMISSIONS
        assert ledger(harness) == {
            "accepted": 3 * records + 4,
            "delivered": 2 * records + 4,
            "aborted": records,
        }
        assert all(row.state is StageRowState.ENDED for row in harness.rooms.memory.stages)
        assert describe_undelivered(harness.segment) == []
        assert list(harness.descriptors) == []
        assert all(session.unsettled_records == 0 for session in harness.sessions.by_row.values())
        own_session = harness.sessions.of_row(row_of(ClientTable(self.segment), INCLUDER).index)  # type: ignore[union-attr]
        assert own_session is not None
        harness.acknowledge(own_session)
        harness.release_idle()
        assert harness.pool.taken_count == 0


def includer_drops(includer: Includer, token: bytes) -> None:

    port = includer.harness.rooms.brokers.transactions.stages
    payload = msgpack.packb([token])
    port.on_frame(includer.session, Kind.STAGES_DROP, [9, ID, None], payload, includer.harness.now_ms)
    step(includer.harness)
    messages(includer.session, Kind.STAGE)


def answer_inquiries(harness: SlotHarness) -> None:
    inquiry = harness.rooms.brokers.inquiry
    for queue in list(inquiry.unanswered):
        inquiry._answered(queue, harness.broker.describe(queue.partition))


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    made = Segment.create(
        tmp_path / "segment",
        page_bytes=4096,
        buffer_memory_bytes=64 << 10,
        clients_max=8,
        instance_id=b"test",
    )
    yield made
    made.close()


def windows_of_stages(segment: Segment) -> list[tuple[int, int]]:
    places = segment.layout
    slot = places.slot(0)
    clients = [(places.client(row), places.client(row) + layout.CLIENT_ROW_BYTES) for row in range(4)]
    return [
        (0, places.pages + places.page_bytes * places.page_count),
        (slot, slot + layout.CHAINS_OFFSET + 4 * layout.CHAIN_ROW_BYTES),
        (slot + layout.DESCRIPTORS_OFFSET, slot + layout.DESCRIPTORS_OFFSET + 40 * layout.DESCRIPTOR_BYTES),
        (slot + layout.LANES_OFFSET, slot + layout.LANES_OFFSET + 2 * layout.LANE_BYTES),
        (slot + layout.STAGES_OFFSET, slot + layout.STAGES_OFFSET + 16 * layout.STAGE_BYTES),
        (
            slot + layout.LANE_CONTENTS_OFFSET,
            slot + layout.LANE_CONTENTS_OFFSET + 2 * layout.LANE_CONTENT_BYTES,
        ),
        *clients,
    ]


def recorded(world: StageWorld) -> StoreRecorder[tuple[MemoryBroker, Told]]:
    return StoreRecorder(
        world.segment,
        version=world.version,
        copy=world.outside,
        windows=windows_of_stages(world.segment),
    )


def at(world: StageWorld, outside: tuple[MemoryBroker, Told]) -> StageWorld:
    other = StageWorld(world.segment, is_silent=False)
    other.broker, other.told = copy.deepcopy(outside)
    return other


def inherit(
    world: StageWorld, recorder: StoreRecorder[tuple[MemoryBroker, Told]], *, step: int = 1, start: int = 0
) -> int:
    number = start
    for put_back, outside in recorder.moments(step=step, start=start):
        put_back()
        heir = at(world, outside)
        try:
            heir.finish()
            heir.check()
        except Exception as error:
            raise AssertionError(
                f"death after store {number} of {len(recorder)} ({recorder.change(number)}): {error!r}"
            ) from error
        number += step
    return (number - start) // step


@pytest.mark.slow
@pytest.mark.parametrize("is_silent", [False, True])
def test_every_store_of_a_stages_life(
    segment: Segment, is_silent: bool, request: pytest.FixtureRequest
) -> None:
    world = StageWorld(segment, is_silent=is_silent)
    with recorded(world) as recorder:
        world.live()
    world.check()
    step = 1 if request.config.getoption("--long") else max(1, len(recorder) // 400)
    print(f"\n{inherit(world, recorder, step=step)} deaths at {len(recorder)} moments")


@pytest.mark.slow
@pytest.mark.parametrize("is_silent", [False, True])
def test_every_store_of_its_adoption(
    segment: Segment, is_silent: bool, request: pytest.FixtureRequest
) -> None:
    is_long = request.config.getoption("--long")
    world = StageWorld(segment, is_silent=is_silent)
    with recorded(world) as recorder:
        world.live()
    random_ = random.Random(is_silent)
    firsts = sorted(random_.sample(range(len(recorder)), 40 if is_long else 6))
    deaths = 0
    for number, (put_back, outside) in enumerate(recorder.moments()):
        if number in firsts:
            put_back()
            second = at(world, outside)
            with recorded(second) as again:
                second.finish()
            step = 1 if is_long else max(1, len(again) // 25)
            deaths += inherit(second, again, step=step, start=random_.randrange(step))
    print(f"\n{deaths} second deaths")
