"""Work in a thread of its own that nothing waits for at the end, because it may never return.

Reading a file of an NFS server that is away may take for ever, and so may a FIFO. The loop's own executor is joined
before the loop is closed, and its threads once more when the interpreter ends: the daemon would stay until they return.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class NoThread(OSError):
    """The host gives no thread."""


async def in_daemon_thread(work: Callable[[], Result], name: str) -> Result:
    """The result of ``work()``. Raises what it raises, and NoThread.

    Cancelled, it leaves the thread behind.
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
        with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
            loop.call_soon_threadsafe(ended.set)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        raise NoThread(str(error)) from None
    await ended.wait()
    if failure:
        raise failure[0]
    return found[0]
