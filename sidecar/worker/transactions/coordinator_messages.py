"""Requests of the core to coordinators as Kafka's messages, and Kafka's answers as the core takes them."""

from __future__ import annotations

from typing import Any, Final

from sidecar.common.errors import Code, classify
from sidecar.producer.coordinator_requests import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    CoordinatorAnswer,
    CoordinatorRequest,
    EndTransaction,
    FindCoordinator,
    InitTransactionalId,
)
from sidecar.protocol.coordinators import (
    add_offsets_request,
    add_partitions_request,
    commit_offsets_request,
    end_txn_request,
    find_coordinator_request,
    parse_add_partitions,
    parse_commit_offsets,
    parse_end_txn,
    parse_find_coordinator,
)
from sidecar.protocol.init_producer_id import init_producer_id_request, parse_init_producer_id
from sidecar.protocol.messages import ApiKey, RequestMessage

API_KEYS: Final[dict[type[CoordinatorRequest], ApiKey]] = {
    FindCoordinator: ApiKey.FIND_COORDINATOR,
    InitTransactionalId: ApiKey.INIT_PRODUCER_ID,
    AddPartitions: ApiKey.ADD_PARTITIONS_TO_TXN,
    AddOffsets: ApiKey.ADD_OFFSETS_TO_TXN,
    CommitOffsets: ApiKey.TXN_OFFSET_COMMIT,
    EndTransaction: ApiKey.END_TXN,
}


def message_of(request: CoordinatorRequest, version: int) -> RequestMessage:
    """The message, in the version that both ends have."""
    match request:
        case FindCoordinator():
            return find_coordinator_request(version, request.key, is_group=request.is_group)
        case InitTransactionalId():
            return init_producer_id_request(
                version,
                transactional_id=request.transactional_id,
                transaction_timeout_ms=request.timeout_ms,
                current=request.current,
            )
        case AddPartitions():
            return add_partitions_request(
                version, request.transactional_id, request.identity, request.partitions
            )
        case AddOffsets():
            return add_offsets_request(version, request.transactional_id, request.identity, request.group_id)
        case CommitOffsets():
            return commit_offsets_request(
                version, request.transactional_id, request.identity, request.member, request.offsets
            )
    return end_txn_request(version, request.transactional_id, request.identity, is_commit=request.is_commit)


def answer_of(request: CoordinatorRequest, version: int, entity: Any) -> CoordinatorAnswer:
    """What the broker's answer says, with a sentence for each error."""
    match request:
        case FindCoordinator():
            found = parse_find_coordinator(entity)
            text = _missing_grant(request, found.error_code) or found.error_message
            text = text or _text(request, found.error_code)
            return CoordinatorAnswer(found.error_code, text, coordinator=found.node)
        case InitTransactionalId():
            result = parse_init_producer_id(entity)
            return CoordinatorAnswer(result.error_code, _text(request, result.error_code), result.identity)
        case AddPartitions():
            return CoordinatorAnswer(0, partition_codes=parse_add_partitions(entity))
        case CommitOffsets():
            codes = parse_commit_offsets(entity)
            code = next(filter(None, codes.values()), 0)
            return CoordinatorAnswer(0, _text(request, code), partition_codes=codes)
        case AddOffsets():
            code = int(entity.error_code)
            return CoordinatorAnswer(code, _text(request, code))
    end = parse_end_txn(version, entity)
    return CoordinatorAnswer(end.error_code, _text(request, end.error_code), end.identity)


def _text(request: CoordinatorRequest, code: int) -> str:
    """Why the request was refused, for the client's error."""
    if not code:
        return ""
    asked = API_KEYS[type(request)].name.title().replace("_", "")
    row = classify(code)
    if isinstance(request, InitTransactionalId) and row.name == "INVALID_TRANSACTION_TIMEOUT":
        return (
            f"transaction_timeout_ms={request.timeout_ms} is above the brokers' transaction.max.timeout.ms; set a "
            "lower one."
        )
    return _missing_grant(request, code) or f"The broker answered {asked} with {row.name}: {row.text}"


def _missing_grant(request: CoordinatorRequest, code: int) -> str:
    """The sentence of a refusal by the brokers' ACLs; empty for any other code."""
    if code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        name = request.key if isinstance(request, FindCoordinator) else request.transactional_id
        grant = "grant it WRITE on that TransactionalId"
        return f'The daemon\'s user is not allowed to use transactional id "{name}": {grant}.'
    if code == Code.GROUP_AUTHORIZATION_FAILED:
        grant = "grant it READ on that Group"
        return (
            f'The daemon\'s user is not allowed to commit offsets of group "{_group_of(request)}": {grant}.'
        )
    return ""


def _group_of(request: CoordinatorRequest) -> str:
    match request:
        case FindCoordinator():
            return request.key
        case AddOffsets():
            return request.group_id
        case CommitOffsets():
            return request.member.group_id
    return ""
