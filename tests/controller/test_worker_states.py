"""Goal: a real worker process under a real supervisor takes every step of the table, and no other."""

from __future__ import annotations

import ast
import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sidecar import controller
from sidecar.common.control import Ready
from sidecar.controller.workers.worker_process import WorkerProcess
from sidecar.controller.workers.worker_states import TRANSITIONS, WorkerEvent, WorkerState
from tests.patience import PATIENCE_S

from .harness import Harness, with_harness


async def _say_ready(it: Harness, worker: WorkerProcess) -> None:
    if worker.state is WorkerState.STARTING:
        await it.supervisor.wait_all_ready()
    else:
        # Also a message that was still in a dead worker's socket comes this way.
        it.supervisor.on_message(worker, Ready(worker.pid, worker.identity.epoch))


async def _drain(it: Harness, worker: WorkerProcess) -> None:
    await it.supervisor.drain(-60.0)  # sent, and its end not waited for


async def _exit(it: Harness, worker: WorkerProcess) -> None:
    worker.signal(signal.SIGKILL)
    await it.until(lambda: it.left)


EVENTS: dict[WorkerEvent, Callable[[Harness, WorkerProcess], Awaitable[None]]] = {
    WorkerEvent.READY: _say_ready,
    WorkerEvent.DRAIN: _drain,
    WorkerEvent.EXIT: _exit,
}
WAYS = {
    WorkerState.STARTING: (),
    WorkerState.READY: (WorkerEvent.READY,),
    WorkerState.DRAINING: (WorkerEvent.DRAIN,),
    WorkerState.DEAD: (WorkerEvent.EXIT,),
}


@pytest.mark.process
@pytest.mark.parametrize("event", WorkerEvent)
@pytest.mark.parametrize("state", WorkerState)
def test_a_worker_takes_the_step_of_the_table(state: WorkerState, event: WorkerEvent) -> None:
    """A pair that the table lacks does not reach the worker: it stays as it is."""

    @with_harness()
    async def play(it: Harness) -> None:
        worker = it.worker()
        for step in WAYS[state]:
            await EVENTS[step](it, worker)
        assert worker.state is state
        await asyncio.wait_for(EVENTS[event](it, worker), PATIENCE_S)
        assert worker.state is TRANSITIONS[state].get(event, state)

    play()


def test_nothing_but_the_table_changes_the_state() -> None:
    """The room assigns ``state`` in two places: a worker's first state, and the step of the table."""
    written = [
        (path.name, ast.unparse(node))
        for path in sorted(Path(*controller.__path__).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign)
        and any(
            isinstance(each, ast.Attribute) and each.attr == "state" for each in ast.walk(node.targets[0])
        )
    ]
    assert written == [
        ("worker_process.py", "self.state = WorkerState.STARTING"),
        ("worker_process.py", "before, self.state = (self.state, TRANSITIONS[self.state][event])"),
    ]
