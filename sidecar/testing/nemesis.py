"""Nemesis: faults of brokers by a seed, one after the other, each with its repair."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

from sidecar.testing.fault_proxy import FaultProxy
from sidecar.testing.kafka_cluster import KafkaCluster

FAULT_S: Final = (1.0, 7.0)
"""How long a fault lasts: below and above Kafka's session timeout of 5 s here, below and above request.timeout.ms."""
PEACE_S: Final = (0.3, 2.0)


class BrokerFault(StrEnum):
    KILLED = "killed"
    """SIGKILL, later a start on the same data."""
    STOPPED = "stopped in good order"
    PAUSED = "paused"
    """SIGSTOP: its connections stay open; it may wake up as a leader that was replaced."""
    CUT_OFF = "cut off from clients"
    """Clients' connections close and new ones are refused; the cluster sees it as alive."""
    MUTE = "mute to clients"
    """Clients' connections stay open, and nothing is read from them."""


BEHIND_A_PROXY: Final = (BrokerFault.CUT_OFF, BrokerFault.MUTE)


class Nemesis:
    """Belongs to the main thread (nodes die with the thread that started them).

    ``happened`` is called with a sentence at every fault and repair. The same seed gives the same faults on the
    same nodes in the same order; when they come depends on how long repairs take.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        seed: int,
        *,
        proxy: FaultProxy | None = None,
        kinds: Sequence[BrokerFault] = tuple(BrokerFault),
        happened: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._cluster = cluster
        self._proxy = proxy
        self._chance = random.Random(seed)
        self._kinds = [each for each in kinds if proxy is not None or each not in BEHIND_A_PROXY]
        self._happened = happened
        self.done: list[tuple[BrokerFault, int]] = []
        """Each fault and the id of the node it struck."""

    def run(self, duration_s: float) -> None:
        """Faults for that long, and until every kind has come; when it returns, the last one is repaired. Every kind
        comes once before any comes again."""
        end_s = time.monotonic() + duration_s
        kinds: list[BrokerFault] = []
        while time.monotonic() < end_s or len(self.done) < len(self._kinds):
            if not kinds:
                kinds = list(self._kinds)
                self._chance.shuffle(kinds)
            self.strike(kinds.pop(), self._chance.randrange(len(self._cluster.nodes)))
            time.sleep(self._chance.uniform(*PEACE_S))

    def strike(self, kind: BrokerFault, index: int) -> None:
        """One fault, its time, its repair."""
        node = self._cluster.nodes[index].node_id
        self.done.append((kind, node))
        self._happened(f"broker {node} is {kind}")
        self._begin(kind, index, node)
        try:
            time.sleep(self._chance.uniform(*FAULT_S))
        finally:
            self._end(kind, index, node)
        self._happened(f"broker {node} is back")

    def _begin(self, kind: BrokerFault, index: int, node: int) -> None:
        if kind is BrokerFault.KILLED:
            self._cluster.kill_node(index)
        elif kind is BrokerFault.STOPPED:
            self._cluster.stop_node(index)
        elif kind is BrokerFault.PAUSED:
            self._cluster.pause_node(index)
        else:
            assert self._proxy is not None
            if kind is BrokerFault.CUT_OFF:
                self._proxy.stop_listening(node)
            else:
                self._proxy.stop_reading(node)

    def _end(self, kind: BrokerFault, index: int, node: int) -> None:
        if kind in (BrokerFault.KILLED, BrokerFault.STOPPED):
            self._cluster.restart_node(index)
        elif kind is BrokerFault.PAUSED:
            self._cluster.resume_node(index)
        else:
            assert self._proxy is not None
            if kind is BrokerFault.CUT_OFF:
                self._proxy.listen_again(node)
            else:
                self._proxy.read_again(node)
