"""Nemesis: random faults of brokers from a seed, one after the other, each followed by its repair."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

from sidecar.tools.testing.fault_proxy import FaultProxy
from sidecar.tools.testing.kafka_cluster import KafkaCluster

FAULT_S: Final = (1.0, 7.0)
"""Shortest and longest fault. The range includes Kafka's session timeout of 5 s here, and request.timeout.ms."""
PEACE_S: Final = (0.3, 2.0)


class BrokerFault(StrEnum):
    KILLED = "killed"
    """SIGKILL; the repair is a start with the same data."""
    STOPPED = "stopped in good order"
    PAUSED = "paused"
    """SIGSTOP: its connections stay open. After SIGCONT it may still believe that it is a leader."""
    CUT_OFF = "cut off from clients"
    """Connections of clients are closed and new ones refused, while the cluster sees the node as alive."""
    MUTE = "mute to clients"
    """Connections of clients stay open, and nothing is read from them."""


BEHIND_A_PROXY: Final = (BrokerFault.CUT_OFF, BrokerFault.MUTE)


class Nemesis:
    """Causes and repairs faults. Use it from the main thread: nodes are killed when the thread that started them ends.

    ``happened`` is called with a sentence at every fault and repair. The same seed gives the same faults on the same
    nodes in the same order; their times depend on how long repairs take.
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
        """Each fault so far, with the id of its node."""

    def run(self, duration_s: float) -> None:
        """Cause faults for that long, and until every kind has come. The last one is repaired when it returns.

        No kind is repeated before all others have come.
        """
        end_s = time.monotonic() + duration_s
        kinds: list[BrokerFault] = []
        while time.monotonic() < end_s or len(self.done) < len(self._kinds):
            if not kinds:
                kinds = list(self._kinds)
                self._chance.shuffle(kinds)
            self.strike(kinds.pop(), self._chance.randrange(len(self._cluster.nodes)))
            time.sleep(self._chance.uniform(*PEACE_S))

    def strike(self, kind: BrokerFault, index: int) -> None:
        """Cause one fault, wait, and repair it."""
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
