"""Runs work in a thread of its own. The end of the process does not wait for it, as it may never return.

Reading a FIFO, or a file of an NFS server that is away, may block for ever. The loop's own executor is joined before
the loop is closed, and its threads again when the interpreter ends. So the daemon could not end before they return.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class NoThread(OSError):
    """The host could not start a thread."""


async def in_daemon_thread(work: Callable[[], Result], name: str) -> Result:
    """The result of ``work()``. Raises its errors, and NoThread.

    When cancelled, it leaves the thread running.
    """
    loop = asyncio.get_running_loop()
    found: list[Result] = []
    failure: list[Exception] = []
    ended = asyncio.Event()

    def run() -> None:
        try:
            found.append(work())
        except Exception as error:
            failure.append(error)
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(ended.set)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        raise NoThread(str(error)) from None
    await ended.wait()
    if failure:
        raise failure[0]
    return found[0]
