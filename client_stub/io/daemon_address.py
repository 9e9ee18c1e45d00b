"""Where a producer finds the daemon: the addresses of its sockets, and the keys for ``tcp://``.

Each process of a fleet imports this module, so it uses os.path: pathlib would load half a megabyte of modules.
"""

# ruff: noqa: PTH100, PTH118, PTH120

from __future__ import annotations

import contextlib
import os

from client_stub.contract.run_dir import CONTROL_SOCKET, default_run_dir
from client_stub.contract.tcp import (
    KEY_FILE_VARIABLE,
    MISSING_TEXT,
    join_address,
    split_address,
)
from client_stub.contract.wire import IPC_PATH_BYTES_MAX, LONGEST_SOCKET, RELATIVE_ENDPOINTS, TCP_PREFIX
from client_stub.system.log import log
from client_stub.zmtp.keys import WatchedKeyFile


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
    socket next to ``control`` has a path too long for the stub, only the daemon's path is left.
    """
    if control.startswith(TCP_PREFIX):
        return 0
    longest = os.path.join(os.path.dirname(control), LONGEST_SOCKET)
    return RELATIVE_ENDPOINTS if len(os.fsencode(longest)) <= IPC_PATH_BYTES_MAX else 0


def worker_path(control: str, endpoint: str) -> str:
    """The socket that ASSIGNED names: next to ``control``, or at an absolute path (``ipc:///...``).

    Over TCP ASSIGNED names only a port on the host of ``control``. Raises ValueError for anything that is not an
    address.
    """
    if control.startswith(TCP_PREFIX):
        return join_address(split_address(control)[0], split_address(endpoint)[1])
    return os.path.join(os.path.dirname(control), endpoint.removeprefix("ipc://"))
