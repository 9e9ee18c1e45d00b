"""Waiters: those who wait for the io thread, in threads and on event loops. Any thread, unless a docstring says so."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from client_stub.errors import ENDED_TEXT, FORKED_TEXT, ForkedProducer, SidecarError
from client_stub.outbox.callback_log import CallbackLog
from client_stub.outbox.green_lock import locked_lock
from client_stub.outbox.wait_reasons import WaitReasons
from client_stub.system.originals import get_ident, monotonic

if TYPE_CHECKING:
    from client_stub.native.hot import OutboxCore


class Waiters:
    """The callers of one producer that wait, and the reasons why its records do.

    A caller in a thread waits on a lock of its own. An event loop is called as a listener after each change.
    """

    def __init__(self, outbox: OutboxCore) -> None:
        self.outbox = outbox
        self.reasons = WaitReasons()
        self.callback_log = CallbackLog()
        self.io_thread_id = 0
        self.listeners: dict[Callable[[], bool], None] = {}
        """Callbacks of event loops, called by the io thread and close() after each change. They must neither wait nor
        raise, and return False when their loop is gone. Single operations on the dict are atomic.
        """
        self._locks: deque[Any] = deque()
        """A locked lock per waiting thread; a change of capacity, attachment or outcomes releases them all."""
        self._acceptance_awaited = False
        """Whether some of them wait for ACCEPTED and not for capacity or outcomes."""
        self._capacity_awaited = False
        """Whether some of them wait for capacity. Waiters for an outcome are not woken by the acceptance before it."""

    def wait_until(
        self,
        ready: Callable[[], Any],
        timeout: float | None,
        *,
        for_outcome: bool = False,
        for_acceptance: bool = False,
        for_capacity: bool = False,
    ) -> Any:
        """Wait until ``ready()``, which the io thread makes true, and return its value: a false one after ``timeout``
        seconds, which ``checked_wait`` has seen.

        ``for_outcome``, as for result(): it first ends linger, as a caller that waits adds nothing to the batch. A
        timeout of 0 only checks. Raises SidecarError in a callback, and ForkedProducer in a forked child. Where the
        interpreter is being taken down, every wait raises SidecarError.

        Otherwise it returns True at once in a forked child, as nothing arrives there for the parent's records. It holds
        nothing: a lock that an exception leaves behind is released once, without effect.
        """
        outbox = self.outbox
        if for_outcome:
            if get_ident() == self.io_thread_id:
                self.refuse_in_callback("result()")
            if timeout is None or timeout > 0:
                outbox.expedite()
        deadline = None if timeout is None else monotonic() + timeout
        lock = locked_lock()
        try:
            while True:
                # Before ``ready()`` is called, so that any later change releases the lock.
                self._locks.append(lock)
                if for_acceptance:
                    self._acceptance_awaited = True
                if for_capacity:
                    self._capacity_awaited = True
                found = ready()
                if found or outbox.forked:
                    break
                left = -1.0 if deadline is None else min(deadline - monotonic(), threading.TIMEOUT_MAX)
                if deadline is not None and left <= 0:
                    break
                if sys.is_finalizing():
                    raise SidecarError(ENDED_TEXT)  # the io thread runs no more
                if not lock.acquire(timeout=left):
                    found = ready()
                    break
        finally:
            try:  # noqa: SIM105  suppress() is three calls more for each record that is waited for
                self._locks.remove(lock)
            except ValueError:
                pass  # released
        if not outbox.forked:
            return found
        if for_outcome:
            raise ForkedProducer(FORKED_TEXT)
        return True

    def refuse_in_callback(self, what: str) -> None:
        """Raises SidecarError in the io thread, which would wait for itself."""
        if get_ident() == self.io_thread_id:
            raise SidecarError(f"{what} was called from an on_delivery callback and would wait for ever.")

    def notify(self) -> None:
        """Wake all: something changed that they may wait for."""
        self._acceptance_awaited = self._capacity_awaited = (
            False  # before: who sets it again is woken once too often
        )
        locks = self._locks
        for _ in range(len(locks)):
            try:
                locks.popleft().release()
            except (IndexError, RuntimeError):
                continue  # its owner has released it already
        if self.listeners:
            self.call_listeners()

    def accepted(self, is_half_free: bool) -> None:
        """Wake those who wait for an acceptance, and those who wait for capacity once half of the buffer is free. A
        caller that is woken for the first free byte would sleep again at once. Io thread.
        """
        if self._acceptance_awaited or (self._capacity_awaited and is_half_free):
            self.notify()
        elif self.listeners:
            self.call_listeners()

    def call_listeners(self) -> None:
        for listener in tuple(self.listeners):
            if not listener():
                self.listeners.pop(listener, None)
