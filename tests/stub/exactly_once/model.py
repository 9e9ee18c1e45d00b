"""The protocol of exactly-once from Spark, as a model that is searched whole: every order of every step.

Two runs of one query may be alive at once, as after a driver that was taken for dead. Each writes the same two batches
of two tasks, and each task has an attempt that Spark does not choose. Any process may die at every step, the
coordinator may end the transaction by its timeout, an answer may be lost, and a request to commit may arrive long
after its sender has died.

The model knows the coordinator by what Kafka promises (transaction.version 2): a request with an older epoch is
refused, a commit repeated with its epoch is answered as the first one, and getting the id ends the open transaction.
What becomes of a batch is decided by the sink's own code.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, IntEnum, auto
from functools import cache
from typing import Final, NamedTuple

from client_stub.spark.exactly_once.commit_record import CommitRecord
from client_stub.spark.exactly_once.decision import Batch, BatchRefused, Decision, decide
from client_stub.spark.exactly_once.settings import read_exactly_once

SETTINGS: Final = read_exactly_once({})
BATCHES: Final = 2
TASKS: Final = 2
RUNS: Final = 2
CHOSEN: Final = 0
LOSER: Final = 1
"""Attempts of a task."""

Row = tuple[int, int, int, int]
"""Batch, run, task, attempt. A stage holds one."""


class Rule(Enum):
    """What the protocol rests on. Without any one of them rows are lost or doubled."""

    CLAIM_BEFORE_READ = auto()
    CLAIM_UNLESS_LAST = auto()
    """A client that did not itself commit the last batch claims the transactional id."""
    DROP_REPLAY = auto()
    RECORD_NOT_BEFORE = auto()
    RECORD_NOT_AFTER = auto()
    """With the rule before: the record is in the transaction of the rows."""
    ONLY_CHOSEN = auto()
    LOST_IS_NO_COMMIT = auto()
    LOST_IS_NO_REFUSAL = auto()


class Phase(IntEnum):
    """What a run does next."""

    START = 0
    TASKS = 1
    CLAIM = 2
    READ = 3
    INCLUDE = 4
    RECORD = 5
    END = 6
    WAIT = 7
    """For the answer to its request to commit."""
    LOST = 8
    """The answer will not come."""
    RECORD_AFTER = 9
    LOG = 10
    """commit() has returned: Spark's commit log comes next."""
    FINISHED = 11
    DEAD = 12


class Record(NamedTuple):
    batch: int
    run: int


class Run(NamedTuple):
    phase: Phase = Phase.START
    batch: int = 0
    epoch: int = 0
    read: Record | None = None
    is_last: bool = False
    """Whether this run has itself committed the batch before, and has its identity still."""


DEAD: Final = Run(Phase.DEAD)
FINISHED: Final = Run(Phase.FINISHED)


class Transaction(NamedTuple):
    run: int
    rows: tuple[Row, ...]
    record: Record | None = None


class State(NamedTuple):
    runs: tuple[Run, ...] = (Run(),) * RUNS
    staged: frozenset[Row] = frozenset()
    epoch: int = 0
    transaction: Transaction | None = None
    committed_epoch: int = -1
    """The epoch whose transaction was committed last."""
    flying: frozenset[int] = frozenset()
    """Requests to commit that have not arrived, by their epoch."""
    visible: tuple[Row, ...] = ()
    record: Record | None = None
    logged: int = -1
    timeouts: int = 0
    losses: int = 0


class Step(NamedTuple):
    name: str
    state: State


class Model:
    """``broken``: the rule that this protocol goes without. ``faults``: how many timeouts and how many losses."""

    def __init__(self, broken: Rule | None = None, *, faults: int = 2) -> None:
        self._broken = broken
        self._faults = faults

    def fault(self, state: State) -> str | None:
        """What a reader, or Spark, finds wrong; None for a state that is right."""
        for batch in range(BATCHES):
            seen = sorted(row for row in state.visible if row[0] == batch)
            if not seen:
                if state.logged >= batch:
                    return f"batch {batch} is lost"
                continue
            whole = [(batch, seen[0][1], task, CHOSEN) for task in range(TASKS)]
            if len(seen) < len(whole):
                return f"half of batch {batch} is visible"
            if seen != whole:
                return f"batch {batch} is doubled"
        return None

    def steps(self, state: State) -> Iterator[Step]:
        """Every step that may come next."""
        for number, run in enumerate(state.runs):
            if run.phase in (Phase.FINISHED, Phase.DEAD):
                continue
            if run.phase != Phase.START:
                yield Step(f"run {number} dies", _with(state, number, DEAD))
                yield from self._losers(state, number, run)
            yield from self._of_run(state, number, run)
        yield from self._of_coordinator(state)

    def _losers(self, state: State, number: int, run: Run) -> Iterator[Step]:
        """After its run has included what Spark chose, nobody asks for a stage of that batch."""
        losers = frozenset((run.batch, number, task, LOSER) for task in range(TASKS))
        if run.phase <= Phase.INCLUDE and not losers <= state.staged:
            yield Step(
                f"run {number} seals a loser of each task", state._replace(staged=state.staged | losers)
            )

    def _of_run(self, state: State, number: int, run: Run) -> Iterator[Step]:
        name = f"run {number}"
        chosen = [(run.batch, number, task, CHOSEN) for task in range(TASKS)]
        match run.phase:
            case Phase.START:
                if state.logged + 1 < BATCHES:
                    begun = Run(Phase.TASKS, state.logged + 1)
                    yield Step(f"{name} starts at batch {begun.batch}", _with(state, number, begun))
            case Phase.TASKS:
                missing = [row for row in chosen if row not in state.staged]
                if missing:
                    yield Step(
                        f"{name} seals task {missing[0][2]}",
                        state._replace(staged=state.staged | {missing[0]}),
                    )
                else:
                    yield from self._commit_begins(state, number, run)
            case Phase.CLAIM:
                yield self._claim(state, number, run)
            case Phase.READ:
                yield self._read(state, number, run)
            case Phase.INCLUDE:
                yield self._include(state, number, run, chosen)
            case Phase.RECORD:
                yield self._add_record(state, number, run)
            case Phase.END:
                sent = state._replace(flying=state.flying | {run.epoch})
                yield Step(f"{name} asks for the commit", _with(sent, number, run._replace(phase=Phase.WAIT)))
            case Phase.WAIT:
                if state.losses < self._faults:
                    lost = _with(
                        state._replace(losses=state.losses + 1), number, run._replace(phase=Phase.LOST)
                    )
                    yield Step(f"{name} hears nothing", lost)
                    if run.epoch in state.flying:
                        never = lost._replace(flying=lost.flying - {run.epoch})
                        yield Step(f"{name} hears nothing, its request never arrives", never)
            case Phase.LOST:
                yield from self._lost(state, number, run)
            case Phase.RECORD_AFTER:
                told = state._replace(record=Record(run.batch, number))
                yield Step(f"{name} writes its record", _with(told, number, run._replace(phase=Phase.LOG)))
            case Phase.LOG:
                yield self._log(state, number, run)

    def _commit_begins(self, state: State, number: int, run: Run) -> Iterator[Step]:
        if run.is_last:
            yield Step(
                f"run {number} takes the shortcut", _with(state, number, run._replace(phase=Phase.INCLUDE))
            )
        first = Phase.CLAIM if self._broken is not Rule.CLAIM_BEFORE_READ else Phase.READ
        yield Step(f"run {number} begins its commit", _with(state, number, run._replace(phase=first)))

    def _claim(self, state: State, number: int, run: Run) -> Step:
        if self._broken is Rule.CLAIM_UNLESS_LAST:
            # It continues under the identity that its daemon has.
            joined = run._replace(phase=Phase.READ, epoch=state.epoch)
            return Step(f"run {number} does not claim", _with(state, number, joined))
        claimed = state._replace(epoch=state.epoch + 1, transaction=None)
        run = run._replace(phase=Phase.READ, epoch=claimed.epoch)
        if self._broken is Rule.CLAIM_BEFORE_READ:
            run = self._decided(number, run, run.read)
        return Step(f"run {number} claims", _with(claimed, number, run))

    def _read(self, state: State, number: int, run: Run) -> Step:
        found = "nothing" if state.record is None else f"batch {state.record.batch}"
        if self._broken is Rule.CLAIM_BEFORE_READ:
            following = run._replace(phase=Phase.CLAIM, read=state.record)
        else:
            following = self._decided(number, run, state.record)
        return Step(f"run {number} reads {found}", _with(state, number, following))

    def _decided(self, number: int, run: Run, last: Record | None) -> Run:
        decision = _decision(number, run.batch, last)
        if decision is Decision.REPLAY and self._broken is not Rule.DROP_REPLAY:
            return run._replace(phase=Phase.LOG, read=None)
        return DEAD if decision is None else run._replace(phase=Phase.INCLUDE, read=None)

    def _include(self, state: State, number: int, run: Run, chosen: list[Row]) -> Step:
        name = f"run {number} includes"
        if run.epoch != state.epoch or not state.staged.issuperset(chosen):
            return Step(f"{name}: refused", _with(state, number, DEAD))
        rows = chosen
        if self._broken is Rule.ONLY_CHOSEN:
            rows = [row for row in state.staged if row[0] == run.batch]
        before = () if state.transaction is None else state.transaction.rows
        included = state._replace(
            staged=state.staged.difference(rows),
            transaction=Transaction(number, tuple(sorted((*before, *rows)))),
        )
        if self._broken is Rule.RECORD_NOT_BEFORE:
            included = included._replace(record=Record(run.batch, number))
        following = (
            Phase.END if self._broken in (Rule.RECORD_NOT_BEFORE, Rule.RECORD_NOT_AFTER) else Phase.RECORD
        )
        return Step(name, _with(included, number, run._replace(phase=following)))

    def _add_record(self, state: State, number: int, run: Run) -> Step:
        open_ = state.transaction
        if open_ is None or run.epoch != state.epoch:
            return Step(f"run {number} is fenced", _with(state, number, DEAD))
        written = open_._replace(record=Record(run.batch, number))
        return Step(
            f"run {number} adds its record",
            _with(state._replace(transaction=written), number, run._replace(phase=Phase.END)),
        )

    def _lost(self, state: State, number: int, run: Run) -> Iterator[Step]:
        if self._broken is Rule.LOST_IS_NO_COMMIT:
            yield Step(f"run {number} calls it a commit", _committed(state, number, run))
        elif self._broken is Rule.LOST_IS_NO_REFUSAL:
            # It writes its batch again, and reads nothing before.
            restaged = state.staged | {(run.batch, number, task, CHOSEN) for task in range(TASKS)}
            claimed = state._replace(epoch=state.epoch + 1, transaction=None, staged=restaged)
            again = run._replace(phase=Phase.INCLUDE, epoch=claimed.epoch)
            yield Step(f"run {number} calls it a refusal", _with(claimed, number, again))
        else:
            sent = state._replace(flying=state.flying | {run.epoch})
            yield Step(f"run {number} asks again", _with(sent, number, run._replace(phase=Phase.WAIT)))

    def _log(self, state: State, number: int, run: Run) -> Step:
        kept = frozenset(row for row in state.staged if row[0] > run.batch)
        logged = state._replace(logged=max(state.logged, run.batch), staged=kept)
        return Step(
            f"run {number}: Spark notes batch {run.batch}",
            _with(
                logged,
                number,
                FINISHED
                if run.batch + 1 == BATCHES
                else run._replace(phase=Phase.TASKS, batch=run.batch + 1),
            ),
        )

    def _of_coordinator(self, state: State) -> Iterator[Step]:
        if state.transaction is not None:
            aborted = state._replace(epoch=state.epoch + 1, transaction=None)
            if state.timeouts < self._faults:
                yield Step("the transaction times out", aborted._replace(timeouts=state.timeouts + 1))
            is_gone = state.runs[state.transaction.run].phase == Phase.DEAD
            if is_gone and state.epoch not in state.flying:
                yield Step("the daemon aborts for a client that is gone", aborted)
        for epoch in state.flying:
            yield from self._arrives(state, epoch)

    def _arrives(self, state: State, epoch: int) -> Iterator[Step]:
        arrived = state._replace(flying=state.flying - {epoch})
        open_ = state.transaction
        has_committed = epoch == state.committed_epoch
        if epoch == state.epoch and open_ is not None:
            has_committed = True
            arrived = arrived._replace(
                transaction=None,
                epoch=epoch + 1,
                committed_epoch=epoch,
                visible=tuple(sorted((*state.visible, *open_.rows))),
                record=state.record if open_.record is None else open_.record,
            )
        waiting = [
            number for number, run in enumerate(state.runs) if run.phase == Phase.WAIT and run.epoch == epoch
        ]
        if not waiting:
            yield Step("a late request to commit arrives", arrived)
            return
        (number, *_) = waiting
        run = state.runs[number]
        if not has_committed:
            yield Step(f"run {number} hears no", _with(arrived, number, DEAD))
            return
        yield Step(f"run {number} hears of its commit", self._heard(arrived, number, run))
        if state.losses < self._faults:
            lost = _with(arrived, number, run._replace(phase=Phase.LOST))
            yield Step(f"the answer for run {number} is lost", lost._replace(losses=state.losses + 1))

    def _heard(self, state: State, number: int, run: Run) -> State:
        if self._broken is Rule.RECORD_NOT_AFTER:
            return _with(state, number, run._replace(phase=Phase.RECORD_AFTER))
        return _committed(state, number, run)


@cache
def _decision(number: int, batch: int, last: Record | None) -> Decision | None:
    """By the code that the sink runs; None if it refuses the batch."""
    record = None if last is None else CommitRecord(last.batch, "query", str(last.run), 2, 2)
    try:
        return decide(Batch("key", "sink", batch, "query", str(number)), record, SETTINGS)
    except BatchRefused:
        return None


def _committed(state: State, number: int, run: Run) -> State:
    return _with(state, number, run._replace(phase=Phase.LOG, is_last=True, epoch=run.epoch + 1))


def _with(state: State, number: int, run: Run) -> State:
    runs = state.runs
    return state._replace(runs=(*runs[:number], run, *runs[number + 1 :]))


class Search(NamedTuple):
    states: int
    depth: int
    finished: int
    """States in which all batches are in Spark's commit log."""
    fault: str | None
    way: tuple[str, ...]
    """The steps to the fault, one of the shortest."""


def search(model: Model) -> Search:
    """Go every way, breadth first, until a fault is found or no state is left."""
    first = State()
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    edge, depth, finished = [first], 0, 0
    while edge:
        depth += 1
        following = []
        for state in edge:
            for name, found in model.steps(state):
                if found in came_from:
                    continue
                came_from[found] = (state, name)
                fault = model.fault(found)
                if fault is not None:
                    return Search(len(came_from), depth, finished, fault, _way(came_from, found))
                finished += found.logged == BATCHES - 1
                following.append(found)
        edge = following
    return Search(len(came_from), depth, finished, None, ())


def _way(came_from: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    names = []
    step = came_from[state]
    while step is not None:
        names.append(step[1])
        step = came_from[step[0]]
    return tuple(reversed(names))
