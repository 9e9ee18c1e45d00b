"""The fetcher and a link against a real broker: what a scripted one might get wrong in the same way as we do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from net.links import NotingLinks, until

from sidecar.common.model import NO_PRODUCER_ID, Node
from sidecar.controller.cluster.metadata_fetcher import MetadataFetcher
from sidecar.metadata.answer import parse_metadata
from sidecar.metadata.errors import InvalidTopicError
from sidecar.metadata.metadata import MetadataConfig
from sidecar.protocol.connection_states import ConnectionConfig
from sidecar.protocol.init_producer_id import init_producer_id_request, parse_init_producer_id
from sidecar.protocol.messages import ApiKey
from sidecar.protocol.metadata import metadata_request
from sidecar.protocol.produce import ProduceTopic, decode_produce_response, encode_produce
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from tests.configs import config_with, security

from .listener import NotingListener

pytestmark = pytest.mark.kafka


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 60)

    asyncio.run(bounded())


def bootstrap(kafka: KafkaCluster) -> list[tuple[str, int]]:
    return [
        (host, int(port))
        for host, port in (each.rsplit(":", 1) for each in kafka.bootstrap_servers.split(","))
    ]


@pytest.mark.rule("M5")
def test_topics_of_a_real_cluster(kafka: KafkaCluster, new_topic: NewTopic) -> None:
    name = new_topic(partitions=3)

    async def test() -> None:
        fetcher = MetadataFetcher(
            bootstrap(kafka),
            client_id="test",
            metadata_config=config_with(MetadataConfig),
            connection_config=config_with(ConnectionConfig),
            security=security(),
            listener=NotingListener(),
            allow_auto_create_topics=False,
        )
        fetcher.start()
        try:
            assert len((await fetcher.awaitable.wait_on_metadata(name, 30_000)).partitions) == 3
            assert fetcher.snapshot.available_partitions(name) == (0, 1, 2)
            assert fetcher.snapshot.topic_id(name) is not None
            state = fetcher.snapshot.partition(name, 0)
            assert state is not None and state.leader_epoch >= 0
            assert fetcher.snapshot.cluster_id
            with pytest.raises(InvalidTopicError, match="not a valid topic name"):
                await fetcher.awaitable.wait_on_metadata("no/such name", 30_000)
            with pytest.raises(
                TimeoutError, match="Topic missing-topic not present in metadata after 400 ms"
            ):
                await fetcher.awaitable.wait_on_metadata("missing-topic", 400)
            answer = await fetcher.fetch_all_topics()
            assert name in {topic.name for topic in answer.topics}
        finally:
            await fetcher.close()

    run(test)


def test_every_version_that_both_sides_speak(kafka: KafkaCluster, new_topic: NewTopic) -> None:
    """Metadata, InitProducerId and Produce in each version the broker offers: accepted, and read back right."""
    name = new_topic(partitions=1)

    async def test() -> None:
        noting = NotingLinks()
        host, port = bootstrap(kafka)[0]
        link = await noting.connect(Node(-1, host, port))
        topic_id = None
        for version in range(4, (link.version(ApiKey.METADATA) or 0) + 1):
            answer = parse_metadata(await link.request(metadata_request(version, [name])))
            assert [(topic.name, len(topic.partitions)) for topic in answer.topics] == [(name, 1)], version
            topic_id = answer.topics[0].topic_id
        assert topic_id is not None
        ids = set()
        for version in range((link.version(ApiKey.INIT_PRODUCER_ID) or 0) + 1):
            async with asyncio.timeout(30):
                while True:
                    result = parse_init_producer_id(await link.request(init_producer_id_request(version)))
                    if result.error_code == 0:
                        break
                    # Right after its start a broker is still loading, and names the id -1.
                    assert (result.error_code, result.identity) == (14, NO_PRODUCER_ID)
                    await asyncio.sleep(0.05)
            ids.add(result.identity.producer_id)
        assert len(ids) == version + 1
        batch = plain_batch(b"hello")
        highest = link.version(ApiKey.PRODUCE)
        assert highest is not None
        offsets = []
        for version in range(3, highest + 1):
            link.produce_version = version
            correlation_id = link.take_correlation_id()
            topics = [ProduceTopic(name, topic_id, [(0, memoryview(batch))])]
            link.send_buffers(
                correlation_id, encode_produce(version, correlation_id, "test", -1, 5_000, None, topics)
            )
            seen = len(offsets)
            await until(lambda: len(noting.responses) > seen)  # noqa: B023
            response = decode_produce_response(version, noting.responses[-1][1])
            assert [each.error_code for each in response.results] == [0], (version, response)
            assert response.results[0].partition == 0
            offsets.append(response.results[0].base_offset)
        assert offsets == list(range(len(offsets)))
        assert highest >= 11
        noting.links.close_all()

    run(test)


def plain_batch(value: bytes) -> bytes:
    """One record, no idempotence, by kafka-python's own encoder."""
    from kafka.record.default_records import DefaultRecordBatchBuilder

    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=10_000,
    )
    builder.append(0, timestamp=1_700_000_000_000, key=None, value=value, headers=[])
    return bytes(builder.build())
