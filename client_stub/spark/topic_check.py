"""The topic is looked for on the driver, so that a missing one is one error there and not a minute in each task."""

from __future__ import annotations

import os
from typing import Final

from client_stub.errors import (
    AuthenticationFailed,
    InvalidTopic,
    MetadataTimeout,
    SidecarError,
    TopicAuthorizationFailed,
)
from client_stub.producer import Producer
from client_stub.run_dir import control_path
from client_stub.spark.options import Options

TOPIC_LOOK_MS: Final = 5_000.0
"""A topic that is not there after this time is missing; one that the cluster creates on first use is there by then."""


def check_topic(options: Options) -> None:
    """Raises ValueError, one line, for a topic that the option names and that no record can go to.

    A driver without a daemon cannot look: its executors may have theirs, and the first task says what is wrong. The
    same goes for a Kafka that is away now.
    """
    if options.topic is None or not os.path.exists(control_path(options.run_dir)):  # noqa: PTH110
        return
    look_ms = min(TOPIC_LOOK_MS, options.max_block_ms)
    try:
        Producer(options.run_dir, "spark driver").partitions_for(options.topic, look_ms / 1e3)
    except MetadataTimeout:
        raise ValueError(
            f"kafka_sidecar: topic {options.topic} is not in Kafka (looked for {look_ms / 1e3:g} s); create it, or "
            "correct the option topic."
        ) from None
    except (TopicAuthorizationFailed, InvalidTopic, AuthenticationFailed) as error:
        raise ValueError(f"kafka_sidecar: topic {options.topic}: {error.name}: {error}") from None
    except SidecarError:
        return
