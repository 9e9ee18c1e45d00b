"""TurnTimer: expires once at a time of the monotonic clock, exact to the microsecond.

The loop's own timers count whole milliseconds, rounded up, from the start of its iteration. A linger of 5 ms takes up
to 7 ms, and records of a quiet stream wait that long. A timerfd(2) expires in time.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from typing import Final

_NONBLOCK_CLOEXEC: Final = os.O_NONBLOCK | os.O_CLOEXEC
"""TFD_NONBLOCK and TFD_CLOEXEC have the same values."""
_ABSTIME: Final = 1
_NS_PER_S: Final = 1_000_000_000


class _TimerSpec(ctypes.Structure):
    """struct itimerspec: the interval (0: expire once), then the time."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("at_s", ctypes.c_long),
        ("at_ns", ctypes.c_long),
    )


_libc = ctypes.CDLL(None, use_errno=True)  # os.timerfd_create came with Python 3.13
_libc.timerfd_settime.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.POINTER(_TimerSpec), ctypes.c_void_p]


class TurnTimer:
    """A one-shot timer. ``on_expiry()`` runs on the loop's thread, on which all methods must be called.

    Raises OSError if no file descriptor is left.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_expiry: Callable[[], None]) -> None:
        self._loop = loop
        self._on_expiry = on_expiry
        self._spec = _TimerSpec()
        self._fd = int(_libc.timerfd_create(time.CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC))
        if self._fd < 0:
            raise _os_error()
        loop.add_reader(self._fd, self._on_readable)

    def set(self, at_ms: float) -> None:
        """Expire at ``at_ms`` of the monotonic clock, at once if that has passed. Replaces the time set before."""
        if self._fd < 0:
            return
        at_ns = max(1, int(at_ms * 1e6))  # 0 would mean never
        spec = self._spec
        spec.at_s, spec.at_ns = divmod(at_ns, _NS_PER_S)
        if _libc.timerfd_settime(self._fd, _ABSTIME, spec, None):
            raise _os_error()

    def close(self) -> None:
        """Close the timer. Setting it afterwards does nothing."""
        fd, self._fd = self._fd, -1
        self._loop.remove_reader(fd)
        os.close(fd)

    def _on_readable(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # it was set again after it expired
        self._on_expiry()


def _os_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
