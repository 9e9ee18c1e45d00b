"""PublishedFiles: the small files of a run directory by which commands, clients and the next daemon know a daemon.

The controller writes them on its loop; commands and stubs read them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from sidecar.shm.private_files import PRIVATE_FILE, replacing

DAEMON_JSON_MODE: Final = 0o640
"""The mode of daemon.json: every user that may send records may run `status`. Otherwise only the sockets are open to
them.
"""


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in ``path``; None when the file is absent or has no JSON object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


class PublishedFiles:
    """Each file is replaced atomically. Every write raises OSError when there is no space or the run directory was
    removed.
    """

    def __init__(self, folder: Path, is_lost: Callable[[], bool]) -> None:
        """``is_lost()``: whether the folder was removed, so that another daemon may own what is at its path."""
        self._folder = folder
        self._is_lost = is_lost
        self.daemon_json = folder / "daemon.json"
        self.reload_json = folder / "reload.json"
        self.pauses_json = folder / "pauses.json"
        self.segment_json = folder / "segment.json"
        self.epoch = folder / "epoch"

    def own(self, *, with_segment: bool) -> list[Path]:
        """The files to remove at the end of a daemon; those that name its segment only ``with_segment``."""
        segment = [self.segment_json, self.pauses_json] if with_segment else []
        return [self.daemon_json, self.reload_json, *segment]

    def last_epoch(self) -> int:
        """The highest epoch ever used in this run directory (0 if unknown)."""
        with contextlib.suppress(OSError, ValueError):
            return int(self.epoch.read_text())
        return 0

    def store_epoch(self, epoch: int) -> None:
        """Write the highest epoch used so far."""
        self._write(self.epoch, f"{epoch}\n")

    def publish(self, info: Mapping[str, object]) -> None:
        """Write daemon.json."""
        self._write(self.daemon_json, json.dumps(info, indent=1) + "\n", DAEMON_JSON_MODE)

    def publish_reload(self, result: Mapping[str, object]) -> None:
        """Write reload.json, which only this user can read, as it quotes the configuration."""
        self._write(self.reload_json, json.dumps(result) + "\n")

    def publish_pauses(self, pauses: Mapping[str, object]) -> None:
        """Write the topics that an operator has paused, and whether the daemon is drained, for a successor."""
        self._write(self.pauses_json, json.dumps(pauses) + "\n")

    def publish_segment(self, path: Path) -> None:
        """Write where the segment is, for a successor."""
        self._write(self.segment_json, json.dumps({"path": str(path)}) + "\n")

    def _write(self, path: Path, text: str, mode: int = PRIVATE_FILE) -> None:
        """Whatever the umask, only the file's owner may write it."""
        if self._is_lost():
            raise OSError(errno.ESTALE, "the run dir was removed under this daemon", str(path))
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        fd = replacing(path, temporary, mode)
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(text)
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()  # remove a partial file, as space is short
            raise
