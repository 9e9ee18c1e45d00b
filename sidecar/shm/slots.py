"""SlotView: one worker's area, its header and its counters."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from typing import Final

from sidecar.kernel import CounterBlock, load_acquire_u64, store_release_u64
from sidecar.shm import layout
from sidecar.shm.counters import ROW_INDEX

STATE_FREE: Final = 0
STATE_LIVE: Final = 1

READ_TRIES_MAX: Final = 64
FIRST_ROW_WORD: Final = (layout.COUNTERS_FIRST_OFFSET - layout.COUNTERS_OFFSET) // 8
"""Index of the first counter row in the result of ``Counters.read_words``."""
_ROW_WORDS: Final = {row: FIRST_ROW_WORD + index for row, index in ROW_INDEX.items()}
"""Row → index of its word in the block."""


class Counters(CounterBlock):
    """A slot's counter block: one writer (its worker), any number of readers in other processes.

    The sequence word is odd while a row is being written. A reader tries again if it changed. If the writer died or
    hangs inside a write, the reader uses the present values: each row is one 8-byte word and valid by itself.
    """

    __slots__ = ("_words",)

    def __init__(self, slot_area: memoryview) -> None:
        block = slot_area[layout.COUNTERS_OFFSET : layout.CHAINS_OFFSET]
        super().__init__(block, _ROW_WORDS)
        self._words = block.cast("Q")

    def read(self) -> dict[str, int]:
        """All rows by name: a consistent copy unless the writer hangs."""
        words = self.read_words()
        return {name: words[index] for name, index in _ROW_WORDS.items()}

    def read_words(self) -> list[int]:
        """The whole block: a consistent copy unless the writer hangs."""
        words = self._words
        values: list[int] = []
        for _ in range(READ_TRIES_MAX):
            before = words[0]
            values = words.tolist()
            if not before & 1 and words[0] == before:
                break
        return values

    def close_write(self) -> None:
        """Make the sequence even again, if a dead writer left it odd."""
        if self._words[0] & 1:
            self._words[0] += 1


class RunningTotals:
    """Publishes totals that a worker counts in its own memory as counters of its slot. They continue a predecessor's
    values.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._published: dict[str, int] = {}

    def publish(self, totals: Mapping[str, int]) -> None:
        """Add each total's growth since the last call, all in one write."""
        before = self._published
        self._counters.add({row: total - before.get(row, 0) for row, total in totals.items()})
        self._published = dict(totals)


class SlotView:
    """One slot of the segment. Written by its worker, or by the controller while no worker owns it."""

    def __init__(self, index: int, area: memoryview) -> None:
        self.index = index
        self.area = area
        self.counters = Counters(area)

    def claim(self, *, pid: int | None = None, incarnation: int, cpu: int = -1) -> None:
        """Claim the slot for a process. The incarnation is stored last."""
        pid = os.getpid() if pid is None else pid
        self.counters.close_write()
        struct.pack_into("<Ii", self.area, layout.PID_OFFSET, pid, cpu)
        struct.pack_into("<Q", self.area, layout.START_TIME_OFFSET, process_start_ticks(pid))
        self.state = STATE_LIVE
        struct.pack_into("<qi", self.area, layout.PRODUCER_ID_OFFSET, -1, -1)
        # kill point: adopt.slot
        store_release_u64(self.area, layout.INCARNATION_OFFSET, incarnation)
        # kill point: adopt.claimed

    @property
    def incarnation(self) -> int:
        """Number of the last owner, unique among all workers that this segment ever had; 0 before the first."""
        return load_acquire_u64(self.area, layout.INCARNATION_OFFSET)

    @property
    def pid(self) -> int:
        return int.from_bytes(self.area[layout.PID_OFFSET : layout.PID_OFFSET + 4], "little")

    @property
    def start_time(self) -> int:
        """Start of the process in clock ticks since boot. With the pid it is unique."""
        return load_acquire_u64(self.area, layout.START_TIME_OFFSET)

    @property
    def is_owned(self) -> bool:
        """True if the process that claimed it last is alive."""
        return process_start_ticks(self.pid) == self.start_time != 0

    @property
    def state(self) -> int:
        return int(struct.unpack_from("<I", self.area, layout.STATE_OFFSET)[0])

    @state.setter
    def state(self, state: int) -> None:
        struct.pack_into("<I", self.area, layout.STATE_OFFSET, state)

    @property
    def heartbeat(self) -> int:
        """Monotonic nanoseconds of the last turn of the working loop."""
        return load_acquire_u64(self.area, layout.HEARTBEAT_OFFSET)

    def store_heartbeat(self, now_ns: int) -> None:
        store_release_u64(self.area, layout.HEARTBEAT_OFFSET, now_ns)

    def resume_clock(self, now_ns: int) -> float:
        """Continue the slot's clock from the last heartbeat, for a new owner. Returns the ms by which it is ahead of
        ``now_ns``.

        The clock measures how long a record has been in a worker's hands. Time without a worker does not count, nor do
        monotonic clocks of other boots. Can be repeated after a kill in the middle.
        """
        (ahead_ns, stood_ns) = struct.unpack_from("<qq", self.area, layout.SLOT_CLOCK_OFFSET)
        if not stood_ns:
            stood_ns = self.heartbeat + ahead_ns
            struct.pack_into("<q", self.area, layout.SLOT_CLOCK_STOOD_OFFSET, stood_ns)
        ahead_ns = stood_ns - now_ns
        struct.pack_into("<q", self.area, layout.SLOT_CLOCK_OFFSET, ahead_ns)
        self.store_heartbeat(now_ns)
        struct.pack_into("<q", self.area, layout.SLOT_CLOCK_STOOD_OFFSET, 0)
        return float(ahead_ns) / 1e6

    def store_producer(self, producer_id: int, epoch: int) -> None:
        struct.pack_into("<qi", self.area, layout.PRODUCER_ID_OFFSET, producer_id, epoch)
        # kill point: producer.stored

    @property
    def dead_lettering(self) -> int:
        """Number of records in the spool whose words are being marked done, and which are counted after that."""
        return load_acquire_u64(self.area, layout.DEAD_LETTERING_OFFSET)

    @dead_lettering.setter
    def dead_lettering(self, records: int) -> None:
        store_release_u64(self.area, layout.DEAD_LETTERING_OFFSET, records)

    @property
    def ending_aborted(self) -> int:
        """Number of records of transactions whose words are being marked done, and which are counted after that."""
        return load_acquire_u64(self.area, layout.ENDING_ABORTED_OFFSET)

    @ending_aborted.setter
    def ending_aborted(self, records: int) -> None:
        store_release_u64(self.area, layout.ENDING_ABORTED_OFFSET, records)

    @property
    def spared(self) -> int:
        """The incarnation that a controller ended: its work did not kill it. 0: none."""
        return load_acquire_u64(self.area, layout.SPARED_OFFSET)

    @spared.setter
    def spared(self, incarnation: int) -> None:
        store_release_u64(self.area, layout.SPARED_OFFSET, incarnation)


def process_start_ticks(pid: int) -> int:
    """Start time of a process in clock ticks (field 22 of /proc/PID/stat); 0 if there is no such process."""
    try:
        handle = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        stat = os.read(handle, 4096)
    except OSError:
        return 0  # it ended in between
    finally:
        os.close(handle)
    return int(stat.rpartition(b")")[2].split()[19])
