"""GroupCommit: makes accepted mean on disk (``pool.sync = accept``). While one group is written, the next one gathers.

The loop never waits for the disk: a thread writes and syncs a group to the accept log, and submissions that arrive
meanwhile form the next group. A stream's position is reported to its stub only when the group is on disk. Delivery
does not wait for that, because a record that a broker has needs no second disk.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, NamedTuple

from sidecar.kernel import entry_payload
from sidecar.shm.accept_log import DiskFull
from sidecar.shm.accept_log_format import LoggedEntry, packed_bytes
from sidecar.shm.chain_table import EXPRESS

if TYPE_CHECKING:
    import asyncio

    from typing_extensions import Buffer

    from sidecar.kernel import Chain, Entry
    from sidecar.shm.accept_log import AcceptLog, Packed
    from sidecar.shm.slots import Counters
    from sidecar.worker.streams.session import StreamState
    from sidecar.worker.streams.topic_queue import TopicQueue
    from sidecar.worker.turns import Turns

log = logging.getLogger(__name__)

GARBAGE_FILES = 4
"""Number of files of ended entries tolerated beyond twice the live bytes before the oldest file is emptied."""


class _Item(NamedTuple):
    entry: Entry
    topic: str
    stream: StreamState | None
    """None for an entry that moves out of the log's oldest file."""
    seq: int
    packed: Packed


class _FileUse:
    """Live entries and bytes of one log file, counted by the loop."""

    __slots__ = ("live_bytes", "live_entries")

    def __init__(self) -> None:
        self.live_entries = 0
        self.live_bytes = 0


class GroupCommit:
    """Commits groups. Belongs to the worker's loop. ``thread`` is an executor of one thread that uses only the log.

    ``on_accepted`` gets the streams with entries that reached the disk. ``queues`` iterates over all topics' queues.
    """

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        accept_log: AcceptLog,
        thread: Executor,
        pending_bytes_max: int,
        counters: Counters,
        queues: Iterable[TopicQueue],
        turns: Turns,
        on_accepted: Callable[[set[StreamState]], None],
    ) -> None:
        self._loop = loop
        self._log = accept_log
        self._pending_bytes_max = pending_bytes_max
        self._counters = counters
        self._queues = queues
        self._turns = turns
        self._on_accepted = on_accepted
        self._thread = thread
        self._pending: list[_Item] = []
        self._pending_bytes = 0
        self._releases: list[tuple[int, int]] = []
        self._running: tuple[list[_Item], list[tuple[int, int]]] | None = None
        self._files: dict[int, _FileUse] = {}
        self._head = accept_log.head
        self._moved_below = 0
        self._failure = ""
        self._is_full = False

    # ---- life ----------------------------------------------------------------------------------------------

    def begin(self, beat: Callable[[], None] = lambda: None) -> int:
        """Write the slot's live entries as a new base of the log, before anything is accepted. Returns their number.

        ``beat`` is called periodically. Raises OSError: then nothing was accepted, and the earlier log stays valid.
        """
        numbers = self._log.add_to_base(
            _logged(queue, entry, entry_payload(queue.chain, entry))
            for queue, entry in _beating(self._live(), beat)
        )
        self._log.end_base()
        for (queue, entry), number in zip(_beating(self._live(), beat), numbers, strict=True):
            self._keep(entry, queue.topic, number)
        return len(numbers)

    def _live(self) -> Iterator[tuple[TopicQueue, Entry]]:
        for queue in self._queues:
            if (
                queue.transaction is None
            ):  # after a crash of the host, records of a transaction end as aborted
                for entry in queue.chain.entries():
                    yield queue, entry

    def close(self) -> None:
        """Wait for the running group and write the last releases. Stubs are no longer informed."""
        self._thread.shutdown(wait=True)
        if self._releases and not self.refusal:
            try:
                self._log.commit([], self._releases)
            except OSError as error:
                log.warning("The last releases could not be noted in the accept log: %s.", error)
        self._log.close()

    # ---- what the worker says ------------------------------------------------------------------------------

    @property
    def refusal(self) -> str:
        """Why nothing new may be accepted now; "" if it may."""
        if self._failure:
            return self._failure
        if self._is_full:
            return "the disk of pool.path is full"
        if self._pending_bytes > self._pending_bytes_max:
            return "the disk of pool.path does not keep up"
        return ""

    def add(self, queue: TopicQueue, stream: StreamState, entry: Entry, payload: Buffer) -> None:
        """Add an entry of the journal to the next group. Its stub is informed when the group is on disk.

        ``payload`` is kept until then, so its memory must not be re-used.
        """
        packed = _logged(queue, entry, payload).pack()
        self._pending.append(_Item(entry, queue.topic, stream, entry.seq, packed))
        self._pending_bytes += packed_bytes(queue.topic, entry.payload_bytes)

    def entries_ended(self, chain: Chain, topic: str) -> None:
        """Queue releases for the chain's entries that have ended."""
        for ordinal, number, payload_bytes in chain.take_finished():
            use = self._files.get(number)
            if use is not None:
                use.live_entries -= 1
                use.live_bytes -= packed_bytes(topic, payload_bytes)
                self._releases.append((chain.chain_id, ordinal))

    def step(self) -> None:
        """Write the gathered group, unless one is being written. Called once per turn."""
        if self._pending and self._running is None and not self._failure and not self._is_full:
            self._start()

    def note_endings(self) -> None:
        """Write releases that no group has carried, so that a crash duplicates few records. Called periodically."""
        if self._failure or self._running is not None:
            return
        if self._is_full or self._releases or self._pending:
            self._start()

    # ---- inside --------------------------------------------------------------------------------------------

    def _start(self) -> None:
        items, self._pending, self._pending_bytes = self._pending, [], 0
        releases, self._releases = self._releases, []
        self._running = items, releases
        packed = [item.packed for item in items]
        future = self._thread.submit(self._log.commit, packed, releases, self._advance_head())
        future.add_done_callback(self._written)

    def _prepare(self) -> None:
        try:
            self._log.prepare()
        except OSError as error:
            # The commit that needs the file will report the error.
            log.info("No spare file for the accept log yet: %s.", error)

    def _written(self, future: Future[list[int]]) -> None:
        """Hand the result over to the loop. Runs in the log's thread."""
        try:
            self._loop.call_soon_threadsafe(self._committed, future)
        except RuntimeError:
            return  # the loop and all sessions have ended

    def _committed(self, future: Future[list[int]]) -> None:
        assert self._running is not None
        items, releases = self._running
        self._running = None
        error = future.exception()
        if error is not None:
            self._not_written(items, releases, error)
            return
        if self._is_full:
            self._is_full = False
            self._counters.set("accept_log_errno", 0)
            log.warning("The disk of pool.path has room again: records are accepted.")
        self._counters.inc("accept_log_commits_total")
        streams: set[StreamState] = set()
        for item, number in zip(items, future.result(), strict=True):
            entry = item.entry
            if entry.remaining:
                self._keep(entry, item.topic, number)
            else:
                self._releases.append((entry.chain_id, entry.ordinal))
            if item.stream is not None:
                item.stream.accepted = max(item.stream.accepted, item.seq)
                streams.add(item.stream)
        if not self._log.has_spare:
            self._thread.submit(self._prepare)
        self._empty_oldest()
        self._on_accepted(streams)
        self._turns.wake()
        self.step()

    def _not_written(self, items: list[_Item], releases: list[tuple[int, int]], error: BaseException) -> None:
        code = error.errno if isinstance(error, OSError) and error.errno else -1
        self._counters.set("accept_log_errno", max(code, 1))
        if isinstance(error, DiskFull):
            self._pending = items + self._pending
            self._pending_bytes += sum(packed_bytes(item.topic, item.entry.payload_bytes) for item in items)
            self._releases = releases + self._releases
            if not self._is_full:
                log.error("The disk of pool.path is full: no record is accepted until it has room again.")
            self._is_full = True
            return
        # It is unknown what reached the disk, and a second sync would not report it (the kernel forgets the error). So
        # nothing more is written.
        why = (os.strerror(code) if code > 0 else repr(error)) or repr(error)
        self._failure = (
            f"writing accepted records to the disk of pool.path failed ({why}); restart the daemon"
        )
        log.error(
            "The accept log cannot be written (%s): no more records are taken. Accepted ones are still delivered. "
            "Check the disk of pool.path, then restart the daemon.",
            why,
        )

    def _keep(self, entry: Entry, topic: str, number: int) -> None:
        """Note that the entry is live in the file ``number``."""
        size = packed_bytes(topic, entry.payload_bytes)
        before = self._files.get(entry.chain.log_file(entry.ordinal))
        if before is not None:
            before.live_entries -= 1
            before.live_bytes -= size
        entry.chain.set_log_file(entry.ordinal, number)
        use = self._files.setdefault(number, _FileUse())
        use.live_entries += 1
        use.live_bytes += size

    def _advance_head(self) -> int:
        """Release files at the front that hold nothing live, except the one being written. Returns the new front."""
        while self._head < self._log.number:
            use = self._files.get(self._head)
            if use is not None and use.live_entries:
                break
            self._files.pop(self._head, None)
            self._head += 1
        return self._head

    def _empty_oldest(self) -> None:
        """Write the live entries of the oldest file again, so that one stuck entry does not keep all later
        files.
        """
        head = self._advance_head()
        garbage_bytes = (self._log.number - head + 1) * self._log.file_bytes
        garbage_bytes -= 2 * sum(use.live_bytes for use in self._files.values())
        if garbage_bytes <= GARBAGE_FILES * self._log.file_bytes or self._moved_below > head:
            return
        self._moved_below = head + 1
        for queue in self._queues:
            for entry in queue.chain.entries():
                if queue.chain.log_file(entry.ordinal) == head:
                    packed = _logged(queue, entry, entry_payload(queue.chain, entry)).pack()
                    self._pending.append(_Item(entry, queue.topic, None, entry.seq, packed))


def _beating(
    live: Iterable[tuple[TopicQueue, Entry]], beat: Callable[[], None]
) -> Iterator[tuple[TopicQueue, Entry]]:
    for number, each in enumerate(live):
        if number % 1024 == 0:
            beat()
        yield each


def _logged(queue: TopicQueue, entry: Entry, payload: Buffer) -> LoggedEntry:
    return LoggedEntry(
        chain_id=entry.chain_id,
        ordinal=entry.ordinal,
        lane=queue.lane | EXPRESS if queue.is_express else queue.lane,
        topic=queue.topic,
        seq=entry.seq,
        stream=entry.stream,
        client_row=entry.client_row,
        client_generation=entry.client_generation,
        base_timestamp_ms=entry.base_timestamp_ms,
        txn_number=entry.txn_number,
        records=entry.count,
        format=entry.format,
        flags=entry.flags,
        payload=payload,
    )
