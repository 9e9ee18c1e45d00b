"""TopicLookup: asks for the partitions of one topic, on its own connection to the daemon's control socket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from client_stub.contract.wire import Kind, LocalCode
from client_stub.errors import MetadataTimeout, SidecarError, error_for
from client_stub.io.control_question import ControlQuestion
from client_stub.session.client_identity import NOTHING
from client_stub.zmtp.keys import WatchedKeyFile


class PartitionInfo(NamedTuple):
    """A partition of a topic, as Kafka's PartitionInfo. Brokers are given by id; ``leader`` is None without a
    leader.
    """

    topic: str
    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...]


class TopicLookup(ControlQuestion[tuple[PartitionInfo, ...]]):
    """One look-up. Raises MetadataTimeout, DaemonUnreachable, DaemonRefused, or the topic's own error."""

    def __init__(
        self,
        control_path: str,
        topic: str,
        timeout_ms: float,
        now_ms: float,
        curve_keys: WatchedKeyFile | None = None,
        asked: Mapping[str, str] = NOTHING,
    ) -> None:
        """``topic`` "": look only whether the daemon has the cluster for which the program asks."""
        super().__init__(control_path, timeout_ms, now_ms, curve_keys)
        self._asked = dict(asked) if asked else None
        self._topic = topic
        self.waits_for = ""
        """For what records of the topic wait, as the daemon says; empty if it does not know, or is an older one."""

    def _question(self, asked_ms: float) -> list[Any]:
        names = [self._topic] if self._topic else []
        return [Kind.TOPICS, names, asked_ms, self._asked, True]

    def _answer(self, message: Sequence[Any]) -> tuple[PartitionInfo, ...] | None:
        if message[0] != Kind.TOPICS_REPLY:
            return None
        if not self._topic:
            return ()
        for name, code, partitions in message[1]:
            if name == self._topic and not code:
                self.waits_for = str(message[2]) if len(message) > 2 else ""
                return tuple(_partition(name, *fields) for fields in partitions)
            if name == self._topic:
                raise error_for(code)
        return None

    def _timeout(self) -> SidecarError:
        if self._why is not None and not isinstance(self._why, MetadataTimeout):
            return self._why
        text = f"Topic {self._topic} not present in metadata after {self._timeout_ms:g} ms."
        return error_for(LocalCode.METADATA_TIMEOUT, f"{text} {self.cluster_error}".rstrip())


def _partition(
    topic: str,
    partition: int,
    leader: int,
    isr: Sequence[int],
    replicas: Sequence[int] = (),
    offline: Sequence[int] = (),
) -> PartitionInfo:
    return PartitionInfo(
        topic, partition, leader if leader >= 0 else None, tuple(replicas), tuple(isr), tuple(offline)
    )
