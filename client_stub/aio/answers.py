"""The wait on an event loop for the daemon's answer to a call of a transaction or a stage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from client_stub.aio.loop_queue import LoopQueue
from client_stub.engine.daemon_calls import DaemonCalls
from client_stub.errors import TransactionTimeout
from client_stub.outbox.txn_call import TxnCall


async def answered(
    calls: DaemonCalls,
    queue: LoopQueue,
    begin: Callable[[], TxnCall | None],
    timeout: float | None,  # noqa: ASYNC109
    *,
    follows_sends: bool,
) -> Any:
    """As DaemonCalls.run(), but blocks no thread. ``follows_sends``: it begins once the earlier sends of this loop have
    found room.
    """
    timeout_s = calls.timeout_s(timeout)
    loop = asyncio.get_running_loop()
    ends = loop.time() + timeout_s
    last = queue.last_number
    if follows_sends and not await queue.until(lambda: queue.is_past(last), timeout_s):
        raise TransactionTimeout(queue.wait_text("The call", timeout_s))
    call = begin()
    if call is None:
        return None
    try:
        if await queue.until(partial(calls.is_reached, call), calls.reach_s(timeout_s)):
            await queue.until(
                lambda: queue.is_past(last) and calls.is_over(call), max(0.0, ends - loop.time())
            )
    finally:
        calls.release()
    return calls.conclude(call, timeout_s)
