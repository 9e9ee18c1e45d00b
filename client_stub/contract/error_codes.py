"""Every error code of an outcome: Kafka's codes and our own (``wire.LocalCode``), one row each.

Constants and pure functions: any thread of a stub, worker, controller or command.

Names, texts and the retriable flag are those of Kafka's ``org.apache.kafka.common.protocol.Errors``. A local code has
the name of Kafka's error for the same case, if there is one. The daemon builds its own table on this one, as the stub
owns the contract, so a code means the same on both sides.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from client_stub.contract.wire import LocalCode


class CodeRow(NamedTuple):
    """A row of the table. ``retriable``: sending the record again later may succeed. ``text`` is one sentence for the
    user.
    """

    name: str
    retriable: bool
    text: str


_RETRY: Final = True
_FINAL: Final = False

ERROR_CODES: Final[dict[int, CodeRow]] = {
    -1: CodeRow(
        "UNKNOWN_SERVER_ERROR",
        _FINAL,
        "The server experienced an unexpected error when processing the request.",
    ),
    0: CodeRow("NONE", _FINAL, "No error."),
    1: CodeRow(
        "OFFSET_OUT_OF_RANGE",
        _FINAL,
        "The requested offset is not within the range of offsets maintained by the server.",
    ),
    2: CodeRow(
        "CORRUPT_MESSAGE",
        _RETRY,
        "This message has failed its CRC checksum, exceeds the valid size, has a null key for a "
        "compacted topic, or is otherwise corrupt.",
    ),
    3: CodeRow("UNKNOWN_TOPIC_OR_PARTITION", _RETRY, "This server does not host this topic-partition."),
    4: CodeRow("INVALID_FETCH_SIZE", _FINAL, "The requested fetch size is invalid."),
    5: CodeRow(
        "LEADER_NOT_AVAILABLE",
        _RETRY,
        "There is no leader for this topic-partition as we are in the middle of a leadership election.",
    ),
    6: CodeRow(
        "NOT_LEADER_OR_FOLLOWER",
        _RETRY,
        "For requests intended only for the leader, this error indicates that the broker is not "
        "the current leader. For requests intended for any replica, this error indicates that the "
        "broker is not a replica of the topic partition.",
    ),
    7: CodeRow("REQUEST_TIMED_OUT", _RETRY, "The request timed out."),
    8: CodeRow("BROKER_NOT_AVAILABLE", _FINAL, "The broker is not available."),
    9: CodeRow(
        "REPLICA_NOT_AVAILABLE",
        _RETRY,
        "The replica is not available for the requested topic-partition. Produce/Fetch requests "
        "and other requests intended only for the leader or follower return "
        "NOT_LEADER_OR_FOLLOWER if the broker is not a replica of the topic-partition.",
    ),
    10: CodeRow(
        "MESSAGE_TOO_LARGE",
        _FINAL,
        "The request included a message larger than the max message size the server will accept.",
    ),
    11: CodeRow("STALE_CONTROLLER_EPOCH", _FINAL, "The controller moved to another broker."),
    12: CodeRow(
        "OFFSET_METADATA_TOO_LARGE", _FINAL, "The metadata field of the offset request was too large."
    ),
    13: CodeRow("NETWORK_EXCEPTION", _RETRY, "The server disconnected before a response was received."),
    14: CodeRow(
        "COORDINATOR_LOAD_IN_PROGRESS", _RETRY, "The coordinator is loading and hence can't process requests."
    ),
    15: CodeRow("COORDINATOR_NOT_AVAILABLE", _RETRY, "The coordinator is not available."),
    16: CodeRow("NOT_COORDINATOR", _RETRY, "This is not the correct coordinator."),
    17: CodeRow(
        "INVALID_TOPIC_EXCEPTION",
        _FINAL,
        "The request attempted to perform an operation on an invalid topic.",
    ),
    18: CodeRow(
        "RECORD_LIST_TOO_LARGE",
        _FINAL,
        "The request included message batch larger than the configured segment size on the server.",
    ),
    19: CodeRow(
        "NOT_ENOUGH_REPLICAS",
        _RETRY,
        "Messages are rejected since there are fewer in-sync replicas than required.",
    ),
    20: CodeRow(
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        _RETRY,
        "Messages are written to the log, but to fewer in-sync replicas than required.",
    ),
    21: CodeRow(
        "INVALID_REQUIRED_ACKS", _FINAL, "Produce request specified an invalid value for required acks."
    ),
    22: CodeRow("ILLEGAL_GENERATION", _FINAL, "Specified group generation id is not valid."),
    23: CodeRow(
        "INCONSISTENT_GROUP_PROTOCOL",
        _FINAL,
        "The group member's supported protocols are incompatible with those of existing members "
        "or first group member tried to join with empty protocol type or empty protocol list.",
    ),
    24: CodeRow("INVALID_GROUP_ID", _FINAL, "The group id is invalid."),
    25: CodeRow("UNKNOWN_MEMBER_ID", _FINAL, "The coordinator is not aware of this member."),
    26: CodeRow(
        "INVALID_SESSION_TIMEOUT",
        _FINAL,
        "The session timeout is not within the range allowed by the broker (as configured by "
        "group.min.session.timeout.ms and group.max.session.timeout.ms).",
    ),
    27: CodeRow("REBALANCE_IN_PROGRESS", _FINAL, "The group is rebalancing, so a rejoin is needed."),
    28: CodeRow("INVALID_COMMIT_OFFSET_SIZE", _FINAL, "The committing offset data size is not valid."),
    29: CodeRow("TOPIC_AUTHORIZATION_FAILED", _FINAL, "Topic authorization failed."),
    30: CodeRow("GROUP_AUTHORIZATION_FAILED", _FINAL, "Group authorization failed."),
    31: CodeRow("CLUSTER_AUTHORIZATION_FAILED", _FINAL, "Cluster authorization failed."),
    32: CodeRow("INVALID_TIMESTAMP", _FINAL, "The timestamp of the message is out of acceptable range."),
    33: CodeRow(
        "UNSUPPORTED_SASL_MECHANISM", _FINAL, "The broker does not support the requested SASL mechanism."
    ),
    34: CodeRow("ILLEGAL_SASL_STATE", _FINAL, "Request is not valid given the current SASL state."),
    35: CodeRow("UNSUPPORTED_VERSION", _FINAL, "The version of API is not supported."),
    36: CodeRow("TOPIC_ALREADY_EXISTS", _FINAL, "Topic with this name already exists."),
    37: CodeRow("INVALID_PARTITIONS", _FINAL, "Number of partitions is below 1."),
    38: CodeRow(
        "INVALID_REPLICATION_FACTOR",
        _FINAL,
        "Replication factor is below 1 or larger than the number of available brokers.",
    ),
    39: CodeRow("INVALID_REPLICA_ASSIGNMENT", _FINAL, "Replica assignment is invalid."),
    40: CodeRow("INVALID_CONFIG", _FINAL, "Configuration is invalid."),
    41: CodeRow("NOT_CONTROLLER", _RETRY, "This is not the correct controller for this cluster."),
    42: CodeRow(
        "INVALID_REQUEST",
        _FINAL,
        "This most likely occurs because of a request being malformed by the client library or "
        "the message was sent to an incompatible broker. See the broker logs for more details.",
    ),
    43: CodeRow(
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        _FINAL,
        "The message format version on the broker does not support the request.",
    ),
    44: CodeRow("POLICY_VIOLATION", _FINAL, "Request parameters do not satisfy the configured policy."),
    45: CodeRow(
        "OUT_OF_ORDER_SEQUENCE_NUMBER", _FINAL, "The broker received an out of order sequence number."
    ),
    46: CodeRow("DUPLICATE_SEQUENCE_NUMBER", _FINAL, "The broker received a duplicate sequence number."),
    47: CodeRow("INVALID_PRODUCER_EPOCH", _FINAL, "Producer attempted to produce with an old epoch."),
    48: CodeRow(
        "INVALID_TXN_STATE", _FINAL, "The producer attempted a transactional operation in an invalid state."
    ),
    49: CodeRow(
        "INVALID_PRODUCER_ID_MAPPING",
        _FINAL,
        "The producer attempted to use a producer id which is not currently assigned to its "
        "transactional id.",
    ),
    50: CodeRow(
        "INVALID_TRANSACTION_TIMEOUT",
        _FINAL,
        "The transaction timeout is larger than the maximum value allowed by the broker (as "
        "configured by transaction.max.timeout.ms).",
    ),
    51: CodeRow(
        "CONCURRENT_TRANSACTIONS",
        _RETRY,
        "The producer attempted to update a transaction while another concurrent operation on the "
        "same transaction was ongoing.",
    ),
    52: CodeRow(
        "TRANSACTION_COORDINATOR_FENCED",
        _FINAL,
        "Indicates that the transaction coordinator sending a WriteTxnMarker is no longer the "
        "current coordinator for a given producer.",
    ),
    53: CodeRow("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", _FINAL, "Transactional Id authorization failed."),
    54: CodeRow("SECURITY_DISABLED", _FINAL, "Security features are disabled."),
    55: CodeRow(
        "OPERATION_NOT_ATTEMPTED",
        _FINAL,
        "The broker did not attempt to execute this operation. This may happen for batched RPCs "
        "where some operations in the batch failed, causing the broker to respond without trying "
        "the rest.",
    ),
    56: CodeRow("KAFKA_STORAGE_ERROR", _RETRY, "Disk error when trying to access log file on the disk."),
    57: CodeRow(
        "LOG_DIR_NOT_FOUND", _FINAL, "The user-specified log directory is not found in the broker config."
    ),
    58: CodeRow("SASL_AUTHENTICATION_FAILED", _FINAL, "SASL Authentication failed."),
    59: CodeRow(
        "UNKNOWN_PRODUCER_ID",
        _FINAL,
        "This exception is raised by the broker if it could not locate the producer metadata "
        "associated with the producerId in question. This could happen if, for instance, the "
        "producer's records were deleted because their retention time had elapsed. Once the last "
        "records of the producerId are removed, the producer's metadata is removed from the "
        "broker, and future appends by the producer will return this exception.",
    ),
    60: CodeRow("REASSIGNMENT_IN_PROGRESS", _FINAL, "A partition reassignment is in progress."),
    61: CodeRow("DELEGATION_TOKEN_AUTH_DISABLED", _FINAL, "Delegation Token feature is not enabled."),
    62: CodeRow("DELEGATION_TOKEN_NOT_FOUND", _FINAL, "Delegation Token is not found on server."),
    63: CodeRow("DELEGATION_TOKEN_OWNER_MISMATCH", _FINAL, "Specified Principal is not valid Owner/Renewer."),
    64: CodeRow(
        "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
        _FINAL,
        "Delegation Token requests are not allowed on PLAINTEXT/1-way SSL channels and on "
        "delegation token authenticated channels.",
    ),
    65: CodeRow("DELEGATION_TOKEN_AUTHORIZATION_FAILED", _FINAL, "Delegation Token authorization failed."),
    66: CodeRow("DELEGATION_TOKEN_EXPIRED", _FINAL, "Delegation Token is expired."),
    67: CodeRow("INVALID_PRINCIPAL_TYPE", _FINAL, "Supplied principalType is not supported."),
    68: CodeRow("NON_EMPTY_GROUP", _FINAL, "The group is not empty."),
    69: CodeRow("GROUP_ID_NOT_FOUND", _FINAL, "The group id does not exist."),
    70: CodeRow("FETCH_SESSION_ID_NOT_FOUND", _RETRY, "The fetch session ID was not found."),
    71: CodeRow("INVALID_FETCH_SESSION_EPOCH", _RETRY, "The fetch session epoch is invalid."),
    72: CodeRow(
        "LISTENER_NOT_FOUND",
        _RETRY,
        "There is no listener on the leader broker that matches the listener on which metadata "
        "request was processed.",
    ),
    73: CodeRow("TOPIC_DELETION_DISABLED", _FINAL, "Topic deletion is disabled."),
    74: CodeRow(
        "FENCED_LEADER_EPOCH",
        _RETRY,
        "The leader epoch in the request is older than the epoch on the broker.",
    ),
    75: CodeRow(
        "UNKNOWN_LEADER_EPOCH",
        _RETRY,
        "The leader epoch in the request is newer than the epoch on the broker.",
    ),
    76: CodeRow(
        "UNSUPPORTED_COMPRESSION_TYPE",
        _FINAL,
        "The requesting client does not support the compression type of given partition.",
    ),
    77: CodeRow("STALE_BROKER_EPOCH", _FINAL, "Broker epoch has changed."),
    78: CodeRow(
        "OFFSET_NOT_AVAILABLE",
        _RETRY,
        "The leader high watermark has not caught up from a recent leader election so the offsets "
        "cannot be guaranteed to be monotonically increasing.",
    ),
    79: CodeRow(
        "MEMBER_ID_REQUIRED",
        _FINAL,
        "The group member needs to have a valid member id before actually entering a consumer group.",
    ),
    80: CodeRow("PREFERRED_LEADER_NOT_AVAILABLE", _RETRY, "The preferred leader was not available."),
    81: CodeRow("GROUP_MAX_SIZE_REACHED", _FINAL, "The group has reached its maximum size."),
    82: CodeRow(
        "FENCED_INSTANCE_ID",
        _FINAL,
        "The broker rejected this static consumer since another consumer with the same "
        "group.instance.id has registered with a different member.id.",
    ),
    83: CodeRow(
        "ELIGIBLE_LEADERS_NOT_AVAILABLE", _RETRY, "Eligible topic partition leaders are not available."
    ),
    84: CodeRow("ELECTION_NOT_NEEDED", _RETRY, "Leader election not needed for topic partition."),
    85: CodeRow("NO_REASSIGNMENT_IN_PROGRESS", _FINAL, "No partition reassignment is in progress."),
    86: CodeRow(
        "GROUP_SUBSCRIBED_TO_TOPIC",
        _FINAL,
        "Deleting offsets of a topic is forbidden while the consumer group is actively subscribed to it.",
    ),
    87: CodeRow(
        "INVALID_RECORD",
        _FINAL,
        "This record has failed the validation on broker and hence will be rejected.",
    ),
    88: CodeRow("UNSTABLE_OFFSET_COMMIT", _RETRY, "There are unstable offsets that need to be cleared."),
    89: CodeRow("THROTTLING_QUOTA_EXCEEDED", _RETRY, "The throttling quota has been exceeded."),
    90: CodeRow(
        "PRODUCER_FENCED",
        _FINAL,
        "There is a newer producer with the same transactionalId which fences the current one.",
    ),
    91: CodeRow(
        "RESOURCE_NOT_FOUND", _FINAL, "A request illegally referred to a resource that does not exist."
    ),
    92: CodeRow("DUPLICATE_RESOURCE", _FINAL, "A request illegally referred to the same resource twice."),
    93: CodeRow(
        "UNACCEPTABLE_CREDENTIAL", _FINAL, "Requested credential would not meet criteria for acceptability."
    ),
    94: CodeRow(
        "INCONSISTENT_VOTER_SET",
        _FINAL,
        "Indicates that the either the sender or recipient of a voter-only request is not one of "
        "the expected voters.",
    ),
    95: CodeRow("INVALID_UPDATE_VERSION", _FINAL, "The given update version was invalid."),
    96: CodeRow(
        "FEATURE_UPDATE_FAILED",
        _FINAL,
        "Unable to update finalized features due to an unexpected server error.",
    ),
    97: CodeRow(
        "PRINCIPAL_DESERIALIZATION_FAILURE",
        _FINAL,
        "Request principal deserialization failed during forwarding. This indicates an internal "
        "error on the broker cluster security setup.",
    ),
    98: CodeRow("SNAPSHOT_NOT_FOUND", _FINAL, "Requested snapshot was not found."),
    99: CodeRow(
        "POSITION_OUT_OF_RANGE",
        _FINAL,
        "Requested position is not greater than or equal to zero, and less than the size of the snapshot.",
    ),
    100: CodeRow("UNKNOWN_TOPIC_ID", _RETRY, "This server does not host this topic ID."),
    101: CodeRow("DUPLICATE_BROKER_REGISTRATION", _FINAL, "This broker ID is already in use."),
    102: CodeRow("BROKER_ID_NOT_REGISTERED", _FINAL, "The given broker ID was not registered."),
    103: CodeRow(
        "INCONSISTENT_TOPIC_ID", _RETRY, "The log's topic ID did not match the topic ID in the request."
    ),
    104: CodeRow(
        "INCONSISTENT_CLUSTER_ID",
        _FINAL,
        "The clusterId in the request does not match that found on the server.",
    ),
    105: CodeRow("TRANSACTIONAL_ID_NOT_FOUND", _FINAL, "The transactionalId could not be found."),
    106: CodeRow(
        "FETCH_SESSION_TOPIC_ID_ERROR", _RETRY, "The fetch session encountered inconsistent topic ID usage."
    ),
    107: CodeRow("INELIGIBLE_REPLICA", _FINAL, "The new ISR contains at least one ineligible replica."),
    108: CodeRow(
        "NEW_LEADER_ELECTED",
        _FINAL,
        "The AlterPartition request successfully updated the partition state but the leader has changed.",
    ),
    109: CodeRow(
        "OFFSET_MOVED_TO_TIERED_STORAGE", _FINAL, "The requested offset is moved to tiered storage."
    ),
    110: CodeRow(
        "FENCED_MEMBER_EPOCH",
        _FINAL,
        "The member epoch is fenced by the group coordinator. The member must abandon all its "
        "partitions and rejoin.",
    ),
    111: CodeRow(
        "UNRELEASED_INSTANCE_ID",
        _FINAL,
        "The instance ID is still used by another member in the consumer group. That member must "
        "leave first.",
    ),
    112: CodeRow(
        "UNSUPPORTED_ASSIGNOR",
        _FINAL,
        "The assignor or its version range is not supported by the consumer group.",
    ),
    113: CodeRow(
        "STALE_MEMBER_EPOCH",
        _FINAL,
        "The member epoch is stale. The member must retry after receiving its updated member "
        "epoch via the ConsumerGroupHeartbeat API.",
    ),
    114: CodeRow(
        "MISMATCHED_ENDPOINT_TYPE", _FINAL, "The request was sent to an endpoint of the wrong type."
    ),
    115: CodeRow("UNSUPPORTED_ENDPOINT_TYPE", _FINAL, "This endpoint type is not supported yet."),
    116: CodeRow("UNKNOWN_CONTROLLER_ID", _FINAL, "This controller ID is not known."),
    117: CodeRow(
        "UNKNOWN_SUBSCRIPTION_ID",
        _FINAL,
        "Client sent a push telemetry request with an invalid or outdated subscription ID.",
    ),
    118: CodeRow(
        "TELEMETRY_TOO_LARGE",
        _FINAL,
        "Client sent a push telemetry request larger than the maximum size the broker will accept.",
    ),
    119: CodeRow(
        "INVALID_REGISTRATION", _FINAL, "The controller has considered the broker registration to be invalid."
    ),
    120: CodeRow(
        "TRANSACTION_ABORTABLE",
        _FINAL,
        "The server encountered an error with the transaction. The client can abort the "
        "transaction to continue using this transactional ID.",
    ),
    121: CodeRow(
        "INVALID_RECORD_STATE",
        _FINAL,
        "The record state is invalid. The acknowledgement of delivery could not be completed.",
    ),
    122: CodeRow("SHARE_SESSION_NOT_FOUND", _RETRY, "The share session was not found."),
    123: CodeRow("INVALID_SHARE_SESSION_EPOCH", _RETRY, "The share session epoch is invalid."),
    124: CodeRow(
        "FENCED_STATE_EPOCH",
        _FINAL,
        "The share coordinator rejected the request because the share-group state epoch did not match.",
    ),
    125: CodeRow("INVALID_VOTER_KEY", _FINAL, "The voter key doesn't match the receiving replica's key."),
    126: CodeRow("DUPLICATE_VOTER", _FINAL, "The voter is already part of the set of voters."),
    127: CodeRow("VOTER_NOT_FOUND", _FINAL, "The voter is not part of the set of voters."),
    128: CodeRow("INVALID_REGULAR_EXPRESSION", _FINAL, "The regular expression is not valid."),
    129: CodeRow(
        "REBOOTSTRAP_REQUIRED",
        _FINAL,
        "Client metadata is stale. The client should rebootstrap to obtain new metadata.",
    ),
    130: CodeRow("STREAMS_INVALID_TOPOLOGY", _FINAL, "The supplied topology is invalid."),
    131: CodeRow("STREAMS_INVALID_TOPOLOGY_EPOCH", _FINAL, "The supplied topology epoch is invalid."),
    132: CodeRow("STREAMS_TOPOLOGY_FENCED", _FINAL, "The supplied topology epoch is outdated."),
    133: CodeRow("SHARE_SESSION_LIMIT_REACHED", _RETRY, "The limit of share sessions has been reached."),
    LocalCode.MALFORMED_RECORD: CodeRow("MALFORMED_RECORD", _FINAL, "The daemon could not read the record."),
    LocalCode.RECORD_TOO_LARGE: CodeRow(
        "RECORD_TOO_LARGE", _FINAL, "The record is larger than max.request.size; raise it or send less."
    ),
    LocalCode.INVALID_PARTITION: CodeRow(
        "INVALID_PARTITION",
        _FINAL,
        "Invalid partition given with record: it is not in the range of the topic.",
    ),
    LocalCode.INVALID_TIMESTAMP: CodeRow("INVALID_TIMESTAMP", _FINAL, "The record's timestamp is not valid."),
    LocalCode.EXPIRED: CodeRow(
        "TIMED_OUT", _RETRY, "The record was not delivered within delivery.timeout.ms."
    ),
    LocalCode.METADATA_TIMEOUT: CodeRow(
        "METADATA_TIMEOUT", _RETRY, "The topic was not present in metadata within max.block.ms."
    ),
    LocalCode.ABORTED: CodeRow(
        "ABORTED", _FINAL, "The daemon was closed by force before the record was delivered."
    ),
    LocalCode.CANCELLED: CodeRow(
        "CANCELLED", _FINAL, "The producer was closed before the record was delivered."
    ),
    LocalCode.TOPIC_DELETED: CodeRow(
        "TOPIC_DELETED", _FINAL, "The topic was deleted while the record waited."
    ),
    LocalCode.NO_PARTITIONS: CodeRow("NO_PARTITIONS", _RETRY, "The topic has no partitions."),
    LocalCode.POISON_SUBMISSION: CodeRow(
        "POISON_SUBMISSION",
        _FINAL,
        "The submission this record was in ended its worker several times and was set aside.",
    ),
    LocalCode.DISCONNECTED: CodeRow(
        "DISCONNECTED",
        _RETRY,
        "The daemon went away before it answered for the record; it may or may not be in the log.",
    ),
    LocalCode.TOPIC_UNAUTHORIZED: CodeRow(
        "TOPIC_AUTHORIZATION_FAILED", _FINAL, "Not authorized to access the topic."
    ),
    LocalCode.INVALID_TOPIC: CodeRow("INVALID_TOPIC_EXCEPTION", _FINAL, "The topic name is not valid."),
    LocalCode.QUOTA_EXCEEDED: CodeRow(
        "THROTTLING_QUOTA_EXCEEDED",
        _RETRY,
        "The client is over its rate, and the daemon discarded the record.",
    ),
    LocalCode.UNAUTHENTICATED: CodeRow(
        "SASL_AUTHENTICATION_FAILED",
        _FINAL,
        "The brokers refused the daemon's login until the record's time was over.",
    ),
    LocalCode.NOT_ADMITTED: CodeRow("NOT_ADMITTED", _FINAL, "The daemon refused this client."),
    LocalCode.TOPIC_REFUSED: CodeRow("TOPIC_REFUSED", _FINAL, "The daemon had no place for this topic."),
    LocalCode.TXN_ABORTED: CodeRow(
        "TRANSACTION_ABORTED", _FINAL, "The transaction was aborted before the record was sent."
    ),
    LocalCode.TXN_WRONG_STATE: CodeRow(
        "ILLEGAL_STATE", _FINAL, "The state of the transaction does not allow this call."
    ),
    LocalCode.TXN_TOO_MANY: CodeRow(
        "TOO_MANY_TRANSACTIONAL_IDS",
        _RETRY,
        "The daemon's worker has as many transactional ids as it may have; try again when another producer has closed.",
    ),
    LocalCode.STAGE_UNKNOWN: CodeRow(
        "UNKNOWN_STAGE", _FINAL, "No stage with this token waits: it was used, dropped, or its time was over."
    ),
    LocalCode.STAGE_FULL: CodeRow(
        "STAGED_SHARE_FULL",
        _RETRY,
        "Staged records have their share of the pool (pool.staged_share); include or drop stages that wait.",
    ),
    LocalCode.STAGE_TOO_MANY: CodeRow(
        "TOO_MANY_STAGES",
        _RETRY,
        "The daemon's worker has as many stages as it may have; include or drop stages that wait.",
    ),
    LocalCode.ENCODE_MISMATCH: CodeRow(
        "ENCODE_MISMATCH",
        _FINAL,
        "The daemon found its journal inconsistent and sent nothing more of this batch; please report it.",
    ),
}


def code_row(code: int) -> CodeRow:
    """The row of ``code``. A code that is newer than this table gets a row that says so and is not retriable."""
    row = ERROR_CODES.get(code)
    if row is None:
        row = CodeRow(
            f"UNKNOWN_ERROR_{code}", _FINAL, f"The broker answered with the unknown error code {code}."
        )
    return row
