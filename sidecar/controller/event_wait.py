"""Waits for an asyncio.Event with a timeout.

Tasks of the controller's loop call it.
"""

from __future__ import annotations

import asyncio


async def happens_within(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Return True once the event is set, False after the timeout; None waits without limit.

    ``asyncio.wait_for`` cannot be used: before Python 3.12 it loses a cancellation that comes while the event is being
    set, and the task then never ends (CPython issue 86296).
    """
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
