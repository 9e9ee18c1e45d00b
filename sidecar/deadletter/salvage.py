"""Salvage: reads the undelivered records of a segment without a daemon, by the same chains, words and descriptors.

`recover` calls it, in the command's process, on a private copy of the segment.

The file is first copied into memory (only its allocated parts), so it is never changed, and holes do no harm. A
damaged header is replaced, in that copy, by the layout that fits the file best.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from client_stub.contract.wire import WORD_DONE, WORD_FAILED_MIN, Persistence
from sidecar.config.settings import BY_NAME
from sidecar.deadletter.letters import NOT_SENT_CODE, Undelivered, persistence_of
from sidecar.deadletter.spool_files import check_may_replay, give_to_owner_of, make_spool
from sidecar.kernel import Chain, Entry, entry_payload, entry_words
from sidecar.shm import layout
from sidecar.shm.accept_log import accept_log_folder, logged_slots
from sidecar.shm.chain_table import ChainTable
from sidecar.shm.client_table import ClientRow, ClientTable
from sidecar.shm.descriptor_states import DescriptorState
from sidecar.shm.descriptors import Descriptor, DescriptorTable
from sidecar.shm.disk import Folder
from sidecar.shm.layout import Layout
from sidecar.shm.private_files import replacing
from sidecar.shm.recovery import linked_pages
from sidecar.shm.segment import Segment, SegmentError, current_boot_id
from sidecar.shm.submission_name import submission_name

_USUAL_CLIENTS: Final = cast(int, BY_NAME["daemon.clients_max"].default)
_PAGE_SIZES: Final = (16_384, 4_096, 8_192, 32_768, 65_536)
_NOT_SENT: Final = "Accepted and not sent when its daemon ended."
_SENT: Final = "Sent, and not answered when its daemon ended."


class SalvageError(Exception):
    """The file cannot be read. The text says why and what to do."""


class SegmentInUse(SalvageError):
    """A daemon uses the file, and will deliver its records."""


@dataclass
class SalvageCounts:
    """Counts of records found in a segment."""

    undelivered: int = 0
    """Records without a broker's answer that did not fail."""
    possibly_persisted: int = 0
    """Records among all of these that were sent and may be in their topics."""
    failed: int = 0
    """Failed records whose client was not informed."""
    of_transactions: int = 0
    """Records of transactions and stages, which end with them: they are not read."""
    damage: list[str] = field(default_factory=list)
    """Unreadable places, one sentence each. It is unknown how many records are there."""
    topics: set[str] = field(default_factory=set)

    @property
    def records(self) -> int:
        return self.undelivered + self.failed


class Salvage:
    """One segment file, read into memory, and locked while this is open. A context manager."""

    def __init__(self, path: Path, fd: int, segment: Segment, notes: list[str]) -> None:
        self.path = path
        self._fd = fd
        self.segment = segment
        self.notes = notes
        """Assumptions made while reading, one sentence each."""
        self.found = SalvageCounts()

    @classmethod
    def open(cls, path: Path, *, clients_max: int | None = None) -> Salvage:
        """Lock and read the file. ``clients_max``: daemon.clients_max of its maker, for a damaged header.

        Raises SegmentInUse, or SalvageError for another layout version or an unrecognisable file.
        """
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SalvageError(f"{path} cannot be opened: {error.strerror}.") from None
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SegmentInUse(
                    f"{path} is in use by a running daemon, which delivers its records."
                ) from None
            _check_name(path)
            segment, notes = _read(path, fd, clients_max)
            _check_log(path, segment)
        except BaseException:
            os.close(fd)
            raise
        return cls(path, fd, segment, notes)

    @property
    def name(self) -> str:
        """A repeatable name for this segment: its instance, and when it was made or last changed."""
        fields = layout.HEADER_FIELDS.unpack_from(self.segment.header, layout.HEADER_FIELDS_OFFSET)
        made_ms = int(fields[10])
        if not 0 < made_ms < 1 << 47:
            made_ms = os.fstat(self._fd).st_mtime_ns // 1_000_000
        return f"recovered-{self.segment.instance_id[:4].hex()}-{made_ms}"

    def undelivered(self) -> Iterator[Undelivered]:
        """Yield every record that has not ended, by submission and outcome, oldest first in each chain. Counts into
        ``found``.
        """
        self.found = SalvageCounts()
        clients = self._clients()
        pages = linked_pages(self.segment)
        for slot in self.segment.prepared_slots():
            table = ChainTable(self.segment, slot)
            by_chain: dict[int, list[Descriptor]] = {}
            for descriptor in self._descriptors(slot):
                by_chain.setdefault(descriptor.chain_id, []).append(descriptor)
            # If a client has records in both chains of a topic, those in express are older.
            for name in sorted(table.names(), key=lambda name: not name.is_express):
                own = pages.get((slot, name.chain_id))
                if not own:
                    continue
                chain = table.recover(name.chain_id, own)
                where = f"slot {slot}, topic {name.topic}"
                self.found.damage += [f"{where}: {damage}" for damage in chain.damage]
                if name.is_transactional:
                    self.found.of_transactions += chain.live_records
                    continue
                for entry in chain.entries():
                    own_batches = by_chain.get(name.chain_id, [])
                    yield from self._entry(chain, entry, name.topic, own_batches, slot, clients)

    def close(self) -> None:
        self.segment.close()
        os.close(self._fd)

    def __enter__(self) -> Salvage:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _entry(
        self,
        chain: Chain,
        entry: Entry,
        topic: str,
        descriptors: list[Descriptor],
        slot: int,
        clients: dict[tuple[int, int], ClientRow],
    ) -> Iterator[Undelivered]:
        outcomes: dict[tuple[int | None, int, int, str], list[int]] = {}
        near = [d for d in descriptors if d.first_cursor[0] <= entry.ordinal <= d.last_cursor[0]]
        for index, word in enumerate(entry_words(chain, entry)):
            outcome = _outcome(word, (entry.ordinal, index), near)
            if outcome is not None:
                outcomes.setdefault(outcome, []).append(index)
        if not outcomes:
            return
        try:
            payload = entry_payload(chain, entry)
        except ValueError as error:
            self.found.damage.append(f"topic {topic}: {error}")
            return
        row = clients.get((entry.client_row, entry.client_generation))
        self.found.topics.add(topic)
        for (partition, code, persistence, text), indexes in outcomes.items():
            if code == NOT_SENT_CODE:
                self.found.undelivered += len(indexes)
            else:
                self.found.failed += len(indexes)
            if persistence == Persistence.POSSIBLY_PERSISTED:
                self.found.possibly_persisted += len(indexes)
            yield Undelivered.of(
                entry,
                row,
                payload,
                numbers=range(entry.count),
                name=submission_name(self.segment.instance_id, slot, entry),
                topic=topic,
                partition=partition,
                indexes=indexes,
                code=code,
                text=text,
                persistence=persistence,
            )

    def _clients(self) -> dict[tuple[int, int], ClientRow]:
        """Client rows by (index, generation). If rows cannot be read, clients are named by row number."""
        found: dict[tuple[int, int], ClientRow] = {}
        try:
            for row in ClientTable(self.segment).rows():
                found[row.index, row.generation] = row
        except (ValueError, struct.error, UnicodeDecodeError) as error:
            self.found.damage.append(f"the table of clients: {error}")
        return found

    def _descriptors(self, slot: int) -> list[Descriptor]:
        try:
            return list(DescriptorTable(self.segment, slot))
        except ValueError as error:
            self.found.damage.append(f"slot {slot}: the table of batches cannot be read ({error})")
            return []


def _outcome(
    word: int, cursor: tuple[int, int], near: list[Descriptor]
) -> tuple[int | None, int, int, str] | None:
    """(partition, code, persistence, text) of a record that has not ended; None for one that has."""
    if word == WORD_DONE:
        return None
    if WORD_FAILED_MIN <= word < WORD_DONE:
        return None, word, persistence_of(word), ""
    if word > WORD_DONE:
        return None, NOT_SENT_CODE, Persistence.NOT_PERSISTED, _NOT_SENT
    for each in near:
        if each.partition == word and each.first_cursor <= cursor <= each.last_cursor:
            if each.state in (DescriptorState.SENT_UNDER, DescriptorState.PENDING, DescriptorState.SPLIT):
                return word, NOT_SENT_CODE, Persistence.POSSIBLY_PERSISTED, _SENT
            if each.state == DescriptorState.STORED and each.code:
                return word, each.code, each.persistence, ""
            return None
    return word, NOT_SENT_CODE, Persistence.NOT_PERSISTED, _NOT_SENT


def forget_log(path: Path) -> None:
    """Remove the log of accepted records next to a segment: otherwise the next daemon would read it."""
    folder = accept_log_folder(str(path))
    if folder.is_dir():
        Folder(folder).remove_all()


def _check_log(path: Path, segment: Segment) -> None:
    """Raise SalvageError if the host has crashed since: then the log beside a pool on disk is more complete than the
    file.
    """
    folder = accept_log_folder(str(path))
    if segment.boot_id != current_boot_id() and folder.is_dir() and logged_slots(Folder(folder)):
        segment.close()
        raise SalvageError(
            f"The host was booted again since {path} was written, and its accepted records are in {folder}: start a "
            f"daemon with -X pool.path={path} -X pool.sync=accept, which reads it and delivers it."
        )


def _check_name(path: Path) -> None:
    if ".superseded-" in path.name:
        raise SalvageError(
            f"The records of {path} were restored from its log by the daemon that set it aside: nothing is left to "
            "recover. Remove the file when nobody needs it."
        )


# --- the file ------------------------------------------------------------------------------------------------------


def _read(path: Path, fd: int, clients_max: int | None) -> tuple[Segment, list[str]]:
    size = os.fstat(fd).st_size
    head = os.pread(fd, layout.HEADER_BYTES, 0)
    is_ours = head[: len(layout.MAGIC)] == layout.MAGIC
    version = int.from_bytes(head[layout.VERSION_OFFSET : layout.VERSION_OFFSET + 8], "little")
    if is_ours and version not in (0, layout.LAYOUT_VERSION) and version < 1 << 16:
        raise SalvageError(
            f"{path} has layout version {version}, and this kafka-sidecar reads version {layout.LAYOUT_VERSION}. "
            f"Only the version that made it can deliver it: start it with -X pool.path={path} on its own run dir. "
            "Nothing was changed."
        )
    if Segment.is_unfinished(fd):
        raise SalvageError(f"{path} was never finished by the daemon that made it, so it holds no record.")
    try:
        whole = Segment.attach(fd)
    except SegmentError as error:
        return _guess(fd, size, head, clients_max, str(error))
    geometry, instance = whole.layout, whole.instance_id
    whole.close()
    return Segment(os.dup(fd), _copy(fd, size), geometry, instance, writable=True), []


def _copy(fd: int, size: int) -> mmap.mmap:
    """Copy the file into anonymous memory. Only parts with data are read; the rest is zeros."""
    copied = mmap.mmap(-1, size)
    view = memoryview(copied)
    at = 0
    try:
        while at < size:
            try:
                start = os.lseek(fd, at, os.SEEK_DATA)
            except OSError:
                break  # only a hole is left
            at = os.lseek(fd, start, os.SEEK_HOLE)
            while start < at:
                got = os.preadv(fd, [view[start : min(at, start + (16 << 20))]], start)
                if not got:
                    break
                start += got
    finally:
        view.release()
    return copied


def _guess(fd: int, size: int, head: bytes, clients_max: int | None, why: str) -> tuple[Segment, list[str]]:
    """Guess the layout of a file with a damaged header: the one in which most entries can be read."""
    best: Segment | None = None
    best_entries = 0
    for geometry in _candidates(size, head, clients_max):
        segment = Segment(os.dup(fd), _copy(fd, size), geometry, _instance(head), writable=True)
        _mend(segment, geometry)
        entries = _entries(segment)
        if entries > best_entries:
            best, segment, best_entries = segment, best or segment, entries
        if segment is not best:
            segment.close()
    if best is None:
        raise SalvageError(
            f"{why}, and no layout of this version fits it. Try again with --clients-max, if its daemon had "
            "another daemon.clients_max than the default."
        )
    note = (
        f"The header is damaged ({why}). Read as {best.page_count:,} pages of {best.page_bytes:,} bytes and "
        f"{best.layout.clients_max:,} clients, the layout in which most submissions can be read."
    )
    return best, [note]


def _candidates(size: int, head: bytes, clients_max: int | None) -> Iterator[Layout]:
    fields = layout.HEADER_FIELDS.unpack_from(
        head.ljust(layout.HEADER_BYTES, b"\0"), layout.HEADER_FIELDS_OFFSET
    )
    pages = dict.fromkeys([fields[0] if fields[0] in _PAGE_SIZES else _PAGE_SIZES[0], *_PAGE_SIZES])
    said = fields[4] if 1 <= fields[4] <= 65_536 else _USUAL_CLIENTS
    clients = dict.fromkeys([clients_max] if clients_max else [said, _USUAL_CLIENTS])
    for count in clients:
        for page_bytes in pages:
            fixed = Layout.of(page_bytes=page_bytes, page_count=0, clients_max=count).total
            near = (size - fixed) // (page_bytes + 8)
            for page_count in range(max(near - 2, 1), near + 3):
                geometry = Layout.of(page_bytes=page_bytes, page_count=page_count, clients_max=count)
                if geometry.total == size:
                    yield geometry


def _mend(segment: Segment, geometry: Layout) -> None:
    """Set the bitmap of used slots in the copy, from the slots themselves."""
    prepared = 0
    for slot in range(layout.SLOT_COUNT):
        position = geometry.slot(slot)
        if any(segment.view[position : position + 8]):
            prepared |= 1 << slot
    struct.pack_into("<Q", segment.header, layout.PREPARED_SLOTS_OFFSET, prepared)


def _entries(segment: Segment) -> int:
    pages = linked_pages(segment)
    count = 0
    for slot in segment.prepared_slots():
        table = ChainTable(segment, slot)
        for name in table.names():
            own = pages.get((slot, name.chain_id))
            if own:
                count += table.recover(name.chain_id, own).live_entries
    return count


def _instance(head: bytes) -> bytes:
    start = layout.HEADER_FIELDS_OFFSET + struct.calcsize("<IIQIIQQ")
    return head[start : start + 16].ljust(16, b"\0")


def write_letters(salvage: Salvage, folder: Path) -> tuple[Path, int]:
    """Write all undelivered records of a segment as one spool file. Returns it, and the number of unreadable ones.

    The file always gets the same name and replaces an earlier one, so a second salvage duplicates nothing. Raises
    AnothersLetters or OSError, and then leaves no file.
    """
    from sidecar.deadletter.letters import lines, parse

    check_may_replay(folder)
    make_spool(folder)
    path = folder / f"{salvage.name}.jsonl"
    temporary = folder / f".{salvage.name}.new"
    now_ms = time.time_ns() // 1_000_000
    unreadable = 0
    try:
        with os.fdopen(replacing(path, temporary), "wb") as out:
            for line in lines(salvage.undelivered(), now_ms):
                unreadable += not parse(line).is_readable
                out.write(line)
            out.flush()
            os.fsync(out.fileno())
            give_to_owner_of(folder, out.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path, unreadable
