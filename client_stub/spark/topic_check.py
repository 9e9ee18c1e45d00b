"""Looks up the topic on the driver. A missing topic is then one error there, instead of a minute of waiting in each
task.
"""

from __future__ import annotations

import os
from typing import Final

from client_stub.errors import (
    AuthenticationFailed,
    DaemonRefused,
    InvalidTopic,
    MetadataTimeout,
    SidecarError,
    TopicAuthorizationFailed,
)
from client_stub.io.daemon_address import control_path
from client_stub.io.topic_lookup import TopicLookup
from client_stub.spark.autostart import check_settings
from client_stub.spark.exactly_once.preflight import check_exactly_once
from client_stub.spark.options import SERVERS, Options
from client_stub.system.originals import monotonic

TOPIC_LOOK_MS: Final = 5_000.0
"""A topic is missing if it does not exist after this time; a cluster that creates topics on first use has done so by
then.
"""
TOPIC_KNOWN_S: Final = 60.0
"""How long a stream takes the answer of an earlier micro-batch: Spark makes its writer twice for each."""
STREAMS_KNOWN_MAX: Final = 64
_checked_s: dict[Options, float] = {}
"""Options of streams → when their topic was last looked up in this process."""


def check_topic_of_stream(options: Options) -> None:
    """As ``check_topic``, unless that was so less than TOPIC_KNOWN_S ago. What exactly_once needs is tried once in a
    process: later the commit finds what has changed, and waits for brokers that are away longer than a check.
    """
    now_s = monotonic()
    if now_s - _checked_s.get(options, -TOPIC_KNOWN_S) < TOPIC_KNOWN_S:
        return
    if options not in _checked_s:
        _try_commit(options)
    _look_up(options)
    if len(_checked_s) == STREAMS_KNOWN_MAX:
        _checked_s.clear()
    _checked_s[options] = now_s


def check_topic(options: Options) -> None:
    """Raises ValueError, in one line, when no record can go to the topic that the option names, or for what
    exactly_once needs and is not there.
    """
    _try_commit(options)
    _look_up(options)


def _try_commit(options: Options) -> None:
    if options.exactly_once is not None:
        check_exactly_once(options, options.exactly_once)


def _look_up(options: Options) -> None:
    """Raises ValueError for the topic.

    Without a daemon on the driver's host nothing is checked: the executors may have daemons, and the first task
    reports the error. The same holds while Kafka is not reachable. With sidecar.autostart the settings are checked.
    """
    if options.settings is not None:
        check_settings(options.settings)
        return
    try:
        control = control_path(options.run_dir_here())
    except ValueError:  # this user has no usual run directory; that of an executor may have one
        return
    if not (options.topic or options.servers) or not os.path.exists(control):  # noqa: PTH110
        return
    look_ms = min(TOPIC_LOOK_MS, options.max_block_ms)
    try:
        TopicLookup(
            control,
            options.topic or "",
            look_ms,
            monotonic() * 1e3,
            asked=options.asked,
        ).wait()
    except MetadataTimeout:
        raise ValueError(
            f"kafka_sidecar: topic {options.topic} is not in Kafka (looked for {look_ms / 1e3:g} s); create it, or "
            "correct the option topic."
        ) from None
    except (TopicAuthorizationFailed, InvalidTopic, AuthenticationFailed) as error:
        raise ValueError(f"kafka_sidecar: topic {options.topic}: {error.name}: {error}") from None
    except DaemonRefused as error:
        if error.name != "OTHER_CLUSTER":
            return
        raise ValueError(f"kafka_sidecar: {SERVERS}: {error}") from None
    except SidecarError:
        return
