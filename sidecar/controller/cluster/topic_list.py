"""TopicList: answers requests for all topics, with one question to Kafka for all concurrent callers.

Any user of the sending group may ask, and reading a large cluster's answer takes 10 ms. Callers that ask while a
question is under way get its answer. When questions take more than their share of the time, callers get the last
answer for two seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

Rows = list[list[object]]

LIST_SHARE: Final = 0.1
"""The greatest share of time that questions to Kafka may take in the long run."""
LIST_BURST_S: Final = 1.0
"""How much of that time may be used at once: a caller that asks rarely gets a new answer."""
LIST_KEPT_S: Final = 2.0
"""The greatest age of an answer, however long questions take."""


class TopicList:
    """The list of topics. ``now_s`` is monotonic. Belongs to the controller's loop."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._asking: asyncio.Task[Rows] | None = None
        self._last: Rows | None = None
        self._came_s = 0.0
        self._paid_s = 0.0
        """The time at which the time spent on questions will be paid for."""

    async def get(self, ask: Callable[[], Awaitable[Rows]]) -> Rows:
        """The rows. Raises the error of ``ask`` in all callers that wait for it."""
        if self._asking is None:
            now_s = self._now_s()
            is_over = self._paid_s - now_s >= LIST_BURST_S / LIST_SHARE
            if self._last is not None and is_over and now_s - self._came_s < LIST_KEPT_S:
                return self._last
            self._asking = asyncio.get_running_loop().create_task(self._ask(ask))
        # A caller that is cancelled must not cancel the question for the others.
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
