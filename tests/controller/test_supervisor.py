"""Goal: workers are real processes; whatever kills one, it is replaced, and nothing of its identity is used again."""

from __future__ import annotations

import asyncio
import errno
import io
import logging
import os
import re
import signal
import sys
from pathlib import Path
from unittest import mock

import pytest

from sidecar.common.control import NeedTopics, UpdateMetadataReply
from sidecar.common.processes import process_state
from sidecar.controller.workers import supervisor
from sidecar.controller.workers.standby_worker import StandbyWorker
from sidecar.controller.workers.supervisor import FAILED_STARTS_MAX, choose_cpus
from sidecar.controller.workers.worker_process import WorkerProcess
from sidecar.controller.workers.worker_states import WorkerState
from sidecar.tools.testing.waiting import wait_until

from .harness import Harness, with_harness

pytestmark = pytest.mark.process


@with_harness(workers=2)
async def test_all_workers_become_ready(it: Harness) -> None:
    await it.supervisor.wait_all_ready()
    assert {identity.index for identity in it.joined} == {0, 1}
    assert {worker.identity.slot for worker in it.supervisor.ready} == {0, 1}
    assert len({worker.pid for worker in it.supervisor.ready}) == 2


@with_harness()
async def test_a_killed_worker_is_replaced_under_a_new_identity(it: Harness) -> None:
    await it.supervisor.wait_all_ready()
    before = it.worker().identity
    it.worker().signal(signal.SIGKILL)
    await it.until(lambda: len(it.joined) == 2)
    after = it.worker().identity
    assert it.left == [before]
    assert after.epoch > before.epoch
    assert after.incarnation > before.incarnation
    assert after.endpoint != before.endpoint
    assert after.slot == before.slot, "the replacement adopts the dead one's own slot"
    assert "SIGKILL" in it.supervisor.last_death
    assert it.supervisor.deaths.total == 1
    row = it.supervisor.deaths.of(0)
    assert (row["restarts"], row["restarts_by_cause"]["killed"]) == (1, 1)
    assert row["last_death"] == it.supervisor.last_death


@with_harness(worker_slots=[5, 9], heartbeat_timeout_s=0.3)
async def test_more_slots_than_workers(it: Harness) -> None:
    """A dead daemon left two slots and one worker is wanted: a second one finishes its slot, then ends."""
    await it.supervisor.wait_all_ready()
    assert {worker.identity.slot for worker in it.supervisor.ready} == {5, 9}
    first, second = it.worker(0), it.worker(1)
    assert it.supervisor.is_for_new_clients(first)
    assert not it.supervisor.is_for_new_clients(second)
    second.signal(signal.SIGKILL)
    await it.until(lambda: len(it.joined) == 3)
    assert it.worker(1).identity.slot == 9, "it is replaced like any other while something is in its slot"
    it.slots.left.clear()
    await it.until(lambda: len(it.left) == 2)
    assert [worker.identity.index for worker in it.supervisor.ready] == [0]
    assert it.supervisor.wanted == 1
    assert it.supervisor.held_slots == set()


@with_harness("crash first")
async def test_a_crash_at_start_is_tried_again(it: Harness) -> None:
    await it.until(lambda: it.joined)
    assert it.joined[0].incarnation == 2
    assert "status 1" in it.supervisor.last_death
    assert it.supervisor.deaths.of(0)["restarts_by_cause"]["exited"] == 1


@with_harness("bad config")
async def test_a_fatal_exit_stops_the_daemon(it: Harness) -> None:
    await it.until(lambda: it.fatal)
    assert "cannot use its configuration" in it.fatal[0]
    assert it.supervisor.deaths.total == 0


@with_harness(heartbeat_timeout_s=0.6)
async def test_a_silent_worker_is_ended_and_replaced(it: Harness) -> None:
    """It hangs: SIGABRT, so that it can say where; the first misses alone do nothing."""
    await it.supervisor.wait_all_ready()
    it.slots.silent.add(0)
    await it.until(lambda: it.left)
    it.slots.silent.clear()
    await it.until(lambda: len(it.joined) == 2)
    assert "killed by SIGABRT: it had been silent for" in it.supervisor.last_death
    assert it.supervisor.deaths.of(0)["restarts_by_cause"]["silent"] == 1
    assert it.slots.exempted == [(0, 1)]


@with_harness(workers=2, heartbeat_timeout_s=0.6)
async def test_a_failed_check_of_one_worker_leaves_the_others_watched(it: Harness) -> None:
    """The task that checks had ended without a word, and a worker that hung was never replaced."""
    await it.supervisor.wait_all_ready()
    check = it.supervisor._heartbeats.check

    def fail_at_the_first(worker: WorkerProcess) -> None:
        if worker.identity.index == 0:
            raise RuntimeError("a bug")
        check(worker)

    it.supervisor._heartbeats.check = fail_at_the_first  # type: ignore[method-assign]
    it.slots.silent.add(it.worker(1).identity.slot)
    await it.until(lambda: it.left)
    assert [identity.index for identity in it.left] == [1]
    it.slots.silent.clear()
    await it.until(lambda: len(it.joined) == 3)


def test_a_silent_worker_has_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """It had an ERROR that it is ended, and a WARNING that it was killed."""
    test_a_silent_worker_is_ended_and_replaced()
    (line,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert line.levelno == logging.ERROR
    assert re.search(
        r"was killed by SIGABRT: it had been silent for [\d.]+ s\. It is replaced now\.", line.message
    )


@with_harness(heartbeat_timeout_s=0.6)
async def test_a_silent_worker_that_waits_in_the_kernel_is_named(it: Harness) -> None:
    """No signal reaches a process that waits for a dead disk, so the log must say why there is no successor."""
    await it.supervisor.wait_all_ready()
    worker = it.worker()
    signals: list[signal.Signals] = []
    with (
        mock.patch("sidecar.controller.workers.heartbeats.ABORT_GRACE_S", 0.1),
        mock.patch("sidecar.controller.workers.heartbeats.KILL_GRACE_S", 0.1),
        mock.patch.object(worker, "signal", signals.append),
        mock.patch("sidecar.controller.workers.heartbeats.log.error") as error,
    ):
        it.slots.silent.add(0)
        await it.until(lambda: error.called)
        it.slots.silent.clear()
    assert signals == [signal.SIGABRT, signal.SIGKILL]
    assert "does not die on SIGKILL" in error.call_args.args[0]


@with_harness(heartbeat_timeout_s=0.6)
async def test_a_stopped_worker_is_killed_at_once(it: Harness) -> None:
    """It obeys SIGKILL only: no time is given to it for last words."""
    await it.supervisor.wait_all_ready()
    with mock.patch("sidecar.controller.workers.heartbeats.ABORT_GRACE_S", 3_600.0):
        os.kill(it.worker().pid, signal.SIGSTOP)
        it.slots.silent.add(0)
        await it.until(lambda: it.left)
        it.slots.silent.clear()
        await it.until(lambda: len(it.joined) == 2)
    assert "killed by SIGKILL" in it.supervisor.last_death


@with_harness("adopts for long", heartbeat_timeout_s=0.15)
async def test_an_adoption_that_gets_on_has_all_the_time_it_needs(it: Harness) -> None:
    """Looked at for many times as long as a start may be silent: its heartbeat moves, so it lives."""
    with mock.patch("sidecar.controller.workers.heartbeats.START_SILENCE_MS", 200.0):
        worker = it.worker()
        await it.until(lambda: it.supervisor._loop.time() * 1000.0 - worker.started_ms > 5 * 200.0 or it.left)
        assert it.left == []
        assert not it.joined
        it.worker().signal(signal.SIGUSR1)
        await it.supervisor.wait_all_ready()
    assert it.slots.exempted == []


@with_harness("hangs at first", heartbeat_timeout_s=0.15)
async def test_a_start_that_stands_still_is_ended_and_not_blamed(it: Harness) -> None:
    it.slots.silent.add(0)
    with mock.patch("sidecar.controller.workers.heartbeats.START_SILENCE_MS", 200.0):
        await it.until(lambda: it.left)
        it.slots.silent.clear()
        await it.until(lambda: it.joined)
    assert "killed by SIGABRT" in it.supervisor.last_death
    assert it.slots.exempted == [(0, 1)], "its slot says that we did it, and nobody's submission"


@with_harness("asks")
async def test_messages_about_metadata_are_passed_to_the_cluster(it: Harness) -> None:
    """And a message that no worker says is logged, and costs nothing."""
    with mock.patch.object(supervisor.log, "warning") as warning:
        await it.supervisor.wait_all_ready()
        await it.until(lambda: it.needed)
    assert it.needed == [NeedTopics(("t",))]
    assert it.replies == [(0, UpdateMetadataReply(0, it.worker().identity.epoch))]
    assert warning.call_args_list == [mock.call("Worker %d sent an unexpected %s.", 0, "STOP")]


@pytest.mark.rule("S2")
@with_harness("leaves 7", workers=2)
async def test_drain_hears_every_worker(it: Harness) -> None:
    await it.supervisor.wait_all_ready()
    assert await it.supervisor.drain(5.0) == 14
    assert all(worker.state is WorkerState.DRAINING for worker in it.supervisor.alive)
    await it.supervisor.stop()
    assert it.supervisor.alive == []
    assert it.supervisor.deaths.total == 0, "a worker that ends on request is not replaced"


@pytest.mark.rule("S2")
@with_harness("hang in drain")
async def test_a_drain_that_hangs_is_ended(it: Harness) -> None:
    await it.supervisor.wait_all_ready()
    with mock.patch("sidecar.controller.workers.supervisor.STOP_GRACE_S", 0.3):
        await it.supervisor.drain(0.0)
        await it.supervisor.stop()
    assert it.supervisor.alive == []
    assert it.left
    assert it.slots.exempted == [(0, 1)]


def test_pinning_leaves_cpus_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert choose_cpus(2, None) == [2, 3]
    assert choose_cpus(3, None) == []
    assert choose_cpus(3, [0]) == [0]


@with_harness(workers=2, with_standby=True)
async def test_a_standby_replaces_the_dead(it: Harness) -> None:
    await it.until(lambda: it.supervisor.standbys.pid)
    standby = it.supervisor.standbys.pid
    it.worker(1).signal(signal.SIGKILL)
    await it.until(lambda: len(it.joined) == 3)
    assert it.worker(1).pid == standby
    assert it.worker(1).identity.slot == 1
    await it.until(lambda: it.supervisor.standbys.pid not in {None, standby})
    pid = it.supervisor.standbys.pid
    await it.supervisor.stop()
    assert pid is not None
    assert process_state(pid) is None, "killed and reaped with the rest"


@with_harness(with_standby=True)
async def test_a_standby_that_died_or_stands_still_is_not_used(it: Harness) -> None:
    with mock.patch("sidecar.controller.workers.standby_worker.STANDBY_RETRY_S", 0.05):
        await it.until(lambda: it.supervisor.standbys.pid)
        first = it.supervisor.standbys.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await it.until(lambda: it.supervisor.standbys.pid not in {None, first})
    second = it.supervisor.standbys.pid
    assert second is not None
    os.kill(second, signal.SIGSTOP)
    wait_until(lambda: process_state(second) in {"T", "t"}, "the kernel to have stopped it")
    it.worker().signal(signal.SIGKILL)
    await it.until(lambda: len(it.joined) == 2)
    assert it.worker().pid != second
    assert process_state(second) is None


@with_harness(
    heartbeat_timeout_s=0.15, worker_command=(sys.executable, "-c", "import time; time.sleep(3600)")
)
async def test_workers_that_are_too_slow_to_load_do_not_end_the_daemon(it: Harness) -> None:
    """Found by chaos on a host of twenty busy processes a CPU: three were ended by us while they were loaded."""
    it.slots.silent.add(0)
    with mock.patch("sidecar.controller.workers.heartbeats.START_SILENCE_MS", 100.0):
        await it.until(lambda: it.supervisor.deaths.total > FAILED_STARTS_MAX or it.fatal)
    assert it.fatal == []
    assert it.supervisor.deaths.of(0)["restarts_by_cause"]["silent"] > FAILED_STARTS_MAX


@with_harness(worker_command=(sys.executable, "-c", "import no_such_module"))
async def test_workers_that_cannot_be_loaded_end_the_daemon_with_what_they_said(it: Harness) -> None:
    await it.until(lambda: it.fatal)
    (sentence,) = it.fatal
    assert f"{FAILED_STARTS_MAX} ended one after the other" in sentence
    assert "No module named 'no_such_module'" in sentence
    assert it.supervisor.deaths.total == FAILED_STARTS_MAX - 1


def test_workers_that_cannot_be_loaded_any_more_leave_those_that_serve_alone(tmp_path: Path) -> None:
    """As after half an upgrade: who is ready goes on, and the slot is filled once its files are whole again."""
    program = tmp_path / "worker.py"
    whole, half = "from tests.controller.fake_worker import main; main()", "raise ImportError('half')"
    program.write_text(whole)

    async def play() -> None:
        harness = Harness(
            "", 2, 60.0, (), False, (sys.executable, "-c", f"exec(open({str(program)!r}).read())")
        )
        harness.supervisor.start()
        try:
            await harness.supervisor.wait_all_ready()
            program.write_text(half)
            harness.worker(0).signal(signal.SIGKILL)
            await harness.until(lambda: harness.supervisor.deaths.total > FAILED_STARTS_MAX + 1)
            assert not harness.fatal
            assert [worker.identity.index for worker in harness.supervisor.ready] == [1]
            assert harness.supervisor.last_death.endswith("exited with status 1: ImportError: half.")
            program.write_text(whole)
            await harness.supervisor.wait_all_ready()
        finally:
            await harness.supervisor.stop()

    asyncio.run(asyncio.wait_for(play(), 40.0))


def test_the_pause_before_a_replacement_doubles_to_its_bound(caplog: pytest.LogCaptureFixture) -> None:
    """The first death costs no pause; then it doubles, up to daemon.restart_backoff_max_ms (here 300 ms)."""
    # However long the start of a process takes here, each is one that died of its start.
    with mock.patch("sidecar.controller.workers.supervisor.STEADY_MS", 60_000.0):
        assert pauses_of(caplog) == ["now", "in 100 ms", "in 200 ms", "in 300 ms", "in 300 ms"]


def test_a_worker_that_is_slow_to_die_of_its_start_is_not_replaced_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Python alone takes a second to start on a busy host. Each death was taken for that of a worker that had served,
    and one start followed the other without a pause."""
    with mock.patch("sidecar.controller.workers.supervisor.STEADY_MS", 0.0):
        assert pauses_of(caplog) == ["now", "in 100 ms", "in 200 ms", "in 300 ms", "in 300 ms"]


def pauses_of(caplog: pytest.LogCaptureFixture) -> list[object]:
    """Words of the log for the pauses after the first five deaths of a worker that never becomes ready."""

    async def play() -> None:
        harness = Harness("crashes", 1, 60.0, (), False, restart_backoff_max_ms=300.0)
        harness.supervisor.start()
        try:
            await harness.until(lambda: harness.supervisor.deaths.total >= 5)
        finally:
            await harness.supervisor.stop()

    with caplog.at_level("WARNING"):
        asyncio.run(asyncio.wait_for(play(), 40.0))
    return [record.args[1] for record in caplog.records if isinstance(record.args, tuple)][:5]


def test_a_cpu_that_has_left_the_cpuset_is_a_warning_and_no_obstacle(
    caplog: pytest.LogCaptureFixture,
) -> None:
    no_cpu = 1_000

    async def play() -> None:
        harness = Harness("", 1, 60.0, (), False, cpus=[no_cpu])
        harness.supervisor.start()
        try:
            await harness.supervisor.wait_all_ready()
            assert harness.worker().cpu is None
            assert harness.supervisor.deaths.total == 0
        finally:
            await harness.supervisor.stop()

    asyncio.run(asyncio.wait_for(play(), 40.0))
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"CPU {no_cpu} cannot be used" in warning


def test_a_worker_that_cannot_be_given_its_work_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(standby: StandbyWorker, start: object) -> None:
        raise OSError(errno.ETOOMANYREFS, "Too many references")

    monkeypatch.setattr(StandbyWorker, "hand_over", refuse)
    held: list[int] = []

    async def play() -> None:
        harness = Harness("", 1, 60.0, (), False, restart_backoff_max_ms=1.0)
        harness.supervisor.start()
        try:
            for count in (1, 4):
                await harness.until(lambda count=count: harness.supervisor.deaths.total >= count)
                held.append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208 - no wait, whatever Path is
        finally:
            await harness.supervisor.stop()

    asyncio.run(asyncio.wait_for(play(), 40.0))
    assert held[0] == held[1]


def test_first_words_that_nobody_can_take_are_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's disk is full, or its reader is gone."""

    async def play() -> None:
        harness = Harness("crash first", 1, 60.0, (), False)
        harness.supervisor.start()
        try:
            await harness.until(lambda: harness.joined)
        finally:
            await harness.supervisor.stop()

    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sys, "stderr", Full())
    monkeypatch.setattr(StandbyWorker, "take_words", lambda standby: "words\n")
    asyncio.run(asyncio.wait_for(play(), 40.0))
