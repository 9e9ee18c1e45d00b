"""The places of a worker in which an accepted record may wait, for the tests of deaths, takeovers and stops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from sidecar.common.errors import Code
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_frames import Api


class Place(NamedTuple):
    """Where records wait: how they come there, and what lets them go."""

    begin: Callable[[FakeBroker, SidecarDaemon], object]
    end: Callable[[FakeBroker, SidecarDaemon], object]
    topic: str = "orders"
    partition: int = 0


def _no_leader(kafka: FakeBroker, daemon: SidecarDaemon) -> None:
    kafka.add(on(Api.PRODUCE, times=ALWAYS).refuse(Code.NOT_LEADER_OR_FOLLOWER))
    kafka.move_leader("orders", 0, -1)


def _leader_again(kafka: FakeBroker, daemon: SidecarDaemon) -> None:
    kafka.clear_rules()
    kafka.move_leader("orders", 0, 1)


PLACES: Final = {
    "answer": Place(
        lambda kafka, daemon: kafka.add(on(Api.PRODUCE, times=ALWAYS).hold_answer()),
        lambda kafka, daemon: kafka.clear_rules(),
    ),
    "leader": Place(_no_leader, _leader_again),
    "partition": Place(
        lambda kafka, daemon: None, lambda kafka, daemon: kafka.create_topic("orders", 3), partition=2
    ),
    "resume": Place(
        lambda kafka, daemon: daemon.command("pause", "orders"),
        lambda kafka, daemon: daemon.command("resume", "orders"),
    ),
    "retry": Place(
        lambda kafka, daemon: kafka.add(on(Api.PRODUCE, times=ALWAYS).refuse(Code.NOT_ENOUGH_REPLICAS)),
        lambda kafka, daemon: kafka.clear_rules(),
    ),
    "topic": Place(
        lambda kafka, daemon: None, lambda kafka, daemon: kafka.create_topic("absent", 1), topic="absent"
    ),
}
