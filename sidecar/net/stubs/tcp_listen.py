"""Listening TCP sockets of ``daemon.listen``: the controller's, and one per worker on the following ports.

The controller opens them at its start, for itself and its workers; a worker opens its own again.
"""

from __future__ import annotations

import socket
from typing import Final, NamedTuple

from sidecar.config.rules import tcp_address

BACKLOG: Final = 1_024


class Listening(NamedTuple):
    """A listening socket, and the file with its endpoint's secret key."""

    socket: socket.socket
    key_file: str


def listen_on(listen: str, offset: int = 0) -> socket.socket:
    """Return a non-blocking socket that listens on ``tcp://host:port``, ``offset`` ports higher.

    Raises OSError if the address cannot be used, ValueError for any other text.
    """
    address = tcp_address(listen, offset)
    if address is None:
        raise ValueError(f"{listen} is not tcp://host:port")
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    listening = socket.create_server(address, family=family, backlog=BACKLOG)
    listening.setblocking(False)
    return listening
