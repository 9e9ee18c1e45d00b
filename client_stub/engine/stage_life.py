"""StageLife: one stage as its program calls it, as a table of states, and what each call asks of the io thread.

Several threads may call it at once: a seal() of a second one waits for the same token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgpack

from client_stub.contract.wire import StagePart
from client_stub.engine.daemon_calls import DaemonCalls
from client_stub.engine.stage_states import TRANSITIONS, StageEvent, StageState
from client_stub.errors import ProducerClosed, SidecarError, TransactionStateError
from client_stub.outbox.open_stage import OpenStage
from client_stub.outbox.transactional_outbox import TransactionalOutbox
from client_stub.outbox.txn_call import TxnCall

STAGE_FORKED: Final = (
    "This is a forked child: the stage is its parent's. Open a stage of its own here, with producer.stage()."
)
CLOSED: Final = "The stage was dropped, as its producer was closed before seal()."
_S, _E = StageState, StageEvent
_WHAT_TO_DO: Final = {
    _S.SEALING: "seal() has been called: call it again for its token, or drop()",
    _S.SEALED: "it is sealed: give its token to include(), and open another stage for more",
    _S.DROPPING: "drop() has no answer yet: call it again",
    _S.DROPPED: "it was dropped: open another stage",
}


class StageLife(DaemonCalls):
    """The stage that is open in ``outbox``, which belongs to it until it is sealed or dropped."""

    forked_text = STAGE_FORKED
    slow_text = "the daemon has not taken all its records"

    def __init__(
        self,
        outbox: TransactionalOutbox,
        start: Callable[[], None],
        max_block_ms: float,
        own_number: int,
        transactional_id: str,
        number: int,
        owner: str,
    ) -> None:
        """``start`` starts the io thread unless it runs."""
        super().__init__(outbox, max_block_ms)
        self._start = start
        self.stage = OpenStage(own_number, outbox.refuse_sends, transactional_id, number, owner)
        self.state = _S.OPEN
        self._calls: dict[StageEvent, TxnCall] = {}
        """The call of each kind whose answer is awaited, or was given. Its setdefault() is atomic."""
        outbox.begin(self.stage)

    # --- calls ------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raises the error of a send that this stage does not take."""
        if self.state is not _S.OPEN or self._outbox.forked or self._outbox.closed:
            self._check_process("send()")
            raise self._refusal("send()")

    def seal(self) -> TxnCall:
        """As Stage.seal(), which then waits."""
        self._check_process("seal()")
        if self.state is _S.OPEN and self.stage.cause is not None:
            self._move(_E.FAILED)
            self._outbox.leave(self.stage.error())
        following = self._following(_E.SEAL)
        call = self._calls.setdefault(_E.SEAL, TxnCall(StagePart.SEAL, self.stage))
        if self.state is _S.OPEN:
            self._outbox.leave(self._error("send()", _S.SEALING))
        # In this order, and posted again by the same call: an exception may end a call between any two steps.
        self.state = following
        self._post(call)
        return call

    def drop(self) -> TxnCall | None:
        """As Stage.drop(), which then waits; None if there is nothing to drop."""
        self._check_process("drop()")
        following = self._following(_E.DROP)
        if following is _S.DROPPED:
            return None
        token = self.token
        if token is not None:
            # Another stage may be open in this client by now: seal() has left, and only the token names this one.
            fields = (self.stage.own_number, self.stage.transactional_id, None)
            made = TxnCall(StagePart.DROPPED, fields=fields, payload=msgpack.packb([token]))
        else:
            self._outbox.leave(self._error("send()", _S.DROPPING))
            made = TxnCall(StagePart.DROP, self.stage)
        call = self._calls.setdefault(_E.DROP, made)
        self.state = following
        self._post(call)
        return call

    @property
    def token(self) -> bytes | None:
        """The token of a stage that is sealed."""
        call = self._calls.get(_E.SEAL)
        return call.value if call is not None and call.is_over and call.error is None else None

    @property
    def is_at_rest(self) -> bool:
        """Whether its client may begin another stage."""
        return self.state in (_S.SEALED, _S.DROPPED)

    @property
    def needs_drop(self) -> bool:
        """Whether there may be something to drop."""
        return not (self.state is _S.DROPPED or self._outbox.forked or self._outbox.closed)

    def conclude(self, call: TxnCall, timeout_s: float) -> bytes | None:
        """The token of a seal(); None for a drop()."""
        self._require_answer(call, timeout_s)
        error = call.error
        is_seal = call.part is StagePart.SEAL
        if error is None:
            if is_seal and self.state is _S.SEALING:
                self._move(_E.TOKEN)
            elif not is_seal and self.state is _S.DROPPING:
                self._move(_E.DONE)
            return self.token if is_seal else None
        self._calls.pop(_E.SEAL if is_seal else _E.DROP, None)
        if is_seal and not error.retriable and self.state is _S.SEALING:
            self.stage.fail(error)
            self._move(_E.FAILED)
            self._outbox.leave(error)
        raise error

    # --- inside -----------------------------------------------------------------------------------------

    def _post(self, call: TxnCall) -> None:
        if not call.is_over:
            self._start()
            self._outbox.post(call)

    def _check_process(self, name: str) -> None:
        outbox = self._outbox
        if outbox.forked:
            raise TransactionStateError(STAGE_FORKED, fatal=True)
        outbox.waiters.refuse_in_callback(name)
        if outbox.closed and self.token is None:
            raise ProducerClosed(CLOSED)
        if outbox.lost_id is not None:
            raise outbox.lost_id

    def _move(self, event: StageEvent) -> None:
        self.state = self._following(event)

    def _following(self, event: StageEvent) -> StageState:
        """The state after ``event``. Raises the error of a call that is not possible now."""
        following = TRANSITIONS[self.state].get(event)
        if following is None:
            raise self._refusal(event)
        return following

    def _refusal(self, name: str) -> SidecarError:
        return self.stage.error() if self.state is _S.LOST else self._error(name, self.state)

    def _error(self, name: str, state: StageState) -> TransactionStateError:
        stage = self.stage
        which = f"stage {stage.given_number} of {stage.transactional_id}"
        return TransactionStateError(f"{name} of {which} is not possible now: {_WHAT_TO_DO[state]}.")
