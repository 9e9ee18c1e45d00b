"""docs/states.md: the states that are tables in the code, drawn from those tables.

``python -m tests.conventions.state_diagrams`` rewrites it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from client_stub.engine import stage_states
from client_stub.engine import transaction_states as engine_transaction_states
from client_stub.session import states as session_states
from sidecar.controller.workers import worker_states
from sidecar.producer import batch_states, transaction_states
from sidecar.protocol.sasl import session
from sidecar.shm import descriptor_states
from sidecar.shm import stage_states as stage_row_states

ROOT: Final = Path(__file__).resolve().parents[2]
DOCUMENT: Final = ROOT / "docs" / "states.md"

HEAD: Final = """\
# States

For those who change a state machine. Each drawing is printed from the table by which the code moves
(`python -m tests.conventions.state_diagrams`). An event that a state lacks is a bug. An arrow from a state to itself
is a known case that changes nothing.
"""


class Machine(NamedTuple):
    title: str
    text: str
    table: Mapping[Any, Mapping[Any, Any]]
    """State × event → state. The first state is the one that it begins in."""


MACHINES: Final = (
    Machine(
        "A worker's process",
        "As the controller sees it: `sidecar/controller/workers/worker_states.py`. `WorkerProcess.move` takes each\n"
        "step. A dead one is never started again: its successor is another process, with another incarnation.",
        worker_states.TRANSITIONS,
    ),
    Machine(
        "A stub's session",
        "`client_stub/session/states.py`; `Attachment` takes each step in the io thread. BACKOFF is entered at once\n"
        "when an attached session loses its worker; the first pause is then of no length.",
        session_states.TRANSITIONS,
    ),
    Machine(
        "A transactional producer",
        "As its program calls it: `client_stub/engine/transaction_states.py`. `Transactions` takes each step in the\n"
        "thread of a call, one call at a time; a call that a state lacks raises TransactionStateError.",
        engine_transaction_states.TRANSITIONS,
    ),
    Machine(
        "A stage",
        "As its program calls it: `client_stub/engine/stage_states.py`. `StageLife` takes each step in the thread of\n"
        "a call; a call that a state lacks raises TransactionStateError. Nothing of it goes to Kafka in any of them.",
        stage_states.TRANSITIONS,
    ),
    Machine(
        "A batch",
        "`ProducerBatch` in a worker's memory: `sidecar/producer/batch_states.py`. Only its loop moves it.\n"
        "A worker that dies leaves none of these states: its successor begins again with each batch's descriptor.",
        batch_states.TRANSITIONS,
    ),
    Machine(
        "A descriptor",
        "The first word of a batch's row in the segment: `sidecar/shm/descriptor_states.py`. `DescriptorTable` takes\n"
        "each step with one store, so a worker that dies between two leaves one of these states to its successor.",
        descriptor_states.TRANSITIONS,
    ),
    Machine(
        "A lane's transactions",
        "`sidecar/producer/transaction_states.py`; `TransactionManager` takes each step in the worker's loop.\n"
        "What the client sees of it is told in TXN messages.",
        transaction_states.TRANSITIONS,
    ),
    Machine(
        "A stage's row",
        "The first word of its row in the segment: `sidecar/shm/stage_states.py`. `LaneStages` takes each step with\n"
        "one store. A row that has ended says how, until another stage needs it.",
        stage_row_states.TRANSITIONS,
    ),
    Machine(
        "A login",
        "Of one connection whose broker limits sessions (KIP-368): `sidecar/protocol/sasl/session.py`. New requests\n"
        "wait in HOLDING and RENEWING. A login that fails moves nothing: the connection ends.",
        session.TRANSITIONS,
    ),
)


def edges(table: Mapping[Any, Mapping[Any, Any]]) -> Iterator[str]:
    yield f"[*] --> {_name(next(iter(table)))}"
    for state, steps in table.items():
        for event, follows in steps.items():
            yield f"{_name(state)} --> {_name(follows)}: {event}"
        if all(follows is state for follows in steps.values()):
            yield f"{_name(state)} --> [*]"


def _name(state: StrEnum | IntEnum) -> str:
    return str(state.value) if isinstance(state, StrEnum) else state.name.lower()


def page() -> str:
    lines = [HEAD]
    for machine in MACHINES:
        lines += [f"## {machine.title}", "", machine.text, "", "```mermaid", "stateDiagram-v2"]
        lines += [f"  {edge}" for edge in edges(machine.table)]
        lines += ["```", ""]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    DOCUMENT.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
