"""Finds the daemon's sockets, and words the error when no daemon answers. Standard library only.

Each process of a fleet imports this module, so it uses os.path: pathlib would load half a megabyte of modules.
"""

# ruff: noqa: PTH100, PTH110, PTH116, PTH118, PTH120

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
import sys
from typing import Final

from client_stub.contract.tcp import (
    KEY_FILE_VARIABLE,
    MISSING_TEXT,
    join_address,
    split_address,
)
from client_stub.contract.wire import IPC_PATH_BYTES_MAX, LONGEST_SOCKET, RELATIVE_ENDPOINTS, TCP_PREFIX
from client_stub.system.log import log
from client_stub.zmtp.keys import WatchedKeyFile

RUN_DIR_VARIABLE: Final = "KAFKA_SIDECAR_RUN_DIR"
CONTROL_SOCKET: Final = "control.sock"
NOBODY_LISTENS: Final = "nobody listens there"
"""How the transport's message about a socket without a daemon ends."""


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


def control_path(run_dir: str | os.PathLike[str] | None) -> str:
    """The control socket of ``run_dir`` (None: the default); ``tcp://host:port`` is returned unchanged.

    Raises ValueError when the path is too long for a socket, or when there is no default.
    """
    named = os.fsdecode(run_dir) if run_dir is not None else default_run_dir()
    if named.startswith(TCP_PREFIX):
        host, port = split_address(named)
        if not host:
            raise ValueError(f"{named} names no host: a producer needs tcp://host:port.")
        return join_address(host, port)
    path = os.path.join(_absolute(named, "The run directory"), CONTROL_SOCKET)
    if len(os.fsencode(path)) > IPC_PATH_BYTES_MAX:
        raise ValueError(
            f"The run directory is too long for a socket path: {path} has {len(os.fsencode(path))} bytes, "
            f"at most {IPC_PATH_BYTES_MAX} are possible; choose a shorter run_dir."
        )
    return path


def keys_for(control: str, key_file: str | os.PathLike[str] | None) -> WatchedKeyFile | None:
    """The keys for ``tcp://``, from this file or the one that the environment names; None for a path.

    A file that has changed is read again for the next connection.

    Raises ValueError for a file that cannot be used or is missing, and for a file that is given without ``tcp://``.
    """
    named = key_file if key_file is not None else os.environ.get(KEY_FILE_VARIABLE)
    if not control.startswith(TCP_PREFIX):
        if key_file is not None:
            raise ValueError("curve_key_file is for a run_dir of the form tcp://host:port only.")
        return None
    if not named:
        raise ValueError(
            f"{control} needs this client's keys: name their file by curve_key_file or {KEY_FILE_VARIABLE}."
        )
    from importlib.util import find_spec

    with contextlib.suppress(OSError):  # no descriptor is free: the first connection says what is missing
        if find_spec("nacl") is None:
            raise ValueError(f"{MISSING_TEXT}.")
    return WatchedKeyFile(
        _absolute(named, "curve_key_file"),
        is_client=True,
        complain=lambda sentence: log.warning("%s", sentence),
    )


def _absolute(path: str | os.PathLike[str], what: str) -> str:
    """``path`` from the root on. Raises ValueError for a relative one where the working directory is gone."""
    try:
        return os.path.abspath(os.fsdecode(path))
    except OSError as error:
        raise ValueError(
            f"{what} {os.fsdecode(path)} is relative, and the working directory cannot be used ({error.strerror}): "
            "give an absolute path."
        ) from None


def hello_flags(control: str) -> int:
    """The sixth field of HELLO for a stub that reaches the daemon by this control socket.

    In another mount namespace the daemon's own path of its run directory may differ from the stub's. If a worker's
    socket beside ``control`` has a path too long for the stub, only the daemon's path is left.
    """
    if control.startswith(TCP_PREFIX):
        return 0
    longest = os.path.join(os.path.dirname(control), LONGEST_SOCKET)
    return RELATIVE_ENDPOINTS if len(os.fsencode(longest)) <= IPC_PATH_BYTES_MAX else 0


def worker_path(control: str, endpoint: str) -> str:
    """The socket that ASSIGNED names: beside ``control``, or at an absolute path (``ipc:///...``).

    Over TCP ASSIGNED names only a port on the host of ``control``. Raises ValueError for anything that is not an
    address.
    """
    if control.startswith(TCP_PREFIX):
        return join_address(split_address(control)[0], split_address(endpoint)[1])
    return os.path.join(os.path.dirname(control), endpoint.removeprefix("ipc://"))


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


def unreachable_text(path: str, waited_ms: float, last_word: str) -> str:
    """An error text of one or two sentences: the path that was tried, what was found there, and how to start a
    daemon.
    """
    host, waited = os.uname().nodename, f"(waited {waited_ms / 1000:.3g} s)"
    if last_word and not last_word.endswith(NOBODY_LISTENS):
        return f"The kafka-sidecar daemon at {path} on host {host} cannot be used {waited}: {last_word}"
    if path.startswith(TCP_PREFIX):
        return (
            f"No kafka-sidecar daemon answers at {path} {waited}: see that it runs, that daemon.listen of its "
            "configuration names this port, and that no firewall is between."
        )
    seen = "the socket does not exist" if not os.path.exists(path) else "nobody answered"
    return (
        f"No kafka-sidecar daemon at {path} on host {host}: {seen} {waited}. Start it with 'kafka-sidecar run', "
        f"or name its run directory by run_dir or {RUN_DIR_VARIABLE}."
    )
