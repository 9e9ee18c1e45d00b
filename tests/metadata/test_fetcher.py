"""MetadataFetcher against scripted brokers on real sockets: rules M1, M4-M7, M9, S6 as a waiting caller sees them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from net.fake_cluster import FakeCluster
from net.links import until

from sidecar.common.clock import MonotonicClock
from sidecar.controller.cluster.metadata_fetcher import MetadataFetcher
from sidecar.metadata.errors import (
    MetadataClosed,
    MetadataTimeout,
    TopicAuthorizationError,
)
from sidecar.metadata.metadata import MetadataConfig
from sidecar.net.kafka.connector import LinkError
from sidecar.protocol.connection_states import ConnectionConfig
from tests.configs import config_with, security
from tests.patience import PATIENCE_S, TEST_S

from .listener import NotingListener

PATIENCE_MS = PATIENCE_S * 1_000


@contextlib.asynccontextmanager
async def fetching(
    bootstrap: list[tuple[str, int]],
    *,
    backoff_ms: float = 20.0,
    max_age_ms: float = 300_000.0,
    recovery: str = "rebootstrap",
    trigger_ms: float = 300_000.0,
    clock: MonotonicClock | None = None,
    **connection: Any,
) -> AsyncIterator[tuple[MetadataFetcher, NotingListener]]:
    told = NotingListener()
    fetcher = MetadataFetcher(
        bootstrap,
        client_id="test",
        metadata_config=config_with(
            MetadataConfig,
            retry_backoff_ms=backoff_ms,
            retry_backoff_max_ms=backoff_ms * 4,
            metadata_max_age_ms=max_age_ms,
            metadata_recovery_strategy=recovery,
            metadata_recovery_rebootstrap_trigger_ms=trigger_ms,
        ),
        connection_config=config_with(
            ConnectionConfig, **{"reconnect_backoff_ms": 10.0, "reconnect_backoff_max_ms": 50.0, **connection}
        ),
        security=security(),
        listener=told,
        clock=clock,
    )
    fetcher.start()
    try:
        yield fetcher, told
    finally:
        await fetcher.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), TEST_S)

    asyncio.run(bounded())


@pytest.mark.parametrize("turns", range(6))
def test_it_ends_also_when_something_happens_at_that_moment(turns: int) -> None:
    """A broker is lost while the daemon is told to stop: the task is woken and cancelled in one turn of the loop."""

    async def test() -> None:
        async with fetching([("127.0.0.1", 1)], backoff_ms=600_000.0) as (fetcher, told):
            await until(lambda: bool(told.errors))
            fetcher.wake()
            for _ in range(turns):
                await asyncio.sleep(0)
            async with asyncio.timeout(PATIENCE_S):
                await fetcher.close()

    run(test)


class HurriedClock(MonotonicClock):
    """Time passes between any two looks at it, so a backoff ends between two of them as well."""

    def __init__(self) -> None:
        self._ahead_ms = 0.0

    def now_ms(self) -> float:
        self._ahead_ms += 4.0
        return super().now_ms() + self._ahead_ms


def test_a_backoff_that_ends_between_two_readings_of_the_clock_is_no_pause() -> None:
    """The fetcher waited a minute for a connection that it could have tried at once."""
    tries = 0

    def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        tries += 1
        writer.transport.abort()

    async def test() -> None:
        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        async with server, fetching([server.sockets[0].getsockname()], clock=HurriedClock()):
            await until(lambda: tries >= 40)

    run(test)


@pytest.mark.rule("M4")
def test_await_update() -> None:
    async def test() -> None:
        async with FakeCluster().running(1) as cluster, fetching(cluster.bootstrap(1)) as (fetcher, _):
            await fetcher.awaitable.await_update(0, PATIENCE_MS)
            version = fetcher.metadata.version
            assert version >= 1
            with pytest.raises(ValueError, match="max_wait_ms must not be negative"):
                await fetcher.awaitable.await_update(version, -1)
            with pytest.raises(TimeoutError, match=r"^Failed to update metadata after 30 ms\.$"):
                await fetcher.awaitable.await_update(version, 30)
            waiters = [
                asyncio.create_task(fetcher.awaitable.await_update(version, PATIENCE_MS)) for _ in range(50)
            ]
            assert fetcher.request_update() == version
            await asyncio.gather(*waiters)
            closed = asyncio.create_task(
                fetcher.awaitable.await_update(fetcher.metadata.version, PATIENCE_MS)
            )
            await asyncio.sleep(0)
            await fetcher.close()
            with pytest.raises(MetadataClosed, match="Requested metadata update after close"):
                await closed

    run(test)


def test_it_says_which_brokers_it_is_connected_to() -> None:
    """By their own names: the connection through which it found them is not one of a broker."""

    async def test() -> None:
        async with FakeCluster().running(1) as cluster, fetching(cluster.bootstrap(1)) as (fetcher, _):
            await fetcher.awaitable.await_update(0, PATIENCE_MS)
            assert fetcher.connected() == []
            await fetcher.awaitable.await_update(fetcher.request_update(), 5_000)
            assert fetcher.connected() == [(1, None)]
            cluster.answering = lambda _: False
            fetcher.request_update()
            await until(lambda: [since_ms is not None for _, since_ms in fetcher.connected()] == [True])

    run(test)


@pytest.mark.rule("M4")
def test_an_authentication_failure_is_raised_once_to_a_waiter() -> None:
    async def test() -> None:
        async with FakeCluster().running(1) as cluster, fetching(cluster.bootstrap(1)) as (fetcher, _):
            await fetcher.awaitable.await_update(0, PATIENCE_MS)
            cluster.answering = lambda _: False
            waiter = asyncio.create_task(fetcher.awaitable.await_update(fetcher.metadata.version, 200))
            await asyncio.sleep(0)
            fetcher.metadata.failed_update(0.0, "SASL says no")
            fetcher.awaitable.notify()
            with pytest.raises(Exception, match="SASL says no"):
                await waiter
            with pytest.raises(MetadataTimeout):
                await fetcher.awaitable.await_update(fetcher.metadata.version, 20)

    run(test)


@pytest.mark.rule("M5")
def test_cached_topics_return_at_once_without_a_request() -> None:
    async def test() -> None:
        cluster = FakeCluster()
        cluster.topics["t"] = [1, 1]
        async with cluster.running(1), fetching(cluster.bootstrap(1)) as (fetcher, _):
            first = await fetcher.awaitable.wait_on_metadata("t", PATIENCE_MS)
            assert len(first.partitions) == 2
            asked = len(cluster.asked)
            assert await fetcher.awaitable.wait_on_metadata("t", 0) is first, "even with no time at all"
            assert len(cluster.asked) == asked
            assert not fetcher.metadata.need_update

    run(test)


@pytest.mark.rule("M5")
def test_a_missing_topic_times_out_by_the_callers_own_wait_and_a_late_one_is_found() -> None:
    async def test() -> None:
        cluster = FakeCluster()
        async with cluster.running(1), fetching(cluster.bootstrap(1)) as (fetcher, told):
            with pytest.raises(
                MetadataTimeout, match=r"^Topic late not present in metadata after 150 ms\.$"
            ) as caught:
                await fetcher.awaitable.wait_on_metadata("late", 150)
            assert "'late' does not exist in the cluster" in str(caught.value.__cause__)
            assert told.topic_errors[-1]["late"].code == 3
            waiting = asyncio.create_task(fetcher.awaitable.wait_on_metadata("late", PATIENCE_MS))
            await until(lambda: len([each for each in cluster.asked if each.topics == ["late"]]) > 3)
            cluster.topics["late"] = [1]
            assert len((await waiting).partitions) == 1
            assert told.topic_errors[-1] == {}

    run(test)


@pytest.mark.rule("M9")
@pytest.mark.rule("M10")
def test_an_unauthorized_topic_fails_at_once_while_others_continue() -> None:
    async def test() -> None:
        cluster = FakeCluster()
        cluster.topics |= {"secret": 29, "fine": [1]}
        async with cluster.running(1), fetching(cluster.bootstrap(1)) as (fetcher, _):
            lost = asyncio.create_task(fetcher.awaitable.wait_on_metadata("unknown", 60_000))
            with pytest.raises(TopicAuthorizationError, match="Not authorized to access topic 'secret'"):
                await fetcher.awaitable.wait_on_metadata("secret", 60_000)
            assert len((await fetcher.awaitable.wait_on_metadata("fine", PATIENCE_MS)).partitions) == 1
            assert not lost.done()
            lost.cancel()

    run(test)


@pytest.mark.rule("M1")
@pytest.mark.rule("M6")
def test_many_askers_cause_few_requests() -> None:
    async def test() -> None:
        cluster = FakeCluster()
        async with cluster.running(1), fetching(cluster.bootstrap(1), backoff_ms=60.0) as (fetcher, _):
            await fetcher.awaitable.await_update(0, PATIENCE_MS)
            waiters = [
                asyncio.create_task(fetcher.awaitable.wait_on_metadata("t", PATIENCE_MS)) for _ in range(100)
            ]
            await until(lambda: len(cluster.asked) >= 4)
            cluster.topics["t"] = [1]
            await asyncio.gather(*waiters)
            # 100 askers; the distance itself is proved by a manual clock in test_metadata.py.
            assert len(cluster.asked) < 20
            assert cluster.asked[0].topics == [], "no topic in use yet: only the brokers are asked for"
            assert all(each.topics == ["t"] for each in cluster.asked[1:])

    run(test)


@pytest.mark.rule("M7")
def test_a_lost_connection_asks_for_an_update() -> None:
    async def test() -> None:
        async with FakeCluster().running(1) as cluster, fetching(cluster.bootstrap(1)) as (fetcher, told):
            await fetcher.awaitable.await_update(0, PATIENCE_MS)
            fetcher.request_update()  # by now over a link under the broker's own name
            await fetcher.awaitable.await_update(1, PATIENCE_MS)
            version = fetcher.metadata.version
            for peer in cluster.brokers[1].peers:
                peer.close()
            await fetcher.awaitable.await_update(version, PATIENCE_MS)
            assert not any(told.errors[:-1]), (
                "one lost link is no unreachable cluster once asking again works"
            )

    run(test)


@pytest.mark.rule("S6")
def test_when_all_known_brokers_are_gone_the_bootstrap_is_asked_again() -> None:
    """Bootstrap names A and B; A up, B down. Then A goes and B comes: found only by asking the bootstrap again."""

    async def test() -> None:
        cluster = FakeCluster()
        cluster.topics["t"] = [1]
        async with cluster.running(1, 2):
            bootstrap = cluster.bootstrap(1, 2)
            port = await cluster.stop(2)
            cluster.listed = [1]
            async with fetching(bootstrap) as (fetcher, told):
                await fetcher.awaitable.wait_on_metadata("t", PATIENCE_MS)
                assert set(fetcher.snapshot.nodes) == {1}
                await cluster.stop(1)
                cluster.listed = [2]
                cluster.topics["t"] = [2, 2]
                fetcher.request_update()
                await until(lambda: any(told.errors))
                assert str(bootstrap[0][1]) in fetcher.last_error
                assert "Kafka is not reachable" in fetcher.last_error
                await cluster.start(2, port)
                await until(lambda: set(fetcher.snapshot.nodes) == {2})
                assert fetcher.last_error == ""
                assert told.errors[-1] == ""
                await until(lambda: fetcher.snapshot.partition_count("t") == 2)

    run(test)


@pytest.mark.rule("S6")
def test_known_brokers_that_take_connections_and_never_answer_give_way_to_the_bootstrap() -> None:
    """KIP-1102: without the trigger the one known broker would be waited for until request.timeout.ms."""

    async def test() -> None:
        cluster = FakeCluster()
        async with cluster.running(1, 2):
            cluster.listed = [1]
            async with fetching(cluster.bootstrap(2), trigger_ms=50.0, request_timeout_ms=60_000.0) as (
                fetcher,
                _,
            ):
                await fetcher.awaitable.await_update(0, PATIENCE_MS)
                assert set(fetcher.snapshot.nodes) == {1}
                cluster.answering = lambda broker_id: broker_id != 1
                version = fetcher.request_update()
                await fetcher.awaitable.await_update(version, PATIENCE_MS)
                assert cluster.asked[-1].broker == 2
                assert 1 in {asked.broker for asked in cluster.asked}

    run(test)


@pytest.mark.rule("S6")
def test_without_recovery_only_known_brokers_are_asked() -> None:
    async def test() -> None:
        cluster = FakeCluster()
        async with cluster.running(1, 2):
            cluster.listed = [1]
            async with fetching(cluster.bootstrap(2), recovery="none", trigger_ms=10.0) as (fetcher, told):
                await fetcher.awaitable.await_update(0, PATIENCE_MS)
                port = await cluster.stop(1)
                version = fetcher.request_update()
                await until(lambda: any(told.errors))
                await cluster.start(1, port)
                await fetcher.awaitable.await_update(version, PATIENCE_MS)
                assert [asked.broker for asked in cluster.asked].count(2) == 1
                assert cluster.asked[-1].broker == 1

    run(test)


@pytest.mark.rule("S6")
def test_a_broker_that_never_answers_is_left_for_another() -> None:
    async def test() -> None:
        cluster = FakeCluster()
        cluster.answering = lambda broker_id: broker_id != 1
        async with (
            cluster.running(1, 2),
            fetching(cluster.bootstrap(1, 2), request_timeout_ms=80.0) as (fetcher, _),
        ):
            for _ in range(4):
                version = fetcher.request_update()
                await fetcher.awaitable.await_update(version, PATIENCE_MS)

    run(test)


def test_an_answer_without_brokers_is_not_believed() -> None:
    """A broker that is just starting knows nothing; taking its word would cost every topic its leaders."""

    async def test() -> None:
        cluster = FakeCluster()
        cluster.topics["t"] = [1]
        async with cluster.running(1), fetching(cluster.bootstrap(1)) as (fetcher, told):
            await fetcher.awaitable.wait_on_metadata("t", PATIENCE_MS)
            version = fetcher.metadata.version
            cluster.listed = []
            fetcher.request_update()
            await until(lambda: any("names no brokers" in each for each in told.errors))
            assert fetcher.metadata.version == version
            assert fetcher.snapshot.available_partitions("t") == (0,)
            cluster.listed = [1]
            await fetcher.awaitable.await_update(version, PATIENCE_MS)

    run(test)


def test_all_topics_are_fetched_next_to_those_in_use() -> None:
    async def test() -> None:
        cluster = FakeCluster()
        cluster.topics |= {"a": [1], "b": [1, -1]}
        async with cluster.running(1), fetching(cluster.bootstrap(1)) as (fetcher, _):
            answer = await fetcher.fetch_all_topics()
            assert {each.name: len(each.partitions) for each in answer.topics} == {"a": 1, "b": 2}
            answer = await fetcher.fetch_all_topics(topics=["b", "none"])
            assert {each.name: each.error_code for each in answer.topics} == {"b": 0, "none": 3}
            assert fetcher.metadata.topics == frozenset()

    run(test)


def test_fetching_all_topics_from_nobody_says_who_was_asked() -> None:
    async def test() -> None:
        cluster = FakeCluster()
        async with cluster.running(1):
            port = await cluster.stop(1)
            async with fetching([("127.0.0.1", port)]) as (fetcher, _):
                words = rf"bootstrap.servers 127.0.0.1:{port}.* to 127.0.0.1:{port}: Connection refused\."
                with pytest.raises(LinkError, match=words):
                    await fetcher.fetch_all_topics(150)

    run(test)


def test_a_start_that_takes_long_is_said_before_an_attempt_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An attempt may last 10 s and more, for each address of bootstrap.servers."""

    async def test() -> None:
        cluster = FakeCluster()
        async with cluster.running(1):
            with socket.create_server(("127.0.0.1", 0)) as mute:
                async with fetching([mute.getsockname()]) as (fetcher, told):
                    await until(lambda: "has accepted" in fetcher._links.slow_step(-1, float("inf")))
                    fetcher.log_slow_start()
                    assert told.errors == [], "not at once"
                    monkeypatch.setattr("sidecar.net.kafka.cluster_links.SILENT_MS", 0.0)
                    for _ in range(2):
                        fetcher.log_slow_start()
                    (error,) = told.errors
                    assert "127.0.0.1 has accepted the connection and not answered yet" in error
                    fetcher.use(cluster.bootstrap(1), config_with(ConnectionConfig))
                    await until(lambda: told.errors[-1] == "")
                    fetcher.log_slow_start()
                    assert told.errors[-1] == ""

    run(test)


def test_no_bootstrap_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"bootstrap\.servers"):
        MetadataFetcher(
            [],
            client_id=None,
            metadata_config=config_with(MetadataConfig),
            connection_config=config_with(ConnectionConfig),
            security=security(),
            listener=NotingListener(),
        )
