"""Reload: one at a time, every question answered, nothing half, whatever reading does."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from sidecar.config.loader import load_config
from sidecar.config.settings import ConfigError, SidecarConfig
from sidecar.controller.reload import Reload
from tests.patience import PATIENCE_S


def config(*words: str) -> SidecarConfig:
    return load_config(None, ["bootstrap.servers=localhost:9092", *words], {})


class Daemon:
    """Stands around a Reload; ``next`` is what the file says, or how reading it fails."""

    def __init__(self) -> None:
        self.next: SidecarConfig | Exception = config()
        self.used: list[SidecarConfig] = []
        self.results: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.late: list[str] = []
        self.fails_with: Exception | None = None
        self.may_read = threading.Event()
        self.may_read.set()
        self.reads = 0
        self.reading = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.reload = Reload(
            config(),
            read=self.read,
            use=self.use,
            publish=self.results.put_nowait,
            spawn=asyncio.ensure_future,
        )

    def read(self) -> SidecarConfig:
        self.reads += 1
        self._loop.call_soon_threadsafe(self.reading.set)
        assert self.may_read.wait(PATIENCE_S)
        if isinstance(self.next, Exception):
            raise self.next
        return self.next

    async def use(self, new: SidecarConfig) -> list[str]:
        self.used.append(new)
        if self.fails_with is not None:
            error, self.fails_with = self.fails_with, None
            raise error
        return self.late

    async def result(self) -> dict[str, Any]:
        return await asyncio.wait_for(self.results.get(), PATIENCE_S)


def test_a_change_is_used_once() -> None:
    async def run() -> None:
        daemon = Daemon()
        daemon.next = config("linger.ms=7")
        daemon.reload.ask()
        assert (await daemon.result())["changes"] == ("linger.ms 5 → 7",)
        daemon.reload.ask()
        assert (await daemon.result())["changes"] == ()
        assert daemon.used == [daemon.next]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("read", "sentence"),
    [
        (ConfigError(["The first fault.", "The second."]), "The first fault."),
        (config("linger.ms=7", "daemon.workers=3"), "daemon.workers 2 → 3 needs a restart"),
        (RuntimeError("a bug"), "RuntimeError('a bug')"),
    ],
)
def test_refused_means_unchanged(read: SidecarConfig | Exception, sentence: str) -> None:
    async def run() -> None:
        daemon = Daemon()
        daemon.next = read
        daemon.reload.ask()
        result = await daemon.result()
        assert sentence in result["faults"][0]
        assert daemon.used == []
        # Compared with what is in force, not with what was refused.
        daemon.next = config("linger.ms=7")
        daemon.reload.ask()
        assert (await daemon.result())["changes"] == ("linger.ms 5 → 7",)

    asyncio.run(run())


def test_half_used_means_the_earlier_settings_everywhere() -> None:
    async def run() -> None:
        daemon = Daemon()
        earlier = daemon.reload._config
        daemon.next = config("linger.ms=7")
        daemon.fails_with = RuntimeError("a bug")
        daemon.reload.ask()
        result = await daemon.result()
        assert result["faults"] == ("The configuration cannot be applied: RuntimeError('a bug').",)
        assert daemon.used == [daemon.next, earlier]
        daemon.reload.ask()
        assert (await daemon.result())["changes"] == ("linger.ms 5 → 7",), "it is no less new than before"

    asyncio.run(run())


def test_asked_while_one_reads_another_follows() -> None:
    """A change written after the first read must not be missed; many questions are answered by one."""

    async def run() -> None:
        daemon = Daemon()
        daemon.may_read.clear()
        daemon.reload.ask()
        await asyncio.wait_for(daemon.reading.wait(), PATIENCE_S)
        for _ in range(5):
            daemon.reload.ask()
        daemon.may_read.set()
        first, second = await daemon.result(), await daemon.result()
        assert first["began_s"] < second["began_s"]
        assert daemon.reads == 2

    asyncio.run(run())


def test_late_workers_are_named() -> None:
    async def run() -> None:
        daemon = Daemon()
        daemon.next, daemon.late = config("linger.ms=7"), ["Worker 0 is late."]
        daemon.reload.ask()
        assert (await daemon.result())["warnings"] == ("Worker 0 is late.",)

    asyncio.run(run())


def test_files_that_cannot_be_read_hold_up_neither_reloads_nor_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on an NFS mount that is away. One thread hangs, however often a reload is asked for."""
    monkeypatch.setattr("sidecar.controller.reload.READ_S", 0.05)
    has_ended = threading.Event()

    async def run() -> None:
        daemon = Daemon()
        monkeypatch.setattr(daemon.reload, "_read", lambda: has_ended.wait(30) and config("linger.ms=6"))
        for _ in range(2):
            daemon.reload.ask()
            assert "a pipe, or its disk does not answer" in (await daemon.result())["faults"][0]
        assert [each.name for each in threading.enumerate()].count("reload") == 1
        monkeypatch.undo()
        has_ended.set()
        daemon.next = config("linger.ms=7")
        await asyncio.to_thread(thread_named("reload").join, 10)
        await asyncio.sleep(0)  # the loop has its result now
        daemon.reload.ask()
        assert (await daemon.result())["changes"] == ("linger.ms 5 → 7",), "a late one is not taken on"
        daemon.may_read.clear()
        daemon.reading.clear()
        daemon.reload.ask()
        await asyncio.wait_for(daemon.reading.wait(), PATIENCE_S)
        hanging.append(daemon)

    hanging: list[Daemon] = []
    asyncio.run(run())
    assert thread_named("reload").is_alive(), "the loop has ended while it reads"
    hanging[0].may_read.set()
    thread_named("reload").join(PATIENCE_S)


def thread_named(name: str) -> threading.Thread:
    return next(each for each in threading.enumerate() if each.name == name)
