"""Progress of a replay: names of delivered letters, in a file next to each spool file.

`replay` writes and reads it, in the command's process.

A name, with a digest of the content sent, is written before its letter is removed, and is kept for a day. So a letter
that a crash wrote twice is not sent again, and an interrupted replay continues where it stopped.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final, NamedTuple

from sidecar.deadletter.same_record import CONTENT_BYTES, Delivered, names_one_record
from sidecar.deadletter.spool_files import OPEN_SUFFIX, READ_FLAGS, give_to_owner_of, owners_of
from sidecar.shm.private_files import open_private, replacing

SUFFIX: Final = ".replayed"
KEPT_S: Final = 86_400.0
_BEGIN: Final = "# sending "
_END: Final = "# sent"


class Notes(NamedTuple):
    """Contents of one file of notes."""

    delivered: list[Delivered]
    in_doubt: int
    """Number of letters for which an interrupted replay left open whether they were delivered."""


class Progress:
    """Progress on one spool file. Every method's effect is on disk when it returns."""

    def __init__(self, spool_file: Path) -> None:
        self.path = progress_file(spool_file)
        owners = owners_of(self.path.parent)
        self._fd = open_private(self.path, os.O_WRONLY | os.O_APPEND, owners=owners, make=True)
        give_to_owner_of(self.path.parent, self._fd)

    def begin(self, records: int) -> None:
        """Note that ``records`` letters are about to be sent. Until :meth:`end` their outcome is unknown."""
        self._write(f"{_BEGIN}{records}\n")

    def end(self, delivered: list[Delivered], *, in_doubt: int = 0) -> None:
        """Note the delivered letters. ``in_doubt``: number of letters whose outcome will stay unknown."""
        still = f"{_BEGIN}{in_doubt}\n" if in_doubt else ""
        self._write("".join(map(_line, delivered)) + f"{_END}\n{still}")

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, text: str) -> None:
        os.write(self._fd, text.encode("utf-8", "replace"))
        os.fsync(self._fd)


def progress_file(spool_file: Path) -> Path:
    return spool_file.with_name(spool_file.name.removesuffix(OPEN_SUFFIX) + SUFFIX)


def read_notes(path: Path) -> Notes:
    """Read a file of notes; empty if it does not exist. A damaged or incomplete line is ignored."""
    try:
        with os.fdopen(os.open(path, READ_FLAGS), "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return Notes([], 0)
    delivered: list[Delivered] = []
    open_records = 0
    for line in data.decode("utf-8", "replace").split("\n")[:-1]:
        if line.startswith(_BEGIN):
            count = line.removeprefix(_BEGIN)
            open_records = int(count) if count.isascii() and count.isdigit() and len(count) < 10 else 1
        elif line == _END:
            open_records = 0
        else:
            delivered.append(_parsed(line))
    return Notes(delivered, open_records)


def read_progress(folder: Path) -> Notes:
    """Notes of all files in a folder."""
    found = [read_notes(path) for path in folder.glob(f"*{SUFFIX}")]
    return Notes(
        [each for notes in found for each in notes.delivered], sum(notes.in_doubt for notes in found)
    )


def forget_shared_names(spool_file: Path) -> None:
    """Keep only those notes of a file whose name belongs to one record.

    Called before delivered letters leave their file: a name shared by several records would otherwise say that the
    remaining ones were delivered. A crash in between sends letters twice and loses none.
    """
    path = progress_file(spool_file)
    notes = read_notes(path)
    kept = [each for each in notes.delivered if names_one_record(each.name)]
    if len(kept) == len(notes.delivered):
        return
    temporary = path.with_name(f".{path.name}.new")
    with os.fdopen(replacing(path, temporary), "wb") as out:
        out.write("".join(map(_line, kept)).encode("utf-8", "replace"))
        out.flush()
        os.fsync(out.fileno())
        give_to_owner_of(path.parent, out.fileno())
    temporary.replace(path)


def forget_old(folder: Path, spool_names: set[str]) -> None:
    """Remove progress files whose spool file has been gone for a day."""
    for path in folder.glob(f"*{SUFFIX}"):
        if path.name.removesuffix(SUFFIX) not in spool_names and time.time() - path.stat().st_mtime > KEPT_S:
            path.unlink(missing_ok=True)


def _line(delivered: Delivered) -> str:
    if delivered.content is None:
        return f"{delivered.name}\n"
    return f"{delivered.name} {delivered.content.hex()}\n"


def _parsed(line: str) -> Delivered:
    name, space, digest = line.rpartition(" ")
    if space and len(digest) == 2 * CONTENT_BYTES:
        try:
            return Delivered(name, bytes.fromhex(digest))
        except ValueError:
            pass  # a name of an earlier version with a space in it: no digest
    return Delivered(line, None)
