"""ListTransactions and DescribeTransactions: what a broker knows of the transactions that it coordinates. Sans-IO."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from sidecar.common.model import ProducerIdAndEpoch, TopicPartition
from sidecar.protocol.messages import ApiKey, RequestMessage, request_module

COMMITTING = "PrepareCommit"
ONGOING = ("Ongoing", COMMITTING, "PrepareAbort")
"""States in which readers with read_committed wait (Kafka's TransactionState)."""


class DescribedTransaction(NamedTuple):
    """``started_ms``: Unix time in ms, -1 without an open transaction. ``partitions``: those in it."""

    error_code: int
    transactional_id: str
    state: str
    identity: ProducerIdAndEpoch
    timeout_ms: int
    started_ms: int
    partitions: tuple[TopicPartition, ...]


def list_transactions_request(states: Iterable[str]) -> RequestMessage:
    """Ask a broker for the ids that it coordinates, in one of ``states``; of all states if there is none."""
    message: RequestMessage = request_module(ApiKey.LIST_TRANSACTIONS, 0).ListTransactionsRequest(
        state_filters=tuple(states), producer_id_filters=()
    )
    return message


def parse_list_transactions(entity: Any) -> tuple[int, list[str]]:
    """(error code, transactional ids)."""
    return int(entity.error_code), [str(each.transactional_id) for each in entity.transaction_states]


def describe_transactions_request(transactional_ids: Iterable[str]) -> RequestMessage:
    """Ask the coordinator of these ids."""
    message: RequestMessage = request_module(ApiKey.DESCRIBE_TRANSACTIONS, 0).DescribeTransactionsRequest(
        transactional_ids=tuple(transactional_ids)
    )
    return message


def parse_describe_transactions(entity: Any) -> list[DescribedTransaction]:
    return [
        DescribedTransaction(
            int(each.error_code),
            str(each.transactional_id),
            str(each.transaction_state),
            ProducerIdAndEpoch(int(each.producer_id), int(each.producer_epoch)),
            round(each.transaction_timeout.total_seconds() * 1e3),
            round(each.transaction_start_time.timestamp() * 1e3),
            tuple(
                TopicPartition(str(topic.topic), int(number))
                for topic in each.topics
                for number in topic.partitions
            ),
        )
        for each in entity.transaction_states
    ]
