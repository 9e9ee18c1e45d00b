"""TransactionPort: frames of clients with a transactional id in, requests to coordinators and answers to clients out.

The decisions are the TransactionManager's of each lane. A lane without work is not called: its manager says when there
is some, and the port asks it once a turn until there is none.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from client_stub.contract.wire import (
    OFFSET_METADATA_BYTES_MAX,
    TOPIC_BYTES_MAX,
    Kind,
    LocalCode,
    TxnEffect,
    TxnPart,
)
from sidecar.common.backoff import ExponentialBackoff
from sidecar.common.errors import Code
from sidecar.net.kafka.connector import LinkError
from sidecar.producer.coordinator_requests import (
    CommitOffsets,
    CoordinatorAnswer,
    CoordinatorRequest,
    EndTransaction,
    FindCoordinator,
)
from sidecar.producer.transaction_manager import (
    TransactionManager,
    TransactionResult,
    TransactionTally,
)
from sidecar.producer.transaction_states import TransactionState
from sidecar.protocol.coordinators import CommittedOffset, GroupMember
from sidecar.protocol.messages import ProtocolError
from sidecar.worker.streams.refusal import MalformedFrame
from sidecar.worker.transactions.coordinator_messages import API_KEYS, answer_of, message_of
from sidecar.worker.transactions.frames import (
    INT32_MAX,
    INT64_MAX,
    checked_transactional_id,
    is_count,
    is_within,
    positions_of,
    rows_of,
)
from sidecar.worker.transactions.stage_port import StagePort

if TYPE_CHECKING:
    from sidecar.common.clock import MonotonicClock
    from sidecar.metadata.cache import MetadataCache
    from sidecar.net.kafka.broker_link import BrokerLink
    from sidecar.net.kafka.cluster_links import ClusterLinks
    from sidecar.producer.config import ProducerConfig
    from sidecar.worker.streams.lane import Lane
    from sidecar.worker.streams.outboxes import Outboxes
    from sidecar.worker.streams.session import ClientSession
    from sidecar.worker.transactions.lanes import Lanes
    from sidecar.worker.transactions.stages import LaneStages
    from sidecar.worker.turns import Turns

log = logging.getLogger(__name__)

_State = TransactionState
_IDLE: Final = frozenset(
    {_State.UNINITIALIZED, _State.READY, _State.IN_TRANSACTION, _State.ABORTABLE, _State.FATAL}
)
"""States in which a manager says itself when there is something to do."""
_ENDS_RECORDS: Final = frozenset({_State.ABORTABLE, _State.ABORTING, _State.FATAL})


class _AskedEnd(NamedTuple):
    """An end that waits until the journal has all submissions of its transaction."""

    number: int
    is_commit: bool
    positions: list[tuple[int, int]]
    """(stream, last sequence number) of what has not arrived."""


class _WaitingInit(NamedTuple):
    """A client that waits for a lane."""

    transactional_id: str
    timeout_ms: int
    until_ms: float


class TransactionPort:
    """Belongs to the worker's loop."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: MonotonicClock,
        config: ProducerConfig,
        cache: MetadataCache,
        links: ClusterLinks,
        lanes: Lanes,
        stages: LaneStages,
        outboxes: Outboxes,
        turns: Turns,
        random: Random,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._config = config
        self._cache = cache
        self._links = links
        self._lanes = lanes
        lanes.make = self.make_manager
        self.all_stages = stages
        self.stages = StagePort(lanes, stages, outboxes, self._work)
        """Frames about stages."""
        self._outboxes = outboxes
        self._turns = turns
        self._random = random
        self.tally = TransactionTally()
        self.active: set[int] = set()
        """Numbers of the lanes with work for the next turn."""
        self._unsent: dict[Lane, CoordinatorRequest] = {}
        """Requests whose broker cannot take one yet."""
        self._asked_ends: dict[Lane, _AskedEnd] = {}
        self._records_ended: dict[Lane, int] = {}
        """By lane: the transaction whose records were ended last."""
        self.waiting: dict[ClientSession, _WaitingInit] = {}
        """Clients whose transactional id has no lane yet."""
        self.next_due_ms = inf
        """When to run the next step if nothing happens, monotonic ms."""

    # --- frames ----------------------------------------------------------------------------------------------

    def on_frame(
        self, session: ClientSession, kind: int, fields: list[Any], payload: Any, now_ms: float
    ) -> None:
        """Handle TXN_INIT, TXN_END or TXN_OFFSETS. Raises MalformedFrame for one that no valid stub sends."""
        if session.stages is not None:
            raise MalformedFrame("a transaction's frame of a client that stages")
        if kind == Kind.TXN_INIT:
            self._on_init(session, *_init_of(fields), now_ms)
            return
        lane = session.lane
        if lane is None:
            raise MalformedFrame(
                "a transaction's frame of a client that has not initialized its transactional id"
            )
        if kind == Kind.TXN_END:
            end = _end_of(fields, payload)
            if lane.session is not session:
                self._tell_fenced(session, lane, TxnPart.END, end.number)
                return
            self._asked_ends[lane] = end
        else:
            number, request, member, offsets = _offsets_of(fields, payload)
            if lane.session is not session:
                self._tell_fenced(session, lane, TxnPart.OFFSETS, request)
                return
            lane.manager.send_offsets(number, request, member, offsets)
        self._work(lane.number)

    def _on_init(
        self, session: ClientSession, transactional_id: str, timeout_ms: int, resumes: bool, now_ms: float
    ) -> None:
        lane = session.lane
        if lane is not None and lane.manager.transactional_id != transactional_id:
            raise MalformedFrame("a client has one transactional id")
        if lane is not None and lane.session is not session:
            self._tell_fenced(session, lane, TxnPart.INIT, 0)
        elif lane is not None:
            lane.manager.initialize(timeout_ms)
        elif resumes:
            text = f'The daemon does not know transactional id "{transactional_id}" of this client any more.'
            self._tell(session, TxnPart.INIT, 0, Code.PRODUCER_FENCED, TxnEffect.FATAL, text)
        elif session not in self.waiting:
            until_ms = now_ms + self._config.max_block_ms
            waiting = self.waiting[session] = _WaitingInit(transactional_id, timeout_ms, until_ms)
            if self._give_lane(session, waiting):
                del self.waiting[session]

    def _give_lane(self, session: ClientSession, asked: _WaitingInit) -> bool:
        """Give the client the lane of its id. False if all lanes are in use."""
        lane = self._lanes.of_id(asked.transactional_id)
        if lane is None:
            lane = self._lanes.open(asked.transactional_id, session)
            if lane is None:
                return False
            session.lane = lane
            lane.manager.initialize(asked.timeout_ms)
            return True
        unsent = self._unsent.pop(lane, None)
        if unsent is not None:
            lane.manager.on_answer(
                unsent, CoordinatorAnswer(Code.COORDINATOR_NOT_AVAILABLE), self._clock.now_ms()
            )
        earlier, lane.session = lane.session, session
        lane.inclusion = None
        session.lane = lane
        self._asked_ends.pop(lane, None)
        lane.manager.restart(asked.timeout_ms, session.row.index, session.row.generation)
        self._records_ended.pop(lane, None)
        self._lanes.store(lane)
        self._lanes.abort(lane, self._clock.now_ms())
        if earlier is not None:
            self._tell_fenced(cast("ClientSession", earlier), lane, TxnPart.STATE, 0)
        return True

    def make_manager(self, transactional_id: str, number: int) -> TransactionManager:
        """The manager of a lane. Its client is not known yet."""
        config = self._config
        return TransactionManager(
            transactional_id,
            number,
            transaction_version=lambda: self._links.transaction_version,
            backoff=ExponentialBackoff(
                config.retry_backoff_ms, config.retry_backoff_max_ms, self._random.random
            ),
            tally=self.tally,
            wall_ms=self._clock.timestamp_ms,
            on_work=partial(self._work, number),
        )

    def _work(self, number: int) -> None:
        self.active.add(number)
        self._turns.wake()

    def check_clients(self) -> None:
        """Abandon the transactions and open stages of clients that are gone for good, and give up their lanes."""
        self.all_stages.check()
        self._lanes.check_clients()
        for noted in (self._asked_ends, self._records_ended):
            for lane in [each for each in noted if self._lanes.of_number(each.number) is not each]:
                del noted[lane]

    @property
    def are_open(self) -> bool:
        """Whether a transaction is open or being ended."""
        return any(not lane.manager.is_over for lane in self._lanes)

    def stop_all(self, text: str) -> None:
        """Abort the open transactions, as the daemon stops."""
        for lane in self._lanes:
            lane.manager.stop(text)

    def open_ms(self) -> list[int]:
        """For how long each open transaction is open."""
        return [ms for lane in self._lanes if (ms := lane.manager.open_ms)]

    # --- the turn --------------------------------------------------------------------------------------------

    def step(self, now_ms: float) -> None:
        """Carry out what the lanes with work ask for. Sets :attr:`next_due_ms`."""
        self.next_due_ms = inf
        if self.waiting:
            self._serve_waiting(now_ms)
        numbers, self.active = self.active, set()
        for number in numbers:
            lane = self._lanes.of_number(number)
            if lane is not None:
                self._step_lane(lane, now_ms)
        self.active |= self.stages.step()

    def _step_lane(self, lane: Lane, now_ms: float) -> None:
        manager = lane.manager
        end = self._asked_ends.get(lane)
        if end is not None and self._has_arrived(lane, end):
            del self._asked_ends[lane]
            manager.end(end.number, end.is_commit)
            if manager.state is _State.COMMITTING:
                self._lanes.flush(lane, now_ms)
        if manager.state in _ENDS_RECORDS and self._records_ended.get(lane) != manager.number:
            self._records_ended[lane] = manager.number
            self._lanes.store(lane)
            self._lanes.abort(lane, now_ms)
        request = self._unsent.pop(lane, None) or manager.poll(now_ms, is_quiet=self._lanes.is_quiet(lane))
        self._hand_on_results(lane)
        if request is not None:
            self._lanes.store(lane)
            # kill point: init.stored if API_KEYS[type(request)].name == "INIT_PRODUCER_ID"
            # kill point: end.stored if isinstance(request, EndTransaction)
            self._send(lane, request, now_ms)
        if lane in self._asked_ends or lane in self._unsent or manager.state not in _IDLE:
            # Its records' answers and its submissions come in turns of their own.
            self.active.add(lane.number)
        self.all_stages.end_included(lane)
        if lane.session is None and manager.is_over:
            self._lanes.close(lane)
        self.next_due_ms = min(self.next_due_ms, manager.next_due_ms)
        if manager.next_due_ms < inf:
            self.active.add(lane.number)

    def _has_arrived(self, lane: Lane, end: _AskedEnd) -> bool:
        """Whether the journal has all that belongs to the transaction. An abort need not wait: what comes later is
        refused.
        """
        if not end.is_commit or lane.session is None:
            return True
        return cast("ClientSession", lane.session).has_all(end.positions)

    def _hand_on_results(self, lane: Lane) -> None:
        results = lane.manager.take_results()
        session = cast("ClientSession | None", lane.session)
        if results:
            self._lanes.store(lane)
            # kill point: txn.result
            self._lanes.may_send_more(lane, self._clock.now_ms())
        for result in results:
            if session is not None:
                self._tell(session, *result, *_included(lane, result))

    def _tell(
        self,
        session: ClientSession,
        what: TxnPart,
        number: int,
        code: int,
        effect: TxnEffect,
        text: str,
        *more: object,
    ) -> None:
        """The client hears an answer after the outcomes of its records, and what its transaction has come to before
        them: a record that failed says less than that the transactional id is lost.
        """
        message = [Kind.TXN, what, number, code, effect, text, *more]
        if what == TxnPart.STATE:
            self._outboxes.send(session, message)
        else:
            self._outboxes.send_after_outcomes(session, message)

    def _tell_fenced(self, session: ClientSession, lane: Lane, what: TxnPart, number: int) -> None:
        text = (
            f'Another producer with transactional id "{lane.manager.transactional_id}" has initialized and fenced this '
            "one; close it."
        )
        self._tell(session, what, number, Code.PRODUCER_FENCED, TxnEffect.FATAL, text)

    def _serve_waiting(self, now_ms: float) -> None:
        for session, asked in list(self.waiting.items()):
            if not session.attached:
                del self.waiting[session]  # its stub asks again
            elif self._give_lane(session, asked):
                del self.waiting[session]
            elif asked.until_ms <= now_ms:
                del self.waiting[session]
                text = (
                    f"This worker has {len(self._lanes)} transactional ids, as many as it can have; close producers, "
                    "or start more workers (daemon.workers)."
                )
                self._tell(session, TxnPart.INIT, 0, LocalCode.TXN_TOO_MANY, TxnEffect.RETRIABLE, text)
            else:
                self.next_due_ms = min(self.next_due_ms, asked.until_ms)

    # --- brokers ---------------------------------------------------------------------------------------------

    def _send(self, lane: Lane, request: CoordinatorRequest, now_ms: float) -> None:
        link = self._link_for(request, now_ms)
        if link is None:
            if self._is_refused(request):
                self._answered(lane, request, CoordinatorAnswer(Code.COORDINATOR_NOT_AVAILABLE))
            else:
                self._unsent[lane] = request
            return
        version = link.version(API_KEYS[type(request)])
        if version is None:
            text = f"{link.node} has no {API_KEYS[type(request)].name}: transactions need a newer Kafka."
            self._answered(lane, request, CoordinatorAnswer(Code.UNSUPPORTED_VERSION, text))
            return
        if isinstance(request, CommitOffsets | EndTransaction):
            version = min(version, request.version_max)
        future = link.request(message_of(request, version))
        # kill point: init.sent if API_KEYS[type(request)].name == "INIT_PRODUCER_ID"
        # kill point: end.sent if isinstance(request, EndTransaction)
        future.add_done_callback(partial(self._on_response, lane, request, version))

    def _link_for(self, request: CoordinatorRequest, now_ms: float) -> BrokerLink | None:
        """A link that can take the request now; else one is being opened, or its broker refuses."""
        nodes = self._cache.current.nodes
        if not isinstance(request, FindCoordinator):
            node = nodes.get(request.coordinator.id, request.coordinator)
            link = self._links.ready(node)
            if link is None:
                self._wait_for(node.id, now_ms)
            return link
        ready = [link for link in self._links.ready_links if self._links.is_ready(link.node.id)]
        if ready:
            return min(ready, key=lambda link: link.in_flight_count)
        for node in nodes.values():
            self._links.ready(node)
            self._wait_for(node.id, now_ms)
        return None

    def _wait_for(self, node_id: int, now_ms: float) -> None:
        """A connect that ends makes a turn by itself; the end of a backoff does not."""
        delay_ms = self._links.next_attempt_delay_ms(node_id, now_ms)
        self.next_due_ms = min(self.next_due_ms, now_ms + delay_ms + 1)

    def _is_refused(self, request: CoordinatorRequest) -> bool:
        """The coordinator cannot be reached: perhaps another broker is it by now."""
        return not isinstance(request, FindCoordinator) and self._links.has_refused(request.coordinator.id)

    def _on_response(
        self, lane: Lane, request: CoordinatorRequest, version: int, future: asyncio.Future[Any]
    ) -> None:
        # kill point: init.answered if API_KEYS[type(request)].name == "INIT_PRODUCER_ID"
        # kill point: end.answered if isinstance(request, EndTransaction)
        try:
            answer = answer_of(request, version, future.result())
        except (LinkError, ProtocolError) as error:
            answer = CoordinatorAnswer(Code.NETWORK_EXCEPTION, str(error))
        self._answered(lane, request, answer)

    def _answered(self, lane: Lane, request: CoordinatorRequest, answer: CoordinatorAnswer) -> None:
        now_ms = self._clock.now_ms()
        lane.manager.on_answer(request, answer, now_ms)
        self._lanes.may_send_more(lane, now_ms)
        self._work(lane.number)


def _included(lane: Lane, result: TransactionResult) -> tuple[object, ...]:
    """The last field of the answer to a commit that has included stages: where their records are."""
    inclusion = lane.inclusion
    is_commit = result.what == TxnPart.END and not result.code and lane.manager.last_committed
    if inclusion is None or not is_commit or inclusion.transaction != result.number:
        return ()
    return (inclusion.rows,)


# --- reading frames -------------------------------------------------------------------------------------------


def _init_of(fields: list[Any]) -> tuple[str, int, bool]:
    if len(fields) != 3:
        raise MalformedFrame(f"TXN_INIT has {len(fields)} fields of 3")
    name, timeout_ms, resumes = fields
    transactional_id = checked_transactional_id(name)
    if not is_within(timeout_ms, 1, INT32_MAX):
        raise MalformedFrame(f"{timeout_ms!r:.40} is no timeout of a transaction")
    return transactional_id, timeout_ms, bool(resumes)


def _end_of(fields: list[Any], payload: Any) -> _AskedEnd:
    if len(fields) != 2 or not is_count(fields[0]) or type(fields[1]) is not bool:
        raise MalformedFrame("TXN_END has no number of a transaction, or does not say whether it commits")
    return _AskedEnd(fields[0], fields[1], positions_of(payload))


def _offsets_of(fields: list[Any], payload: Any) -> tuple[int, int, GroupMember, list[CommittedOffset]]:
    if len(fields) != 6:
        raise MalformedFrame(f"TXN_OFFSETS has {len(fields)} fields of 6")
    number, request, group, generation, member, instance = fields
    texts = (group, member) if instance is None else (group, member, instance)
    if not is_count(number) or not is_count(request) or not all(type(each) is str for each in texts):
        raise MalformedFrame("TXN_OFFSETS does not name its transaction, request, group or member")
    if not is_within(generation, -1, INT32_MAX):
        raise MalformedFrame(f"{generation!r:.40} is no generation of a group")
    offsets = []
    for row in rows_of(payload):
        if type(row) is not list or len(row) != 5:
            raise MalformedFrame(f"{row!r:.40} is no offset of a partition")
        topic, partition, offset, leader_epoch, metadata = row
        # What has no field in Kafka's request would fail where that is made, in the turn of all lanes.
        if (
            type(topic) is not str
            or not 0 < len(topic.encode()) <= TOPIC_BYTES_MAX
            or not is_within(partition, 0, INT32_MAX)
            or not is_within(offset, 0, INT64_MAX)
            or not is_within(leader_epoch, -1, INT32_MAX)
        ):
            raise MalformedFrame(f"{row!r:.40} is no offset of a partition")
        if metadata is not None and not (
            type(metadata) is str and len(metadata.encode()) <= OFFSET_METADATA_BYTES_MAX
        ):
            raise MalformedFrame(f"the metadata of an offset has {OFFSET_METADATA_BYTES_MAX} bytes at most")
        offsets.append(CommittedOffset(topic, partition, offset, leader_epoch, metadata))
    return number, request, GroupMember(group, generation, member, instance), offsets
