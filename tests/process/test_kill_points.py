"""Goal: a worker killed at any of the named points of its life or of its adoption costs nobody anything.

One daemon lives through all of them under load; the judge is a consumer that is not ours.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.kill_points.points import POINTS

from .kill_orders import ADOPTION_POINTS, LIVE_POINTS, TRANSACTION_POINTS, Kill, KillWorkload

INQUIRY_POINTS = tuple(point for point in ADOPTION_POINTS if point.startswith("inquiry."))

pytestmark = [pytest.mark.process, pytest.mark.kafka]


def plan() -> list[Kill]:
    """Every point once: those of normal work; then each of one adoption that is cut short again and again."""
    kills: list[Kill] = []
    for point in LIVE_POINTS:
        kills.append(Kill(point, during="live"))
        if point.startswith(("index.", "encode.")):
            # Something must get done in between: what is in work at three deaths would count as poison.
            kills.append(Kill("released.state", nth=5, during="live"))
    kills.append(Kill("send.all", nth=3, during="live"))
    kills += [Kill(point) for point in ADOPTION_POINTS if point not in ("adopt.pages_back", *INQUIRY_POINTS)]
    # Those that need the state which a death at another point leaves.
    kills += [Kill("words.done", nth=2, during="live"), Kill("adopt.pages_back")]
    for point in INQUIRY_POINTS:
        kills += [Kill("send.all", nth=3, during="live"), Kill(point)]
    return kills


def test_every_point(
    kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic, tmp_path: Path
) -> None:
    started_s = time.monotonic()
    with KillWorkload(kafka, start_daemon, new_topic, tmp_path / "orders") as workload:
        kills = plan()
        workload.carry_out(kills)
        killed_s = time.monotonic()
        workload.check()
        assert {line[0] for line in workload.passed()} == POINTS.keys() - set(TRANSACTION_POINTS), (
            "every registered point is passed"
        )
        print(
            f"\n{len(workload.passed())} kills in {killed_s - started_s:.0f} s, judged in "
            f"{time.monotonic() - killed_s:.0f} s; given again: {workload.slow}"
        )


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_every_point_at_any_pass(
    kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic, tmp_path: Path, seed: int
) -> None:
    """In any order, at later passes, and each also while the replacement adopts, where it comes by there."""
    random_ = random.Random(seed)
    in_adoption = [
        point for point in LIVE_POINTS if point.startswith(("tell.", "released.", "words.", "free."))
    ]
    with KillWorkload(kafka, start_daemon, new_topic, tmp_path / "orders") as workload:
        kills = [
            Kill(point, nth=random_.choice((1, 2, 3, 5)), during="live")
            for point in LIVE_POINTS
            if not point.startswith(("index.", "encode."))  # thrice at one submission would be poison
        ]
        lives = len(kills)
        for point in [*ADOPTION_POINTS, *in_adoption]:
            kills.append(Kill(random_.choice(("send.all", "done.state", "tell.head")), nth=2, during="live"))
            kills.append(Kill(point, during="adoption" if point in in_adoption else None))
        groups = [kills[:lives], kills[lives:]]
        random_.shuffle(groups[0])
        for group in groups:
            workload.carry_out(group)
        workload.check()
