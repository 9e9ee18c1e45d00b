"""Where the daemon's sockets are found, and the sentence for when nobody is there. Standard library only.

Each process of a fleet imports this: os.path and no pathlib, which brings half a megabyte of modules with it.
"""

# ruff: noqa: PTH100, PTH110, PTH118

from __future__ import annotations

import os
from typing import Final

from client_stub.wire import IPC_PATH_BYTES_MAX

RUN_DIR_VARIABLE: Final = "KAFKA_SIDECAR_RUN_DIR"
CONTROL_SOCKET: Final = "control.sock"


def default_run_dir() -> str:
    """``KAFKA_SIDECAR_RUN_DIR``, else /run/kafka-sidecar as root, else $XDG_RUNTIME_DIR/kafka-sidecar."""
    named = os.environ.get(RUN_DIR_VARIABLE)
    if named:
        return named
    if os.geteuid() == 0:
        return "/run/kafka-sidecar"
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    return f"{runtime}/kafka-sidecar"


def control_path(run_dir: str | os.PathLike[str] | None) -> str:
    """The control socket of ``run_dir`` (None: the default). Raises ValueError when ipc cannot hold the path."""
    path = os.path.join(
        os.path.abspath(run_dir if run_dir is not None else default_run_dir()), CONTROL_SOCKET
    )
    if len(os.fsencode(path)) > IPC_PATH_BYTES_MAX:
        raise ValueError(
            f"The run directory is too long for a socket path: {path} has {len(os.fsencode(path))} bytes, "
            f"at most {IPC_PATH_BYTES_MAX} are possible; choose a shorter run_dir."
        )
    return path


def unreachable_text(path: str, waited_ms: float, last_word: str) -> str:
    """What was tried, what was seen, and how to start a daemon, in one sentence or two."""
    seen = "the socket does not exist" if not os.path.exists(path) else "nobody answered"
    if last_word:
        seen = last_word
    return (
        f"No kafka-sidecar daemon at {path} on host {os.uname().nodename}: {seen} "
        f"(waited {waited_ms / 1000:.0f} s). Start it with 'kafka-sidecar run', "
        f"or name its run directory by run_dir or {RUN_DIR_VARIABLE}."
    )
