"""PartitionChoice: a partitioner of the program's own, called as kafka-python calls it.

It runs in the caller, with the partitions that the daemon knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from client_stub.errors import SidecarError
from client_stub.system.originals import monotonic

if TYPE_CHECKING:
    from collections.abc import Callable

    from client_stub.io.topic_lookup import PartitionInfo

    LookUp = Callable[[str, float], Sequence[PartitionInfo]]
    """Of a topic, within that many seconds."""

KNOWN_S: Final = 30.0
"""How long an answer about a topic is used. New partitions get records at the latest after that time."""
TOPICS_KNOWN_MAX: Final = 1_024
"""Answers that are kept. One more takes the place of the oldest."""
REFRESH_S: Final = 1.0
"""How long a send waits for a newer answer than the one that it has."""


class Cluster:
    """What a partitioner of kafka-python 3.x asks its ``cluster``, for one topic."""

    def __init__(self, topic: str, partitions: Sequence[PartitionInfo]) -> None:
        self._topic = topic
        self.all = sorted(each.partition for each in partitions)
        self.available = sorted(each.partition for each in partitions if each.leader is not None)

    def topics(self) -> set[str]:
        return {self._topic}

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(self.all) if topic == self._topic else None

    def available_partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(self.available) if topic == self._topic else None


class PartitionChoice:
    """One partitioner, in any of the three forms of kafka-python: a function of (key bytes, all partitions, available
    partitions) as in 2.x, or an object with partition(topic, key bytes, cluster) or with partition(topic, key, key
    bytes, value, value bytes, cluster) as in 3.x. Raises TypeError for anything else.
    """

    def __init__(self, partitioner: Any, look_up: LookUp, max_block_s: float) -> None:
        self._is_object = hasattr(partitioner, "partition") and not isinstance(partitioner, str)
        if not self._is_object and not callable(partitioner):
            raise TypeError(
                "partitioner must be a function of (key, all partitions, available partitions), or have "
                f"partition(topic, key, cluster), not {type(partitioner).__name__}."
            )
        self._call = partitioner.partition if self._is_object else partitioner
        self._takes_all = self._is_object and takes(self._call, 6)
        self._look_up = look_up
        self._max_block_s = max_block_s
        self._known: dict[str, tuple[float, Cluster]] = {}

    def of(self, topic: str, record: tuple[Any, bytes | None, Any, bytes | None]) -> int:
        """The partition of a record (key, key bytes, value, value bytes). Raises as the look-up of the topic does."""
        cluster = self._cluster(topic)
        if self._takes_all:
            chosen: int = self._call(topic, *record, cluster)
        elif self._is_object:
            chosen = self._call(topic, record[1], cluster)
        else:
            chosen = self._call(record[1], list(cluster.all), list(cluster.available))
        return chosen

    def _cluster(self, topic: str) -> Cluster:
        now = monotonic()
        until, cluster = self._known.get(topic, (0.0, None))
        if cluster is not None and now < until:
            return cluster
        try:
            cluster = Cluster(
                topic, self._look_up(topic, self._max_block_s if cluster is None else REFRESH_S)
            )
        except SidecarError:
            if cluster is None:
                raise
        self._known.pop(topic, None)
        self._known[topic] = now + KNOWN_S, cluster
        for oldest in list(self._known)[:-TOPICS_KNOWN_MAX]:
            self._known.pop(oldest, None)  # another thread may have done so
        return cluster


def takes(function: Any, count: int) -> bool:
    """Whether a function of the program takes so many arguments by position."""
    try:
        signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a compiled one does not tell
        return True
    return True
