"""The states of a transactional producer, and the calls that change them; docs/states.md is printed from this table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class CallerState(StrEnum):
    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    COMMITTING = "committing"
    ABORTABLE = "abortable"
    ABORTING = "aborting"
    LOST = "lost"


class CallerEvent(StrEnum):
    INIT = "init_transactions()"
    BEGIN = "begin_transaction()"
    OFFSETS = "send_offsets_to_transaction()"
    INCLUDE = "include()"
    COMMIT = "commit_transaction()"
    ABORT = "abort_transaction()"
    DONE = "the daemon has done what the call asked"
    REFUSED = "the daemon refused init_transactions() for now"
    FAILED = "a record, a topic or the commit failed"
    LOST = "fenced, or another fatal error"


_S, _E = CallerState, CallerEvent
TRANSITIONS: Final[Mapping[CallerState, Mapping[CallerEvent, CallerState]]] = {
    _S.UNINITIALIZED: {_E.INIT: _S.INITIALIZING, _E.LOST: _S.LOST},
    # The same call again waits for the answer that it gave up to wait for.
    _S.INITIALIZING: {
        _E.INIT: _S.INITIALIZING,
        _E.DONE: _S.READY,
        _E.REFUSED: _S.UNINITIALIZED,
        _E.LOST: _S.LOST,
    },
    _S.READY: {_E.BEGIN: _S.IN_TRANSACTION, _E.LOST: _S.LOST},
    _S.IN_TRANSACTION: {
        _E.OFFSETS: _S.IN_TRANSACTION,
        _E.INCLUDE: _S.IN_TRANSACTION,
        _E.COMMIT: _S.COMMITTING,
        _E.ABORT: _S.ABORTING,
        _E.FAILED: _S.ABORTABLE,
        _E.LOST: _S.LOST,
    },
    _S.COMMITTING: {_E.COMMIT: _S.COMMITTING, _E.DONE: _S.READY, _E.FAILED: _S.ABORTABLE, _E.LOST: _S.LOST},
    _S.ABORTABLE: {_E.ABORT: _S.ABORTING, _E.LOST: _S.LOST},
    _S.ABORTING: {_E.ABORT: _S.ABORTING, _E.DONE: _S.READY, _E.LOST: _S.LOST},
    _S.LOST: {},
}
"""State × event → state. A call that a state lacks raises TransactionStateError, and does nothing."""
