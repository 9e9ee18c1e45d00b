"""ProcessEnd: flushes or closes the producers that a program left open when its process forks or ends.

A script that ends without close() does not mean to lose its last records. Neither does a function that returns and so
drops the producer in its local variable.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from typing import Final, Protocol

from client_stub.system.log import log
from client_stub.system.originals import monotonic

EXIT_FLUSH_S: Final = 10.0
"""The limit for all producers of the process together."""
AT_END: Final = "at the end of the process"
CANCEL_S: Final = 5.0
"""The limit for an io thread after EXIT_FLUSH_S, in which its records fail, which is logged."""


class LivingProducer(Protocol):
    """The calls to the engine of a producer that is not closed."""

    was_interrupted: bool
    """Ctrl-C has ended its close(), so the process does not wait for it again."""

    def flush(self, timeout: float | None = None) -> int: ...

    def close(self, timeout: float | None, occasion: str = "") -> None: ...

    def forked_child(self) -> None:
        """Begin as a new client, in a forked child."""


class LeavingThread(Protocol):
    """The calls to the io thread of a producer that is gone."""

    has_ended: bool

    @property
    def has_begun(self) -> bool: ...

    def abandon(self) -> None:
        """Deliver the remaining records, then end."""

    def log_left(self, occasion: str) -> None:
        """Warn of the records that it is about to abandon."""

    def request_close(self, *, cancel: bool) -> None: ...

    def join(self, timeout: float | None) -> None: ...

    def forked(self) -> None:
        """In a forked child: the thread does not run here."""


_living: weakref.WeakKeyDictionary[LivingProducer, None] = weakref.WeakKeyDictionary()
"""A dictionary instead of a set: its references can be listed atomically while other threads make producers."""
_leaving: set[LeavingThread] = set()
inherited: list[object] = []
"""Objects of the parent of a forked child. They are kept, as the child may be running inside one (a callback that
forked).
"""
_watched_pid = 0


def enter(producer: LivingProducer) -> None:
    _living[producer] = None


def leave(producer: LivingProducer) -> None:
    """Remove a producer that is closed."""
    _living.pop(producer, None)


def _producers() -> list[LivingProducer]:
    return [producer for ref in _living.keyrefs() if (producer := ref()) is not None]


def leave_alone(io: LeavingThread) -> None:
    """Take over the io thread of a producer that was dropped without close(). The garbage collector calls this, in any
    thread at any moment.
    """
    if io.has_begun and not io.has_ended:
        _leaving.add(io)
    io.abandon()
    for each in list(_leaving):
        if each.has_ended:
            _leaving.discard(each)


def watch() -> None:
    """Prepare for the end of this process when a producer begins to send.

    multiprocessing ends its children by os._exit(), which skips atexit, so a child's end is handled through
    multiprocessing itself.
    """
    global _watched_pid
    process = sys.modules.get("multiprocessing.process")
    if process is None or _watched_pid == os.getpid() or process.parent_process() is None:
        return
    _watched_pid = os.getpid()
    from multiprocessing.util import Finalize

    Finalize(None, _at_end_of_child, exitpriority=0)


def _at_end_of_child() -> None:
    """End the producers of a child. multiprocessing waits for the child's threads only after this, and these may still
    send.
    """
    if any(not each.daemon for each in threading.enumerate() if each is not threading.current_thread()):
        ends_s = monotonic() + EXIT_FLUSH_S
        for producer in _producers():
            try:
                producer.flush(max(0.0, ends_s - monotonic()))
            except Exception:
                log.exception("Records were not delivered when the process ended.")
    elif isinstance(interruption := _end_all(), SystemExit) and sys.version_info < (3, 13):
        # The child ends with the status that its handler gave. From 3.13 on this is one of the atexit functions: the
        # status is set already, as in any other process, and an exit would only leave a traceback.
        raise interruption


def at_exit() -> None:
    """Wait until the records of this process have their outcomes, at most EXIT_FLUSH_S; the remaining ones fail."""
    _end_all()


def _end_all() -> BaseException | None:
    """As at_exit(). Returns the Ctrl-C, or the sys.exit() of a signal handler, that ended the wait.

    The remaining records of all producers then fail at once, which is logged.
    """
    ends_s = monotonic() + EXIT_FLUSH_S
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
    """Close all producers. An exception may end this at any point, and it may be called again."""

    def left_s() -> float:
        return max(0.0, ends_s - monotonic())

    for producer in _producers():
        try:
            producer.close(0 if producer.was_interrupted else left_s(), AT_END)
        except Exception:
            log.exception("Records were not delivered when the process ended.")
    for io in list(_leaving):
        io.join(left_s())
        if not io.has_ended:
            io.log_left(AT_END)
            io.request_close(cancel=True)
            io.join(CANCEL_S)


def _after_fork_in_child() -> None:
    """Prepare the child after a fork. Nothing is needed before a fork: callers hold no lock, and the child creates its
    own state.
    """
    for producer in _producers():
        try:
            producer.forked_child()
        except Exception:  # the other producers must not use their parent's connections
            log.exception("A producer could not be made ready in a forked child.")
    for io in list(_leaving):
        inherited.append(io)
        io.forked()
    _leaving.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(at_exit)
