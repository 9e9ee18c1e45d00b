"""Goal: a worker may die after any single store of a stage's life, and after any of the adoption that follows.

Three stages are filled submission by submission, two are included, and the third is left out and dropped. After each
death the clients come back and ask again for what they were not told. All records of both are there once and in order,
nothing of the third is, and nothing is left anywhere.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.producer.transaction_states import TransactionState
from sidecar.shm import layout
from sidecar.shm.client_table import ClientTable
from sidecar.shm.recovery import describe_undelivered
from sidecar.shm.segment import Segment
from sidecar.shm.stage_states import StageRowState
from tests.reading_back import row_of

from .slot_harness import MemoryBroker, SlotHarness
from .stage_harness import Includer, Stager, know_topic, ledger, send_all, step
from .store_recorder import StoreRecorder

INCLUDER: Final = b"i" * 20


class Plan(NamedTuple):
    """What the clients do."""

    submissions: tuple[tuple[str, int], ...]
    """(stage, records), in this order."""
    included: str
    """The stages that are included; the others are dropped."""
    own: int = 2
    """Records of each of the transaction's own two submissions."""
    is_silent: bool = False
    """The broker does not answer at first."""

    @property
    def names(self) -> list[str]:
        return sorted({name for name, _ in self.submissions})

    def of(self, name: str) -> list[list[bytes]]:
        """The values of a stage, by submission."""
        counts = [count for each, count in self.submissions if each == name]
        return [
            [b"%s%d.%d" % (name.encode(), number, index) for index in range(count)]
            for number, count in enumerate(counts)
        ]

    def records(self, names: Iterable[str]) -> int:
        return sum(len(values) for name in names for values in self.of(name))


THREE: Final = Plan((("a", 3), ("b", 3), ("x", 3)) * 3, "ab")
"""Three stages, submission by submission; the third is left out."""


@dataclass
class Told:
    """What the clients know."""

    secrets: dict[str, bytes] = field(default_factory=dict)
    tokens: dict[str, bytes] = field(default_factory=dict)
    is_included: bool = False
    is_dropped: bool = False


class StageWorld:
    """Segment, broker and clients; a worker lives in it until it dies, then the next one does."""

    def __init__(self, segment: Segment, plan: Plan) -> None:
        self.segment, self.plan = segment, plan
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
        self.broker.is_silent = self.plan.is_silent
        self.go_on()

    def finish(self) -> None:
        """A worker takes over, and the clients come back."""
        self.begin()
        self.broker.is_silent = False
        self.go_on()

    def go_on(self) -> None:
        """The clients do what is left to do."""
        harness = self.harness
        self.fill()
        includer = Includer(harness, INCLUDER, self.secret("i", INCLUDER))
        self.told.secrets["i"] = includer.session.row.secret
        self.send_own(includer, 1)
        if not self.told.is_included:
            tokens = [self.told.tokens[name] for name in self.plan.included]
            answer = includer.include(*tokens, request=1)
            assert answer[0] == 0 and answer[3][0] == self.plan.records(self.plan.included)
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
            left_out = [self.told.tokens[name] for name in self.plan.names if name not in self.plan.included]
            includer.drop(left_out)
            self.told.is_dropped = True
        manager = includer.lane.manager
        manager.state, manager._in_flight = TransactionState.READY, None  # as the coordinator's answer has it
        harness.rooms.brokers.transactions._step_lane(includer.lane, harness.now_ms)
        step(harness)

    def fill(self) -> None:
        """Fill and seal the stages of which no token is known."""
        stagers = {name: self.stager(name) for name in self.plan.names if name not in self.told.tokens}
        for stager in stagers.values():
            stager.open(1)
        seen: dict[str, int] = {}
        for name, _ in self.plan.submissions:
            number = seen[name] = seen.get(name, 0) + 1
            if name in stagers:
                stream = stagers[name].session.streams.get(1)
                if stream is None or stream.position < number:
                    values = self.plan.of(name)[number - 1]
                    assert stagers[name].send(1, values, [index % 2 for index in range(len(values))])
        for name, stager in stagers.items():
            token = stager.seal(1, records=self.plan.records(name))
            assert token, stager.told
            self.told.tokens[name] = token

    def send_own(self, includer: Includer, number: int) -> None:
        """A submission of the transaction's own, unless the journal has it."""
        stream = includer.session.streams.get(1)
        if self.plan.own and (stream is None or stream.position < number):
            values = [b"o%d.%d" % (number, index) for index in range(self.plan.own)]
            partitions: list[int | None] = [index % 2 for index in range(self.plan.own)]
            self.harness.accept(includer.session, values, partitions, transaction=1)

    def check(self) -> None:
        harness, plan = self.harness, self.plan
        own = [[b"o%d.%d" % (number, index) for index in range(plan.own)] for number in (1, 2)]
        for partition in (0, 1):
            log = self.broker.log.get(partition, [])
            for name in [*plan.names, "o"]:
                sent = own if name == "o" else plan.of(name) if name in plan.included else []
                expected = [value for values in sent for value in values[partition::2]]
                assert [value for value in log if value.startswith(name.encode())] == expected, log
        left_out = plan.records(set(plan.names) - set(plan.included))
        delivered = plan.records(plan.included) + 2 * plan.own
        expected_ledger = {"accepted": delivered + left_out, "delivered": delivered, "aborted": left_out}
        assert ledger(harness) == {name: value for name, value in expected_ledger.items() if value}
        assert all(row.state is StageRowState.ENDED for row in harness.rooms.memory.stages)
        assert describe_undelivered(harness.segment) == []
        assert list(harness.descriptors) == []
        assert all(session.unsettled_records == 0 for session in harness.sessions.by_row.values())
        row = row_of(ClientTable(self.segment), INCLUDER)
        assert row is not None
        includer = harness.sessions.of_row(row.index)
        assert includer is not None
        harness.acknowledge(includer)
        harness.release_idle()
        assert harness.pool.taken_count == 0


def answer_inquiries(harness: SlotHarness) -> None:
    inquiry = harness.rooms.brokers.inquiry
    for queue in list(inquiry.unanswered):
        inquiry._answered(queue, harness.broker.describe(queue.partition))


def new_segment(path: Path) -> Segment:
    return Segment.create(
        path, page_bytes=4096, buffer_memory_bytes=64 << 10, clients_max=8, instance_id=b"test"
    )


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    made = new_segment(tmp_path / "segment")
    yield made
    made.close()


def windows_of_stages(segment: Segment) -> list[tuple[int, int]]:
    places = segment.layout
    slot = places.slot(0)
    clients = [(places.client(row), places.client(row) + layout.CLIENT_ROW_BYTES) for row in range(6)]
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
    other = StageWorld(world.segment, world.plan)
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
    world = StageWorld(segment, THREE._replace(is_silent=is_silent))
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
    world = StageWorld(segment, THREE._replace(is_silent=is_silent))
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


PLANS = st.builds(
    Plan,
    submissions=st.lists(st.tuples(st.sampled_from("abxy"), st.integers(1, 5)), min_size=2, max_size=10).map(
        tuple
    ),
    included=st.just(""),
    own=st.integers(0, 3),
    is_silent=st.booleans(),
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any stages, interleaved anyhow, of which any are included."""
    plan = draw(PLANS)
    return plan._replace(included="".join(name for name in plan.names if draw(st.booleans())))


def any_history(folder: Path, plan: Plan, random_: random.Random, deaths: int) -> None:
    path = folder / f"any-{random_.randrange(1 << 40)}"
    segment = new_segment(path)
    try:
        world = StageWorld(segment, plan)
        with recorded(world) as recorder:
            world.live()
        world.check()
        step = max(1, len(recorder) // deaths)
        inherit(world, recorder, step=step, start=random_.randrange(step))
    finally:
        segment.close()
        path.unlink()


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(plan=plans(), random_=st.randoms(use_true_random=False))
def test_any_history_of_stages(
    tmp_path_factory: pytest.TempPathFactory, plan: Plan, random_: random.Random
) -> None:
    any_history(tmp_path_factory.getbasetemp(), plan, random_, deaths=10)


@pytest.mark.long
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(plan=plans(), random_=st.randoms(use_true_random=False))
def test_any_history_of_stages_for_long(
    tmp_path_factory: pytest.TempPathFactory, plan: Plan, random_: random.Random
) -> None:
    any_history(tmp_path_factory.getbasetemp(), plan, random_, deaths=40)
