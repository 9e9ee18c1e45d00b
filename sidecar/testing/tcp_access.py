"""A daemon's tcp:// endpoint for tests: its key, those of clients, a configuration that knows them, free ports."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from pathlib import Path

from client_stub.curve import KeyPair
from client_stub.curve_keys import key_file_text

HOST = "127.0.0.1"
_PORTS = range(21_000, 29_000, 8)


class TcpAccess:
    """Files in ``folder``: ``daemon.key``, ``client.key``, ``stranger.key`` and ``sidecar.toml``.

    ``client.key`` opens each of ``names``; the stranger's opens none.
    """

    def __init__(self, folder: Path, names: Iterable[str], *, workers: int = 2) -> None:
        self.daemon, self.client, self.stranger = (KeyPair.new() for _ in range(3))
        self.port = _free_ports(1 + workers)
        self.address = f"tcp://{HOST}:{self.port}"
        self.key_file, self.stranger_file = folder / "client.key", folder / "stranger.key"
        self.config = folder / "sidecar.toml"
        self._daemon_file = folder / "daemon.key"
        for path, keys, server in (
            (self._daemon_file, self.daemon, b""),
            (self.key_file, self.client, self.daemon.public),
            (self.stranger_file, self.stranger, self.daemon.public),
        ):
            path.touch(mode=0o600)
            path.write_text(key_file_text(keys.secret, keys.public, server))
        self.allow(names)

    @property
    def settings(self) -> dict[str, object]:
        """For the daemon, beside ``config``."""
        return {"daemon.listen": self.address, "daemon.curve_key_file": str(self._daemon_file)}

    def allow(self, names: Iterable[str]) -> None:
        """Write the configuration: the client's key for these names, and for no other."""
        self.config.write_text(
            "".join(
                f'[clients."{name}"]\n"curve.public.keys" = ["{self.client.public.hex()}"]\n'
                for name in names
            )
        )


def _free_ports(count: int) -> int:
    """The first of ``count`` ports in a row that nobody has."""
    for first in _PORTS:
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
