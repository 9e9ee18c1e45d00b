"""Every test of links runs on both event loops: uvloop as in the daemon, asyncio as everywhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop

Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine function to its end, at most 20 s; what its callbacks raised fails the test."""

    def run(test: Callable[[], Awaitable[None]]) -> None:
        failures: list[dict[str, object]] = []

        async def bounded() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
            await asyncio.wait_for(test(), 20)

        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(bounded())
        assert not failures, failures

    return run
