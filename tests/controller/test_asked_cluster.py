"""Goal: a program that asks for another cluster, or for more acks, is refused, and none of this cluster is."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from sidecar.common.errors import Refused
from sidecar.common.model import Node
from sidecar.config.settings import SidecarConfig
from sidecar.controller.front.asked_cluster import (
    FOUND_MAX,
    LOOKUPS_MAX,
    SERVERS_MAX,
    SHOWN_MAX,
    AskedCluster,
    addresses,
)
from tests.configs import DEFAULTS

HOSTS = {
    "ours-1": "10.0.0.1",
    "alias": "10.0.0.1",
    "broker-1": "10.0.1.1",
    "b1": "10.0.1.1",
    "other": "10.9.0.1",
}
NODES = {1: Node(1, "broker-1", 9092), 2: Node(2, "broker-2", 9093)}


class Harness:
    """``names`` hang while they are in ``hanging``; all others are known or not by HOSTS."""

    def __init__(self, servers: str = "ours-1:9092", acks: str = "all") -> None:
        self.config = SidecarConfig(
            DEFAULTS | {"bootstrap.servers": [servers], "acks": -1 if acks == "all" else int(acks)}
        )
        self.nodes: dict[int, Node] = dict(NODES)
        self.hanging = asyncio.Event()
        self.looked_up: list[str] = []
        self.found = 0
        self.asked = AskedCluster(lambda: self.config, lambda: self.nodes, self.find, self.count)

    def count(self) -> None:
        self.found += 1

    async def find(self, host: str, port: int) -> list[Any]:
        self.looked_up.append(host)
        if host.startswith("hangs"):
            await self.hanging.wait()
        if host not in HOSTS:
            raise OSError("no such name")
        return [(socket.AF_INET, 0, 0, "", (HOSTS[host], port))]

    async def looked(self) -> None:
        """Wait for the look-ups under way."""
        found = self.found
        under_way = list(self.asked._lookups.values())
        await asyncio.wait(under_way)
        assert self.found == found + len(under_way), "the HELLOs that wait are tried again"

    async def verdict(self, asked: object) -> bool:
        """As a HELLO that is kept: asked again after each look-up."""
        while not self.asked.check(asked, "billing"):
            if not self.asked._lookups:
                return False
            await self.looked()
        return True


def run(act: Callable[[], Any]) -> Any:
    return asyncio.run(act())


@pytest.mark.parametrize(
    "servers",
    [
        "ours-1:9092",
        "OURS-1",  # librdkafka's default port
        "SASL_SSL://ours-1:9092",
        "other:9092, ours-1:9092",  # one of them is enough
        "broker-1:9092",  # as the brokers advertise
        "alias:9092",  # another name of the same address
        "10.0.0.1:9092",
        "b1:9092",  # another name of an advertised address
        ":::",
        "",
    ],
)
def test_the_daemons_own_cluster_by_any_name_is_taken(servers: str) -> None:
    HOSTS["10.0.0.1"] = "10.0.0.1"

    async def act() -> None:
        assert await Harness().verdict({"bootstrap.servers": servers})

    run(act)


@pytest.mark.parametrize(
    "servers", ["other:9092", "ours-1:9999", "no-such-host:9092", "other,nobody:1", "not an address"]
)
def test_another_cluster_is_refused_and_both_are_named(servers: str) -> None:
    async def act() -> None:
        with pytest.raises(Refused, match='Client "billing" asks for the cluster at') as refused:
            await Harness().verdict({"bootstrap.servers": servers})
        assert refused.value.code == "OTHER_CLUSTER"
        assert (
            f"bootstrap.servers={servers}, and this daemon sends to ours-1:9092, whose brokers are "
            in str(refused.value)
        )
        assert "broker-1:9092,broker-2:9093" in str(refused.value)

    run(act)


def test_before_the_first_metadata_nobody_is_refused() -> None:
    """The servers may be brokers of the cluster by their advertised names."""

    async def act() -> None:
        harness = Harness()
        harness.nodes = {}
        assert await harness.verdict({"bootstrap.servers": "ours-1:9092"}) is True
        assert await harness.verdict({"bootstrap.servers": "b1:9092"}) is False
        with pytest.raises(Refused) as refused:
            await harness.asked.wait({"bootstrap.servers": "b1:9092"})
        assert refused.value.code == "NOT_READY"
        harness.nodes = dict(NODES)
        assert await harness.verdict({"bootstrap.servers": "b1:9092"}) is True

    run(act)


def test_a_name_server_that_hangs_refuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.controller.front.asked_cluster.LOOKUP_S", 0.01)

    async def act() -> None:
        harness = Harness()
        assert harness.asked.check({"bootstrap.servers": "hangs:9092"}) is False
        await harness.looked()
        assert harness.asked.check({"bootstrap.servers": "hangs:9092"}) is False, "asked again"
        harness.asked.close()

    run(act)


def test_look_ups_are_kept_and_bounded() -> None:
    async def act() -> None:
        harness = Harness()
        for _ in range(3):
            assert await harness.verdict({"bootstrap.servers": "alias:9092"})
        assert harness.looked_up.count("alias") == 1
        for number in range(LOOKUPS_MAX + 1):
            harness.asked.check({"bootstrap.servers": f"hangs-{number}:9092"})
        assert len(harness.asked._lookups) == LOOKUPS_MAX
        harness.hanging.set()
        await harness.looked()
        for number in range(FOUND_MAX + 1):
            await harness.asked._look_up(frozenset({(f"host-{number}", 1)}))
        assert len(harness.asked._found) == FOUND_MAX

    run(act)


def test_so_many_servers_are_compared() -> None:
    names = [f"host-{number}:1" for number in range(SERVERS_MAX + 1)]
    assert len(addresses(names[:-1])) == len(addresses(names)) == SERVERS_MAX


@pytest.mark.parametrize(
    ("own", "asked", "is_taken"),
    [
        ("all", "all", True),
        ("all", "0", True),
        ("1", "1", True),
        ("1", "0", True),
        ("1", "all", False),
        ("1", "-1", False),
        ("1", -1, False),
        ("0", "1", False),
        ("0", "0", True),
        ("0", "nonsense", True),
    ],
)
def test_weaker_acks_than_asked_are_refused(own: str, asked: object, is_taken: bool) -> None:
    async def act() -> None:
        harness = Harness(acks=own)
        if is_taken:
            assert harness.asked.check({"acks": asked})
            return
        with pytest.raises(
            Refused, match=f"asks for acks={asked}, and this daemon sends with acks={own}"
        ) as refused:
            harness.asked.check({"acks": asked})
        assert refused.value.code == "WEAKER_ACKS"

    run(act)


@pytest.mark.parametrize(
    "asked", [None, 7, "text", [], {}, {"bootstrap.servers": 1}, {"acks": None}, {b"x": {}}]
)
def test_a_client_that_asks_for_no_cluster_is_taken(asked: object) -> None:
    async def act() -> None:
        assert Harness(acks="0").asked.check(asked)

    run(act)


def test_a_refusal_names_so_much() -> None:
    async def act() -> None:
        harness = Harness()
        harness.nodes = {number: Node(number, f"node-{number}", 9092) for number in range(100)}
        servers = ",".join(f"host-{number}:9092" for number in range(100))
        with pytest.raises(Refused) as refused:
            await harness.verdict({"bootstrap.servers": servers})
        said = str(refused.value)
        assert servers[:SHOWN_MAX] in said and servers[: SHOWN_MAX + 1] not in said
        assert len(said) < 2 * SHOWN_MAX + 300

    run(act)
