"""Originals: threads, locks, polls, sockets and clocks of the system, whatever patches the application has applied.

gevent and eventlet replace ``threading``, ``select`` and ``socket`` by green ones, and freezegun replaces the clocks.
The io thread has to be a real thread, which continues while a green one computes, and a timeout has to be real time. So
no other file of the stub takes these from their modules. They are C functions, kept when this file is imported: a later
patch does not reach them. In a process that was patched before, the patcher gives them back.

Waits are the exception. A green thread that waits lets the others of its system thread run: see ``GreenLock``.
"""

from __future__ import annotations

import _queue  # type: ignore[import-not-found, unused-ignore]
import _socket
import contextlib
import importlib
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import select
    from _thread import LockType

Socket = _socket.socket
"""Patches replace ``socket.socket``, a class in Python, and leave this one, which has all that the stub calls."""
getaddrinfo: Final = _socket.getaddrinfo
SimpleQueue = _queue.SimpleQueue
"""gevent's may be used in one thread only."""

refused: Final[list[str]] = []
"""What is replaced and not given back."""


def _given_back(module: str, name: str) -> Any:
    """The function ``name`` that a patcher has replaced in ``module``; what is there now, if no patcher is known."""
    if (monkey := sys.modules.get("gevent.monkey")) is not None:
        found = monkey.get_original(module, name)
        if isinstance(found, BuiltinFunctionType):
            return found
    if (patcher := sys.modules.get("eventlet.patcher")) is not None:
        return getattr(patcher.original(module), name, None)
    return None


def _original(module: str, name: str) -> Any:
    found = getattr(importlib.import_module(module), name, None)
    if isinstance(found, BuiltinFunctionType):
        return found
    original = _given_back(module, name)
    if isinstance(original, BuiltinFunctionType):
        return original
    refused.append(f"{module}.{name}")
    return found


start_new_thread: Final[Callable[..., int]] = _original("_thread", "start_new_thread")
allocate_lock: Final[Callable[[], LockType]] = _original("_thread", "allocate_lock")
get_ident: Final[Callable[[], int]] = _original("_thread", "get_ident")
poll: Final[Callable[[], select.poll]] = _original("select", "poll")
# Not time.monotonic(), which freezegun stops: it also finds each module that has imported it.
monotonic: Final[Callable[[], float]] = partial(_original("time", "clock_gettime"), time.CLOCK_MONOTONIC)


def let_others_run() -> None:
    """Give up the GIL for a moment."""
    lock = allocate_lock()
    lock.acquire()
    lock.acquire(timeout=1e-6)


class _Thread(threading.Thread):
    def _delete(self) -> None:
        with contextlib.suppress(
            KeyError
        ):  # patched since its start: it has another identity in ``threading`` now
            super()._delete()  # type: ignore[misc]


def start_thread(run: Callable[[], object], name: str) -> threading.Thread | None:
    """Start a real thread, which the process does not wait for at its end. None where ``threading`` is green: then
    nothing can join it, and debuggers do not show its name. Raises RuntimeError if the system gives no thread.
    """
    if importlib.import_module("_thread").start_new_thread is start_new_thread:
        thread = _Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread
    start_new_thread(run, ())
    return None


def caller_ident() -> int:
    """Which thread calls; of green threads, which of them: the one function here that a patch is to reach."""
    return threading.get_ident()
