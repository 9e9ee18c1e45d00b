"""Waiting for an asyncio.Event for so long at most."""

from __future__ import annotations

import asyncio


async def happens_within(event: asyncio.Event, timeout_s: float | None) -> bool:
    """True once the event is set, False when the time was up first; None: however long it takes.

    Not by ``asyncio.wait_for``: before Python 3.12 it forgets a cancellation that comes while the event is being set,
    and a task that was to end goes on for ever (CPython issue 86296).
    """
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
