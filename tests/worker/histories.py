"""Small histories of one worker, one client and one broker, and the ledger that all of them must end in."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from client_stub.contract.wire import LocalCode, Outcome, OutcomeKind, Persistence, Shape
from sidecar.shm.client_table import ClientTable
from sidecar.shm.recovery import describe_undelivered
from sidecar.shm.segment import Segment
from tests.outcomes import unpack_outcomes
from tests.reading_back import row_of, stream_position

from .slot_harness import CLIENT_ID, MemoryBroker, SlotHarness

Step = tuple[str, int]
"""The next event, and a number for it:

- accept n: a submission of n records; astray n: the second of n names a partition that is not there;
- metadata; turn n: so many turns; refuse code: partition 0's next batch gets it;
- deaf and hears: the broker appends and does not answer; answers again; cut: the connection is lost;
- limit n: batches of more than n records are too large from now on; ack: the client has read its outcomes;
- late: max.block.ms has passed; idle: idle chains give back their last page.
"""


@dataclass
class Stub:
    """The client's side: what it sends again after a death, and what it was told."""

    secret: bytes | None = None
    told: dict[tuple[int, int], set[tuple[int, int, int]]] = field(default_factory=dict)
    """(seq, record index) → the (code, persistence, offset) it was told; the first one completed the future."""

    def hear(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.shape == Shape.RANGE:
                indexes = list(range(outcome.first_index, outcome.first_index + outcome.count))
            elif outcome.shape == Shape.BITMAP:
                bits = int.from_bytes(outcome.indexes, "little")
                indexes = [outcome.first_index + i for i in range(bits.bit_length()) if bits >> i & 1]
            else:
                data = outcome.indexes
                indexes = [int.from_bytes(data[i : i + 2], "little") for i in range(0, len(data), 2)]
            for place, index in enumerate(indexes):
                offset = outcome.base_offset + place if outcome.base_offset >= 0 else -1
                code = outcome.code if outcome.kind == OutcomeKind.FAILED else 0
                self.told.setdefault((outcome.seq, index), set()).add((code, outcome.persistence, offset))


class World:
    """Segment, broker and client; a worker lives in it until it dies, then the next one does."""

    def __init__(self, segment: Segment, steps: list[Step]) -> None:
        self.segment = segment
        self.steps = steps
        self.broker = MemoryBroker()
        self.stub = Stub()
        self.harness: SlotHarness | None = None
        self.submissions: list[tuple[list[bytes], list[int | None]]] = []
        for name, number in steps:
            if name in ("accept", "astray"):
                self.submissions.append(_submission(len(self.submissions), number, name == "astray"))

    def outside(self) -> tuple[MemoryBroker, Stub]:
        return copy.deepcopy((self.broker, self.stub))

    def version(self) -> object:
        broker, stub = self.broker, self.stub
        return broker.version, stub.secret, len(stub.told)

    @property
    def may_expire(self) -> bool:
        """Whether a life is long enough for a record that nobody sends to reach its delivery.timeout.ms."""
        assert self.harness is not None
        lates = sum(name == "late" for name, _ in self.steps)
        return lates * self.harness.config.max_block_ms >= self.harness.config.delivery_timeout_ms

    def begin(self) -> SlotHarness:
        """The next worker: claims or adopts, and asks the broker."""
        segment = self.segment
        incarnation = segment.slot(0).incarnation + 1 if segment.is_slot_prepared(0) else 1
        self.harness = harness = SlotHarness(segment, self.broker, incarnation)
        harness.ask()
        return harness

    def live(self) -> None:
        """One worker goes through all steps."""
        harness = self.begin()
        session, _ = harness.attach(self.stub.secret)
        self.stub.secret = session.row.secret
        accepted = 0
        for name, number in self.steps:
            if name in ("accept", "astray"):
                harness.accept(session, *self.submissions[accepted])
                accepted += 1
            elif name == "turn":
                for _ in range(number):
                    harness.turn()
            elif name == "metadata":
                harness.know_topic()
            elif name == "refuse":
                self.broker.refuse_once = {0: number}
            elif name in ("deaf", "hears"):
                self.broker.is_silent = name == "deaf"
            elif name == "cut":
                harness.cut()
            elif name == "limit":
                self.broker.records_max = number
            elif name == "ack":
                self.read_ring()
            elif name == "late":
                harness.now_ms += harness.config.max_block_ms
                harness.topics.waiting.expire(harness.now_ms)
            elif name == "idle":
                harness.release_idle()
            else:
                raise ValueError(name)

    def finish(self) -> None:
        """A worker takes over, the client comes back and sends again what was not accepted, all of it ends."""
        harness = self.begin()
        self.broker.is_silent = False
        row = row_of(ClientTable(self.segment), CLIENT_ID)
        session, known = harness.attach(self.stub.secret if row is not None else None)
        assert known == (row is not None and self.stub.secret is not None)
        self.stub.secret = session.row.secret
        position = session.streams[1].position if 1 in session.streams else 0
        for submission in self.submissions[position:]:
            harness.accept(session, *submission)
        harness.know_topic()
        for _ in range(400):
            harness.turn()
            harness.now_ms += 10.0
            self.read_ring()
            if harness.topics.waiting.entry_count:
                harness.now_ms += harness.config.max_block_ms
                harness.topics.waiting.expire(harness.now_ms)
            if harness.sender.is_idle and not harness.topics.waiting.entry_count:
                break
        else:
            raise AssertionError(f"not idle: {harness.accumulator.incomplete.oldest_first()}")
        harness.turn()

    def read_ring(self) -> None:
        assert self.harness is not None
        session = self.harness.sessions.of_row(0)
        assert session is not None
        news = session.row.ring_slice_from(session.row.acked_number + 1)
        if news is not None:
            self.stub.hear(unpack_outcomes(news[2]))
            session.row.ring_ack(news[1])
        self.harness.acker.acked(session, self.harness.now_ms)

    def check(self) -> None:
        """Every record once, in order, told once and rightly; nothing is left anywhere; the counters balance."""
        harness = self.harness
        assert harness is not None
        self.read_ring()
        harness.turn()
        log = {partition: harness.broker.log.get(partition, []) for partition in (0, 1)}
        sent: dict[int, list[bytes]] = {0: [], 1: []}
        delivered = failed = 0
        for number, (values, partitions) in enumerate(self.submissions):
            for index, (value, partition) in enumerate(zip(values, partitions, strict=True)):
                told = self.stub.told.get((number + 1, index))
                assert told, f"{value!r} was told nothing"
                assert len(told) == 1, f"{value!r} was told {told}"
                ((code, persistence, offset),) = told
                places = [(at, i) for at in log for i, found in enumerate(log[at]) if found == value]
                assert len(places) <= 1, f"{value!r} is there {len(places)} times"
                if code == 0:
                    delivered += 1
                    assert places, f"{value!r} is lost"
                    assert offset in (-1, places[0][1]), f"{value!r} is at {places[0]}, told {offset}"
                else:
                    failed += 1
                    assert not places or persistence != Persistence.NOT_PERSISTED, f"{value!r} told {told}"
                    may_fail = partition == 77 or (code == LocalCode.EXPIRED and self.may_expire)
                    assert may_fail or persistence == Persistence.POSSIBLY_PERSISTED, f"{value!r} told {told}"
                if places:
                    assert partition == places[0][0]
                    sent[partition].append(value)
        assert log == sent, "order"
        counters = harness.counters.read()
        told_counts = (counters["records_delivered_total"], counters["records_failed_total"])
        assert told_counts == (delivered, failed)
        assert counters["records_accepted_total"] == delivered + failed
        assert (counters["records_dead_lettered_total"], counters["records_held"]) == (0, 0)
        assert describe_undelivered(harness.segment) == []
        assert list(harness.descriptors) == []
        assert all(session.unsettled_records == 0 for session in harness.sessions.by_row.values())
        row = row_of(ClientTable(self.segment), CLIENT_ID)
        assert row is not None
        assert stream_position(row, 1) in (len(self.submissions), None)
        harness.release_idle()
        assert not any(harness.segment.owners.cast("Q").tolist()), "every page is back"
        assert harness.pool.taken_count == 0


def _submission(number: int, count: int, astray: bool) -> tuple[list[bytes], list[int | None]]:
    values = [b"%d.%d" % (number, i) for i in range(count)]
    partitions: list[int | None] = [(number + i) % 2 for i in range(count)]
    if astray:
        partitions[min(1, count - 1)] = 77
    return values, partitions
