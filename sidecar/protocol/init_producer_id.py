"""InitProducerId: a producer identity for the idempotent producer. Sans-IO."""

from __future__ import annotations

from typing import Any, NamedTuple

from sidecar.common.model import NO_PRODUCER_ID, ProducerIdAndEpoch
from sidecar.protocol.messages import ApiKey, RequestMessage, request_module

INT32_MAX = (1 << 31) - 1


class InitProducerIdResult(NamedTuple):
    """``identity`` is NO_PRODUCER_ID exactly when ``error_code`` is not 0."""

    error_code: int
    identity: ProducerIdAndEpoch


def init_producer_id_request(
    version: int,
    *,
    transactional_id: str | None = None,
    transaction_timeout_ms: int = INT32_MAX,
    current: ProducerIdAndEpoch = NO_PRODUCER_ID,
) -> RequestMessage:
    """Request a producer id, or with ``current`` (from v3 on) the next epoch of that one."""
    from datetime import timedelta

    fields: dict[str, Any] = {
        "transactional_id": transactional_id,
        "transaction_timeout": timedelta(milliseconds=transaction_timeout_ms),
    }
    if version >= 3:
        fields |= {"producer_id": current.producer_id, "producer_epoch": current.epoch}
    message: RequestMessage = request_module(ApiKey.INIT_PRODUCER_ID, version).InitProducerIdRequest(**fields)
    return message


def parse_init_producer_id(entity: Any) -> InitProducerIdResult:
    """Read the response entity. Right after its start a broker may answer without an error code but with id -1: that
    becomes an error, because records under such an id would not be idempotent.
    """
    code = int(entity.error_code)
    identity = ProducerIdAndEpoch(int(entity.producer_id), int(entity.producer_epoch))
    if code == 0 and not identity.is_valid:
        code = -1  # Kafka: UNKNOWN_SERVER_ERROR
    return InitProducerIdResult(code, NO_PRODUCER_ID if code else identity)
