"""Goal: a request to a coordinator has its bytes in each version that a broker may offer, and an answer its words."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.common.model import Node, ProducerIdAndEpoch, TopicPartition
from sidecar.producer.coordinator_requests import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    CoordinatorRequest,
    EndTransaction,
    FindCoordinator,
    InitTransactionalId,
)
from sidecar.protocol.api_versions import SUPPORTED_VERSIONS
from sidecar.protocol.coordinators import CommittedOffset, GroupMember
from sidecar.protocol.messages import encode_request
from sidecar.worker.transactions.coordinator_messages import API_KEYS, answer_of, message_of

NODE = Node(1, "kafka", 9092)
MINE = ProducerIdAndEpoch(0x1122334455, 7)
IN_3 = TopicPartition("in", 3)
REQUESTS: list[CoordinatorRequest] = [
    FindCoordinator("copy-1", is_group=False),
    InitTransactionalId(NODE, "copy-1", 60_000, MINE),
    AddPartitions(NODE, "copy-1", MINE, (IN_3, TopicPartition("in", 4), TopicPartition("out", 0))),
    AddOffsets(NODE, "copy-1", MINE, "group"),
    CommitOffsets(
        NODE,
        "copy-1",
        MINE,
        GroupMember("group", 5, "member", None),
        (CommittedOffset("in", 3, 17, -1, None),),
        5,
    ),
    EndTransaction(NODE, "copy-1", MINE, is_commit=True, version_max=5),
]
CASES = [
    (request, version)
    for request in REQUESTS
    for low, high in (SUPPORTED_VERSIONS[API_KEYS[type(request)]],)
    for version in range(low, high + 1)
]


@pytest.mark.parametrize(
    ("request_", "version"), CASES, ids=[f"{type(each).__name__}-{version}" for each, version in CASES]
)
def test_request_has_its_bytes_in_each_version(request_: CoordinatorRequest, version: int) -> None:
    frame = encode_request(message_of(request_, version), 9, "client")
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert frame[4:8] == API_KEYS[type(request_)].to_bytes(2, "big") + version.to_bytes(2, "big")
    assert b"copy-1" in frame
    if not isinstance(request_, FindCoordinator | InitTransactionalId):
        assert MINE.producer_id.to_bytes(8, "big") + MINE.epoch.to_bytes(2, "big") in frame


def entity(**fields: Any) -> Any:
    return SimpleNamespace(throttle_time=timedelta(0), **fields)


def partitions(**fields: Any) -> Any:
    return [SimpleNamespace(name="in", **fields)]


@pytest.mark.parametrize(
    ("number", "version", "answer", "code", "words"),
    [
        (
            0,
            3,
            entity(error_code=15, error_message=None, node_id=-1, host="", port=-1),
            15,
            "FindCoordinator",
        ),
        (1, 5, entity(error_code=50, producer_id=-1, producer_epoch=-1), 50, "transaction_timeout_ms=60000"),
        (1, 5, entity(error_code=49, producer_id=-1, producer_epoch=-1), 49, "InitProducerId"),
        (3, 3, entity(error_code=51), 51, "AddOffsetsToTxn with CONCURRENT_TRANSACTIONS"),
        (5, 4, entity(error_code=90), 90, "EndTxn with PRODUCER_FENCED"),
    ],
)
def test_refusal_has_its_code_and_a_sentence(
    number: int, version: int, answer: Any, code: int, words: str
) -> None:
    found = answer_of(REQUESTS[number], version, answer)
    assert found.code == code and words in found.text


REFUSED_ID = 'not allowed to use transactional id "copy-1": grant it WRITE on that TransactionalId.'
REFUSED_GROUP = 'not allowed to commit offsets of group "group": grant it READ on that Group.'


@pytest.mark.parametrize(
    ("request_", "version", "answer", "text"),
    [
        (
            REQUESTS[0],
            3,
            entity(
                error_code=53,
                error_message="Transactional Id authorization failed.",
                node_id=-1,
                host="",
                port=-1,
            ),
            REFUSED_ID,
        ),
        (
            FindCoordinator("group", is_group=True),
            3,
            entity(error_code=30, error_message=None, node_id=-1, host="", port=-1),
            REFUSED_GROUP,
        ),
        (REQUESTS[1], 5, entity(error_code=53, producer_id=-1, producer_epoch=-1), REFUSED_ID),
        (REQUESTS[3], 3, entity(error_code=30), REFUSED_GROUP),
        (
            REQUESTS[4],
            5,
            entity(topics=partitions(partitions=[SimpleNamespace(partition_index=3, error_code=30)])),
            REFUSED_GROUP,
        ),
        (REQUESTS[5], 4, entity(error_code=53), REFUSED_ID),
    ],
    ids=["find id", "find group", "init", "add offsets", "commit offsets", "end"],
)
def test_missing_grant_is_named(request_: CoordinatorRequest, version: int, answer: Any, text: str) -> None:
    """And which one to give, whatever the broker's own words are."""
    assert answer_of(request_, version, answer).text == f"The daemon's user is {text}"


def test_answers_give_what_was_asked_for() -> None:
    found = answer_of(
        REQUESTS[0], 3, entity(error_code=0, error_message="", node_id=1, host="kafka", port=9092)
    )
    assert found.coordinator == NODE
    found = answer_of(REQUESTS[1], 5, entity(error_code=0, producer_id=9, producer_epoch=2))
    assert (found.code, found.identity) == (0, ProducerIdAndEpoch(9, 2))
    found = answer_of(REQUESTS[5], 5, entity(error_code=0, producer_id=9, producer_epoch=3))
    assert found.identity == ProducerIdAndEpoch(9, 3)
    added = [SimpleNamespace(partition_index=3, partition_error_code=29)]
    found = answer_of(
        REQUESTS[2], 3, entity(results_by_topic_v3_and_below=partitions(results_by_partition=added))
    )
    assert found.partition_codes == {IN_3: 29}
    committed = [SimpleNamespace(partition_index=3, error_code=22)]
    found = answer_of(REQUESTS[4], 5, entity(topics=partitions(partitions=committed)))
    assert found.partition_codes == {IN_3: 22} and "ILLEGAL_GENERATION" in found.text
    assert answer_of(REQUESTS[3], 3, entity(error_code=0)).code == 0
