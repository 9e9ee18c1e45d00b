"""Replay: the letters of a spool, sent again in order, a chunk at a time; who sends is the caller's business.

Before a chunk goes out that is noted, and after it which of its letters were delivered. A replay that is killed
in between sends at most that one chunk twice; any other end loses and doubles nothing.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sidecar.deadletter.letters import POISON, Letter
from sidecar.deadletter.progress import Progress, forget_old, read_progress
from sidecar.deadletter.spool import OPEN_SUFFIX, SUFFIX, read_letters, spool_files

CHUNK_RECORDS: Final = 500
CHUNK_BYTES: Final = 4 << 20

Send = Callable[[list[Letter]], Sequence[str | None]]
"""Sends letters and waits: per letter None when it was delivered, else the reason. What it raises ends the replay."""


class ReplayRunning(Exception):
    """Another replay works on the same folder."""


@dataclass
class TopicTally:
    """What became of one topic's letters."""

    found: int = 0
    bytes: int = 0
    oldest_ms: int = 0
    newest_ms: int = 0
    possibly_persisted: int = 0
    delivered: int = 0
    failed: int = 0
    unreadable: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """Why they became dead letters."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Why they failed again."""

    def add(self, letter: Letter) -> None:
        self.found += 1
        self.bytes += letter.size_bytes
        self.oldest_ms = min(self.oldest_ms or letter.failed_ms, letter.failed_ms)
        self.newest_ms = max(self.newest_ms, letter.failed_ms)
        self.possibly_persisted += letter.possibly_persisted
        self.errors[letter.error] += 1


@dataclass
class Tally:
    """What a replay found and did."""

    topics: dict[str, TopicTally] = field(default_factory=dict)
    files: int = 0
    doubles: int = 0
    """Letters that stand there twice, or were delivered by a replay before: not sent."""
    left_out: int = 0
    """Letters that the caller did not choose."""
    poison: int = 0
    """Letters that killed their worker: left out."""
    broken_lines: int = 0
    in_doubt: int = 0
    """Letters under way when a replay before was killed: they may be in their topics already."""

    def of(self, topic: str) -> TopicTally:
        return self.topics.setdefault(topic, TopicTally())

    def total(self, what: str) -> int:
        return sum(int(getattr(each, what)) for each in self.topics.values())


class Replay:
    """One run over a folder. Used from one thread; files of other writers may grow meanwhile."""

    def __init__(
        self,
        folder: Path,
        *,
        wants: Callable[[Letter], bool] = lambda letter: True,
        with_poison: bool = False,
        files: list[Path] | None = None,
        chunk_records: int = CHUNK_RECORDS,
    ) -> None:
        """``files``: only these; None: all of the folder. Poison is left out unless ``with_poison``."""
        self._with_poison = with_poison
        self._folder = folder
        self._wants = wants
        self._files = files
        self._chunk_records = chunk_records
        self._seen: set[str] = set()
        self.tally = Tally()

    def look(self) -> Tally:
        """Count what would be sent; nothing is changed."""
        self._begin()
        for path in self._chosen():
            for _ in self._letters(path):
                pass
        return self.tally

    def run(self, send: Send, should_stop: Callable[[], bool] = lambda: False) -> Tally:
        """Send, note, remove. Raises ReplayRunning, OSError, and what ``send`` raises.

        ``should_stop`` is asked between chunks.
        """
        self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        lock = os.open(self._folder / ".replay.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ReplayRunning(f"Another replay works on {self._folder}: wait for its end.") from None
            self._begin()
            for path in self._chosen():
                if should_stop():
                    break
                self._run_file(path, send, should_stop)
            forget_old(
                self._folder, {path.name.removesuffix(OPEN_SUFFIX) for path in spool_files(self._folder)}
            )
        finally:
            os.close(lock)
        return self.tally

    def _begin(self) -> None:
        self.tally = Tally()
        self._seen, self.tally.in_doubt = read_progress(self._folder)

    def _chosen(self) -> list[Path]:
        return spool_files(self._folder) if self._files is None else self._files

    def _letters(self, path: Path) -> Iterator[Letter]:
        """The letters of one file that are to be sent, each identity once."""
        self.tally.files += 1
        for _, letter in read_letters(path):
            if isinstance(letter, ValueError):
                self.tally.broken_lines += 1
            elif letter.identity in self._seen:
                self.tally.doubles += 1
            elif not self._wants(letter):
                self.tally.left_out += 1
            elif letter.error == POISON and not self._with_poison:
                self.tally.poison += 1
            else:
                self._seen.add(letter.identity)
                tally = self.tally.of(letter.topic)
                tally.add(letter)
                if letter.is_readable:
                    yield letter
                else:
                    tally.unreadable += 1

    def _chunks(self, path: Path) -> Iterator[list[Letter]]:
        chunk: list[Letter] = []
        size = 0
        for letter in self._letters(path):
            chunk.append(letter)
            size += letter.size_bytes
            if len(chunk) >= self._chunk_records or size >= CHUNK_BYTES:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk

    def _run_file(self, path: Path, send: Send, should_stop: Callable[[], bool]) -> None:
        progress = Progress(path)
        try:
            for chunk in self._chunks(path):
                progress.begin(len(chunk))
                results = send(chunk)
                delivered = []
                for letter, reason in zip(chunk, results, strict=True):
                    tally = self.tally.of(letter.topic)
                    if reason is None:
                        tally.delivered += 1
                        delivered.append(letter.identity)
                    else:
                        tally.failed += 1
                        tally.reasons[reason] += 1
                progress.end(delivered)
                if should_stop():
                    break
        finally:
            progress.close()
            if not progress.path.stat().st_size:
                progress.path.unlink()
        self._tidy(path)

    def _tidy(self, path: Path) -> None:
        """Take out of a closed file what was delivered, and the doubles; an empty one goes."""
        if path.suffix != SUFFIX:
            return  # its writer may still add to it
        delivered, _ = read_progress(self._folder)
        kept: list[bytes] = []
        seen: set[str] = set()
        with path.open("rb") as file:
            for line, (_, letter) in zip(_whole(file.readlines()), read_letters(path), strict=True):
                if isinstance(letter, ValueError):
                    kept.append(line)
                elif letter.identity not in delivered and letter.identity not in seen:
                    seen.add(letter.identity)
                    kept.append(line)
        if not kept:
            path.unlink()
            return
        temporary = path.with_name(f".{path.name}.new")
        with temporary.open("wb") as out:
            out.writelines(kept)
            out.flush()
            os.fsync(out.fileno())
        temporary.chmod(path.stat().st_mode & 0o777)
        temporary.replace(path)


def _whole(found: list[bytes]) -> list[bytes]:
    return [line for line in found if line.endswith(b"\n")]
