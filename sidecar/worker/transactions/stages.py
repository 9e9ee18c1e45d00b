"""LaneStages: records that wait for a transaction to include them, each stage with its row in the segment.

A stage is open while its client fills it, and sealed once the journal has all of it; then it is nobody's. It ends when
the transaction that included it has ended, or when it is dropped: by a client, with the client that had it open, by
time, or for another owner's stages.

An include is a fact by the one store of the lane's record. Before that each stage's row says which transaction includes
it. A successor that finds such rows and no such record takes them for sealed, and the client asks again.
"""

from __future__ import annotations

import logging
import os
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

from client_stub.contract.wire import NO_PARTITION, LocalCode
from sidecar.common.wording import counted
from sidecar.kernel import fail_remaining
from sidecar.producer.transaction_states import TransactionState
from sidecar.shm.layout import STAGES_MAX
from sidecar.shm.stage_records import StageEnd, StageRow
from sidecar.shm.stage_states import StageRowEvent, StageRowState
from sidecar.worker.streams.lane import IncludedRecords
from sidecar.worker.streams.refusal import Refusal
from sidecar.worker.streams.stage import STAGE_NUMBER_MASK, LaneStage
from sidecar.worker.transactions.stage_token import StageToken, digest8, digest32, unpack_stage_token

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sidecar.kernel import Entry
    from sidecar.shm.slots import Counters
    from sidecar.shm.stage_records import StageRecords
    from sidecar.worker.outcomes.releases import Releases
    from sidecar.worker.streams.lane import Lane
    from sidecar.worker.streams.session import ClientSession
    from sidecar.worker.streams.sessions import Sessions
    from sidecar.worker.streams.topic_queue import TopicQueue
    from sidecar.worker.topics.topics import Topics
    from sidecar.worker.transactions.lanes import Lanes

log = logging.getLogger(__name__)

ENDED_ENTRIES: Final = 512
"""Limit of entries of dropped stages that end in one turn."""
_HOW: Final = {
    StageEnd.NONE: "is not known any more",
    StageEnd.INCLUDED: "was included by a transaction already",
    StageEnd.DROPPED: "was dropped by drop_stages() or `txn drop`",
    StageEnd.EXPIRED: "was dropped, as nobody included it within daemon.stage_timeout_ms",
    StageEnd.ABANDONED: "was dropped, as its process ended before it was sealed",
    StageEnd.EVICTED: "was dropped, as another owner's stages of its transactional id needed pool.staged_share",
    StageEnd.FAILED: "was dropped, as a record of it was not accepted",
}
_WAITS: Final = (StageRowState.OPEN, StageRowState.SEALED)
_MAY_GO_ON: Final = (TransactionState.IN_TRANSACTION, TransactionState.COMMITTING)


class LaneStages:
    """All stages of a worker. Belongs to the worker's loop."""

    def __init__(
        self,
        *,
        records: StageRecords,
        lanes: Lanes,
        topics: Topics,
        sessions: Sessions,
        releases: Releases,
        counters: Counters,
        instance_id: bytes,
        slot: int,
        wall_ms: Callable[[], int],
        timeout_ms: int,
    ) -> None:
        self._records = records
        self._lanes = lanes
        self._topics = topics
        self._sessions = sessions
        self._releases = releases
        self._counters = counters
        self._instance = digest8(instance_id)
        self._slot = slot
        self._wall_ms = wall_ms
        self.timeout_ms = timeout_ms
        self.on_dropped: Callable[[LaneStage], None] = lambda stage: None
        """Called when a stage is dropped: its client, if it was open, hears of its failure. Set by the port."""
        self._by_number: dict[int, LaneStage] = {}
        self._free = deque(range(STAGES_MAX))
        """Rows for the next stages: never used ones, then those whose stage ended longest ago."""
        self._ends: dict[int, StageEnd] = {}
        """How the stages in free rows ended, by number."""
        self._number_of_row: dict[int, int] = {}
        self.ended: Counter[StageEnd] = Counter()
        """How many have ended so."""
        self.ending: deque[LaneStage] = deque()
        """Dropped ones with records that have not ended."""
        self._orphans: list[tuple[TopicQueue, int]] = []
        """Entries of a dead worker without a stage."""
        self._clients: dict[int, tuple[int, int]] = {}
        """Row and generation of the client of each stage of a dead worker, by the stage's number."""

    def __iter__(self) -> Iterator[LaneStage]:
        """All with records, and open ones; over a copy."""
        return iter(list(self._by_number.values()))

    def count(self, state: StageRowState) -> int:
        return sum(stage.state is state for stage in self)

    @property
    def oldest_ms(self) -> int:
        """Age of the sealed one that waits longest; 0: none waits."""
        return max((self.age_ms(each) for each in self if each.state is StageRowState.SEALED), default=0)

    # --- a stage's life -------------------------------------------------------------------------------------

    def open(
        self, lane: Lane, session: ClientSession, client_number: int, caller_number: int, owner: str
    ) -> LaneStage | Refusal:
        """Open a stage for a client."""
        if not self._free:
            text = (
                f'Stage {caller_number} of "{lane.manager.transactional_id}" is not opened: this worker has '
                f"{STAGES_MAX} stages, as many as it can have; include or drop some (`kafka-sidecar txn drop`)."
            )
            return Refusal(LocalCode.STAGE_TOO_MANY, text)
        number, row = self._records.take_number(), self._free.popleft()
        self._ends.pop(self._number_of_row.pop(row, 0), None)
        self._forget_answered(join(lane, session))
        stage = LaneStage(
            lane,
            row,
            number,
            caller_number=caller_number,
            client_number=client_number,
            owner_digest=digest32(owner),
            name_digest=digest32(session.name),
            user=session.caller.uid + 1 & 0xFFFFFFFF,
        )
        stage.owner, stage.client_name = owner, session.name
        stage.since_s = self._wall_ms() // 1000
        self._records.open(
            StageRow(
                row=row,
                state=StageRowState.OPEN,
                end=StageEnd.NONE,
                lane=lane.number,
                transaction=0,
                number=number,
                caller_number=caller_number,
                size_bytes=0,
                owner_digest=stage.owner_digest,
                name_digest=stage.name_digest,
                records=0,
                client_row=session.row.index,
                client_generation=session.row.generation,
                client_number=client_number,
                since_s=stage.since_s,
                user=stage.user,
            )
        )
        stage.move(StageRowEvent.OPEN)
        lane.stages[number] = self._by_number[number] = stage
        self._belongs_to(session, stage)
        return stage

    @staticmethod
    def _forget_answered(stages: dict[int, LaneStage]) -> None:
        """Forget a client's earlier stages: it opens the next one once it has the answer to the last."""
        for stage in [each for each in stages.values() if each.state is not StageRowState.OPEN]:
            del stages[stage.client_number]
            stage.session = None

    def seal(self, stage: LaneStage, records: int) -> None:
        """Seal an open stage whose client has sent this many records into it. Fails it if they are not all here."""
        if stage.records != records:
            text = (
                f"{self.name_of(stage)} has {counted(stage.records, 'record')} of {records}: the others were lost. "
                "Fill another stage."
            )
            self.fail(stage, Refusal(LocalCode.STAGE_UNKNOWN, text))
            return
        stage.token = self._token(stage, records)
        if not records:
            self._end(stage, StageEnd.NONE)  # its token includes nothing, which needs no row
            return
        stage.since_s = self._wall_ms() // 1000
        lane = stage.lane.number
        self._records.seal(stage.row, lane, records, stage.size_bytes, stage.since_s)
        stage.move(StageRowEvent.SEAL)

    def fail(self, stage: LaneStage, refusal: Refusal) -> None:
        """Drop an open stage of which a record is not accepted. Its client hears why."""
        stage.failure = refusal
        self.drop(stage, StageEnd.FAILED)

    def drop(self, stage: LaneStage, end: StageEnd) -> None:
        """Forget an open or sealed stage. Its records end as aborted in the next turns."""
        if stage.state is StageRowState.OPEN and stage.failure is None:
            text = f"{self.name_of(stage)} {_HOW[end]}."
            stage.failure = Refusal(LocalCode.STAGE_UNKNOWN, text)
        self._records.drop(stage.row, stage.lane.number, end)
        stage.move(StageRowEvent.DROP)
        stage.end = end
        self._counters.add({"records_staged": -stage.records, "records_held": stage.records})
        self.ending.append(stage)
        self.on_dropped(stage)

    def include(
        self, lane: Lane, stages: Sequence[LaneStage], request: int, now_ms: float
    ) -> IncludedRecords:
        """Include sealed stages in the lane's open transaction."""
        manager = lane.manager
        for stage in stages:
            self._records.include(stage.row, lane.number, manager.number)
            stage.move(StageRowEvent.INCLUDE)
            stage.end = StageEnd.INCLUDED
        manager.has_included = True
        manager.store()
        # kill point: stage.include_stored
        records = sum(stage.records for stage in stages)
        size_bytes = sum(stage.size_bytes for stage in stages)
        lane.inclusion = IncludedRecords(manager.number, request, records, size_bytes)
        self._counters.add({"records_staged": -records, "records_held": records})
        for stage in stages:
            self._fail_recreated(stage)
        self._send(stages, now_ms)
        return lane.inclusion

    @staticmethod
    def _fail_recreated(stage: LaneStage) -> None:
        """A topic that was made again since the stage got records for it is another one: the commit fails."""
        for queue, topic_id in stage.topic_ids.items():
            if topic_id is not None and queue.topic_id not in (None, topic_id):
                text = "the topic was deleted and created again since a stage got records for it."
                stage.lane.manager.batch_failed(queue.topic, NO_PARTITION, LocalCode.TOPIC_DELETED, text)

    def _send(self, stages: Iterable[LaneStage], now_ms: float) -> None:
        """Let the records go, all stages merged in the order of the journal: a descriptor covers all records between
        its ends that are in its partition.
        """
        merged: dict[TopicQueue, array[int]] = {}
        for stage in stages:
            for queue, ordinals in stage.entries.items():
                if queue in merged:
                    merged[queue].extend(ordinals)
                else:
                    merged[queue] = ordinals
            stage.entries = {}
        for queue, ordinals in merged.items():
            self._topics.include(queue, sorted(ordinals), now_ms)

    def end_included(self, lane: Lane) -> None:
        """Give up the rows of the stages that the lane's transaction had included, once it is over, and so are they."""
        if lane.stages and lane.manager.is_over and self._lanes.is_quiet(lane):
            for stage in list(lane.stages.values()):
                if stage.state is StageRowState.INCLUDED:
                    self._end(stage, StageEnd.INCLUDED)

    def _end(self, stage: LaneStage, end: StageEnd) -> None:
        self._records.end(stage.row, stage.lane.number, end)
        stage.move(StageRowEvent.END)
        stage.end = end
        stage.entries, stage.topic_ids = {}, {}
        del stage.lane.stages[stage.number], self._by_number[stage.number]
        self._free.append(stage.row)
        self._number_of_row[stage.row] = stage.number
        self._ends[stage.number] = end
        self.ended[end] += 1

    # --- what ends in time ----------------------------------------------------------------------------------

    def step(self) -> None:
        """End a bounded number of entries of dropped stages."""
        left = ENDED_ENTRIES
        while self.ending and left > 0:
            left -= self._end_entries(self.ending[0], left)
            if not self.ending[0].entries:
                stage = self.ending.popleft()
                self._end(stage, stage.end)

    def _end_entries(self, stage: LaneStage, most: int) -> int:
        """End up to ``most`` entries. Returns their number."""
        queue = next(iter(stage.entries), None)
        if queue is None:
            return 1
        ordinals = stage.entries[queue]
        ended = min(most, len(ordinals))
        for ordinal in ordinals[len(ordinals) - ended :]:
            self._end_entry(queue, ordinal)
        del ordinals[len(ordinals) - ended :]
        if not ordinals:
            del stage.entries[queue]
        return ended

    def _end_entry(self, queue: TopicQueue, ordinal: int) -> None:
        """End the records of an entry that have no partition, as aborted."""
        entry = queue.chain.entry(ordinal)
        indexes = fail_remaining(queue.chain, entry, LocalCode.TXN_ABORTED)
        self._releases.release_unsent(queue.chain, entry, indexes, dead=False)

    def evict(self, stage: LaneStage) -> bool:
        """Drop the sealed stage of the same transactional id and another owner that waits longest, at once. False if
        there is none. Another user's is not dropped for it.
        """
        others = [
            each
            for each in stage.lane.stages.values()
            if each.state is StageRowState.SEALED
            and each.owner_digest != stage.owner_digest
            and _may_have(each, stage.user, stage.client_name)
        ]
        if not others:
            return False
        oldest = min(others, key=lambda each: (each.since_s, each.number))
        self.drop(oldest, StageEnd.EVICTED)
        self.ending.remove(oldest)
        while oldest.entries:
            self._end_entries(oldest, ENDED_ENTRIES)
        self._end(oldest, StageEnd.EVICTED)
        log.warning(
            "%s was dropped: %s needs its share of the pool.", self.name_of(oldest), self.name_of(stage)
        )
        return True

    def check(self) -> None:
        """Drop open stages of clients that are gone, and sealed ones that nobody has included in time. End those whose
        transaction is over.
        """
        stagers = [
            each for each in self._sessions.by_row.values() if each.stages is not None and not each.is_gone
        ]
        used = {each.lane for each in stagers}
        for lane in self._lanes:
            lane.has_stagers = lane in used
            self.end_included(lane)
        due_s = (self._wall_ms() - self.timeout_ms) // 1000
        for stage in self:
            if stage.session is not None and stage.session.is_gone:
                stage.session = None
                if stage.state is StageRowState.OPEN:
                    self.drop(stage, StageEnd.ABANDONED)
            if stage.state is StageRowState.SEALED and stage.since_s <= due_s:
                log.warning(
                    "%s is dropped: nobody included it within daemon.stage_timeout_ms.", self.name_of(stage)
                )
                self.drop(stage, StageEnd.EXPIRED)

    # --- tokens ---------------------------------------------------------------------------------------------

    def _token(self, stage: LaneStage, records: int) -> bytes:
        transactional_id = digest8(stage.lane.manager.transactional_id.encode())
        return StageToken(self._instance, self._slot, stage.number, records, transactional_id).pack()

    def read(self, data: bytes, transactional_id: str) -> StageToken | Refusal:
        """What a token says, or why it is none of this transactional id at this worker."""
        token = unpack_stage_token(data)
        if token is None:
            return _unknown(data, "is no token of a stage")
        if token.instance != self._instance:
            return _unknown(data, "is of another daemon, or of one whose buffer pool was made anew since")
        if token.transactional_id != digest8(transactional_id.encode()):
            return _unknown(data, f'is of another transactional id than "{transactional_id}"')
        if token.slot != self._slot:
            # While a stage of an id is left, the id has its worker.
            return _unknown(data, _HOW[StageEnd.NONE])
        return token

    def find(self, data: bytes, transactional_id: str) -> LaneStage | Refusal | None:
        """The sealed stage that a token names, or why there is none. None: it was sealed without a record."""
        token = self.read(data, transactional_id)
        if isinstance(token, Refusal):
            return token
        if not token.records:
            return None
        stage = self.of_token(token)
        if stage is None or stage.state is not StageRowState.SEALED:
            return _unknown(data, _HOW[self.end_of(token)])
        return stage

    def of_token(self, token: StageToken) -> LaneStage | None:
        """The stage of a token, unless it has ended."""
        return self._by_number.get(token.number)

    def end_of(self, token: StageToken) -> StageEnd:
        """How the stage of a token ended, or ends."""
        stage = self.of_token(token)
        return self._ends.get(token.number, StageEnd.NONE) if stage is None else stage.end

    def refusal_for(self, stage: LaneStage, session: ClientSession) -> Refusal | None:
        """Why a client may not have a stage: it is another user's, and another name's."""
        if _may_have(stage, session.caller.uid + 1 & 0xFFFFFFFF, session.name):
            return None
        text = (
            f"{self.name_of(stage)} is another user's. Both clients need the same name, which [clients] must allow "
            "to both users."
        )
        return Refusal(LocalCode.STAGE_UNKNOWN, text)

    def may_drop(self, stage: LaneStage, session: ClientSession) -> bool:
        """Whether a client may drop a stage: as one that may have it, or as an operator."""
        is_operator = session.caller.uid in (0, os.geteuid()) and not session.caller.key
        return is_operator or self.refusal_for(stage, session) is None

    def age_ms(self, stage: LaneStage) -> int:
        """Time since it was opened, or since it was sealed."""
        return max(0, self._wall_ms() - 1000 * stage.since_s)

    @staticmethod
    def name_of(stage: LaneStage) -> str:
        owner = f' of owner "{stage.owner}"' if stage.owner else ""
        return f'Stage {stage.caller_number} of "{stage.lane.manager.transactional_id}"{owner}'

    # --- after the death of a worker ------------------------------------------------------------------------

    def adopt(self) -> None:
        """Take over the stages of a dead worker, after its lanes."""
        ended: list[StageRow] = []
        for row in self._records:
            self._free.remove(row.row)
            if row.state is StageRowState.ENDED:
                ended.append(row)
                continue
            lane = self._lanes.lane_of(row.lane)
            stage = LaneStage(
                lane,
                row.row,
                row.number,
                caller_number=row.caller_number,
                client_number=row.client_number,
                owner_digest=row.owner_digest,
                name_digest=row.name_digest,
                user=row.user,
            )
            stage.state, stage.end, stage.since_s = row.state, row.end, row.since_s
            lane.stages[stage.number] = self._by_number[stage.number] = stage
            self._clients[stage.number] = row.client_row, row.client_generation
            if row.state is StageRowState.INCLUDED:
                self._adopt_included(stage, row)
            if stage.state is StageRowState.SEALED:
                stage.token = self._token(stage, row.records)
        ended.sort(key=lambda row: row.number)
        for row in ended:
            self._free.append(row.row)
            self._number_of_row[row.row] = row.number
            self._ends[row.number] = row.end

    def _adopt_included(self, stage: LaneStage, row: StageRow) -> None:
        manager = stage.lane.manager
        is_of_open = row.transaction == manager.number & 0xFFFFFFFF
        if is_of_open and not manager.has_included:
            # Its worker died between the stores of an include, which is not a fact.
            self._records.exclude(stage.row, stage.lane.number)
            stage.move(StageRowEvent.EXCLUDE)
            stage.end = StageEnd.NONE
        elif is_of_open and manager.state in _MAY_GO_ON:
            inclusion = stage.lane.inclusion
            if inclusion is None:
                inclusion = stage.lane.inclusion = IncludedRecords(manager.number, -1, 0, 0)
            inclusion.records += row.records
            inclusion.size_bytes += row.size_bytes
        else:
            stage.move(StageRowEvent.DROP)  # what is left of it ends with its transaction

    def adopt_entries(self, queue: TopicQueue, ordinals: Iterable[int]) -> None:
        """Take over entries of a staged chain with records that have no partition."""
        for ordinal in ordinals:
            entry = queue.chain.entry(ordinal)
            stage = self._of_entry(entry)
            if stage is None:
                self._orphans.append((queue, ordinal))
            else:
                stage.took(queue, entry)

    def _of_entry(self, entry: Entry) -> LaneStage | None:
        return self._by_number.get(entry.txn_number & STAGE_NUMBER_MASK)

    def is_in_open_transaction(self, entry: Entry) -> bool:
        """Whether the open transaction has included the entry's stage."""
        stage = self._of_entry(entry)
        return stage is not None and stage.state is StageRowState.INCLUDED

    @property
    def staged_records(self) -> int:
        """Records of stages that wait."""
        return sum(stage.records for stage in self if stage.state in _WAITS)

    def adopted(self, now_ms: float) -> None:
        """Continue with what the dead worker left, after its records were read and its lanes were decided."""
        expected = {row.number: row.records for row in self._records if row.state is StageRowState.SEALED}
        for stage in self:
            client = self._client_of(stage)
            if stage.state is StageRowState.DROPPED:
                self.ending.append(stage)
                continue
            if client is not None and stage.state in _WAITS:
                self._belongs_to(client, stage)
            if stage.state is StageRowState.OPEN and client is None:
                self.drop(stage, StageEnd.ABANDONED)
            elif stage.state is StageRowState.SEALED and stage.records != expected[stage.number]:
                log.error(
                    "ALARM: of the %d records of %s only %d are in the journal: it is dropped.",
                    expected[stage.number],
                    self.name_of(stage),
                    stage.records,
                )
                self.drop(stage, StageEnd.FAILED)
        for lane in self._lanes:
            self._send(
                [each for each in lane.stages.values() if each.state is StageRowState.INCLUDED], now_ms
            )
        for queue, ordinal in self._orphans:
            self._end_entry(queue, ordinal)
        self._orphans.clear()
        self._clients.clear()

    def _client_of(self, stage: LaneStage) -> ClientSession | None:
        row, generation = self._clients[stage.number]
        session = self._sessions.of_row(row)
        return session if session is not None and session.row.generation == generation else None

    def _belongs_to(self, session: ClientSession, stage: LaneStage) -> None:
        stage.session = session
        stages = join(stage.lane, session)
        stages[stage.client_number] = stage
        stage.client_name = session.name


def join(lane: Lane, session: ClientSession) -> dict[int, LaneStage]:
    """Make a client one that stages for a lane, which stays as long as the client. Returns the client's stages."""
    session.lane = lane
    lane.has_stagers = True
    if session.stages is None:
        session.stages = {}
    return session.stages


def _may_have(stage: LaneStage, user: int, name: str) -> bool:
    """Whether a stage is this user's, or of a client with this name."""
    if stage.user == user:
        return True
    if stage.client_name:
        return stage.client_name == name  # somebody may have looked for another name with its digest
    return stage.name_digest == digest32(name)


def _unknown(token: bytes, why: str) -> Refusal:
    name = token[:64].decode("utf-8", "replace")
    return Refusal(LocalCode.STAGE_UNKNOWN, f'Token "{name}" {why}.')
