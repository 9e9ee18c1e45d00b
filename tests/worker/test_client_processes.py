"""Goal: a client's death is learned from the kernel, for the row it had and for no other."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator

import pytest

from sidecar.worker.stubs.client_processes import ClientProcesses
from tests.patience import PATIENCE_S

Scenario = Callable[[ClientProcesses], Awaitable[None]]


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    yield process
    process.kill()
    process.wait()


def run(scenario: Scenario) -> None:
    async def main() -> None:
        processes = ClientProcesses(asyncio.get_running_loop())
        try:
            await asyncio.wait_for(scenario(processes), PATIENCE_S)
        finally:
            processes.close()

    asyncio.run(main())


async def dead_rows(processes: ClientProcesses) -> set[int]:
    while not (rows := processes.take_dead()):  # noqa: ASYNC110 - the kernel sets no event of ours
        await asyncio.sleep(0.005)
    return rows


def test_all_rows_of_a_dead_process_are_named_once(child: subprocess.Popen[bytes]) -> None:
    async def scenario(processes: ClientProcesses) -> None:
        for row in (3, 5, 8):
            processes.watch(row, child.pid)
        processes.forget(5)
        child.send_signal(signal.SIGKILL)
        assert await dead_rows(processes) == {3, 8}
        assert processes.take_dead() == set()

    run(scenario)


def test_a_process_that_is_gone_already_is_dead(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()

    async def scenario(processes: ClientProcesses) -> None:
        processes.watch(1, child.pid)
        assert processes.take_dead() == {1}

    run(scenario)


def test_a_row_given_to_another_does_not_die_with_the_one_before(child: subprocess.Popen[bytes]) -> None:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as other:

        async def scenario(processes: ClientProcesses) -> None:
            processes.watch(1, child.pid)
            processes.watch(2, child.pid)
            processes.watch(1, other.pid)
            child.kill()
            assert await dead_rows(processes) == {2}
            processes.watch(2, 0)
            other.kill()
            assert await dead_rows(processes) == {1}

        run(scenario)
