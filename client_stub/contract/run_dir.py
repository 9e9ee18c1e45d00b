"""The run directory: where stub and daemon meet by default, and who may use it. Standard library only.

Each process of a fleet imports this module, so it uses os.path: pathlib would load half a megabyte of modules.
"""

# ruff: noqa: PTH116, PTH118, PTH120

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
import sys
from typing import Final

RUN_DIR_VARIABLE: Final = "KAFKA_SIDECAR_RUN_DIR"
CONTROL_SOCKET: Final = "control.sock"
LOCK_FILE: Final = "daemon.lock"
"""A daemon holds a flock on it for its life."""


def default_run_dir() -> str:
    """The default run directory, for both daemon and stub: ``KAFKA_SIDECAR_RUN_DIR``, else /run/kafka-sidecar as root,
    else $XDG_RUNTIME_DIR/kafka-sidecar.

    Without that variable it is the directory that systemd-logind would have set, /run/user/UID. Raises ValueError when
    this user owns no such directory: any user could create one under /tmp first.
    """
    named = os.environ.get(RUN_DIR_VARIABLE)
    if named:
        return named
    user = os.geteuid()
    if user == 0 or not sys.platform.startswith("linux"):
        return "/run/kafka-sidecar"  # on another system the first send says that it is one
    configured = os.environ.get("XDG_RUNTIME_DIR")
    base = configured or f"/run/user/{user}"
    try:
        found = os.stat(base)
    except OSError as error:
        why = f"{base} cannot be used ({error.strerror})"
    else:
        if stat.S_ISDIR(found.st_mode) and found.st_uid == user and not found.st_mode & 0o022:
            return f"{base}/kafka-sidecar"
        mode = stat.S_IMODE(found.st_mode)
        why = f"{base} is not this user's own (it is uid {found.st_uid}'s with mode {mode:04o}, this is uid {user})"
    where = "of XDG_RUNTIME_DIR" if configured else "(XDG_RUNTIME_DIR is not set)"
    raise ValueError(
        f"There is no default run directory for this user, because {why} {where}: name one by --run-dir, run_dir or "
        f"{RUN_DIR_VARIABLE}."
    )


def not_permitted_text(path: str) -> str:
    """A sentence for a user that the system does not let use the socket or folder ``path``: who it is, what is closed
    to it, and who may use that.
    """
    closed, needed = path, (stat.S_IWGRP if path.endswith(".sock") else stat.S_IRGRP)
    folder = "/"
    for name in os.path.dirname(path).split("/")[1:]:
        folder = os.path.join(folder, name)
        if not os.access(folder, os.X_OK, effective_ids=True):
            closed, needed = folder, stat.S_IXGRP
            break
    who = f"{_user_name(os.geteuid())} in {_group_name(os.getegid())}"
    try:
        found = os.stat(closed)
    except OSError:
        return (
            f"Permission denied: {who} may not use {closed}: ask as its owner, or as a member of its group."
        )
    by_group = f", or as a member of {_group_name(found.st_gid)}" if found.st_mode & needed else ""
    return f"Permission denied: {who} may not use {closed}: ask as {_user_name(found.st_uid)}{by_group}."


def _user_name(uid: int) -> str:
    with contextlib.suppress(KeyError):
        return f"user {pwd.getpwuid(uid).pw_name}"
    return f"uid {uid}"


def _group_name(gid: int) -> str:
    with contextlib.suppress(KeyError):
        return f"group {grp.getgrgid(gid).gr_name}"
    return f"gid {gid}"
