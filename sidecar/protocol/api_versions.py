"""ApiVersions: negotiates the version of each API. Sans-IO.

A broker that does not know the requested version of ApiVersions answers error 35 with a body of v0 (KIP-511), and some
send a body that no strict decoder accepts. So the error code, always the first two bytes, is read before anything
else. On 35 the request is sent again as v0.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sidecar.common.errors import Code
from sidecar.protocol.messages import (
    ApiKey,
    ProtocolError,
    RequestMessage,
    decode_response,
    request_module,
)

FIRST_VERSION: Final = 3
FALLBACK_VERSION: Final = 0
FEATURES_VERSION: Final = 3
"""From this version on, the answer has the finalised features."""
_ERROR_CODE: Final = struct.Struct(">h")

# Versions that this client can speak. Produce 3 is the first with v2 batches; Metadata 4 the first that can say
# whether topics may be created; FindCoordinator 1 that finds those of transactions, and 3 the last that asks for one;
# InitProducerId 6 (two-phase commit) is not used; AddPartitionsToTxn 4 is for brokers; TxnOffsetCommit 3 is the first
# that names the member of the group; Fetch 11 is the last that names the topic without flexible fields, ListOffsets 1
# the first with one offset. SaslHandshake 0 is followed by bytes without requests around them.
SUPPORTED_VERSIONS: Final[Mapping[int, tuple[int, int]]] = {
    ApiKey.PRODUCE: (3, 13),
    ApiKey.FETCH: (4, 11),
    ApiKey.LIST_OFFSETS: (1, 5),
    ApiKey.METADATA: (4, 13),
    ApiKey.SASL_HANDSHAKE: (1, 1),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
    ApiKey.API_VERSIONS: (0, FIRST_VERSION),
    ApiKey.CREATE_TOPICS: (2, 4),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.FIND_COORDINATOR: (1, 3),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
    ApiKey.END_TXN: (0, 5),
    ApiKey.TXN_OFFSET_COMMIT: (3, 5),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 0),
}


TRANSACTION_VERSION: Final = "transaction.version"
"""The feature that decides how transactions are sent, whatever versions of APIs are offered."""
_NEEDED_BY_2: Final = {ApiKey.PRODUCE: 12, ApiKey.END_TXN: 5}
"""Level 2 of the feature is of no use without these: a gateway may pass on the brokers' features, and not these
versions.
"""


class VersionRange(NamedTuple):
    min: int
    max: int


class BrokerVersions(NamedTuple):
    """A broker's answer: its version ranges by API key, and the features that its cluster has finalised."""

    ranges: Mapping[int, VersionRange]
    features_epoch: int = -1
    """Grows with each change of the features; -1: the broker does not tell."""
    transaction_version: int = 0


NOTHING_OFFERED: Final = BrokerVersions({})


def api_versions_request(version: int, software_version: str) -> RequestMessage:
    module = request_module(ApiKey.API_VERSIONS, version)
    if version >= 3:
        message = module.ApiVersionsRequest(
            client_software_name="kafka-sidecar", client_software_version=software_version
        )
    else:
        message = module.ApiVersionsRequest()
    result: RequestMessage = message
    return result


def decode_api_versions(version: int, body: bytes) -> BrokerVersions | None:
    """What the broker offers, or None if the request must be repeated with v0.

    Raises ProtocolError for any other error or an unreadable body.
    """
    if len(body) < 2:
        raise ProtocolError(f"The broker's answer to API_VERSIONS v{version} has {len(body)} bytes.")
    (code,) = _ERROR_CODE.unpack_from(body)
    if code == Code.UNSUPPORTED_VERSION and version != FALLBACK_VERSION:
        return None
    if code:
        raise ProtocolError(f"The broker answered API_VERSIONS v{version} with error {code}.")
    entity: Any = decode_response(ApiKey.API_VERSIONS, version, body)
    ranges = {
        int(each.api_key): VersionRange(int(each.min_version), int(each.max_version))
        for each in entity.api_keys
    }
    if version < FEATURES_VERSION or entity.finalized_features_epoch < 0:
        return BrokerVersions(ranges)
    levels = {each.name: int(each.max_version_level) for each in entity.finalized_features}
    level = levels.get(TRANSACTION_VERSION, 0)
    if any(key not in ranges or ranges[key].max < needed for key, needed in _NEEDED_BY_2.items()):
        level = min(level, 1)
    return BrokerVersions(ranges, int(entity.finalized_features_epoch), level)


def negotiate(broker: Mapping[int, VersionRange]) -> dict[int, int]:
    """The highest common version of each supported API. APIs without one are left out."""
    chosen: dict[int, int] = {}
    for api_key, (low, high) in SUPPORTED_VERSIONS.items():
        offered = broker.get(api_key)
        if offered is not None and max(low, offered.min) <= min(high, offered.max):
            chosen[api_key] = min(high, offered.max)
    return chosen
