"""TransactionManager: the transactions of one lane, as Kafka's own of the same name decides about them. Sans-IO.

It says which request its coordinator gets next, whether a partition's records may leave, and what the client hears.
Records, batches and sequences are the accumulator's: it reports what was sent and what failed, and asks for the
:attr:`~TransactionManager.identity`.

Two rules differ by the finalised feature ``transaction.version``, which is read once at the begin of each transaction.
Below 2, each partition is added before its first record, and the epoch lasts from transaction to transaction. With 2
the broker adds partitions by itself, and each end returns the next epoch, so nothing late can join a later transaction.

An end whose answer was lost is repeated as the same request, because a coordinator recognises just that. Below version
2 a late copy of it could end the next transaction, and one of another request could join it: that one therefore begins
with a new epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from client_stub.contract.wire import NO_PARTITION, WORD_FAILED_MIN, LocalCode, TxnEffect, TxnPart
from sidecar.common.backoff import ExponentialBackoff
from sidecar.common.errors import Code, classify
from sidecar.common.model import NO_PRODUCER_ID, Node, TopicPartition
from sidecar.producer.coordinator_requests import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    CoordinatorAnswer,
    CoordinatorRequest,
    EndTransaction,
    FindCoordinator,
    InitTransactionalId,
)
from sidecar.producer.transaction_record import TransactionRecord
from sidecar.producer.transaction_states import TRANSITIONS, TransactionEvent, TransactionState
from sidecar.protocol.coordinators import CommittedOffset, GroupMember

PRODUCE_VERSION: Final = 13
PRODUCE_VERSION_BELOW_2: Final = 11
SELF_ADDING_VERSION: Final = 2
"""The transaction.version with which brokers add partitions themselves and each end begins an epoch."""
END_VERSION: Final = 5
END_VERSION_BELOW_2: Final = 4
OFFSETS_VERSION: Final = 5
OFFSETS_VERSION_BELOW_2: Final = 4
CONCURRENT_RETRY_MS: Final = 10.0
"""First wait while the coordinator writes the markers of the transaction before, which takes it milliseconds."""

_State, _Event = TransactionState, TransactionEvent
_OPEN: Final = frozenset({_State.IN_TRANSACTION, _State.ABORTABLE, _State.COMMITTING, _State.ABORTING})
"""A transaction is open."""
_FIND_AGAIN: Final = frozenset(
    {Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE, Code.NETWORK_EXCEPTION, Code.REQUEST_TIMED_OUT}
)
_FENCED: Final = frozenset({Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED})
_FATAL: Final = frozenset(
    {
        *_FENCED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.UNSUPPORTED_VERSION,
        Code.INVALID_PRODUCER_ID_MAPPING,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""Refusals after which the lane is of no use."""
_FATAL_TO_BATCH: Final = _FATAL - {Code.INVALID_PRODUCER_EPOCH}
"""A broker refuses the epoch of a transaction that has timed out, too. Only the coordinator knows which it is, and the
abort asks it.
"""


class TransactionResult(NamedTuple):
    """Something that the client hears, with the fields of a TXN message."""

    what: TxnPart
    number: int
    code: int
    effect: TxnEffect
    text: str


class _Offsets(NamedTuple):
    request: int
    member: GroupMember
    offsets: tuple[CommittedOffset, ...]


@dataclass(slots=True)
class TransactionTally:
    """How the transactions of a worker ended so far."""

    committed: int = 0
    aborted: int = 0
    fenced: int = 0
    """Transactional ids that another producer took."""


class TransactionManager:
    """The transactions of one client, under its transactional id. Belongs to the worker's loop.

    ``client`` is the row and generation of the client that has the id. ``store`` is called when a transaction has
    begun, and before its first batch leaves: from then on a successor must end it.
    """

    def __init__(
        self,
        transactional_id: str,
        lane: int,
        *,
        transaction_version: Callable[[], int],
        backoff: ExponentialBackoff,
        tally: TransactionTally,
        wall_ms: Callable[[], int] = lambda: 0,
        on_work: Callable[[], None] = lambda: None,
    ) -> None:
        """``transaction_version``: the level that the cluster has finalised now. ``on_work`` is called when there may
        be something to poll or to take.
        """
        self.transactional_id = transactional_id
        self.lane = lane
        self.state = _State.UNINITIALIZED
        self.identity = NO_PRODUCER_ID
        """Of every batch of this lane. A changed one begins every partition at sequence 0."""
        self.version = 0
        """transaction.version of the open or last transaction."""
        self.number = 0
        """Number of the open or last transaction."""
        self.aborted_up_to = 0
        """Records of these transactions are not sent any more."""
        self.is_abandoned = False
        """Its client is gone: nothing begins any more."""
        self._transaction_version = transaction_version
        self._backoff = backoff
        self.client = (0, 0)
        self.store: Callable[[], None] = lambda: None
        self._wall_ms = wall_ms
        self._on_work = on_work
        self._tally = tally
        self._timeout_ms = self._deadline_ms = 0
        self._is_restarted = False
        """What is in flight was asked for by an earlier client: its answer means nothing."""
        self._is_init_asked = False
        """The client waits for the answer of its init."""
        self._coordinator: Node | None = None
        self._group_coordinators: dict[str, Node] = {}
        self._in_flight: CoordinatorRequest | None = None
        self._failures, self._retry_at_ms = 0, 0.0
        self._has_produced = False
        """The coordinator knows, or may know, of this transaction: it must be ended there."""
        self._added: set[TopicPartition] = set()
        self._to_add: dict[TopicPartition, None] = {}
        self._added_groups: set[str] = set()
        self._offsets: deque[_Offsets] = deque()
        self._has_asked_commit = False
        """EndTxn was sent for a commit, so the coordinator may have carried it out whatever it answered."""
        self.has_included = False
        """The open or last transaction has included stages. It does so once."""
        self._awaits_end = self._needs_epoch = False
        """Whether a dead worker was asked to commit and had not begun to: the client sends again what is not answered,
        END last. Whether the end of a transaction that sent something must bring a new epoch, which its answer may
        lack.
        """
        self.cause: tuple[int, str] = (0, "")
        """Why the transaction is abortable or the lane fatal: the first cause only."""
        self.last_committed = False
        """Whether the last ended transaction was committed."""
        self._last_end: TransactionResult | None = None
        self._is_end_untold = False
        """The client hears of it once the next transaction can begin."""
        self._results: list[TransactionResult] = []

    # --- what the client asks for --------------------------------------------------------------------------

    def initialize(self, timeout_ms: int) -> None:
        """Get a producer id; the coordinator ends what an earlier producer left open and fences it. A repeat gets the
        one result.
        """
        if self.state is _State.UNINITIALIZED:
            self._timeout_ms = timeout_ms
            self._move(_Event.INITIALIZE)
        if self.state is _State.INITIALIZING:
            self._is_init_asked = True
        elif self.state is _State.FATAL:
            if self.last_committed and self._last_end is not None:
                self._results.append(self._last_end)  # a client that was away may not have heard it
            self._tell(TxnPart.INIT, 0, *self.cause, TxnEffect.FATAL)
        else:
            self._tell(TxnPart.INIT, 0)
            if self.state is _State.ABORTABLE:
                self._tell(TxnPart.STATE, self.number, *self.cause, TxnEffect.ABORTABLE)
        self._on_work()

    def adopt(self, record: TransactionRecord) -> None:
        """Continue as a worker that has died left it. What it had asked for is asked for again: a coordinator
        recognises the same request.
        """
        self.state = record.state
        self.version, self.identity, self.number = record.version, record.identity, record.number
        self.aborted_up_to, self._has_produced = record.aborted_up_to, record.has_produced
        self._deadline_ms, self._timeout_ms = record.deadline_ms, record.timeout_ms
        self._has_asked_commit = record.has_asked_commit
        self.has_included = record.has_included
        self._awaits_end = record.state is _State.COMMITTING and not record.has_asked_commit
        # Requests of the dead worker may still be on their way.
        self._needs_epoch = record.version < SELF_ADDING_VERSION and record.state in _OPEN
        self.last_committed = record.last_committed
        if record.last_ended:
            self._last_end = TransactionResult(TxnPart.END, record.last_ended, 0, TxnEffect.NONE, "")
        if record.state in (_State.ABORTABLE, _State.FATAL):
            code = record.cause_code or LocalCode.TXN_ABORTED
            text = "What went wrong was lost with the worker that knew it."
            self.cause = code, text if code >= WORD_FAILED_MIN else classify(code).text
        self._on_work()

    def restart(self, timeout_ms: int, client_row: int, client_generation: int) -> None:
        """Another client of the id initializes. Nothing of the earlier one is sent any more, and what it still waits
        for is told by the caller. Its answers are awaited, then the coordinator ends what it left open.
        """
        self.client = (client_row, client_generation)
        self._timeout_ms = timeout_ms
        self._is_restarted = self._in_flight is not None
        self._drop_waiting(0, TxnEffect.NONE, "")
        self._results.clear()
        self._last_end = None
        self._is_end_untold = False
        self.number = self.aborted_up_to = 0
        self.cause = (0, "")
        self.is_abandoned = False
        self._is_init_asked = True
        self._awaits_end = False
        self.identity = NO_PRODUCER_ID
        self._move(_Event.RESTART)
        self._on_work()

    def begin(self, number: int) -> bool:
        """Begin transaction ``number``, unless it is the open one. False if its records must not be taken: it has
        ended or is being ended, the lane is not initialized, or is refused for good.
        """
        if self.state is _State.READY and number > self.number and not self.is_abandoned:
            self._begin(number)
        return number == self.number and self.state in (_State.IN_TRANSACTION, _State.ABORTABLE)

    def send_offsets(
        self,
        number: int,
        request: int,
        member: GroupMember,
        offsets: Iterable[CommittedOffset],
    ) -> None:
        """Commit a consumer's offsets with the transaction. ``request`` names the call: a repeat gets one result."""
        if any(each.request == request for each in self._offsets):
            return
        self._on_work()
        is_open = self.begin(number) and self.state is _State.IN_TRANSACTION
        # A client that waits for both calls no longer may have asked for the commit already.
        is_committing = number == self.number and self.state is _State.COMMITTING
        if is_open or (is_committing and not self._has_asked_commit):
            self._offsets.append(_Offsets(request, member, tuple(offsets)))
        else:
            self._refuse_offsets(number, request)

    def end(self, number: int, is_commit: bool) -> None:
        """Commit or abort transaction ``number``, as soon as all of it is answered. A repeat gets the one result."""
        self._on_work()
        self._awaits_end = False
        if self._last_end is not None and number == self._last_end.number:
            if is_commit == self.last_committed:
                self._is_end_untold = True
                if self.state is not _State.INITIALIZING:
                    self._tell_end()
            else:
                done = "committed" if self.last_committed else "aborted"
                self._refuse_end(number, f"Transaction {number} has been {done}.")
            return
        if self.state is _State.READY and number > self.number:
            self._begin(number)  # nothing was sent in it
        if self.state is _State.FATAL:
            self._tell(TxnPart.END, number, *self.cause, TxnEffect.FATAL)
        elif number != self.number:
            self._refuse_end(number, f"Transaction {number} is not open.")
        elif not is_commit and self.state in (_State.IN_TRANSACTION, _State.ABORTABLE):
            self._start_abort()
        elif is_commit and self.state is _State.ABORTABLE:
            self._tell(TxnPart.END, number, *self.cause, TxnEffect.ABORTABLE)
        elif is_commit and self.state is _State.IN_TRANSACTION:
            self._move(_Event.COMMIT)
        elif self.state is not (_State.COMMITTING if is_commit else _State.ABORTING):
            other = "An abort" if is_commit else "A commit"
            text = f"{other} of transaction {number} has been asked for and is not over."
            self._refuse_end(number, text, TxnEffect.RETRIABLE)

    def abandon(self) -> None:
        """The client is gone. Its open transaction is aborted, unless its commit was asked for."""
        self._on_work()
        self.is_abandoned = True
        self._is_init_asked = self._awaits_end = False
        if self.state in (_State.IN_TRANSACTION, _State.ABORTABLE):
            self._start_abort()

    def stop(self, text: str) -> None:
        """The daemon stops. A transaction that is open is aborted; one that is ending is left to end."""
        if self.state is _State.IN_TRANSACTION:
            self._fail(LocalCode.ABORTED, text)
        self.abandon()

    @property
    def is_over(self) -> bool:
        """Nothing is open or under way: the lane of a client that is gone can be given up."""
        if self.state is _State.INITIALIZING:
            # It may still have to end the transaction of an earlier client.
            return self._in_flight is None and not self._has_produced
        return self._in_flight is None and self.state not in (
            _State.IN_TRANSACTION,
            _State.ABORTABLE,
            _State.COMMITTING,
            _State.ABORTING,
        )

    # --- what the accumulator asks and reports ---------------------------------------------------------------

    def may_send(self, topic: str, partition: int) -> bool:
        """Whether a batch of that partition may leave now. Below version 2 the first question adds the partition."""
        if self.state not in (_State.IN_TRANSACTION, _State.COMMITTING):
            return False
        if self.version >= SELF_ADDING_VERSION:
            return True
        key = TopicPartition(topic, partition)
        if key in self._added:
            return True
        self._to_add[key] = None
        self._on_work()
        return False

    @property
    def produce_version(self) -> int:
        """The highest version of Produce for its batches. From 12 on a broker adds partitions by itself."""
        return PRODUCE_VERSION if self.version >= SELF_ADDING_VERSION else PRODUCE_VERSION_BELOW_2

    def produced(self) -> None:
        """A batch leaves: from now on the coordinator may know of the transaction."""
        if not self._has_produced:
            self._has_produced = True
            self.store()

    def batch_failed(self, topic: str, partition: int, code: int, text: str) -> None:
        """A batch failed for good, so the transaction can only be aborted. Of several the first is its cause.

        Once the commit was sent, only the coordinator knows how it ends. While the lane initializes, the batch is of an
        earlier client.
        """
        self.want_epoch()  # its broker may lack the sequences of that batch
        is_commit_sent = self.state is _State.COMMITTING and self._has_asked_commit
        if is_commit_sent or self.state is _State.INITIALIZING:
            return
        if code in _FATAL_TO_BATCH:
            self._refuse(code, text)
        elif self.state in (_State.IN_TRANSACTION, _State.COMMITTING, _State.ABORTABLE):
            self._fail(code, f"{topic if partition == NO_PARTITION else f'{topic}-{partition}'}: {text}")
        self._on_work()

    def want_epoch(self) -> None:
        """The end of this transaction, or of the next one that sends something, brings a new epoch. With version 2
        each does.
        """
        self._needs_epoch = True

    # --- the coordinator -------------------------------------------------------------------------------------

    def poll(self, now_ms: float, *, is_quiet: bool) -> CoordinatorRequest | None:
        """The next request, which must be sent and answered by :meth:`on_answer`; one at a time. ``is_quiet``: no
        batch of the lane is unsent or unanswered.
        """
        if self._in_flight is not None or now_ms < self._retry_at_ms:
            return None
        self._retry_at_ms = 0.0
        self._in_flight = self._next_request(is_quiet)
        return self._in_flight

    @property
    def next_due_ms(self) -> float:
        """When to poll again if nothing happens, monotonic ms."""
        return inf if self._in_flight is not None else self._retry_at_ms or inf

    def on_answer(self, request: CoordinatorRequest, answer: CoordinatorAnswer, now_ms: float) -> None:
        """Take the answer of the request that :meth:`poll` returned."""
        assert request is self._in_flight
        self._in_flight = None
        failures, self._failures, self._retry_at_ms = self._failures, 0, 0.0
        is_stale, self._is_restarted = self._is_restarted, False
        if self.state is _State.FATAL or is_stale:
            return
        code = answer.code or _first_error(answer)
        if code and self._is_retried(request, code):
            self._failures = failures + 1
            self._retry(request, code, now_ms)
        elif isinstance(request, FindCoordinator):
            self._found(request, answer)
        elif isinstance(request, InitTransactionalId):
            self._initialized(request, answer)
        elif isinstance(request, AddPartitions):
            self._partitions_added(request, answer)
        elif isinstance(request, AddOffsets):
            self._group_added(request, code, answer.text)
        elif isinstance(request, CommitOffsets):
            self._offsets_committed(code, answer.text)
        else:
            self._ended(request, answer)

    @property
    def open_ms(self) -> int:
        """For how long the open transaction is open, also at the worker's predecessors; 0: none is."""
        if self.state in (_State.UNINITIALIZED, _State.INITIALIZING, _State.READY, _State.FATAL):
            return 0
        return max(1, self._wall_ms() - (self._deadline_ms - self._timeout_ms))

    def take_results(self) -> list[TransactionResult]:
        """What the client hears, in order."""
        results, self._results = self._results, []
        return results

    @property
    def record(self) -> bytes:
        """What a successor must know, as :class:`TransactionRecord` packs it. Store it before each request is sent."""
        last = self._last_end
        return TransactionRecord(
            self.state,
            self.version,
            self.last_committed,
            # A request that adds something may be carried out after the worker's death.
            self._has_produced or isinstance(self._in_flight, AddPartitions | AddOffsets),
            self._has_asked_commit,
            self.has_included,
            self.identity,
            self.cause[0],
            self.number,
            0 if last is None else last.number,
            self.aborted_up_to,
            self._deadline_ms,
            self._timeout_ms,
            *self.client,
        ).pack()

    # --- inside: steps of the table --------------------------------------------------------------------------

    def _move(self, event: TransactionEvent) -> None:
        self.state = TRANSITIONS[self.state][event]

    def _begin(self, number: int) -> None:
        self._move(_Event.BEGIN)
        self.number = number
        self.version = self._transaction_version()
        self._deadline_ms = self._wall_ms() + self._timeout_ms
        self._has_produced = self._has_asked_commit = self.has_included = False
        self._added.clear()
        self._added_groups.clear()
        self.cause = (0, "")
        self.store()

    def _start_abort(self) -> None:
        self.aborted_up_to = self.number
        self._drop_waiting(LocalCode.TXN_ABORTED, TxnEffect.ABORTABLE, "The transaction was aborted.")
        self._move(_Event.ABORT)

    def _complete_end(self) -> None:
        """The transaction has ended as it was asked. The client hears it once the next one can begin."""
        self.last_committed = self.state is _State.COMMITTING
        if self.last_committed:
            self._tally.committed += 1
        else:
            self._tally.aborted += 1
        self._last_end = TransactionResult(TxnPart.END, self.number, 0, TxnEffect.NONE, "")
        self._is_end_untold = True
        if self._needs_epoch and self._has_produced:
            self._move(_Event.RENEW)
        else:
            self._move(_Event.END)
            self._tell_end()

    def _tell_end(self) -> None:
        if self._is_end_untold and self._last_end is not None:
            self._is_end_untold = False
            self._results.append(self._last_end)

    def _fail(self, code: int, text: str) -> None:
        was_committing, is_first = self.state is _State.COMMITTING, not self.cause[0]
        self._move(_Event.FAIL)
        if is_first:
            self.cause = (code, text)
        self._drop_waiting(code, TxnEffect.ABORTABLE, text)
        if was_committing:
            self._tell(TxnPart.END, self.number, *self.cause, TxnEffect.ABORTABLE)
        elif is_first:
            self._tell(TxnPart.STATE, self.number, *self.cause, TxnEffect.ABORTABLE)
        if self.is_abandoned:
            self._start_abort()  # nobody else will

    def _refuse(self, code: int, text: str) -> None:
        """The lane is of no use any more. What waits for an answer gets this one."""
        was = self.state
        if was is _State.FATAL:
            return
        self._move(_Event.REFUSE)
        self.cause = (code, text)
        self._tally.fenced += code in _FENCED
        self._drop_waiting(code, TxnEffect.FATAL, text)
        self._tell_end()  # it had ended; the next epoch is what failed
        if self._is_init_asked:
            self._tell(TxnPart.INIT, 0, code, text, TxnEffect.FATAL)
            self._is_init_asked = False
        elif was in (_State.COMMITTING, _State.ABORTING):
            self._tell(TxnPart.END, self.number, code, text, TxnEffect.FATAL)
        else:
            self._tell(TxnPart.STATE, self.number, code, text, TxnEffect.FATAL)

    def _drop_waiting(self, code: int, effect: TxnEffect, text: str) -> None:
        """Partitions and offsets that were not sent yet are not sent any more."""
        self._to_add.clear()
        for each in self._offsets:
            self._tell(TxnPart.OFFSETS, each.request, code, text, effect)
        self._offsets.clear()

    def _tell(
        self,
        what: TxnPart,
        number: int,
        code: int = 0,
        text: str = "",
        effect: TxnEffect = TxnEffect.NONE,
    ) -> None:
        self._results.append(TransactionResult(what, number, code, effect, text))

    def _refuse_end(self, number: int, text: str, effect: TxnEffect = TxnEffect.NONE) -> None:
        self._tell(TxnPart.END, number, LocalCode.TXN_WRONG_STATE, text, effect)

    def _refuse_offsets(self, number: int, request: int) -> None:
        if self.state is _State.FATAL:
            self._tell(TxnPart.OFFSETS, request, *self.cause, TxnEffect.FATAL)
        elif self.state is _State.ABORTABLE:
            self._tell(TxnPart.OFFSETS, request, *self.cause, TxnEffect.ABORTABLE)
        elif number <= self.aborted_up_to:
            text = "The transaction was aborted."
            self._tell(TxnPart.OFFSETS, request, LocalCode.TXN_ABORTED, text, TxnEffect.ABORTABLE)
        else:
            effect = TxnEffect.RETRIABLE if self.is_abandoned else TxnEffect.NONE
            text = "The daemon stops." if self.is_abandoned else "Its transaction is not open."
            self._tell(TxnPart.OFFSETS, request, LocalCode.TXN_WRONG_STATE, text, effect)

    # --- inside: requests ------------------------------------------------------------------------------------

    def _next_request(self, is_quiet: bool) -> CoordinatorRequest | None:
        if self.state in (_State.UNINITIALIZED, _State.READY, _State.ABORTABLE, _State.FATAL):
            return None
        is_quiet = is_quiet and not self._awaits_end
        if self.state in (_State.COMMITTING, _State.ABORTING) and not self._is_known_to_coordinator:
            if is_quiet:
                self._complete_end()
            return None
        coordinator = self._coordinator
        if coordinator is None:
            return FindCoordinator(self.transactional_id, is_group=False)
        is_left_open = self.state is _State.ABORTING and self.is_abandoned
        if self.state is _State.INITIALIZING and not is_quiet:
            return None
        if self.state is _State.INITIALIZING or is_left_open:
            return InitTransactionalId(coordinator, self.transactional_id, self._timeout_ms, self.identity)
        if self._to_add:
            return AddPartitions(coordinator, self.transactional_id, self.identity, tuple(self._to_add))
        if self._offsets:
            return self._offsets_request(coordinator, self._offsets[0])
        if self.state is _State.IN_TRANSACTION or not is_quiet:
            return None
        is_commit = self.state is _State.COMMITTING
        self._has_asked_commit |= is_commit
        most = END_VERSION if self.version >= SELF_ADDING_VERSION else END_VERSION_BELOW_2
        return EndTransaction(coordinator, self.transactional_id, self.identity, is_commit, most)

    @property
    def _is_known_to_coordinator(self) -> bool:
        return self._has_produced or bool(self._to_add or self._offsets)

    def _offsets_request(self, coordinator: Node, offsets: _Offsets) -> CoordinatorRequest:
        group, identity = offsets.member.group_id, self.identity
        adds_itself = self.version >= SELF_ADDING_VERSION
        if not adds_itself and group not in self._added_groups:
            return AddOffsets(coordinator, self.transactional_id, identity, group)
        group_coordinator = self._group_coordinators.get(group)
        if group_coordinator is None:
            return FindCoordinator(group, is_group=True)
        self._has_produced = True
        most = OFFSETS_VERSION if adds_itself else OFFSETS_VERSION_BELOW_2
        return CommitOffsets(
            group_coordinator, self.transactional_id, identity, offsets.member, offsets.offsets, most
        )

    # --- inside: answers -------------------------------------------------------------------------------------

    def _is_retried(self, request: CoordinatorRequest, code: int) -> bool:
        return code not in _FATAL and (code in _FIND_AGAIN or classify(code).retriable)

    def _retry(self, request: CoordinatorRequest, code: int, now_ms: float) -> None:
        attempt = self._failures - 1
        wait_ms = self._backoff.backoff_ms(attempt)
        if code == Code.CONCURRENT_TRANSACTIONS:
            wait_ms = min(CONCURRENT_RETRY_MS * 2 ** min(attempt, 8), wait_ms)
        self._retry_at_ms = now_ms + wait_ms
        if code in _FIND_AGAIN and isinstance(request, CommitOffsets):
            self._group_coordinators.pop(request.member.group_id, None)
        elif code in _FIND_AGAIN:
            self._coordinator = None
        # It may have been carried out, or be carried out later. A coordinator also gives up its place, or says that it
        # is not available, when it has written to its log and that was not replicated in time.
        if isinstance(request, AddPartitions | AddOffsets):
            self._has_produced |= code in _FIND_AGAIN
        if self.version < SELF_ADDING_VERSION and not isinstance(request, FindCoordinator):
            self._needs_epoch |= code in (Code.NETWORK_EXCEPTION, Code.REQUEST_TIMED_OUT)

    def _found(self, request: FindCoordinator, answer: CoordinatorAnswer) -> None:
        if not answer.code and answer.coordinator is not None:
            if request.is_group:
                self._group_coordinators[request.key] = answer.coordinator
            else:
                self._coordinator = answer.coordinator
        elif request.is_group:
            self._fail_unless_over(answer.code, answer.text)
        else:
            self._refuse(answer.code, answer.text)

    def _initialized(self, request: InitTransactionalId, answer: CoordinatorAnswer) -> None:
        if self.state is _State.ABORTING:
            # The client is gone. Refused as fenced, another producer came and has ended it.
            if answer.code and answer.code not in _FENCED:
                self._refuse(answer.code, answer.text)
                return
            self._needs_epoch = False
            self._complete_end()
        elif answer.code:
            self._refuse(answer.code, answer.text)
        else:
            self._move(_Event.IDENTITY)
            if self._is_init_asked:
                self._tell(TxnPart.INIT, 0)
                self._is_init_asked = False
            self._tell_end()
        if not answer.code:
            self.identity = answer.identity
            self._needs_epoch = False

    def _partitions_added(self, request: AddPartitions, answer: CoordinatorAnswer) -> None:
        refused = {each: code for each, code in answer.partition_codes.items() if code}
        for each in request.partitions:
            if not answer.code and each not in refused:
                self._has_produced = True
                self._added.add(each)
            self._to_add.pop(each, None)
        # One that is refused keeps the coordinator from trying the others.
        refused = {
            each: code for each, code in refused.items() if code != Code.OPERATION_NOT_ATTEMPTED
        } or refused
        for each, code in refused.items():
            self._fail_unless_over(code, f"{each}: {classify(code).text}")
        if answer.code:
            self._fail_unless_over(answer.code, answer.text)

    def _group_added(self, request: AddOffsets, code: int, text: str) -> None:
        if code:
            self._fail_unless_over(code, text)
        else:
            self._has_produced = True
            self._added_groups.add(request.group_id)

    def _offsets_committed(self, code: int, text: str) -> None:
        if code:
            self._fail_unless_over(code, text)
        elif self._offsets:
            self._tell(TxnPart.OFFSETS, self._offsets.popleft().request)

    def _fail_unless_over(self, code: int, text: str) -> None:
        """A partition, group or offset is refused. While it is aborted that changes nothing."""
        if code in _FATAL:
            self._refuse(code, text)
        elif self.state is not _State.ABORTING:
            self._fail(code, text)

    def _ended(self, request: EndTransaction, answer: CoordinatorAnswer) -> None:
        code = answer.code
        if not code:
            if answer.identity.is_valid:
                self.identity = answer.identity
                self._needs_epoch = False
            self._complete_end()
        elif code in _FATAL:
            self._refuse(code, answer.text)
        elif code in (Code.UNKNOWN_PRODUCER_ID, Code.INVALID_TXN_STATE) and not request.is_commit:
            if code == Code.INVALID_TXN_STATE and self._has_asked_commit:
                # A commit that was answered with an error has been carried out all the same.
                self._refuse(code, answer.text)
            else:
                if code == Code.UNKNOWN_PRODUCER_ID:
                    self.identity = NO_PRODUCER_ID  # no producer has it that could be fenced
                self._needs_epoch = True
                self._complete_end()
        else:
            self._needs_epoch = True
            self._fail_end(code, answer.text)

    def _fail_end(self, code: int, text: str) -> None:
        was_aborting = self.state is _State.ABORTING
        self.cause = (code, text)
        self._fail(code, text)
        if was_aborting:
            self._tell(TxnPart.END, self.number, code, text, TxnEffect.ABORTABLE)


def _first_error(answer: CoordinatorAnswer) -> int:
    """The first error of a partition. One that was not attempted says nothing, unless there is no other."""
    codes = [code for code in answer.partition_codes.values() if code]
    return next((code for code in codes if code != Code.OPERATION_NOT_ATTEMPTED), codes[0] if codes else 0)
