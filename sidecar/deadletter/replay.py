"""Replay: sends the letters of a spool again, in order, in chunks. The caller does the sending.

The start of a chunk is noted before it is sent, and the delivered letters after it. A replay that is killed in between
sends at most that chunk twice. Any other end loses or duplicates no letter that had its outcome.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from sidecar.deadletter.letters import POISON, Letter
from sidecar.deadletter.progress import (
    Progress,
    forget_old,
    forget_shared_names,
    progress_file,
    read_notes,
    read_progress,
)
from sidecar.deadletter.same_record import Delivered, KnownRecords, OneFile, content_of, names_one_record
from sidecar.deadletter.spool_files import (
    OPEN_SUFFIX,
    SpoolFile,
    check_may_replay,
    close_dead_files,
    give_to_owner_of,
    make_spool,
    owners_of,
    remove_half_made,
    replace_file,
    size_of,
    spool_files,
)
from sidecar.shm.private_files import open_private

CHUNK_RECORDS: Final = 500
CHUNK_BYTES: Final = 4 << 20

NOT_SENT: Final = "not sent"
NO_OUTCOME: Final = "no outcome"

Send = Callable[[list[Letter], list[str | None]], None]
"""Sends letters and waits. For each letter it sets the list's item: None if delivered, otherwise the reason;
NO_OUTCOME if the letter may be in its topic and that stays unknown. An exception ends the replay; items set before it
count.
"""


class ReplayRunning(Exception):
    """Another replay is running on the same folder."""


@dataclass
class TopicTally:
    """Counts of one topic's letters."""

    found: int = 0
    bytes: int = 0
    oldest_ms: int = 0
    newest_ms: int = 0
    possibly_persisted: int = 0
    delivered: int = 0
    failed: int = 0
    unreadable: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """Letters by the error that made them dead letters."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Letters by the reason of their failure in this replay."""

    def add(self, letter: Letter) -> None:
        self.found += 1
        self.bytes += letter.size_bytes
        self.oldest_ms = min(self.oldest_ms or letter.failed_ms, letter.failed_ms)
        self.newest_ms = max(self.newest_ms, letter.failed_ms)
        self.possibly_persisted += letter.possibly_persisted
        self.errors[letter.error] += 1


@dataclass
class Tally:
    """The result of a replay."""

    topics: dict[str, TopicTally] = field(default_factory=dict)
    files: int = 0
    doubles: int = 0
    """Letters that are there twice, or were delivered by an earlier replay: not sent."""
    left_out: int = 0
    """Letters that the caller did not select."""
    poison: int = 0
    """Letters that killed their worker, which are not sent."""
    broken_lines: int = 0
    in_doubt: int = 0
    """Letters that were under way when an earlier replay was killed: they may be in their topics."""

    def of(self, topic: str) -> TopicTally:
        return self.topics.setdefault(topic, TopicTally())

    def total(self, what: str) -> int:
        """The sum over all topics; any thread."""
        return sum(int(getattr(each, what)) for each in list(self.topics.values()))


class _Found(NamedTuple):
    """A letter to be sent."""

    line: int
    letter: Letter
    content: bytes


class Replay:
    """One replay of a folder. Used from one thread. Other writers may add, close and remove files meanwhile."""

    def __init__(
        self,
        folder: Path,
        *,
        wants: Callable[[Letter], bool] = lambda letter: True,
        with_poison: bool = False,
        files: list[Path] | None = None,
        chunk_records: int = CHUNK_RECORDS,
    ) -> None:
        """``files``: replay only these; None: all of the folder. Poison is skipped unless ``with_poison``."""
        self._with_poison = with_poison
        self._folder = folder
        self._wants = wants
        self._files = files
        self._chunk_records = chunk_records
        self._known = KnownRecords()
        self.tally = Tally()
        self._bytes = 0
        self._bytes_read = 0

    @property
    def share_read(self) -> float:
        """How much of the files has been read: 0 to 1. Any thread."""
        return min(self._bytes_read / max(self._bytes, 1), 1.0)

    def count(self) -> Tally:
        """Count the letters that would be sent. Changes nothing. Raises AnothersLetters."""
        check_may_replay(self._folder)
        self._begin()
        for path in self._chosen():
            with SpoolFile.open(path) as file:
                for _ in self._letters(file, set()):
                    pass
        return self.tally

    def run(self, send: Send, should_stop: Callable[[], bool] = lambda: False) -> Tally:
        """Send letters, note them, remove them. Raises AnothersLetters, ReplayRunning, OSError, and any exception of
        ``send``.

        ``should_stop`` is called between chunks.
        """
        check_may_replay(self._folder)
        make_spool(self._folder)
        owners = owners_of(self._folder)
        lock = open_private(self._folder / ".replay.lock", os.O_RDWR, owners=owners, make=True)
        try:
            give_to_owner_of(self._folder, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ReplayRunning(f"Another replay works on {self._folder}: wait for its end.") from None
            remove_half_made(self._folder)
            close_dead_files(self._folder)
            self._begin()
            for path in self._chosen():
                if should_stop():
                    break
                with SpoolFile.open(path) as file:
                    self._run_file(file, send, should_stop)
            forget_old(
                self._folder, {path.name.removesuffix(OPEN_SUFFIX) for path in spool_files(self._folder)}
            )
        finally:
            os.close(lock)
        return self.tally

    def _begin(self) -> None:
        self.tally = Tally()
        self._known = KnownRecords()
        notes = read_progress(self._folder)
        self.tally.in_doubt = notes.in_doubt
        for each in notes.delivered:
            self._known.note_delivered(each)

    def _chosen(self) -> list[Path]:
        chosen = spool_files(self._folder) if self._files is None else self._files
        self._bytes, self._bytes_read = sum(size_of(path) for path in chosen), 0
        return chosen

    def _letters(self, file: SpoolFile, over: set[int]) -> Iterator[_Found]:
        """Letters of one file to be sent, each record once. ``over`` gets the lines of all duplicates."""
        if not file.is_there:
            return
        self.tally.files += 1
        in_file = OneFile(read_notes(progress_file(file.path)).delivered)
        begun = self._bytes_read
        for line, letter in file.letters():
            self._bytes_read = begun + file.bytes_read
            if isinstance(letter, ValueError):
                self.tally.broken_lines += 1
                continue
            content = content_of(letter)
            if self._known.was_delivered(letter, content) or in_file.take_delivered(letter, content):
                self.tally.doubles += 1
                over.add(line)
            elif not self._wants(letter):
                self.tally.left_out += 1
            elif letter.error == POISON and not self._with_poison:
                self.tally.poison += 1
            elif self._known.meet(letter, content, in_file.copy_number(letter, content)):
                self.tally.doubles += 1
                over.add(line)
            else:
                tally = self.tally.of(letter.topic)
                tally.add(letter)
                if letter.is_readable:
                    yield _Found(line, letter, content)
                else:
                    tally.unreadable += 1

    def _chunks(self, file: SpoolFile, over: set[int]) -> Iterator[list[_Found]]:
        chunk: list[_Found] = []
        size = 0
        for found in self._letters(file, over):
            chunk.append(found)
            size += found.letter.size_bytes
            if len(chunk) >= self._chunk_records or size >= CHUNK_BYTES:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk

    def _run_file(self, file: SpoolFile, send: Send, should_stop: Callable[[], bool]) -> None:
        progress = Progress(file.path)
        over: set[int] = set()
        try:
            for chunk in self._chunks(file, over):
                progress.begin(len(chunk))
                outcomes: list[str | None] = [NOT_SENT] * len(chunk)
                try:
                    send([found.letter for found in chunk], outcomes)
                except Exception:
                    self._note(chunk, outcomes, progress, over)
                    raise
                self._note(chunk, outcomes, progress, over)
                if should_stop():
                    break
        finally:
            progress.close()
            if not progress.path.stat().st_size:
                progress.path.unlink()
        self._tidy(file, over)

    def _note(
        self, chunk: list[_Found], outcomes: list[str | None], progress: Progress, over: set[int]
    ) -> None:
        """Count the outcomes of a chunk and write them to disk. Lines of delivered letters are added to ``over``."""
        delivered: list[Delivered] = []
        for found, reason in zip(chunk, list(outcomes), strict=True):
            tally = self.tally.of(found.letter.topic)
            if reason is None:
                tally.delivered += 1
                delivered.append(Delivered(found.letter.identity, found.content))
                over.add(found.line)
            elif reason not in (NOT_SENT, NO_OUTCOME):
                tally.failed += 1
                tally.reasons[reason] += 1
        progress.end(delivered, in_doubt=outcomes.count(NO_OUTCOME))

    def _tidy(self, file: SpoolFile, over: set[int]) -> None:
        """Remove delivered letters and duplicates from a closed file. An empty file is removed."""
        path = file.closed_path()
        if path is None or not over:
            return  # its writer may still add to it, or it was removed
        kept = file.lines_but(over)
        if any(not names_one_record(each.name) for each in read_notes(progress_file(path)).delivered):
            forget_shared_names(path)
        replace_file(path, kept)
