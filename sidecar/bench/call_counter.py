"""Counts calls of the product's Python functions in this process, or in a worker that is asked over a socket."""

from __future__ import annotations

import sys
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client, Listener
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

ROOT: Final = f"{Path(__file__).resolve().parents[2]}/"
PRODUCT: Final = (f"{ROOT}sidecar/", f"{ROOT}client_stub/")
TOOLS: Final = tuple(f"{ROOT}sidecar/{room}/" for room in ("bench", "testing", "demo", "chaos"))
CALLS_MAX: Final = 4_000_000

Calls = dict[str, int]
"""Calls by function, ``path:line qualified.name``, in the order of their first calls."""


class CallCounter:
    """Counts calls since the last ``clear``. Every method may be called in any thread, as a deque's methods are
    atomic.

    A generator's resumption counts as a call. So does a comprehension before Python 3.12, where it is a function.
    """

    def __init__(self) -> None:
        self._calls: deque[CodeType] = deque(maxlen=CALLS_MAX)

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        """For ``sys.setprofile`` and ``threading.setprofile``."""
        if event == "call":
            name = frame.f_code.co_filename
            if name.startswith(PRODUCT) and not name.startswith(TOOLS):
                self._calls.append(frame.f_code)

    def count(self) -> int:
        return len(self._calls)

    def clear(self) -> None:
        self._calls.clear()

    def read(self) -> Calls:
        """Raises OverflowError when more calls were made than are kept."""
        found: Calls = {}
        calls = self._calls.copy()
        if len(calls) == CALLS_MAX:
            raise OverflowError(f"more than {CALLS_MAX:,} calls were made since the count began")
        for code, number in Counter(calls).items():
            found[f"{code.co_filename.removeprefix(ROOT)}:{code.co_firstlineno} {code.co_qualname}"] = number
        return found


@contextmanager
def counted_here() -> Iterator[CallCounter]:
    """Counts in this thread and in those that begin inside the block."""
    counter = CallCounter()
    threading.setprofile(counter.profile)
    sys.setprofile(counter.profile)
    try:
        yield counter
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


class RemoteCounter:
    """The counter of a process that called ``serve`` with this path. Use it from one thread."""

    def __init__(self, path: str) -> None:
        self._connection = Client(path, family="AF_UNIX")

    def clear(self) -> None:
        self._ask("clear")

    def count(self) -> int:
        found: int = self._ask("count")
        return found

    def read(self) -> Calls:
        found: Calls = self._ask("read")
        return found

    def _ask(self, method: str) -> Any:
        self._connection.send(method)
        return self._connection.recv()

    def close(self) -> None:
        self._connection.close()


def serve(path: str) -> None:
    """Count in this process's main thread, and in threads that begin later, for one RemoteCounter at a time."""
    counter = CallCounter()
    listener = Listener(path, family="AF_UNIX")
    # Begins before the profile is set, so that it does not count itself.
    threading.Thread(target=_answer, args=(listener, counter), name="call-counter", daemon=True).start()
    threading.setprofile(counter.profile)
    sys.setprofile(counter.profile)


def _answer(listener: Listener, counter: CallCounter) -> None:
    while True:
        with listener.accept() as connection:
            try:
                while True:
                    connection.send(getattr(counter, connection.recv())())
            except EOFError:
                continue
