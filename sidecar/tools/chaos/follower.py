"""Follower: reads the topic into the ledger while it grows, so that a long run is not read only at its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from confluent_kafka import KafkaException

from sidecar.tools.chaos.ledger import ChaosLedger
from sidecar.tools.chaos.side_thread import SideThread
from sidecar.tools.chaos.workload import Workload
from sidecar.tools.testing.reading import ReadTimeout, iterate_messages

AGAIN_S = 1.0


class Follower:
    """Reads in its own thread until :meth:`finish`. All other calls belong to the main thread."""

    def __init__(
        self, bootstrap_servers: str, topic: str, starts: Mapping[int, int], workload: Workload
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._workload = workload
        self._positions = dict(starts)
        self.ledger = ChaosLedger(workload.run)
        self.thread = SideThread("follower", self._follow)

    def finish(self) -> ChaosLedger:
        """Read the rest and close the ledger, after all clients have ended. Raises as read_topic() does."""
        self.thread.stop()
        self._read(None)
        self.ledger.close(self._workload.killed)
        return self.ledger

    def _follow(self, end: threading.Event) -> None:
        while not end.is_set():
            try:
                self._read(end.is_set)
            except (KafkaException, ReadTimeout):
                end.wait(AGAIN_S)  # the broker is away

    def _read(self, is_over: Callable[[], bool] | None) -> None:
        accounts, clients, positions = self.ledger.accounts, self._workload.clients, self._positions
        for message in iterate_messages(
            self._bootstrap_servers, self._topic, start=dict(positions), is_over=is_over
        ):
            if len(accounts) < len(clients):
                for client in clients[len(accounts) :]:
                    self.ledger.open_account(client.number, client.journal)
            partition, offset = message.partition(), message.offset()
            self.ledger.read(message.value(), partition, offset)
            positions[partition] = offset + 1
