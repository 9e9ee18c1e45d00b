"""Claims that a broker's Metadata answer may make."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from sidecar.metadata.answer import PARTITIONS_MAX, parse_metadata


def _partition(index: int) -> Any:
    return SimpleNamespace(
        partition_index=index, error_code=0, leader_id=1, leader_epoch=0, isr_nodes=(1,), replica_nodes=(1,)
    )


def test_a_partition_number_that_cannot_be_is_left_out() -> None:
    """Whoever indexes a list by it would ask for that much memory."""
    indexes = (0, 1, PARTITIONS_MAX - 1, PARTITIONS_MAX, 2**31 - 1, -1)
    topic = SimpleNamespace(
        name="orders", error_code=0, is_internal=False, partitions=[_partition(index) for index in indexes]
    )
    entity = SimpleNamespace(brokers=(), cluster_id=None, topics=(topic,), throttle_time=timedelta())
    (found,) = parse_metadata(entity).topics
    assert [each.partition for each in found.partitions] == [0, 1, PARTITIONS_MAX - 1]
