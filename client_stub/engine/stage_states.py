"""The states of a stage as its program calls it; docs/states.md is printed from this table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class StageState(StrEnum):
    OPEN = "open"
    SEALING = "sealing"
    SEALED = "sealed"
    LOST = "lost"
    DROPPING = "dropping"
    DROPPED = "dropped"


class StageEvent(StrEnum):
    SEAL = "seal()"
    TOKEN = "the daemon has all records, and gives the token"
    FAILED = "a record was refused, or the daemon has lost the stage"
    DROP = "drop()"
    DONE = "the daemon has dropped it"


_S, _E = StageState, StageEvent
TRANSITIONS: Final[Mapping[StageState, Mapping[StageEvent, StageState]]] = {
    _S.OPEN: {_E.SEAL: _S.SEALING, _E.FAILED: _S.LOST, _E.DROP: _S.DROPPING},
    # The same call again waits for the answer that it gave up to wait for.
    _S.SEALING: {
        _E.SEAL: _S.SEALING,
        _E.TOKEN: _S.SEALED,
        _E.FAILED: _S.LOST,
        _E.DROP: _S.DROPPING,
    },
    # seal() returns the same token again. drop() asks by the token, as nothing else names a sealed stage.
    _S.SEALED: {_E.SEAL: _S.SEALED, _E.DROP: _S.DROPPING},
    _S.LOST: {_E.FAILED: _S.LOST, _E.DROP: _S.DROPPING},
    _S.DROPPING: {_E.FAILED: _S.DROPPING, _E.DROP: _S.DROPPING, _E.DONE: _S.DROPPED},
    _S.DROPPED: {_E.DROP: _S.DROPPED},
}
"""State × event → state. A call that a state lacks raises TransactionStateError, and does nothing."""
