"""Waker: the eventfd that wakes an io thread; it is closed once no thread can use it any more."""

from __future__ import annotations

import os
from collections.abc import Callable

from client_stub.native.hot import write_wake
from client_stub.system.missing_resources import check_system


class Waker:
    """An eventfd that is closed with the last reference. A caller that is about to wake holds a reference, so the
    descriptor that it writes to cannot have become another file. Thread-safe.
    """

    fd = -1

    def __init__(self) -> None:
        check_system()
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def wake(self) -> None:
        write_wake(self.fd)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.fd >= 0:
            close(self.fd)
