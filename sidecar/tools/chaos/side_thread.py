"""SideThread: a loop beside the main thread, which a restart of a broker blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable


class SideThread:
    """Runs ``work(end)`` in its own thread; ``work`` must return soon after the event is set."""

    def __init__(self, name: str, work: Callable[[threading.Event], None]) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=work, args=(self._end,), name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Set the event and wait for the end. May be called again, and without a start."""
        self._end.set()
        if self._thread.ident is not None:
            self._thread.join()
