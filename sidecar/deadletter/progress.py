"""What a replay has done already: identities of delivered letters, in a file beside each spool file.

An identity stands there before its letter is removed, and stays for a day: a letter that a crash had written
twice is not sent again, and a replay that was interrupted goes on where it was.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from sidecar.deadletter.spool import OPEN_SUFFIX

SUFFIX: Final = ".replayed"
KEPT_S: Final = 86_400.0
_BEGIN: Final = "# sending "
_END: Final = "# sent"


class Progress:
    """Progress on one spool file. Every method has its effect on disk when it returns."""

    def __init__(self, spool_file: Path) -> None:
        self.path = progress_file(spool_file)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)

    def begin(self, records: int) -> None:
        """So many letters are about to be sent; until :meth:`end` nobody knows what became of them."""
        self._write(f"{_BEGIN}{records}\n")

    def end(self, delivered: list[str]) -> None:
        self._write("".join(f"{identity}\n" for identity in delivered) + f"{_END}\n")

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, text: str) -> None:
        os.write(self._fd, text.encode())
        os.fsync(self._fd)


def progress_file(spool_file: Path) -> Path:
    return spool_file.with_name(spool_file.name.removesuffix(OPEN_SUFFIX) + SUFFIX)


def read_progress(folder: Path) -> tuple[set[str], int]:
    """(identities delivered before, letters of which an interrupted replay left open whether they were)."""
    delivered: set[str] = set()
    in_doubt = 0
    for path in folder.glob(f"*{SUFFIX}"):
        open_records = 0
        for line in path.read_text(encoding="utf-8").split("\n")[:-1]:  # a line without an end does not count
            if line.startswith(_BEGIN):
                open_records = int(line.removeprefix(_BEGIN))
            elif line == _END:
                open_records = 0
            else:
                delivered.add(line)
        in_doubt += open_records
    return delivered, in_doubt


def forget_old(folder: Path, spool_names: set[str]) -> None:
    """Remove progress whose spool file is gone for a day."""
    for path in folder.glob(f"*{SUFFIX}"):
        if path.name.removesuffix(SUFFIX) not in spool_names and time.time() - path.stat().st_mtime > KEPT_S:
            path.unlink(missing_ok=True)
