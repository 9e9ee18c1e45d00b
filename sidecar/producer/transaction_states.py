"""The states of a lane's transactions, and the events that change them (docs/states.md is printed from this table)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class TransactionState(StrEnum):
    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in_transaction"
    ABORTABLE = "abortable"
    COMMITTING = "committing"
    ABORTING = "aborting"
    FATAL = "fatal"


class TransactionEvent(StrEnum):
    INITIALIZE = "its client initializes"
    IDENTITY = "InitProducerId is answered"
    BEGIN = "its client's first record or offsets of a transaction"
    FAIL = "a record, partition, offset or the end itself fails"
    COMMIT = "its client commits"
    ABORT = "its client aborts, or is gone"
    END = "the transaction has ended"
    RESTART = "another client of its transactional id initializes"
    RENEW = "it has ended, and the next one needs a new epoch"
    REFUSE = "the coordinator refuses the lane for good"


_S, _E = TransactionState, TransactionEvent
_ANY: Final = {_E.REFUSE: _S.FATAL, _E.RESTART: _S.INITIALIZING}

TRANSITIONS: Final[Mapping[TransactionState, Mapping[TransactionEvent, TransactionState]]] = {
    _S.UNINITIALIZED: {_E.INITIALIZE: _S.INITIALIZING, **_ANY},
    _S.INITIALIZING: {_E.IDENTITY: _S.READY, **_ANY},
    _S.READY: {_E.BEGIN: _S.IN_TRANSACTION, **_ANY},
    _S.IN_TRANSACTION: {
        _E.FAIL: _S.ABORTABLE,
        _E.COMMIT: _S.COMMITTING,
        _E.ABORT: _S.ABORTING,
        **_ANY,
    },
    # A commit is refused here, and the transaction stays open until its client aborts.
    _S.ABORTABLE: {_E.FAIL: _S.ABORTABLE, _E.ABORT: _S.ABORTING, **_ANY},
    _S.COMMITTING: {_E.FAIL: _S.ABORTABLE, _E.END: _S.READY, _E.RENEW: _S.INITIALIZING, **_ANY},
    _S.ABORTING: {_E.FAIL: _S.ABORTABLE, _E.END: _S.READY, _E.RENEW: _S.INITIALIZING, **_ANY},
    _S.FATAL: {**_ANY},
}
"""State × event → state. An event that a state lacks is a bug."""
