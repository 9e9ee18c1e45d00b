"""The sockets of http.listen and daemon.listen. A predecessor may hold some of their addresses until its end.

A takeover opens all others before it asks the predecessor to end. So an address that another process has is found
while a daemon still runs.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sidecar.config.rules import parse_address, tcp_address
from sidecar.controller.front.http_port import AddressTaken, HttpPort, unix_socket_path
from sidecar.controller.rundir.run_dir import RunDirError
from sidecar.net.stubs.tcp_listen import Listening, listen_on

if TYPE_CHECKING:
    from sidecar.config.settings import SidecarConfig
    from sidecar.telemetry.exporter import Exporter

Address = tuple[str, int]


class Listeners:
    """Opens the sockets in one step, or in two if there is a predecessor. Belongs to the main thread."""

    def __init__(self, config: SidecarConfig, run_dir: Path) -> None:
        """Read the files of TLS and token. Raises RunDirError."""
        self._config = config
        self._run_dir = run_dir
        self._http = HttpPort(config.values, run_dir) if config.text("http.listen") else None
        self.exporter: Exporter | None = None
        """None if it is not set, or not opened yet."""
        self.listening: Listening | None = None
        """The first port of daemon.listen; None as above."""

    def open(self, predecessor: Mapping[str, Any] | None = None) -> None:
        """Open all sockets that are not open, except at addresses that the predecessor holds by its daemon.json.
        Raises RunDirError.
        """
        held = {} if predecessor is None else predecessor
        if self._http is not None and self.exporter is None:
            try:
                self.exporter = self._http.open()
            except AddressTaken:
                if not self._holds_http(held):
                    raise
        listen = self._config.text("daemon.listen")
        if listen and self.listening is None:
            try:
                self.listening = self._listen(listen)
            except AddressTaken:
                if not _holds(held, tcp_address(listen)):
                    raise

    def close(self) -> None:
        for each in (self.exporter, self.listening and self.listening.socket):
            if each is not None:
                each.close()

    def _holds_http(self, held: Mapping[str, Any]) -> bool:
        listen = self._config.text("http.listen")
        path, theirs = unix_socket_path(listen, self._run_dir), unix_socket_path(_text(held, "http"), Path())
        if path is None:
            return _holds(held, parse_address(listen))
        return theirs is not None and theirs.resolve() == path.resolve()

    def _listen(self, listen: str) -> Listening:
        try:
            return Listening(listen_on(listen), self._config.text("daemon.curve_key_file"))
        except OSError as error:
            raise AddressTaken.of(
                error,
                f"daemon.listen = {listen} cannot be opened ({error.strerror or error}): choose another host or port.",
            ) from None


def _holds(held: Mapping[str, Any], wanted: Address | None) -> bool:
    """Whether a socket of that daemon prevents another from listening at the address."""
    return wanted is not None and any(
        address[1] == wanted[1] and _overlap(address[0], wanted[0]) for address in _addresses(held)
    )


def _addresses(held: Mapping[str, Any]) -> Iterator[Address]:
    """All addresses of a daemon: its HTTP port, and those of daemon.listen, one per worker after the first."""
    http = parse_address(_text(held, "http").removeprefix("https://"))
    if http is not None:
        yield http
    workers = held.get("workers")
    for offset in range(1 + (len(workers) if isinstance(workers, list) else 0)):
        address = tcp_address(_text(held, "listen"), offset)
        if address is not None:
            yield address


def _overlap(one: str, other: str) -> bool:
    """Whether two names or addresses of this host share an address, or one of them means all addresses."""
    first, second = _numeric_addresses(one), _numeric_addresses(other)
    return bool(first & second) or any(each.is_unspecified for each in first | second)


def _numeric_addresses(host: str) -> set[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise RunDirError(f"The address of {host} cannot be found ({error.strerror or error}).") from None
    return {ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in found}


def _text(held: Mapping[str, Any], name: str) -> str:
    return str(held.get(name) or "")
