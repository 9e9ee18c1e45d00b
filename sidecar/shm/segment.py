"""Segment: one memory-mapped file that holds every accepted record, and outlives all processes that map it.

Everything is allocated with posix_fallocate before it is first touched: the first write to a hole on a full /dev/shm
would raise SIGBUS. A segment is never resized.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import time
from pathlib import Path

from sidecar.kernel import compare_and_swap_u64, load_acquire_u64, store_release_u64
from sidecar.shm import layout
from sidecar.shm.layout import Layout
from sidecar.shm.private_files import create_private
from sidecar.shm.slots import SlotView

_MADV_HUGEPAGE = 14
_MADV_POPULATE_READ = 22
"""madvise(2) advice; the mmap module does not name this one."""


class SegmentError(Exception):
    """The segment cannot be made, or a file is no valid segment. The text says why and what to do."""


class Segment:
    """A mapped segment. Not thread-safe; any number of processes may map the same file."""

    def __init__(
        self, fd: int, mapped: mmap.mmap, areas: Layout, instance_id: bytes, *, writable: bool
    ) -> None:
        self._fd = fd
        self._map = mapped
        self.layout = areas
        self.instance_id = instance_id
        self.writable = writable
        with contextlib.suppress(OSError):
            mapped.madvise(mmap.MADV_DONTDUMP)  # records are not for core dumps
        self.view = memoryview(mapped)
        self.header = self.view[: layout.HEADER_BYTES]
        self.owners = self.view[areas.owners : areas.owners + 8 * areas.page_count]
        self.pages = self.view[areas.pages : areas.pages + areas.page_bytes * areas.page_count]
        self._slots: dict[int, SlotView] = {}

    @classmethod
    def create(
        cls,
        path: Path | str,
        *,
        page_bytes: int,
        buffer_memory_bytes: int,
        clients_max: int,
        instance_id: bytes,
    ) -> Segment:
        """Make and map a new file with mode 0600. Raises SegmentError: it exists, sizes are wrong, or there is no
        room.
        """
        page_count = buffer_memory_bytes // page_bytes if page_bytes > 0 else 0
        if page_bytes % layout.ALIGN or page_bytes <= 0:
            raise SegmentError(
                f"pool.page_bytes is {page_bytes}: it must be a positive multiple of {layout.ALIGN}"
            )
        if page_count < 1:
            raise SegmentError(
                f"buffer.memory of {buffer_memory_bytes} bytes holds no page of {page_bytes} bytes"
            )
        if not 1 <= clients_max <= 65_535:
            raise SegmentError(f"daemon.clients_max is {clients_max}: it must be between 1 and 65535")
        if len(instance_id) > 16:
            raise SegmentError(f"an instance id has at most 16 bytes, not {len(instance_id)}")
        areas = Layout.of(page_bytes=page_bytes, page_count=page_count, clients_max=clients_max)
        try:
            fd = create_private(path, os.O_RDWR)
        except FileExistsError:
            raise SegmentError(f"{path} exists already; it is not overwritten") from None
        except OSError as error:
            raise SegmentError(f"{path} cannot be made: {error.strerror}") from None
        try:
            os.ftruncate(fd, areas.total)
            _allocate(fd, 0, areas.slots, path)
            mapped = mmap.mmap(fd, areas.total)
        except BaseException:
            os.close(fd)
            Path(path).unlink(missing_ok=True)
            raise
        segment = cls(fd, mapped, areas, instance_id.ljust(16, b"\0"), writable=True)
        header = segment.header
        header[: len(layout.MAGIC)] = layout.MAGIC
        layout.HEADER_FIELDS.pack_into(
            header,
            layout.HEADER_FIELDS_OFFSET,
            page_bytes,
            0,
            page_count,
            layout.SLOT_COUNT,
            clients_max,
            layout.SLOT_STRIDE,
            layout.CLIENT_STRIDE,
            segment.instance_id,
            current_boot_id(),
            0,
            time.time_ns() // 1_000_000,
            areas.total,
            areas.client_words,
            areas.owners,
            areas.pages,
            areas.slots,
            areas.clients,
        )
        store_release_u64(header, layout.VERSION_OFFSET, layout.LAYOUT_VERSION)
        return segment

    @classmethod
    def attach(cls, where: Path | str | int) -> Segment:
        """Map an existing segment by path, or by an inherited fd (which stays the caller's).

        A file that may only be read is mapped read-only, which is enough for counters. Raises SegmentError if it is no
        segment, is not finished, is of another version, or is cut short.
        """
        fd, writable = _open(where)
        if isinstance(where, int):
            where = str(Path(f"/proc/self/fd/{fd}").readlink())
        try:
            size = os.fstat(fd).st_size
            if size < layout.HEADER_BYTES:
                raise SegmentError(f"{where} has {size} bytes, less than a header")
            head = os.pread(fd, layout.HEADER_BYTES, 0)
            if head[: len(layout.MAGIC)] != layout.MAGIC:
                raise SegmentError(f"{where} does not begin as a segment of kafka-sidecar")
            version = int.from_bytes(head[layout.VERSION_OFFSET : layout.VERSION_OFFSET + 8], "little")
            if version != layout.LAYOUT_VERSION:
                raise SegmentError(
                    f"{where} was never finished by its maker"
                    if version == 0
                    else f"{where} has layout version {version}, this is version {layout.LAYOUT_VERSION}"
                )
            fields = layout.HEADER_FIELDS.unpack_from(head, layout.HEADER_FIELDS_OFFSET)
            page_bytes, _, page_count, slot_count, clients_max, slot_stride, client_stride, instance_id = (
                fields[:8]
            )
            areas = Layout.of(page_bytes=page_bytes, page_count=page_count, clients_max=clients_max)
            if (
                (slot_count, slot_stride, client_stride)
                != (layout.SLOT_COUNT, layout.SLOT_STRIDE, layout.CLIENT_STRIDE)
                or fields[11:] != (areas.total, areas.client_words, *areas[4:8])
                or size != areas.total
            ):
                raise SegmentError(f"{where} has sizes that do not add up ({size} bytes)")
            access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            mapped = mmap.mmap(fd, size, prot=access)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, mapped, areas, instance_id, writable=writable)

    def prefault(self) -> None:
        """Map all pages of the pool now, so that no record waits for a first touch. Stores nothing.

        Reading is enough: it maps a page of shared memory as writable, and does not dirty a page of a disk file. The
        tables around the pages are left alone: unused parts of them take no memory.
        """
        begin = -(-self.layout.pages // mmap.PAGESIZE) * mmap.PAGESIZE
        size = (self.layout.slots - begin) // mmap.PAGESIZE * mmap.PAGESIZE
        with contextlib.suppress(OSError):  # not available on this file system
            self._map.madvise(_MADV_HUGEPAGE, begin, size)
        try:
            self._map.madvise(_MADV_POPULATE_READ, begin, size)
        except OSError:  # before Linux 5.14
            sum(self.view[begin : begin + size : mmap.PAGESIZE])

    @staticmethod
    def is_unfinished(fd: int) -> bool:
        """True for a file whose maker died before it stamped the version: no process can have mapped it."""
        head = os.pread(fd, 16, 0)
        return head[8:16] in (b"", bytes(8)) and (not head.strip(b"\0") or head[:8] == layout.MAGIC)

    @staticmethod
    def is_one(fd: int) -> bool:
        """True for a file that begins as a segment of kafka-sidecar, of any version."""
        return os.pread(fd, len(layout.MAGIC), 0) == layout.MAGIC

    @property
    def fd(self) -> int:
        """File descriptor of the mapped file; it is closed with the segment."""
        return self._fd

    @property
    def page_count(self) -> int:
        return self.layout.page_count

    @property
    def page_bytes(self) -> int:
        return self.layout.page_bytes

    @property
    def boot_id(self) -> bytes:
        fields = layout.HEADER_FIELDS.unpack_from(self.header, layout.HEADER_FIELDS_OFFSET)
        return bytes(fields[8])

    def begin_boot(self) -> None:
        """Reset clocks and the tickets of waiting workers after a reboot: they have no meaning any more."""
        if self.boot_id == current_boot_id():
            return
        for slot in self.prepared_slots():
            self.slot(slot).store_heartbeat(0)
        for table in layout.SLOT_POOL_TABLES:
            self.header[table : table + 8 * layout.SLOT_COUNT] = bytes(8 * layout.SLOT_COUNT)
        rates = layout.RATE_ROWS_OFFSET
        self.header[rates : rates + layout.RATE_ROWS_MAX * layout.RATE_ROW_BYTES] = bytes(
            layout.RATE_ROWS_MAX * layout.RATE_ROW_BYTES
        )
        self.header[layout.BOOT_ID_OFFSET : layout.BOOT_ID_OFFSET + 16] = current_boot_id()

    def flush(self) -> None:
        """Force the file to its disk, if it has one."""
        os.fsync(self._fd)

    def allocate(self, position: int, size: int) -> None:
        """Allocate a part of the file before it is touched. Raises SegmentError if there is no room."""
        _allocate(self._fd, position, size, None)

    def is_slot_prepared(self, slot: int) -> bool:
        return bool(load_acquire_u64(self.header, layout.PREPARED_SLOTS_OFFSET) >> slot & 1)

    def prepare_slot(self, slot: int) -> None:
        """Allocate a slot's area. Can be repeated."""
        if not 0 <= slot < layout.SLOT_COUNT:
            raise SegmentError(f"there is no slot {slot} of {layout.SLOT_COUNT}")
        while not self.is_slot_prepared(slot):
            self.allocate(self.layout.slot(slot), layout.SLOT_STRIDE)
            before = load_acquire_u64(self.header, layout.PREPARED_SLOTS_OFFSET)
            compare_and_swap_u64(self.header, layout.PREPARED_SLOTS_OFFSET, before, before | 1 << slot)

    def prepared_slots(self) -> list[int]:
        prepared = load_acquire_u64(self.header, layout.PREPARED_SLOTS_OFFSET)
        return [slot for slot in range(prepared.bit_length()) if prepared >> slot & 1]

    def slot(self, slot: int) -> SlotView:
        """View of the slot's area. Raises SegmentError before :meth:`prepare_slot`."""
        found = self._slots.get(slot)
        if found is None:
            if not (0 <= slot < layout.SLOT_COUNT and self.is_slot_prepared(slot)):
                raise SegmentError(f"slot {slot} was never given to a worker")
            position = self.layout.slot(slot)
            found = self._slots[slot] = SlotView(slot, self.view[position : position + layout.SLOT_STRIDE])
        return found

    def close(self) -> None:
        """Unmap the segment. If chains or rows of it are still alive, the mapping ends with the last of them."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        self._slots.clear()
        with contextlib.suppress(BufferError):
            for view in (self.header, self.owners, self.pages, self.view):
                view.release()
            self._map.close()


def _open(where: Path | str | int) -> tuple[int, bool]:
    if isinstance(where, int):
        return os.dup(where), fcntl.fcntl(where, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
    try:
        return os.open(where, os.O_RDWR | os.O_CLOEXEC), True
    except PermissionError:
        pass
    except OSError as error:
        raise SegmentError(f"{where} cannot be opened: {error.strerror}") from None
    try:
        return os.open(where, os.O_RDONLY | os.O_CLOEXEC), False
    except OSError as error:
        raise SegmentError(f"{where} cannot be opened: {error.strerror}") from None


def _allocate(fd: int, position: int, size: int, path: Path | str | None) -> None:
    try:
        os.posix_fallocate(fd, position, size)
    except OSError as error:
        name = path or Path(f"/proc/self/fd/{fd}").readlink()
        raise SegmentError(
            f"{size / 1_048_576:.0f} MiB for {name} cannot be allocated: {error.strerror}. Lower buffer.memory, set "
            "pool.path to a file with more room, or enlarge /dev/shm (docker gives 64 MiB: docker run --shm-size=1g)"
        ) from None


def current_boot_id() -> bytes:
    """Id of the present boot. If it has changed, every pid in the file is void."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return bytes(16)
    return bytes.fromhex(text.strip().replace("-", ""))
