"""The clusters of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from tests.cluster.real_bed import LEVELS, SMALL, RealBed


@pytest.fixture(scope="module", params=LEVELS, ids=[f"{release}-{level}" for release, level in LEVELS])
def real(request: pytest.FixtureRequest) -> Iterator[RealBed]:
    release, level = request.param
    cluster = KafkaCluster(version=release, heap_mb=256, light=True, properties=SMALL)
    if level is not None:
        cluster.features["transaction.version"] = level
    with cluster, SidecarDaemon(cluster.bootstrap_servers, settings={"daemon.workers": 2}) as daemon:
        yield RealBed(cluster, daemon)
