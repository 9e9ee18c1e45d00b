"""Staging: the io thread's side of a client that fills stages, one at a time. Sans-IO: calls and messages go in, frames
come out.

::

    caller                       io thread                            worker
    stage()
    send()                --->   STAGE_OPEN, SUBMIT ... (number) --->
                          <---                                 <---   ACCEPTED: its records are in the journal
    seal()                --->   [every SUBMIT of it is sent]
                                 STAGE_SEAL, the last seq of each stream ->
                          <---                                 <---   STAGE, the token

STAGE_OPEN goes again first on each connection until the stage is sealed or dropped. A record is over here once the
worker has accepted it: what becomes of it is told to the producer that includes the stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack

from client_stub.contract.wire import Kind, StagePart, TxnEffect
from client_stub.errors import TransactionError, transaction_error
from client_stub.outbox.open_stage import OpenStage
from client_stub.outbox.submission import Submission
from client_stub.outbox.txn_call import TxnCall
from client_stub.session.streams import Streams
from client_stub.session.txn_calls import STAGES_UNSUPPORTED, TxnCalls


class Staging(TxnCalls):
    """The stages of one session. Io thread only."""

    never_sent = "The stage was dropped before the record was sent."

    def __init__(self, streams: Streams) -> None:
        super().__init__(streams)
        streams.ends_at_acceptance = True
        self._can = False
        self._opened: OpenStage | None = None
        """The stage whose STAGE_OPEN was sent on this connection."""
        self._over: OpenStage | None = None
        """The last one that was sealed or dropped."""

    def queued(self, submission: Submission) -> bool:
        is_queued = super().queued(submission)
        stage = self._stage
        if is_queued and stage is not None:
            stage.records += submission.count
        return is_queued

    @property
    def _stage(self) -> OpenStage | None:
        """The stage that is open or being sealed."""
        stage = self.transaction
        return stage if isinstance(stage, OpenStage) and stage is not self._over else None

    # --- frames ---------------------------------------------------------------------------------------

    def attached(self, limits: Mapping[str, Any]) -> None:
        super().attached(limits)
        self._can, self._opened = bool(limits.get("stages")), None

    def first_frames(self) -> list[Any] | None:
        stage = self._stage
        if stage is None or stage is self._opened or stage.cause is not None:
            return None
        if not self._can:
            self._lose(TransactionError(STAGES_UNSUPPORTED, name="UNSUPPORTED_VERSION", fatal=True))
            return None
        self._opened = stage
        head = [
            Kind.STAGE_OPEN,
            stage.own_number,
            stage.given_number,
            stage.owner,
            stage.transactional_id,
        ]
        return [msgpack.packb(head)]

    def last_frames(self) -> list[Any] | None:
        for call in self._calls:
            if call in self._sent:
                continue
            if call.part is StagePart.DROPPED:
                return self._send_drop(call)
            stage = call.transaction
            assert isinstance(stage, OpenStage)
            if call.part is StagePart.DROP:
                self._sent.append(call)
                return [msgpack.packb([Kind.STAGE_DROP, stage.own_number])]
            if stage.cause is not None:
                self._calls.remove(call)
                self._end(call, stage.error())
                return self.last_frames()
            if self._has_unsent():
                return None
            self._sent.append(call)
            head = [Kind.STAGE_SEAL, stage.own_number, stage.records]
            return [msgpack.packb(head), msgpack.packb(self._ends())]
        return None

    # --- answers --------------------------------------------------------------------------------------

    def receive(self, message: list[Any]) -> None:
        _, what, number, code, effect, text = message[:6]
        error = None if not code else transaction_error(code, effect, str(text))
        if error is not None and effect == TxnEffect.FATAL:
            self._lose(error)
            return
        value = message[6] if len(message) > 6 else None
        part, stage = StagePart(what), self._stage
        if part is StagePart.DROPPED:
            self._answer_drop(number, error, value)
            return
        if stage is not None and stage.own_number == number:
            if part is not StagePart.STATE and error is None:
                self._over = stage
            elif part is StagePart.STATE and error is not None:
                stage.fail(error)
                self._drop_unsent(is_attached=True)
                self._changed = True
        if part is not StagePart.STATE:
            # A drop may have crossed the answer to the seal: then its stage is over already.
            self._answer(lambda call: call.part is part and _own_number_of(call) == number, error, value)


def _own_number_of(call: TxnCall) -> int:
    """The number of the stage that a SEAL or DROP is about."""
    assert isinstance(call.transaction, OpenStage)
    return call.transaction.own_number
