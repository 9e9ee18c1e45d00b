"""A daemon's tcp:// endpoint for tests: its key, the keys of clients, a configuration with them, free ports."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterable
from pathlib import Path

from client_stub.zmtp.curve import KeyPair
from client_stub.zmtp.keys import key_file_text

HOST = "127.0.0.1"
_PORTS = range(21_000, 29_000, 8)


class TcpAccess:
    """Writes ``daemon.key``, ``client.key``, ``stranger.key`` and ``sidecar.toml`` into ``folder``.

    ``client.key`` may use each of ``names``; ``stranger.key`` may use none. ``local_uid`` may use them through the run
    directory.
    """

    def __init__(
        self,
        folder: Path,
        names: Iterable[str],
        *,
        workers: int = 2,
        local_uid: int | None = None,
        daemon_host: str = HOST,
    ) -> None:
        """``daemon_host``: address that the daemon listens on, if relays listen at ``address`` and the ports
        after it.
        """
        self._local_uid = local_uid
        self._daemon_host = daemon_host
        self.daemon, self.client, self.stranger = (KeyPair.new() for _ in range(3))
        self.port = free_ports(1 + workers)
        self.address = f"tcp://{HOST}:{self.port}"
        self.key_file, self.stranger_file = folder / "client.key", folder / "stranger.key"
        self.config = folder / "sidecar.toml"
        self.daemon_file = folder / "daemon.key"
        for path, keys, server in (
            (self.daemon_file, self.daemon, b""),
            (self.key_file, self.client, self.daemon.public),
            (self.stranger_file, self.stranger, self.daemon.public),
        ):
            path.touch(mode=0o600)
            path.write_text(key_file_text(keys.secret, keys.public, server))
        self.allow(names)

    @property
    def settings(self) -> dict[str, object]:
        """Further settings for the daemon, beside ``config``."""
        listen = f"tcp://{self._daemon_host}:{self.port}"
        return {"daemon.listen": listen, "daemon.curve_key_file": str(self.daemon_file)}

    def allow(self, names: Iterable[str], *keys: KeyPair) -> None:
        """Write a configuration that allows only these names, for these keys (without any: for the client's)."""
        hexadecimal = ", ".join(f'"{each.public.hex()}"' for each in keys or (self.client,))
        local = "" if self._local_uid is None else f"uids = [{self._local_uid}]\n"
        self.config.write_text(
            "".join(f'[clients."{name}"]\n"curve.public.keys" = [{hexadecimal}]\n{local}' for name in names)
        )


def free_ports(count: int) -> int:
    """Return the first of ``count`` consecutive free ports."""
    # Each process begins elsewhere: another test may look for ports before the daemon has opened these.
    for first in random.Random(os.getpid()).sample(_PORTS, len(_PORTS)):
        taken: list[socket.socket] = []
        try:
            for port in range(first, first + count):
                taken.append(socket.create_server((HOST, port)))
        except OSError:
            continue
        finally:
            for each in taken:
                each.close()
        return first
    raise RuntimeError("no ports are free for a daemon's tcp:// endpoint")
