"""The bounds of a question for topics that waits: it needs no token, so it must not fill the controller."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.common.errors import Refused
from sidecar.config.loader import load_config
from sidecar.config.settings import SidecarConfig
from sidecar.controller.cluster.cluster import TOPICS_WAITED_MAX, Cluster


@pytest.fixture
def config() -> SidecarConfig:
    return load_config(None, ("bootstrap.servers=127.0.0.1:1",), need_servers=True)


def ask(config: SidecarConfig, names: list[str], max_wait_ms: float) -> Refused:
    async def run() -> Refused:
        cluster = Cluster(config)
        with pytest.raises(Refused) as caught:
            await cluster.topics(names, max_wait_ms)
        return caught.value

    return asyncio.run(run())


def test_a_question_waits_for_so_many_topics(config: SidecarConfig) -> None:
    names = [f"t{number}" for number in range(TOPICS_WAITED_MAX)]
    assert ask(config, names, 0).code == "METADATA_TIMEOUT"
    assert ask(config, [*names, "one more"], 0).code == "TOO_MANY_TOPICS"


def test_a_question_waits_so_long(config: SidecarConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.controller.cluster.cluster.TOPICS_WAIT_MS_MAX", 20.0)
    assert str(ask(config, ["t"], 3_600_000)).startswith("Topic t not present in metadata after 20 ms.")


def test_no_more_topics_are_looked_up_than_there_may_be(
    config: SidecarConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.controller.cluster.cluster.LOOKED_UP_MAX", 2)
    assert ask(config, ["a", "b"], 0).code == "METADATA_TIMEOUT"
    assert ask(config, ["a", "b", "c"], 0).code == "TOO_MANY_TOPICS"


def test_a_question_in_vain_names_why_no_broker_answers(config: SidecarConfig) -> None:
    async def run() -> Refused:
        cluster = Cluster(config)
        cluster.cluster_error_changed("Kafka is not reachable: its certificate has expired.")
        with pytest.raises(Refused) as caught:
            await cluster.topics(["t"], 0)
        return caught.value

    assert str(asyncio.run(run())).endswith("Kafka is not reachable: its certificate has expired.")
