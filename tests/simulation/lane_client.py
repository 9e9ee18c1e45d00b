"""LaneClient: one process with a transactional producer: the stub's session and calls, without sockets and threads.

Its program is a generator: it yields the milliseconds that it sleeps, or the call whose answer it waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack

from client_stub.engine.transactions import Transactions
from client_stub.errors import SidecarError, TransactionError
from client_stub.outbox.submission import WANT_INDEXES, Submission
from client_stub.outbox.transactional_outbox import TransactionalOutbox
from client_stub.outbox.txn_call import TxnCall
from client_stub.records.offsets import GroupMetadata
from client_stub.session.client_identity import ClientIdentity
from client_stub.session.session import Session

from .lane_cluster import GROUP

Program: TypeAlias = Generator["float | TxnCall", None, None]
STAMP_MS: Final = 1_700_000_000_000
INIT_TRIES_MAX: Final = 50


class Plan(NamedTuple):
    """One transaction: for each submission (topic, records), then whether offsets go with it, and its end.

    ``is_impatient``: its program does not wait for the answer about the offsets.
    """

    sends: tuple[tuple[str, int], ...]
    has_offsets: bool
    commits: bool
    gap_ms: float = 1.0
    """Between two of its calls."""
    is_impatient: bool = False


@dataclass
class Told:
    """A transaction as its program knows it."""

    client: str
    name: str
    values: list[bytes] = field(default_factory=list)
    offset: int | None = None
    result: str = "open"
    """open, committed, aborted or unknown. A client that is killed leaves it as it was."""
    has_asked_commit: bool = False
    is_excused: bool = False
    """A topic was made anew meanwhile: what is there of it may be gone, or be of no transaction."""
    why: str = ""

    @property
    def must_be_there(self) -> bool:
        return self.result == "committed"

    @property
    def may_be_there(self) -> bool:
        return self.result in ("committed", "unknown") or (self.result == "open" and self.has_asked_commit)


class LaneClient:
    """``topics``: how many partitions each has. ``next_offset`` numbers the offsets of its group."""

    def __init__(
        self,
        label: str,
        name: str,
        plans: list[Plan],
        *,
        topics: dict[str, int],
        timeout_ms: int,
        delivery_timeout_ms: float,
        now_ms: Callable[[], float],
        next_offset: Callable[[], int],
    ) -> None:
        self.label, self.name, self.plans = label, name, plans
        self._topics = topics
        self._now_ms = now_ms
        self._next_offset = next_offset
        self.outbox = TransactionalOutbox(max_block_ms=0, connect_timeout_ms=60_000, path="/nowhere")
        self.outbox.attached_once = True
        identity = ClientIdentity(name=label, pid=1, fork_generation=0, token=None, transactional_id=name)
        self.session = Session(
            identity, delivery_timeout_ms=delivery_timeout_ms, transactional=(name, timeout_ms)
        )
        self.calls = Transactions(self.outbox, lambda: None, 60_000.0)
        self.told: list[Told] = []
        self.lost: SidecarError | None = None
        self.program = self._run()
        self.waits_for: TxnCall | None = None
        self.wakes_ms = 0.0
        self.is_over = False
        """Its program has ended, and it has left."""
        self.is_dead = False
        self.route = b""
        """Its connection to the worker."""
        self.timer_ms = 0.0
        """When the world looks at it if nothing happens."""

    def step(self, now_ms: float) -> bool:
        """Continue the program, if what it waits for is there. False if it is not."""
        if self.is_over or now_ms < self.wakes_ms:
            return False
        if self.waits_for is not None and not self.calls.is_over(self.waits_for):
            return False
        try:
            wanted = next(self.program)
        except StopIteration:
            self.is_over = True
            return True
        if isinstance(wanted, TxnCall):
            self.waits_for = wanted
        else:
            self.waits_for, self.wakes_ms = None, now_ms + wanted
        return True

    # --- the program ---------------------------------------------------------------------------------------

    def _run(self) -> Program:
        for _ in range(INIT_TRIES_MAX):
            error = yield from self._call(self.calls.init)
            if error is None:
                break
            if not error.retriable:  # type: ignore[attr-defined]
                self.lost = error
                return
            yield 20.0
        for plan in self.plans:
            yield plan.gap_ms
            yield from self._transaction(plan)
            if self.lost is not None:
                return

    def _call(
        self, make: Callable[[], TxnCall | None], *, waits: bool = True
    ) -> Generator[float | TxnCall, None, SidecarError | None]:
        """Make a call and wait for its answer. Returns its error."""
        try:
            call = make()
            if call is None or not waits:
                return None
            yield call
            self.calls.conclude(call, 60.0)
        except SidecarError as error:
            return error
        finally:
            self.calls.release()
        return None

    def _transaction(self, plan: Plan) -> Program:
        try:
            self.calls.begin()
        except SidecarError as error:
            self.lost = error
            return
        told = Told(self.label, self.name)
        self.told.append(told)
        error: SidecarError | None = None
        for topic, count in plan.sends:
            yield plan.gap_ms
            error = self._send(told, topic, count)
            if error is not None:
                break
        if error is None and plan.has_offsets:
            offset = self._next_offset()
            told.offset = offset
            group = GroupMetadata(f"{GROUP}-{self.name}")
            make = partial(self.calls.offsets, {("in", 0): offset}, group)
            error = yield from self._call(make, waits=not plan.is_impatient)
        if error is None:
            yield plan.gap_ms
            if plan.commits:
                told.has_asked_commit = True
                error = yield from self._end(self.calls.commit)
                if error is None:
                    told.result = "committed"
                    return
            else:
                error = yield from self._end(self.calls.abort)
                if error is None:
                    told.result = "aborted"
                    return
        told.why = str(error)
        if isinstance(error, TransactionError) and error.abortable:
            told.has_asked_commit = False  # it has failed: this is an answer
            error = yield from self._end(self.calls.abort)
            if error is None:
                told.result = "aborted"
                return
            told.why += f"; then {error}"
        told.result = "unknown" if told.has_asked_commit else "aborted"
        self.lost = error

    def _end(self, end: Callable[[], TxnCall]) -> Generator[float | TxnCall, None, SidecarError | None]:
        for _ in range(INIT_TRIES_MAX):
            error = yield from self._call(end)
            if error is None or not getattr(error, "retriable", False):
                return error
            yield 20.0
        return error

    def _send(self, told: Told, topic: str, count: int) -> SidecarError | None:
        transaction = self.outbox.transaction
        if transaction is None:
            return self.outbox.lost_id or TransactionError("lost", fatal=True)
        if transaction.cause is not None:
            return transaction.error()
        values = [
            b"%s.%d.%d" % (self.label.encode(), len(self.told), len(told.values) + i) for i in range(count)
        ]
        told.values += values
        submission = Submission(self.outbox.waiters, topic, None, 0, STAMP_MS)
        submission.count = count
        submission.flags = WANT_INDEXES
        partitions = self._topics[topic]
        records = [[None, each, None, at % partitions] for at, each in enumerate(values)]
        submission.seal(b"".join(map(msgpack.packb, records)))
        self.session.add([submission], self._now_ms())
        return None

    # --- the io thread -------------------------------------------------------------------------------------

    def messages(self) -> list[list[Any]]:
        """What goes to the worker now."""
        calls = self.outbox.take_calls()
        if calls:
            self.session.add_calls(calls)
        found = []
        while (frames := self.session.next_frames()) is not None:
            found.append([bytes(frame) for frame in frames])
        transactional = self.session.transactional
        assert transactional is not None
        if transactional.take_changed():
            self.outbox.calls_ended(transactional.fatal)
        return found
