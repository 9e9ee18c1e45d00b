"""Looks up the addresses of a broker's name in a thread that does not delay the end of the process.

A name server that hangs blocks getaddrinfo() for 10 s and more. The loop's own getaddrinfo() has few threads for all
names, and the loop cannot be closed before they end: a daemon would end, and hand over, that much later.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any, Final, TypeAlias

from sidecar.common.model import Node, broker_of

AddressInfo: TypeAlias = tuple[Any, Any, int, str, Any]
"""As in socket.getaddrinfo(): family, kind, protocol, canonical name, address."""
_Found: TypeAlias = "list[AddressInfo] | OSError"

_under_way: Final[dict[tuple[asyncio.AbstractEventLoop, str, int], asyncio.Future[_Found]]] = {}
"""Lookups under way. However often a broker is tried while a name server hangs, only one thread hangs."""


async def addresses_of(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[AddressInfo]:
    """Addresses for stream sockets. A numeric address needs no lookup. Raises OSError, also for an invalid name."""
    with contextlib.suppress(OSError):
        return list(_resolve(host, port, socket.AI_NUMERICHOST))
    key = loop, host, port
    future = _under_way.get(key)
    if future is None:
        future = _under_way[key] = loop.create_future()
        thread = threading.Thread(target=_look_up, args=(key, future), name="name-lookup", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            del _under_way[key]
            raise OSError(str(error)) from None
    found = await asyncio.shield(future)  # others may wait for it, too
    if isinstance(found, OSError):
        raise found
    return found


def unresolved(node: Node, reason: str) -> str:
    """The sentence about a broker's name that cannot be resolved: where the name comes from is what to correct."""
    source = "bootstrap.servers"
    if node.id >= 0:
        source = f"advertised.listeners of broker {broker_of(node.id)}, from which it comes"
    return f"The name {node.host} cannot be resolved ({reason}): correct {source}, or this host's DNS."


def _resolve(host: str, port: int, flags: int = 0) -> list[AddressInfo]:
    try:
        return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags))
    except UnicodeError:
        raise OSError(f"{host!r} is not a host name") from None


def _look_up(key: tuple[asyncio.AbstractEventLoop, str, int], future: asyncio.Future[_Found]) -> None:
    loop, host, port = key
    found: _Found
    try:
        found = _resolve(host, port)
    except OSError as error:
        found = error

    def settle() -> None:
        del _under_way[key]
        if not future.done():
            future.set_result(found)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:  # the loop has been closed meanwhile
        _under_way.pop(key, None)
