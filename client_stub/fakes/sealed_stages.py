"""SealedStages: the stages of all fakes of a process that wait to be included.

They belong to no producer, as those of a daemon: one fake seals a stage, and another one includes it by its token.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Final, NamedTuple

from client_stub.contract.wire import LocalCode, TxnEffect
from client_stub.errors import TransactionError, transaction_error
from client_stub.fakes.memory_daemon import FakeRecord


class SealedStage(NamedTuple):
    transactional_id: str
    number: int
    records: list[FakeRecord]


class SealedStages:
    """Thread-safe, as each change is one step."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, SealedStage] = {}
        self._gone: dict[bytes, str] = {}
        self._numbers = itertools.count(1)

    def seal(self, stage: SealedStage) -> bytes:
        """Keep a stage. Returns its token."""
        token = b"fake-stage-%d" % next(self._numbers)
        self._waiting[token] = stage
        return token

    def records_of(self, token: bytes) -> list[FakeRecord] | None:
        """The records of a stage that waits."""
        stage = self._waiting.get(token)
        return None if stage is None else stage.records

    def take(self, tokens: list[bytes], transactional_id: str) -> list[FakeRecord]:
        """The records of all these stages, which are used then. Raises the daemon's error for one that does not wait
        for this id; nothing is used then.
        """
        for position, token in enumerate(tokens):
            stage = self._waiting.get(token)
            why = self._gone.get(token, "unknown") if stage is None else None
            if stage is not None and stage.transactional_id != transactional_id:
                why = f"for the transactional id {stage.transactional_id}"
            elif token in tokens[:position]:
                why = "given twice"
            if why is not None:
                raise _refusal(f"Token {position + 1} of {len(tokens)} is {why}.")
        return [record for token in tokens for record in self._end(token, "used").records]

    def drop(self, tokens: Iterable[bytes], transactional_id: str, up_to: int | None) -> int:
        """Forget stages of the id. Returns how many."""
        wanted = [
            token
            for token, stage in list(self._waiting.items())
            if stage.transactional_id == transactional_id
            and (token in tokens or (up_to is not None and stage.number <= up_to))
        ]
        for token in wanted:
            self._end(token, "dropped")
        return len(wanted)

    def _end(self, token: bytes, why: str) -> SealedStage:
        self._gone[token] = why
        return self._waiting.pop(token)


def _refusal(text: str) -> TransactionError:
    return transaction_error(LocalCode.STAGE_UNKNOWN, TxnEffect.ABORTABLE, text)


sealed_stages: Final = SealedStages()
