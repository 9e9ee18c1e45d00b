"""States of a stage, as its row in the segment has them.

The stage's worker takes each step with one store of the row's word, so a worker that dies between two leaves one of
these states to its successor.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Final


class StageRowState(IntEnum):
    FREE = 0
    OPEN = 1
    SEALED = 2
    INCLUDED = 3
    DROPPED = 4
    """Its records are being ended."""
    ENDED = 5
    """Nothing of it is left but this row, which says how it ended until another stage needs the row."""


class StageRowEvent(StrEnum):
    OPEN = "its client opens it"
    SEAL = "the journal has all of it"
    INCLUDE = "a transaction includes it"
    EXCLUDE = "its worker died before the include was stored"
    DROP = "it is dropped, or the transaction that included it ended at its worker's death"
    END = "its last record has ended; or it was sealed without one"


_S, _E = StageRowState, StageRowEvent

TRANSITIONS: Final[Mapping[StageRowState, Mapping[StageRowEvent, StageRowState]]] = {
    _S.FREE: {_E.OPEN: _S.OPEN},
    _S.OPEN: {_E.SEAL: _S.SEALED, _E.DROP: _S.DROPPED, _E.END: _S.ENDED},
    _S.SEALED: {_E.INCLUDE: _S.INCLUDED, _E.DROP: _S.DROPPED},
    _S.INCLUDED: {_E.END: _S.ENDED, _E.EXCLUDE: _S.SEALED, _E.DROP: _S.DROPPED},
    _S.DROPPED: {_E.END: _S.ENDED},
    _S.ENDED: {_E.OPEN: _S.OPEN},
}
"""State × event → state. An event that a state lacks is a bug."""
