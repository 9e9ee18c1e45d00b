"""GreenLock: how a green thread of gevent or eventlet waits for the io thread, while the others of its thread run."""

from __future__ import annotations

import contextlib
import sys
from importlib import import_module
from select import POLLIN
from typing import TYPE_CHECKING, Any, Final

from client_stub.native.hot import clear_wakes
from client_stub.outbox.waker import Waker
from client_stub.system.originals import allocate_lock, monotonic, poll

if TYPE_CHECKING:
    from _thread import LockType

WAIT_MAX_S: Final = 1e6
"""The longest single wait: epoll takes 24 days at most."""


class _TimeIsOver(Exception):
    """Told apart from the application's own timeouts, which may end a wait as well."""


class GreenLock:
    """The two calls that ``Outbox.wait_until`` makes of a locked lock. Any thread may release it."""

    def acquire(self, *, timeout: float = -1.0) -> bool:
        """Wait for ``release``, at most ``timeout`` seconds (negative: without limit); False after that."""
        ends = None if timeout < 0 else monotonic() + timeout
        while True:
            left = WAIT_MAX_S if ends is None else min(ends - monotonic(), WAIT_MAX_S)
            if self._wait(max(0.0, left)):
                return True
            if ends is not None and monotonic() >= ends:
                return False

    def release(self) -> None:
        raise NotImplementedError

    def _wait(self, seconds: float) -> bool:
        raise NotImplementedError


class _GeventLock(GreenLock):
    """Woken by a watcher, as a thousand green threads that wait would need a thousand descriptors otherwise."""

    def __init__(self, hub: Any) -> None:
        self._loop = hub.loop
        self._watcher: Any = None
        self._is_released = False

    def release(self) -> None:
        self._is_released = True  # before the look for a watcher, as _wait() does both the other way round
        watcher = self._watcher
        if watcher is not None:
            with contextlib.suppress(Exception):  # its wait has ended, or its hub was destroyed
                watcher.send()

    def _wait(self, seconds: float) -> bool:
        woken = _part("gevent", "event").Event()
        self._watcher = watcher = self._loop.async_()
        try:
            watcher.start(woken.set)
            if not self._is_released and not woken.wait(seconds):
                return False
            self._is_released = False
            return True
        finally:
            self._watcher = None
            watcher.close()


class _EventletLock(GreenLock):
    def __init__(self) -> None:
        """Raises OSError when no file descriptor is free."""
        self._waker = Waker()

    def release(self) -> None:
        self._waker.wake()

    def _wait(self, seconds: float) -> bool:
        if not _eventlet_readable(self._waker.fd, seconds):
            return False
        clear_wakes(self._waker.fd)
        return True


def locked_lock() -> LockType | GreenLock:
    """A locked lock. A green thread that waits for it lets the others of its thread run."""
    if "greenlet" in sys.modules:
        library, hub = _hub()
        if library == "gevent":
            return _GeventLock(hub)
        if library == "eventlet":
            with contextlib.suppress(OSError):  # no descriptor is free: wait as other threads do
                return _EventletLock()
    lock = allocate_lock()
    lock.acquire()
    return lock


def pause(seconds: float) -> None:
    """Sleep in real time. Other green threads of this thread run meanwhile."""
    if seconds > 0:
        locked_lock().acquire(timeout=seconds)


def wait_readable(fd: int, seconds: float) -> None:
    """Wait until ``fd`` is readable, at most so long. Other green threads of this thread run meanwhile."""
    seconds = max(0.0, min(seconds, WAIT_MAX_S))
    library, _ = _hub() if "greenlet" in sys.modules else ("", None)
    if library == "gevent":
        with contextlib.suppress(_TimeIsOver):
            _part("gevent", "socket").wait_read(fd, seconds, _TimeIsOver)
    elif library == "eventlet":
        _eventlet_readable(fd, seconds)
    else:
        waiting = poll()
        waiting.register(fd, POLLIN)
        waiting.poll(seconds * 1e3)


def _hub() -> tuple[str, Any]:
    """The library whose green thread calls, and its hub. No library in a thread without a hub, which has no green
    threads, and in a callback of the hub, which cannot wait for itself.
    """
    current: Any = sys.modules["greenlet"].getcurrent()
    # Neither call makes a hub.
    if (gevent := sys.modules.get("gevent._hub_local")) is not None:
        hub = gevent.get_hub_if_exists()
        if hub is not None and hub is not current:
            return "gevent", hub
    if (eventlet := sys.modules.get("eventlet.hubs")) is not None:
        hub = getattr(eventlet._threadlocal, "hub", None)
        if hub is not None and hub.greenlet is not current:
            return "eventlet", hub
    return "", None


def _part(library: str, name: str) -> Any:
    """A module of a library that the application has loaded."""
    return import_module(f"{library}.{name}")


def _eventlet_readable(fd: int, seconds: float) -> bool:
    try:
        sys.modules["eventlet.hubs"].trampoline(fd, read=True, timeout=seconds, timeout_exc=_TimeIsOver)
    except _TimeIsOver:
        return False
    return True
