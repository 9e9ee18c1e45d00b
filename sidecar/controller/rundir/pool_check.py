"""Checks the pool before a takeover: whether this version and configuration can continue where the running daemon
stops.

``main`` calls it once, before the controller's loop runs.

Everything that is refused here is refused while that daemon can still continue.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sidecar.controller.rundir.earlier_log import check_folder, check_free_space, check_is_on_disk
from sidecar.controller.rundir.earlier_segment import open_ours
from sidecar.controller.rundir.run_dir import RunDirError
from sidecar.shm.accept_log import accept_log_folder
from sidecar.shm.chain_table import ChainTable
from sidecar.shm.disk import Folder
from sidecar.shm.layout import Layout
from sidecar.shm.recovery import linked_pages
from sidecar.shm.segment import Segment, SegmentError

if TYPE_CHECKING:
    from sidecar.config.settings import SidecarConfig

_SHARED_MEMORY: Final = Path("/dev/shm")


def check_pool(config: SidecarConfig, segment: Path | None) -> None:
    """Check that a pool of these settings could be made in addition to ``segment``, which the running daemon has.

    If that segment ends up empty, a new one replaces it and gets its room. Raises RunDirError.
    """
    pool_path = config.text("pool.path")
    folder = Path(pool_path).absolute().parent if pool_path else _SHARED_MEMORY
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        what = f"pool.path = {pool_path}" if pool_path else "The pool"
        raise RunDirError(
            f"{what} cannot be made: {folder} is not a folder that this user may write. Choose another pool.path."
        )
    page_bytes, memory_bytes = config.integer("pool.page_bytes"), config.integer("buffer.memory")
    _check_memory(folder, page_bytes, memory_bytes, config.integer("daemon.clients_max"), segment)
    if not pool_path:
        return
    log_folder = accept_log_folder(pool_path)
    check_folder(log_folder)
    if config.text("pool.sync") == "accept":
        check_is_on_disk(pool_path)
        if not Folder(log_folder).names():  # existing logs already have their room
            check_free_space(pool_path, memory_bytes, config.integer("daemon.workers"))


def _check_memory(
    folder: Path, page_bytes: int, memory_bytes: int, clients_max: int, segment: Path | None
) -> None:
    layout = Layout.of(page_bytes=page_bytes, page_count=memory_bytes // page_bytes, clients_max=clients_max)
    needed = layout.slots
    try:
        disk, device = os.statvfs(folder), folder.stat().st_dev
        old = segment.stat() if segment is not None else None
    except OSError:
        return  # opening the segment reports it
    if old is not None and old.st_dev == device:
        needed -= old.st_size
    room = disk.f_bavail * disk.f_frsize
    if needed > room:
        raise RunDirError(
            f"buffer.memory = {memory_bytes} does not fit into {folder}, which has "
            f"{room / 2**20:,.0f} MiB free next to "
            "the pool of the running daemon: make room, or lower buffer.memory."
        )


def topics_of(path: Path | None) -> set[str]:
    """The topics of the records in a running daemon's segment. Only reads.

    Raises RunDirError when this version could not use the segment: the takeover must then not begin.
    """
    if path is None or not os.path.lexists(path):
        where = "Its segment's file" if path is None else str(path)
        raise RunDirError(
            f"{where} is not there, so the records of the running daemon cannot be taken over. That daemon continues; "
            "stop it (SIGTERM delivers its records), then start this one."
        )
    try:
        fd = open_ours(path)
        try:
            segment = Segment.attach(fd)
        finally:
            os.close(fd)
    except SegmentError as error:
        raise RunDirError(
            f"This version cannot use the segment of the running daemon ({error}). That daemon continues; stop it "
            "(SIGTERM delivers its records), then start this one."
        ) from None
    chains = linked_pages(segment).keys()
    topics = {
        name.topic
        for slot in {slot for slot, _ in chains}
        if segment.is_slot_prepared(slot)
        for name in ChainTable(segment, slot).names()
        if (slot, name.chain_id) in chains
    }
    segment.close()
    return topics
