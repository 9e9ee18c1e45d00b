"""The tests' reading of the product's state, where the product itself only writes it or looks at it otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sidecar.deadletter.letters import Letter
from sidecar.deadletter.spool_files import SpoolFile
from sidecar.shm.client_table import ClientRow, ClientTable


def row_of(clients: ClientTable, client_id: bytes) -> ClientRow | None:
    """The live row of a client, whichever slot it belongs to."""
    return next((row for row in clients.rows() if row.client_id == client_id), None)


def stream_position(row: ClientRow, stream: int) -> int | None:
    """The last accepted seq of a stream, None for one without a place."""
    return {number: position for number, _, position in row.streams()}.get(stream)


def read_letters(path: Path) -> Iterator[tuple[int, Letter | ValueError]]:
    """(line number from 1, letter, or why that line is none)."""
    with SpoolFile.open(path) as file:
        yield from file.letters()
