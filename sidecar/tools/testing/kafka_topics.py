"""Create topics on any cluster, with an admin client that is not ours."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sidecar.tools.testing.waiting import wait_until

NewTopic = Callable[..., str]
"""Type of the fixture ``new_topic``: ``new_topic(partitions=6, **config)`` creates a topic and returns its name."""


def create_topics(
    bootstrap_servers: str,
    topics: Mapping[str, int],
    *,
    config: Mapping[str, str] | None = None,
    replication_factor: int = -1,
    timeout_s: float = 30.0,
) -> None:
    """Create topics by confluent-kafka's AdminClient and wait until every partition has a leader.

    A topic that exists already stays as it is. Raises KafkaException for any other error.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient(quiet_config(bootstrap_servers))
    wanted = [
        NewTopic(name, num_partitions=count, replication_factor=replication_factor, config=dict(config or {}))
        for name, count in topics.items()
    ]
    for created in admin.create_topics(wanted, operation_timeout=timeout_s).values():
        try:
            created.result(timeout_s)
        except KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise

    def all_led() -> bool:
        known = admin.list_topics(timeout=timeout_s).topics
        return all(
            name in known
            and len(known[name].partitions) > 0
            and all(partition.leader >= 0 for partition in known[name].partitions.values())
            for name in topics
        )

    wait_until(all_led, f"leaders of {', '.join(topics)}", timeout_s=timeout_s)


def delete_topics(bootstrap_servers: str, topics: Iterable[str], timeout_s: float = 10.0) -> None:
    """Delete topics; those that the cluster refuses to delete stay, without an error."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient(quiet_config(bootstrap_servers))
    for deleted in admin.delete_topics(list(topics)).values():
        with contextlib.suppress(Exception):
            deleted.result(timeout_s)


def quiet_config(bootstrap_servers: str, settings: Mapping[str, str | int] | None = None) -> dict[str, Any]:
    """Return a confluent-kafka configuration that discards log lines (librdkafka writes to stderr by default)."""
    logger = logging.getLogger("sidecar.tools.testing.librdkafka")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
    return {"bootstrap.servers": bootstrap_servers, "logger": logger, **(settings or {})}
