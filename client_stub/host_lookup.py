"""HostLookup: the addresses behind a host's name, found by a thread of its own.

getaddrinfo() has no timeout of ours: with a name server that does not answer it takes 10 s and more. Neither the io
thread nor an application's event loop waits for that.
"""

from __future__ import annotations

import os
import socket
import threading
from typing import Any, Final, TypeAlias

from client_stub.waker import Waker

Address: TypeAlias = tuple[int, Any]
"""Family, and what connect() takes."""


class HostLookup:
    """One question for ``host`` and ``port``. ``waker.fd`` becomes readable when it is over, and stays so."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.addresses: list[Address] = []
        self.why_not = ""
        self.is_over = False
        self.waker = Waker()

    def ask(self, flags: int = 0) -> None:
        """Blocks while the system's resolver does. Raises nothing."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=flags)
            self.addresses = [(int(family), place) for family, _, _, _, place in found]
        except (OSError, UnicodeError) as error:
            self.why_not = getattr(error, "strerror", None) or str(error)
        finally:
            _under_way.pop((self.host, self.port), None)
            self.is_over = True
            self.waker.wake()


_under_way: Final[dict[tuple[str, int], HostLookup]] = {}
"""All of the process: however often somebody asks while a name server hangs, one thread hangs with it."""
os.register_at_fork(after_in_child=_under_way.clear)


def look_up(host: str, port: int) -> HostLookup:
    """The question for this host that is under way, or a new one. It is over at once for a host that is an address."""
    found = _under_way.get((host, port))
    if found is not None:
        return found
    found = HostLookup(host, port)
    found.ask(socket.AI_NUMERICHOST)
    if found.addresses:
        return found
    found = _under_way[host, port] = HostLookup(host, port)
    try:
        threading.Thread(target=found.ask, name="kafka-sidecar-host", daemon=True).start()
    except RuntimeError:  # at the interpreter's end there are no new threads
        found.ask()
    return found
