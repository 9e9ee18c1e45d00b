"""StagePort: frames about stages in, answers to their clients out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from client_stub.contract.wire import (
    STAGE_OWNER_BYTES_MAX,
    Kind,
    LocalCode,
    StagePart,
    TxnEffect,
    TxnPart,
)
from sidecar.shm.layout import LANES_MAX, STAGES_MAX
from sidecar.shm.stage_records import StageEnd
from sidecar.shm.stage_states import StageRowState
from sidecar.worker.streams.refusal import MalformedFrame, Refusal
from sidecar.worker.streams.stage import LaneStage
from sidecar.worker.transactions.frames import (
    checked_transactional_id,
    is_count,
    is_within,
    positions_of,
    rows_of,
)
from sidecar.worker.transactions.stages import join

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.worker.streams.lane import Lane
    from sidecar.worker.streams.outboxes import Outboxes
    from sidecar.worker.streams.session import ClientSession
    from sidecar.worker.transactions.lanes import Lanes
    from sidecar.worker.transactions.stages import LaneStages

_UINT32_MAX: Final = (1 << 32) - 1
_UINT64_MAX: Final = (1 << 64) - 1
_RETRIABLE: Final = frozenset({LocalCode.TXN_TOO_MANY, LocalCode.STAGE_TOO_MANY})
"""Refusals of an open that may succeed later."""


class _AskedSeal(NamedTuple):
    """A seal that waits until the journal has all submissions of its stage."""

    records: int
    positions: list[tuple[int, int]]
    """(stream, last sequence number) of what has not arrived."""


class StagePort:
    """Belongs to the worker's loop."""

    def __init__(
        self, lanes: Lanes, stages: LaneStages, outboxes: Outboxes, on_work: Callable[[int], None]
    ) -> None:
        """``on_work`` gets the number of a lane for whose stages :meth:`step` has something to do."""
        self._lanes = lanes
        self._stages = stages
        self._outboxes = outboxes
        self._on_work = on_work
        self._sealing: dict[LaneStage, _AskedSeal] = {}
        stages.on_dropped = self._on_dropped

    # --- frames ---------------------------------------------------------------------------------------------

    def on_frame(
        self, session: ClientSession, kind: int, fields: list[Any], payload: Any, now_ms: float
    ) -> None:
        """Handle STAGE_OPEN, STAGE_SEAL, STAGE_DROP, STAGES_DROP or TXN_INCLUDE. Raises MalformedFrame for one that no
        valid stub sends.
        """
        if kind == Kind.STAGE_OPEN:
            self._on_open(session, *_open_of(fields))
        elif kind == Kind.STAGE_SEAL:
            self._on_seal(session, *_seal_of(fields, payload))
        elif kind == Kind.STAGE_DROP:
            self._on_drop_one(session, *_number_of(fields))
        elif kind == Kind.TXN_INCLUDE:
            self._on_include(session, *_include_of(fields, payload), now_ms)
        else:
            self._on_drop(session, *_drop_of(fields, payload))

    def _on_open(
        self, session: ClientSession, number: int, caller_number: int, owner: str, transactional_id: str
    ) -> None:
        lane = session.lane
        if lane is not None and (session.stages is None or lane.manager.transactional_id != transactional_id):
            raise MalformedFrame("a client stages for one transactional id, and has no transactions")
        if session.stages is not None and number in session.stages:
            stage = session.stages[number]
            if stage.failure is not None:
                self._tell(session, StagePart.STATE, number, stage.failure)
            return
        lane = self._lanes.of_id(transactional_id) or self._lanes.open(transactional_id, None)
        if lane is None:
            text = (
                f'Stage {caller_number} of "{transactional_id}" is not opened: this worker has {LANES_MAX} '
                "transactional ids, as many as it can have; close producers, or start more workers (daemon.workers)."
            )
            self._tell(session, StagePart.STATE, number, Refusal(LocalCode.TXN_TOO_MANY, text))
            return
        join(lane, session)
        found = self._stages.open(lane, session, number, caller_number, owner)
        if isinstance(found, Refusal):
            self._tell(session, StagePart.STATE, number, found)

    def _on_seal(
        self, session: ClientSession, number: int, records: int, positions: list[tuple[int, int]]
    ) -> None:
        stage = (session.stages or {}).get(number)
        if stage is None:
            # It was not opened, which its client has heard.
            text = f"Stage {number} of this client is not known. Fill another one."
            self._tell(session, StagePart.SEAL, number, Refusal(LocalCode.STAGE_UNKNOWN, text))
        elif stage.failure is not None:
            self._tell(session, StagePart.SEAL, number, stage.failure)
        elif stage.token:
            self._tell(session, StagePart.SEAL, number, None, stage.token)
        else:
            self._sealing[stage] = _AskedSeal(records, positions)
            self._on_work(stage.lane.number)

    def _on_include(
        self, session: ClientSession, transaction: int, request: int, tokens: list[bytes], now_ms: float
    ) -> None:
        lane = session.lane
        if lane is None or session.stages is not None:
            raise MalformedFrame("an include of a client that has not initialized a transactional id")
        found = self._included(session, lane, transaction, request, tokens, now_ms)
        message: list[object] = [Kind.TXN, TxnPart.INCLUDE, request]
        if isinstance(found, Refusal):
            message += [found.code, TxnEffect.NONE, found.text, None]
        else:
            message += [0, TxnEffect.NONE, "", found]
        self._outboxes.send(session, message)
        self._on_work(lane.number)

    def _included(
        self,
        session: ClientSession,
        lane: Lane,
        transaction: int,
        request: int,
        tokens: list[bytes],
        now_ms: float,
    ) -> Refusal | list[int]:
        """[records, bytes] of the stages that are included, or why none is."""
        refusal = lane.refusal_of(session, transaction)
        if refusal is not None:
            return refusal
        done = lane.inclusion
        if lane.manager.has_included and done is not None and done.transaction == transaction:
            if done.request not in (request, -1):
                text = (
                    f"Transaction {transaction} has included stages already: one include has all its tokens."
                )
                return Refusal(LocalCode.TXN_WRONG_STATE, text)
            return [done.records, done.size_bytes]
        stages = self._named(session, lane, tokens)
        if isinstance(stages, Refusal):
            return Refusal(stages.code, f"{stages.text} Nothing is included.")
        done = self._stages.include(lane, stages, request, now_ms)
        return [done.records, done.size_bytes]

    def _named(self, session: ClientSession, lane: Lane, tokens: list[bytes]) -> Refusal | list[LaneStage]:
        """The stages that tokens name, each once and all for this client."""
        stages: dict[LaneStage, None] = {}
        for token in tokens:
            stage = self._stages.find(token, lane.manager.transactional_id)
            if stage is None:
                continue  # it has no record
            if isinstance(stage, Refusal):
                return stage
            refusal = self._stages.refusal_for(stage, session)
            if refusal is None and stage in stages:
                text = f"{self._stages.name_of(stage)} is named twice in one include."
                refusal = Refusal(LocalCode.STAGE_UNKNOWN, text)
            if refusal is not None:
                return refusal
            stages[stage] = None
        return list(stages)

    def _on_drop(
        self,
        session: ClientSession,
        request: int,
        transactional_id: str,
        up_to: int | None,
        tokens: list[bytes],
    ) -> None:
        """Drop the stages that are there. What is gone already changes nothing, and counts if it was dropped so: the
        same frame comes again after a worker's death.
        """
        found: dict[LaneStage, None] = {}
        lane = self._lanes.of_id(transactional_id)
        refusal: Refusal | None = None
        if lane is not None and up_to is not None:
            for stage in lane.stages.values():
                is_meant = (
                    stage.state in (StageRowState.OPEN, StageRowState.SEALED) and stage.caller_number <= up_to
                )
                if is_meant and self._stages.may_drop(stage, session):
                    found[stage] = None
        count = 0
        for data in tokens:
            token = self._stages.read(data, transactional_id)
            if isinstance(token, Refusal):
                refusal = refusal or token
                continue
            named = self._stages.of_token(token)
            if named is None or named.state is not StageRowState.SEALED:
                count += self._stages.end_of(token) is StageEnd.DROPPED
            elif self._stages.may_drop(named, session):
                found[named] = None
            else:
                refusal = refusal or self._stages.refusal_for(named, session)
        for stage in found:
            self._stages.drop(stage, StageEnd.DROPPED)
        count += len(found)
        self._tell(session, StagePart.DROPPED, request, None if count else refusal, count)

    def _on_drop_one(self, session: ClientSession, number: int) -> None:
        """Drop a stage of the client's own. A repeat, or one that has ended by itself, changes nothing."""
        stage = (session.stages or {}).pop(number, None)
        if stage is not None and stage.state in (StageRowState.OPEN, StageRowState.SEALED):
            stage.session = None  # it asked for it
            self._stages.drop(stage, StageEnd.DROPPED)
        self._tell(session, StagePart.DROP, number)

    # --- the turn -------------------------------------------------------------------------------------------

    def step(self) -> set[int]:
        """Seal the stages of which the journal has all, and end records of dropped ones. Returns the numbers of the
        lanes with more to do.
        """
        for stage, asked in list(self._sealing.items()):
            session = stage.session
            if stage.state is not StageRowState.OPEN or session is None:
                del self._sealing[stage]
            elif session.has_all(asked.positions):
                self._stages.seal(stage, asked.records)
                del self._sealing[stage]
                if stage.token:
                    self._tell(session, StagePart.SEAL, stage.client_number, None, stage.token)
        if self._stages.ending:
            self._stages.step()
            for stage in self._stages.ending:
                self._on_work(stage.lane.number)
        return {stage.lane.number for stage in self._sealing}

    def _on_dropped(self, stage: LaneStage) -> None:
        self._on_work(stage.lane.number)
        if stage.session is not None and stage.failure is not None:
            what = StagePart.SEAL if stage in self._sealing else StagePart.STATE
            self._tell(stage.session, what, stage.client_number, stage.failure)

    def _tell(
        self,
        session: ClientSession,
        what: StagePart,
        number: int,
        refusal: Refusal | None = None,
        *more: object,
    ) -> None:
        code, text = (0, "") if refusal is None else refusal
        effect = TxnEffect.NONE
        if refusal is not None:
            effect = TxnEffect.RETRIABLE if code in _RETRIABLE else TxnEffect.ABORTABLE
        self._outboxes.send(session, [Kind.STAGE, what, number, code, effect, text, *more])


# --- reading frames -------------------------------------------------------------------------------------------


def _number_of(fields: list[Any]) -> tuple[int]:
    if len(fields) != 1 or not is_count(fields[0]):
        raise MalformedFrame("STAGE_DROP does not name a stage")
    return (fields[0],)


def _open_of(fields: list[Any]) -> tuple[int, int, str, str]:
    if len(fields) != 4:
        raise MalformedFrame(f"STAGE_OPEN has {len(fields)} fields of 4")
    number, caller_number, owner, transactional_id = fields
    if not is_within(number, 1, _UINT32_MAX):
        raise MalformedFrame(f"{number!r:.40} is no client's number of a stage")
    if not is_within(caller_number, 0, _UINT64_MAX):
        raise MalformedFrame(f"{caller_number!r:.40} is no number of a stage")
    if type(owner) is not str or len(owner.encode()) > STAGE_OWNER_BYTES_MAX:
        raise MalformedFrame(f"the owner of a stage has at most {STAGE_OWNER_BYTES_MAX} bytes")
    return number, caller_number, owner, checked_transactional_id(transactional_id)


def _seal_of(fields: list[Any], payload: Any) -> tuple[int, int, list[tuple[int, int]]]:
    if len(fields) != 2 or not all(map(is_count, fields)):
        raise MalformedFrame("STAGE_SEAL has no number of a stage, or does not say how many records it has")
    return fields[0], fields[1], positions_of(payload)


def _include_of(fields: list[Any], payload: Any) -> tuple[int, int, list[bytes]]:
    if len(fields) != 2 or not all(map(is_count, fields)):
        raise MalformedFrame("TXN_INCLUDE does not name its transaction or request")
    return fields[0], fields[1], _tokens_of(payload)


def _drop_of(fields: list[Any], payload: Any) -> tuple[int, str, int | None, list[bytes]]:
    if len(fields) != 3 or not is_count(fields[0]):
        raise MalformedFrame("STAGES_DROP does not name its request, transactional id and number")
    request, transactional_id, up_to = fields
    if up_to is not None and not is_within(up_to, 0, _UINT64_MAX):
        raise MalformedFrame(f"{up_to!r:.40} is no number of a stage")
    return request, checked_transactional_id(transactional_id), up_to, _tokens_of(payload)


def _tokens_of(payload: Any) -> list[bytes]:
    tokens = rows_of(payload) if len(payload) else []
    if len(tokens) > STAGES_MAX or not all(type(token) is bytes for token in tokens):
        raise MalformedFrame(f"a second frame that is no array of at most {STAGES_MAX} tokens")
    return tokens
