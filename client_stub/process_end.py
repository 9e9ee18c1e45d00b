"""ProcessEnd: producers that nobody closed, when their process forks or ends.

A script that ends without close() has not meant to lose its last records, and neither has one that has dropped its
producer: a local variable of a function that has returned.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import weakref
from typing import Final, Protocol

log = logging.getLogger("client_stub")

EXIT_FLUSH_S: Final = 10.0
"""For all producers of the process together."""
AT_END: Final = "at the end of the process"
CANCEL_S: Final = 5.0
"""For what an io thread does after its time is over: its records fail, which is logged."""


class LivingProducer(Protocol):
    """Calls to a producer that is not closed."""

    _was_interrupted: bool
    """Ctrl-C has broken off its close(): nobody wants to wait for it again."""

    def flush(self, timeout: float | None = None) -> int: ...

    def _close(self, timeout: float | None, behind: str = "") -> None: ...

    def _forked_child(self) -> None:
        """This process is a forked child; the producer begins as a client of its own."""


class LeavingThread(Protocol):
    """Calls to the io thread of a producer that is gone."""

    has_ended: bool

    @property
    def has_begun(self) -> bool: ...

    def abandon(self) -> None:
        """Deliver what is there, then end."""

    def request_close(self, *, cancel: bool) -> None: ...

    def join(self, timeout: float | None) -> None: ...

    def forked(self) -> None:
        """This process is a forked child, and the thread is not there."""


_living: weakref.WeakKeyDictionary[LivingProducer, None] = weakref.WeakKeyDictionary()
"""A dictionary and no set: its references can be listed in one step while other threads make producers."""
_leaving: set[LeavingThread] = set()
inherited: list[object] = []
"""Objects of a forked child's parent; kept, because the child may be inside of one (a callback that forked)."""
_watched_pid = 0


def enter(producer: LivingProducer) -> None:
    _living[producer] = None


def leave(producer: LivingProducer) -> None:
    """It is closed."""
    _living.pop(producer, None)


def _producers() -> list[LivingProducer]:
    return [producer for ref in _living.keyrefs() if (producer := ref()) is not None]


def leave_alone(io: LeavingThread) -> None:
    """The producer of ``io`` is gone without close(). A garbage collector calls, in any thread at any moment."""
    if io.has_begun and not io.has_ended:
        _leaving.add(io)
    io.abandon()
    for each in list(_leaving):
        if each.has_ended:
            _leaving.discard(each)


def watch() -> None:
    """A producer begins to send. multiprocessing ends its children by os._exit(), which asks atexit for nothing, so a
    child's end is waited for by multiprocessing's own means."""
    global _watched_pid
    process = sys.modules.get("multiprocessing.process")
    if process is None or _watched_pid == os.getpid() or process.parent_process() is None:
        return
    _watched_pid = os.getpid()
    from multiprocessing.util import Finalize

    Finalize(None, _at_end_of_child, exitpriority=0)


def _at_end_of_child() -> None:
    """multiprocessing waits for the child's threads behind this: while there are some, they may send."""
    if any(not each.daemon for each in threading.enumerate() if each is not threading.current_thread()):
        ends_s = time.monotonic() + EXIT_FLUSH_S
        for producer in _producers():
            try:
                producer.flush(max(0.0, ends_s - time.monotonic()))
            except Exception:
                log.exception("Records were not delivered when the process ended.")
    elif isinstance(interruption := _end_all(), SystemExit):
        raise interruption  # the child ends with the status of its handler


def at_exit() -> None:
    """Wait until the records of this process have their outcomes, EXIT_FLUSH_S at most; what is left fails."""
    _end_all()


def _end_all() -> BaseException | None:
    """As at_exit(). Returns the Ctrl-C, or the sys.exit() of a signal handler, that ended the wait.

    Nobody wants to wait then: the records that are left of all producers fail, and that is logged.
    """
    ends_s = time.monotonic() + EXIT_FLUSH_S
    interruption: BaseException | None = None
    while True:
        try:
            _close_all(ends_s)
        except (KeyboardInterrupt, SystemExit) as error:
            interruption = error
            ends_s = 0.0
        else:
            return interruption


def _close_all(ends_s: float) -> None:
    """May be broken off anywhere and called again."""

    def left_s() -> float:
        return max(0.0, ends_s - time.monotonic())

    for producer in _producers():
        try:
            producer._close(0 if producer._was_interrupted else left_s(), AT_END)
        except Exception:
            log.exception("Records were not delivered when the process ended.")
    for io in list(_leaving):
        io.join(left_s())
        if not io.has_ended:
            io.request_close(cancel=True)
            io.join(CANCEL_S)


def _after_fork_in_child() -> None:
    """Nothing is to be done before a fork: callers hold no lock, and the child creates all its own."""
    for producer in _producers():
        try:
            producer._forked_child()
        except Exception:  # the others must not go on with their parent's connections
            log.exception("A producer could not be made ready in a forked child.")
    for io in list(_leaving):
        inherited.append(io)
        io.forked()
    _leaving.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(at_exit)
