"""Requests to the fake broker's coordinator, carried out and answered as messages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from sidecar.tools.testing.fake_coordinator import Ended, FakeCoordinator, Member, Offset
from sidecar.tools.testing.kafka_frames import Api, Request, build, response_type
from sidecar.tools.testing.refusals import MANY_COORDINATORS, refused

NOT_COORDINATOR: Final = 16
TRANSACTION_APIS: Final = frozenset(
    {
        Api.FIND_COORDINATOR,
        Api.INIT_PRODUCER_ID,
        Api.ADD_PARTITIONS_TO_TXN,
        Api.ADD_OFFSETS_TO_TXN,
        Api.END_TXN,
        Api.TXN_OFFSET_COMMIT,
    }
)


def coordinator_found(request: Request, node: int, host: str, port: int) -> Any:
    """The answer to FindCoordinator, of any version."""
    values: dict[str, Any] = {
        "throttle_time": timedelta(),
        "error_code": ErrorCode(0),
        "error_message": None,
        "node_id": node,
        "host": host,
        "port": port,
    }
    kind = response_type(Api.FIND_COORDINATOR, request.version)
    if request.version < MANY_COORDINATORS:
        return build(kind, **values)
    each = response_type(Api.FIND_COORDINATOR, request.version, "Coordinator")
    found = tuple(build(each, key=key, **values) for key in request.message.coordinator_keys)
    return build(kind, throttle_time=timedelta(), coordinators=found)


def coordinated(coordinator: FakeCoordinator, request: Request) -> Any:
    """Carry out a request to the coordinator."""
    message = request.message
    if request.api == Api.INIT_PRODUCER_ID:
        timeout_ms = message.transaction_timeout // timedelta(milliseconds=1)
        current = int(getattr(message, "producer_id", -1)), int(getattr(message, "producer_epoch", -1))
        return _identity(request, coordinator.init(message.transactional_id, timeout_ms, *current))
    if request.api == Api.END_TXN:
        ended = coordinator.end(
            message.transactional_id,
            int(message.producer_id),
            int(message.producer_epoch),
            bool(message.committed),
            request.version,
        )
        return _identity(request, ended)
    if request.api == Api.ADD_PARTITIONS_TO_TXN:
        partitions = [
            (topic.name, int(index)) for topic in message.v3_and_below_topics for index in topic.partitions
        ]
        code = coordinator.add_partitions(
            message.v3_and_below_transactional_id,
            int(message.v3_and_below_producer_id),
            int(message.v3_and_below_producer_epoch),
            partitions,
        )
        return refused(request, code)
    identity = message.transactional_id, int(message.producer_id), int(message.producer_epoch)
    if request.api == Api.ADD_OFFSETS_TO_TXN:
        return refused(request, coordinator.add_offsets(*identity))
    member = Member(
        int(getattr(message, "generation_id", -1)),
        getattr(message, "member_id", ""),
        getattr(message, "group_instance_id", None),
    )
    offsets = {
        (topic.name, int(each.partition_index)): Offset(
            int(each.committed_offset),
            int(getattr(each, "committed_leader_epoch", -1)),
            each.committed_metadata,
        )
        for topic in message.topics
        for each in topic.partitions
    }
    return refused(request, coordinator.commit_offsets(*identity, message.group_id, member, offsets))


def _identity(request: Request, ended: Ended) -> Any:
    return build(
        response_type(request.api, request.version),
        throttle_time=timedelta(),
        error_code=ErrorCode(ended.code),
        producer_id=ended.producer_id,
        producer_epoch=ended.epoch,
    )
