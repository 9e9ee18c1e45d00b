"""A supervisor over fake workers and a fake segment, run inside one loop."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from sidecar.common.control import NeedTopics, Start, UpdateMetadataReply
from sidecar.controller.workers.standby_worker import Standbys
from sidecar.controller.workers.supervisor import Supervisor
from sidecar.controller.workers.worker_process import WorkerIdentity, WorkerProcess
from tests.patience import PATIENCE_S

FAKE_WORKER = (sys.executable, "-m", "tests.controller.fake_worker")


class FakeSlots:
    """Slots in memory. ``beats[slot]`` None: beats by itself; a number: stands still."""

    def __init__(self) -> None:
        self.left: set[int] = set()
        self.silent: set[int] = set()
        self.exempted: list[tuple[int, int]] = []
        self.on_look: Callable[[], None] = lambda: None
        self._beat = 0
        self._incarnation = 0

    def prepare(self, slot: int) -> None:
        assert 0 <= slot < 64

    def has_content(self, slot: int) -> bool:
        return slot in self.left

    def exempt(self, slot: int, incarnation: int) -> None:
        self.exempted.append((slot, incarnation))

    def heartbeat(self, slot: int) -> int:
        self.on_look()
        if slot not in self.silent:
            self._beat += 1
        return self._beat if slot not in self.silent else 0

    def next_incarnation(self) -> int:
        self._incarnation += 1
        return self._incarnation


class Harness:
    """One supervisor over workers that it starts, and a daemon and a cluster that note what they hear of it."""

    def __init__(
        self,
        behaviour: str,
        workers: int,
        heartbeat_timeout_s: float,
        worker_slots: Sequence[int],
        with_standby: bool,
        worker_command: Sequence[str] = FAKE_WORKER,
        restart_backoff_max_ms: float = 10_000.0,
        cpus: Sequence[int] | None = None,
    ) -> None:
        self.slots = FakeSlots()
        self.slots.left.update(worker_slots)
        self.joined: list[WorkerIdentity] = []
        self.left: list[WorkerIdentity] = []
        self.needed: list[NeedTopics] = []
        self.replies: list[tuple[int, UpdateMetadataReply]] = []
        self.fatal: list[str] = []
        self._behaviour = behaviour
        self._changed = asyncio.Event()
        self.slots.on_look = self._changed.set
        self.supervisor = Supervisor(
            workers=workers,
            worker_slots=worker_slots or range(workers),
            cpus=cpus,
            heartbeat_timeout_s=heartbeat_timeout_s,
            restart_backoff_max_ms=restart_backoff_max_ms,
            slots=self.slots,
            setup=self,
            routes={
                NeedTopics: lambda _, message: self.topics_needed(message),
                UpdateMetadataReply: self.update_replied,
            },
            on_joined=lambda worker: self.joined.append(worker.identity),
            on_left=lambda worker: self.left.append(worker.identity),
            on_change=self._changed.set,
            on_fatal=self.fatal.append,
            last_epoch=1000,
            standbys=Standbys(
                deque(), is_wanted=with_standby, on_change=self._changed.set, command=worker_command
            ),
        )

    def endpoint(self, index: int, epoch: int) -> str:
        return f"ipc://unused-{index}.{epoch}"

    def start_message(self, identity: WorkerIdentity) -> Start:
        return Start(
            worker_index=identity.index,
            worker_epoch=identity.epoch,
            slot=identity.slot,
            incarnation=identity.incarnation,
            endpoint=identity.endpoint,
            instance_key=b"k",
            segment_fd=-1,
            config={"behaviour": self._behaviour},
        )

    def topics_needed(self, message: NeedTopics) -> None:
        self.needed.append(message)
        self._changed.set()

    def update_replied(self, worker: WorkerProcess, reply: UpdateMetadataReply) -> None:
        self.replies.append((worker.identity.index, reply))

    async def until(self, condition: Callable[[], Any], timeout_s: float = PATIENCE_S) -> None:
        """Wait until ``condition()``; looks again at each change the supervisor tells, and at each look of it."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def worker(self, index: int = 0) -> WorkerProcess:
        worker = self.supervisor.workers[index]
        assert worker is not None
        return worker


def with_harness(
    behaviour: str = "",
    *,
    workers: int = 1,
    heartbeat_timeout_s: float = 60.0,
    worker_slots: Sequence[int] = (),
    with_standby: bool = False,
    worker_command: Sequence[str] = FAKE_WORKER,
) -> Callable[[Callable[[Harness], Awaitable[None]]], Callable[[], None]]:
    """Make a test of a coroutine over a harness; its workers are ended afterwards."""

    def decorate(play: Callable[[Harness], Awaitable[None]]) -> Callable[[], None]:
        async def perform() -> None:
            harness = Harness(
                behaviour, workers, heartbeat_timeout_s, worker_slots, with_standby, worker_command
            )
            harness.supervisor.start()
            try:
                await asyncio.wait_for(play(harness), 40.0)
            finally:
                await harness.supervisor.stop()

        def test() -> None:
            asyncio.run(perform())

        test.__name__, test.__doc__, test.__module__ = play.__name__, play.__doc__, play.__module__
        return test

    return decorate
