"""Checks the mode of a configuration file with secrets, by the rule that PostgreSQL has for private keys.

The loader calls it, at the start and at a reload.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sidecar.config.settings import BY_NAME
from sidecar.shm.private_files import OPEN_TO_OTHERS

_BEYOND_GROUP_READ: Final = stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO


def mode_fault(path: Path, found: os.stat_result, settings: Mapping[str, object]) -> str | None:
    """One sentence when other users may read or change a regular file with a secret among its ``settings``, else None.

    Only the owner may have rights. Root's file may also be readable by its group: an administrator writes it, and the
    daemon, which is in that group, cannot change it.
    """
    names = [name for name, value in settings.items() if value and _is_secret(name)]
    if not names or not stat.S_ISREG(found.st_mode):
        return None
    forbidden = _BEYOND_GROUP_READ if found.st_uid == 0 else OPEN_TO_OTHERS
    if not found.st_mode & forbidden:
        return None
    return (
        f"Configuration file {path} has mode {stat.S_IMODE(found.st_mode):04o} and a secret in it ({names[0]}), which "
        f"others could read or change: chmod 600 {path}. A file of root's may have mode 0640, for the daemon's group."
    )


def open_secret_files(values: Mapping[str, object], clients: Mapping[str, Mapping[str, object]]) -> list[str]:
    """One sentence for each file of a secret (``NAME.file``) that every user of the host may read.

    Such files are not refused: Kubernetes creates them with this mode, in a container without other users.
    """
    named = [(name, path) for name, path in values.items() if name.endswith(".file")]
    named += [(f'clients."{name}".token.file', keys.get("token.file")) for name, keys in clients.items()]
    found: list[str] = []
    for name, path in named:
        if not path:
            continue
        try:
            mode = os.stat(str(path)).st_mode  # noqa: PTH116
        except (OSError, ValueError):
            continue  # its reader reports the error
        if stat.S_ISREG(mode) and mode & stat.S_IROTH:
            found.append(
                f'{name} = "{path}": every user of this host may read this file (mode {stat.S_IMODE(mode):04o}): '
                f"chmod o= {path}."
            )
    return found


def _is_secret(name: str) -> bool:
    row = BY_NAME.get(name.removeprefix("kafka."))
    return row.secret if row is not None else name.startswith("clients.") and name.endswith(".token")
