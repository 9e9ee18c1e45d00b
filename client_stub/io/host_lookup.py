"""HostLookup: resolves a host's name to addresses, in a thread of its own.

getaddrinfo() takes no timeout: with a name server that does not answer it blocks for 10 s and more. Neither the io
thread nor an application's event loop may wait for that.
"""

from __future__ import annotations

import os
import socket
from typing import Any, Final, TypeAlias

from client_stub.outbox.waker import Waker
from client_stub.system.originals import getaddrinfo, start_thread

Address: TypeAlias = tuple[int, Any]
"""The family, and the address for connect()."""


class HostLookup:
    """One look-up of ``host`` and ``port``. ``waker.fd`` becomes readable when it is over, and stays so."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.addresses: list[Address] = []
        self.why_not = ""
        self.is_over = False
        self.waker = Waker()

    def ask(self, flags: int = 0) -> None:
        """Resolve the name, and block while the system's resolver does. Raises nothing."""
        try:
            found = getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=flags)
            self.addresses = [(int(family), address) for family, _, _, _, address in found]
        except (OSError, UnicodeError) as error:
            self.why_not = getattr(error, "strerror", None) or str(error)
        finally:
            _under_way.pop((self.host, self.port), None)
            self.is_over = True
            self.waker.wake()


_under_way: Final[dict[tuple[str, int], HostLookup]] = {}
"""All look-ups of the process: while a name server hangs, only one thread per host waits for it."""
os.register_at_fork(after_in_child=_under_way.clear)


def look_up(host: str, port: int) -> HostLookup:
    """The look-up of this host that is under way, or a new one. For an address instead of a name it is over at once."""
    found = _under_way.get((host, port))
    if found is not None:
        return found
    found = HostLookup(host, port)
    found.ask(socket.AI_NUMERICHOST)
    if found.addresses:
        return found
    found = _under_way[host, port] = HostLookup(host, port)
    try:
        start_thread(found.ask, "kafka-sidecar-host")
    except RuntimeError:  # no thread can start at the interpreter's end
        found.ask()
    return found
