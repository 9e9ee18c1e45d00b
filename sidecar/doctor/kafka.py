"""Checks the cluster as the daemon would use it: credentials, a first broker, all others, rights on topics.

`kafka-sidecar doctor` calls it, on a loop of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from client_stub.contract.error_codes import code_row
from sidecar.common.errors import Code
from sidecar.common.model import Node
from sidecar.common.wording import counted
from sidecar.config.settings import SidecarConfig
from sidecar.doctor.brokers import BrokerWalk, bootstrap_nodes
from sidecar.doctor.findings import Finding
from sidecar.doctor.login import login_findings
from sidecar.metadata.answer import MetadataAnswer, parse_metadata
from sidecar.net.kafka.connector import authenticator_of
from sidecar.protocol.init_producer_id import init_producer_id_request, parse_init_producer_id
from sidecar.protocol.messages import ApiKey, ProtocolError
from sidecar.protocol.metadata import metadata_request

BROKERS_MAX: Final = 32
"""Limit of brokers that are checked, one after another: each takes seconds if a firewall drops packets."""
WRITE_BIT: Final = 1 << 4
"""Kafka's AclOperation.WRITE is 4."""
RIGHTS_VERSION: Final = 8
UNKNOWN_RIGHTS: Final = -(1 << 31)


async def kafka_findings(config: SidecarConfig, topics: Sequence[str]) -> AsyncIterator[Finding]:
    """All findings about Kafka, in the order of the steps. Each step needs the ones before it."""
    authenticator = authenticator_of(config.values)
    async for finding in login_findings(config.values, authenticator):
        yield finding
        if finding.mark == "FAIL":
            yield Finding("skip", "Brokers and topics were not tried: there is nothing to log in with.")
            return
    walk = BrokerWalk(config.values, authenticator)
    try:
        async for finding in _walk_all(walk, config, topics, has_login=authenticator is not None):
            yield finding
    finally:
        walk.close()


async def _walk_all(
    walk: BrokerWalk, config: SidecarConfig, topics: Sequence[str], *, has_login: bool
) -> AsyncIterator[Finding]:
    nodes = bootstrap_nodes(config)
    good: Node | None = None
    for node in nodes:
        async for finding in walk.walk(node, failure="warn" if len(nodes) > 1 else "FAIL"):
            yield finding
        if walk.opened is not None:
            good = node
    if good is None:
        if len(nodes) > 1:
            yield Finding("FAIL", "No broker of bootstrap.servers can be used from this host.")
        yield Finding(
            "skip", "Other brokers, the producer id and topics were not tried: there is no broker to ask."
        )
        return
    if walk.opened is None:
        async for _ in walk.walk(good):
            pass
    try:
        answer, rights = await _metadata(walk, topics)
    except (OSError, ProtocolError, TimeoutError) as error:
        hint = "." if has_login else "; does it want a login (security.protocol, sasl.mechanism)?"
        yield Finding(
            "FAIL",
            f"{good.host}:{good.port} does not say its metadata ({error or 'no answer in time'}){hint}",
        )
        return
    yield Finding("ok", f"The cluster {answer.cluster_id} has {counted(len(answer.brokers), 'broker')}.")
    user = str(config.values["sasl.username"] or "the daemon's user")
    if config.values["enable.idempotence"]:
        yield await _producer_id(walk)
    for name in topics:
        yield _topic(name, answer, rights, user)
    tried = {node[1:3] for node in nodes}
    others = [broker for broker in answer.brokers if broker[1:3] not in tried]
    for broker in others[:BROKERS_MAX]:
        async for finding in walk.walk(broker):
            yield finding
    if len(others) > BROKERS_MAX:
        yield Finding("skip", f"{len(others) - BROKERS_MAX} more brokers were not tried.")


async def _metadata(walk: BrokerWalk, topics: Sequence[str]) -> tuple[MetadataAnswer, Mapping[str, int]]:
    """The metadata answer, and each topic's rights as bits if the broker reports them."""
    assert walk.opened is not None
    version = walk.opened.versions[ApiKey.METADATA]
    request = metadata_request(version, topics, allow_auto_topic_creation=False, with_topic_rights=True)
    entity = await walk.ask(request)
    rights = {
        str(each.name): int(each.topic_authorized_operations)
        for each in entity.topics
        if version >= RIGHTS_VERSION
    }
    return parse_metadata(entity), rights


async def _producer_id(walk: BrokerWalk) -> Finding:
    """Check InitProducerId by requesting an id: a cluster has 2^63 of them."""
    assert walk.opened is not None
    try:
        for _ in range(10):
            version = walk.opened.versions[ApiKey.INIT_PRODUCER_ID]
            result = parse_init_producer_id(await walk.ask(init_producer_id_request(version)))
            if result.error_code != Code.COORDINATOR_LOAD_IN_PROGRESS:
                break
            await asyncio.sleep(0.5)
    except (OSError, ProtocolError, TimeoutError, KeyError) as error:
        return Finding("FAIL", f"InitProducerId got no answer: {error or 'not in time'}.")
    if not result.error_code:
        return Finding("ok", "The broker gives a producer id.")
    row = code_row(result.error_code)
    hint = (
        ": grant IdempotentWrite on the cluster"
        if result.error_code == Code.CLUSTER_AUTHORIZATION_FAILED
        else ""
    )
    return Finding("FAIL", f"The broker refuses a producer id (InitProducerId): {row.name}{hint}.")


def _topic(name: str, answer: MetadataAnswer, rights: Mapping[str, int], user: str) -> Finding:
    topic = next((each for each in answer.topics if each.name == name), None)
    if topic is None:
        return Finding("FAIL", f"Topic {name}: the broker does not answer for it.")
    if topic.error_code == Code.TOPIC_AUTHORIZATION_FAILED:
        return Finding("FAIL", f"Topic {name}: {user} may not see it; grant it Write.")
    if topic.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION:
        return Finding("FAIL", f"Topic {name} does not exist: create it, or correct the name.")
    if topic.error_code:
        return Finding("FAIL", f"Topic {name}: {code_row(topic.error_code).name}.")
    shown = f"Topic {name} has {counted(len(topic.partitions), 'partition')}"
    granted = rights.get(name, UNKNOWN_RIGHTS)
    if granted != UNKNOWN_RIGHTS and not granted & WRITE_BIT:
        return Finding("FAIL", f"{shown}, and {user} may not write to it; grant it Write.")
    leaderless = [str(each.partition) for each in topic.partitions if each.leader < 0]
    if leaderless:
        return Finding("warn", f"{shown}, without a leader for {', '.join(leaderless)}: are brokers down?")
    return Finding("ok", f"{shown}, and {user} may write to it.")
