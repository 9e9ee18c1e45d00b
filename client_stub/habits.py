"""Hints for callers who know another Kafka client: which call or setting takes the place of theirs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

_CALLS: Final = {
    # confluent-kafka
    "produce": "send(topic, value, key, ..., on_delivery=...) is its name here, or take client_stub.compat.confluent",
    "poll": "callbacks run in a thread of the producer, and nothing need be polled",
    "list_topics": "partitions_for(topic) knows one topic, and `kafka-sidecar topics` lists all",
    "purge": "close(0) fails all that is not delivered",
    "set_sasl_credentials": "the daemon has the credentials: see [kafka] in its configuration",
    # kafka-python
    "metrics": "the daemon has the metrics: `kafka-sidecar status` shows where",
    "bootstrap_connected": "`kafka-sidecar status` tells whether the daemon reaches Kafka",
    # Transactions, in both
    "init_transactions": "transactions are not built yet",
    "begin_transaction": "transactions are not built yet",
    "commit_transaction": "transactions are not built yet",
    "abort_transaction": "transactions are not built yet",
    "send_offsets_to_transaction": "transactions are not built yet",
}
"""A name that Producer does not have → what to do."""
_SERVERS: Final = re.compile(r"[\w.-]+:\d+(,[\w.-]+:\d+)*")
_CONFIGURATION_TEXT: Final = (
    "bootstrap.servers and all other settings of Kafka stand in the configuration of the daemon, which all producers "
    "of a host share. A producer needs none: Producer()."
)


def missing_call(kind: str, name: str) -> str:
    """The text of an AttributeError."""
    hint = _CALLS.get(name)
    return f"{kind} has no attribute {name!r}" + (f": {hint}." if hint else ".")


def check_run_dir(run_dir: object) -> None:
    """Raises TypeError or ValueError for what other clients take as their first argument."""
    if isinstance(run_dir, Mapping):
        raise TypeError(f"run_dir is a path, not a configuration: {_CONFIGURATION_TEXT}")
    if isinstance(run_dir, str) and _SERVERS.fullmatch(run_dir) and not os.path.exists(run_dir):  # noqa: PTH110
        raise ValueError(f"run_dir is a path, not a list of brokers ({run_dir}): {_CONFIGURATION_TEXT}")
