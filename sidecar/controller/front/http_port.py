"""The address of ``http.listen``: a port or a UNIX socket, with TLS and a token if the configuration asks for them.

``listeners`` opens it at the start and at a reload, on the controller's loop.
"""

from __future__ import annotations

import errno
import hmac
import os
import socket
import ssl
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sidecar.config.rules import parse_address, unix_path
from sidecar.config.secret_sources import read_secret
from sidecar.controller.rundir.run_dir import RunDirError
from sidecar.net.current_secret import CurrentSecret
from sidecar.net.stubs.listener import listen_at
from sidecar.telemetry.exporter import BACKLOG, Exporter


class AddressTaken(RunDirError):
    """Another process listens there."""

    @classmethod
    def of(cls, error: OSError, sentence: str) -> RunDirError:
        """``sentence`` as an AddressTaken, or as a plain RunDirError when ``error`` has another cause."""
        return cls(sentence) if error.errno == errno.EADDRINUSE else RunDirError(sentence)


def unix_socket_path(listen: str, run_dir: Path) -> Path | None:
    """The path of ``unix:PATH``, relative to the run directory; None for a port."""
    path = unix_path(listen)
    return None if path is None else run_dir / path


class HttpPort:
    """The address of ``http.listen`` with its files read, before it is opened."""

    def __init__(self, values: Mapping[str, Any], run_dir: Path) -> None:
        """Raises RunDirError with a sentence when the TLS files cannot be used."""
        self._listen = str(values["http.listen"])
        self._path = unix_socket_path(self._listen, run_dir)
        self._token = _TokenFile(values).allows if values["http.token.file"] else None
        self._tls = None if self._path is not None else _tls(values)

    def open(self) -> Exporter:
        """Open the address. Raises AddressTaken or another RunDirError."""
        try:
            if self._path is not None:
                return Exporter(bind_path(str(self._path)), allows=self._token)
            address = parse_address(self._listen)
            assert address is not None, "checked with the configuration"
            return Exporter(_bind_port(*address), tls=self._tls, allows=self._token)
        except OSError as error:
            raise AddressTaken.of(
                error,
                f"http.listen = {self._listen} cannot be used ({error.strerror or error}): "
                "choose another address, or port 0 for any free one.",
            ) from None


def _bind_port(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def bind_path(path: str) -> socket.socket:
    """A socket of mode 0660. A stale socket at the path is replaced; anything else there is left alone."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.lexists(path):
            found = os.lstat(path)
            if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
                raise OSError(f"{path} is there already, and is not a socket of this user")
            try:
                sock.connect(path)
            except ConnectionRefusedError:
                Path(path).unlink()
            else:
                raise OSError(errno.EADDRINUSE, "another process listens there")
        listen_at(sock, path, BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _tls(values: Mapping[str, Any]) -> ssl.SSLContext | None:
    certificate, key = values["http.tls.certificate"], values["http.tls.key"]
    if not certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # An empty password: without one OpenSSL would ask for an encrypted key's password at the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        raise RunDirError(
            f'http.tls.certificate = "{certificate}" and http.tls.key = "{key}" cannot be used '
            f"({getattr(error, 'strerror', None) or error}): "
            "name a certificate in PEM, and its key without a password."
        ) from None
    return context


class _TokenFile:
    """The token of ``http.token.file``, read at each request. While the file cannot be used, the last token is
    valid.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._token = CurrentSecret(values, "http.token", read_secret(values, "http.token"))

    async def allows(self, given: bytes) -> bool:
        """Whether ``given`` is the token, compared in constant time."""
        return hmac.compare_digest(given, (await self._token.get()).encode())
