"""TopicList: the answer to "all topics", asked of Kafka once for all who want it at a time.

Anybody in the sending group may ask, and a large cluster's answer takes a hundredth of a second to read. Those who ask
while a question is under way get its answer. Beyond a part of the time everybody gets the last answer
for two seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

Rows = list[list[object]]

LIST_SHARE: Final = 0.1
"""Of the time at most a question to Kafka is under way, in the long run."""
LIST_BURST_S: Final = 1.0
"""So much of it may be taken at once: a reader that asks now and then gets the cluster as it is."""
LIST_KEPT_S: Final = 2.0
"""No answer is older, however long questions take."""


class TopicList:
    """Belongs to the controller's loop. ``now_s`` is monotonic."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._asking: asyncio.Task[Rows] | None = None
        self._last: Rows | None = None
        self._came_s = 0.0
        self._paid_s = 0.0
        """When the time that questions took will be paid for."""

    async def get(self, ask: Callable[[], Awaitable[Rows]]) -> Rows:
        """The rows; raises what ``ask`` raises, for all who wait for it."""
        if self._asking is None:
            now_s = self._now_s()
            is_over = self._paid_s - now_s >= LIST_BURST_S / LIST_SHARE
            if self._last is not None and is_over and now_s - self._came_s < LIST_KEPT_S:
                return self._last
            self._asking = asyncio.get_running_loop().create_task(self._ask(ask))
        # Who leaves must not take the answer from the others.
        return await asyncio.shield(self._asking)

    async def _ask(self, ask: Callable[[], Awaitable[Rows]]) -> Rows:
        began_s = self._now_s()
        try:
            rows = self._last = await ask()
            self._came_s = self._now_s()
            return rows
        finally:
            self._asking = None
            self._paid_s = max(self._paid_s, began_s) + (self._now_s() - began_s) / LIST_SHARE
