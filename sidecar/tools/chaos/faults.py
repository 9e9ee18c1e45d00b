"""Faults: carries out one fault of the plan on the present processes. Signals are sent by pidfd, never to a reused
pid.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from sidecar.tools.chaos.plan import Fault, FaultKind
from sidecar.tools.chaos.recovery import Recovery, RecoveryWatch
from sidecar.tools.chaos.workload import Workload
from sidecar.tools.testing.daemon import DaemonFailed, SidecarDaemon
from sidecar.tools.testing.fault_proxy import FaultProxy
from sidecar.tools.testing.fault_rules import on
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.waiting import wait_until

VICTIM_TIMEOUT_S = 60.0
TRANSACTION_LOG = "__transaction_state"


class Faults:
    """Belongs to the main thread, as a restarted daemon dies with the thread that started it."""

    def __init__(
        self,
        daemon: SidecarDaemon,
        proxy: FaultProxy,
        cluster: KafkaCluster | None,
        topic: str,
        workload: Workload,
        watch: RecoveryWatch[FaultKind],
    ) -> None:
        self._topic = topic
        self._daemon = daemon
        self._proxy = proxy
        self._cluster = cluster
        self._workload = workload
        self._watch = watch

    @property
    def may_kill_brokers(self) -> bool:
        """Whether the brokers are the run's own."""
        return self._cluster is not None

    def inflict(self, fault: Fault) -> Recovery[FaultKind] | None:
        """Carry out a fault for its duration. Returns the recovery to wait for; None when there was no client
        to hit.
        """
        match fault.kind:
            case FaultKind.WORKER_KILLED:
                kill(self._worker(fault))
            case FaultKind.REPLACEMENT_KILLED:
                return self._kill_twice(fault)
            case FaultKind.DAEMON_KILLED:
                return self._kill_daemon(fault, [self._controller, *children(self._controller)])
            case FaultKind.CONTROLLER_KILLED:
                return self._kill_daemon(fault, [self._controller])
            case FaultKind.CLIENT_KILLED:
                return self._kill_client(fault)
            case FaultKind.WORKER_STOPPED:
                return self._stop_worker(fault)
            case FaultKind.WORKER_PAUSED:
                pause([self._worker(fault)], fault.hold_s)
            case FaultKind.DAEMON_PAUSED:
                pause([self._controller, *children(self._controller)], fault.hold_s)
            case FaultKind.CLIENT_PAUSED:
                live = self._workload.live
                if live:
                    pause([live[fault.pick(len(live))].process.pid], fault.hold_s)
            case FaultKind.CONNECTIONS_CUT:
                self._proxy.disconnect()
            case FaultKind.ANSWERS_LOST:
                # The broker has appended, but the client does not know. Cut at the first answer that others may wait
                # behind.
                self._proxy.add(on(Api.PRODUCE, times=fault.times).cut_answer())
            case FaultKind.ENDS_LOST:
                self._proxy.add(on(Api.END_TXN, times=fault.times).cut_answer())
            case FaultKind.BROKER_AWAY:
                self._take_broker_away(fault)
            case FaultKind.TAKEN_OVER:
                self._worker(fault)  # a daemon that is starting cannot be taken over
                self._daemon.take_over()
            case FaultKind.BROKER_KILLED:
                self._kill_broker(fault)
        return self._begin(fault)

    @property
    def _controller(self) -> int:
        assert self._daemon.process is not None
        return self._daemon.process.pid

    def _begin(self, fault: Fault) -> Recovery[FaultKind]:
        return self._watch.begin(fault.kind, self._workload.live)

    def _workers(self, *states: str) -> list[int]:
        """The workers of the present daemon in these states; a killed daemon's file does not count."""
        if self._daemon.process is not None and self._daemon.process.poll() is not None:
            raise DaemonFailed(f"the daemon ended by itself:\n{self._daemon.log_tail()}")
        with contextlib.suppress(OSError, ValueError, KeyError):
            info = self._daemon.info()
            if info["pid"] == self._controller:
                return [int(worker["pid"]) for worker in info["workers"] if worker["state"] in states]
        return []

    def _worker(self, fault: Fault) -> int:
        ready = wait_until(
            lambda: self._workers("ready"),
            "a worker to be ready",
            timeout_s=VICTIM_TIMEOUT_S,
            interval_s=0.01,
            describe=self._daemon.log_tail,
        )
        return ready[fault.pick(len(ready))]

    def _kill_twice(self, fault: Fault) -> Recovery[FaultKind]:
        """Kill a worker and its successor, during its adoption or when it has just become ready."""
        victim = self._worker(fault)
        before = set(self._workers("ready"))
        kill(victim)
        recovery = self._begin(fault)
        time.sleep(fault.hold_s)
        for replacement in set(self._workers("starting", "ready")) - before:
            kill(replacement)
        return recovery

    def _kill_daemon(self, fault: Fault, pids: Sequence[int]) -> Recovery[FaultKind]:
        for pid in pids:
            kill(pid)
        assert self._daemon.process is not None
        self._daemon.process.wait()
        recovery = self._begin(fault)
        time.sleep(fault.hold_s)
        self._daemon.spawn()
        return recovery

    def _kill_client(self, fault: Fault) -> Recovery[FaultKind] | None:
        live = self._workload.live
        if not live:
            return None
        successor = self._workload.kill(live[fault.pick(len(live))])
        return self._watch.begin(fault.kind, [successor])

    def _stop_worker(self, fault: Fault) -> Recovery[FaultKind]:
        """Stop a worker. It may be woken before it is killed; it then finds SIGABRT pending."""
        victim = self._worker(fault)
        with stopped([victim]):
            recovery = self._begin(fault)
            deadline_s = time.monotonic() + fault.hold_s
            while Path(f"/proc/{victim}").exists() and time.monotonic() < deadline_s:
                time.sleep(0.01)
        return recovery

    def _take_broker_away(self, fault: Fault) -> None:
        nodes = self._proxy.nodes()
        node = nodes[fault.pick(len(nodes))]
        self._proxy.stop_listening(node)
        try:
            time.sleep(fault.hold_s)
        finally:
            self._proxy.listen_again(node)

    def _kill_broker(self, fault: Fault) -> None:
        """Kill a node, and start it again. The others take over what it led and coordinated."""
        cluster = self._cluster
        assert cluster is not None, "the plan kills brokers only where they are the run's own"
        index = fault.pick(len(cluster.nodes))
        cluster.kill_node(index)
        time.sleep(fault.hold_s)
        cluster.restart_node(index)
        admin = cluster.admin()
        for topic in (self._topic, TRANSACTION_LOG):
            # A partition whose last replica is killed has no leader, and Kafka 4 then drops the markers for it.
            admin.wait_in_sync(topic, len(cluster.nodes))


def children(pid: int) -> list[int]:
    """The present child processes of ``pid``; [] when it is gone."""
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def pause(pids: Sequence[int], seconds: float) -> None:
    with stopped(pids):
        time.sleep(seconds)


@contextlib.contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    """SIGSTOP, and at the end SIGCONT for those that are still the same processes."""
    handles = []
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                handles.append(os.pidfd_open(pid))
                signal.pidfd_send_signal(handles[-1], signal.SIGSTOP)
        yield
    finally:
        for handle in handles:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGCONT)
            os.close(handle)
