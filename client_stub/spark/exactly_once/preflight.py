"""What delivery=exactly_once needs, tried on the driver before any task: a daemon, the transactional id, the commits
topic.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from client_stub.errors import DaemonUnreachable, ProducerFenced, SidecarError
from client_stub.spark.exactly_once.commit import driver_producer
from client_stub.spark.exactly_once.settings import ONE_DAEMON
from client_stub.spark.executor_log import one_line

if TYPE_CHECKING:
    from client_stub.spark.exactly_once.settings import ExactlyOnce
    from client_stub.spark.options import Options

CHECK: Final = "check"
"""In the place of a key. Drivers that check at the same time take it from each other, and none has a transaction."""
WAIT_S: Final = 15.0


def check_exactly_once(options: Options, settings: ExactlyOnce) -> None:
    """Raises ValueError, in one line."""
    try:
        with driver_producer(options, settings, CHECK) as producer:
            # Fenced: another driver checks the same at this moment, and is told if the id cannot be had.
            with suppress(ProducerFenced):
                producer.init_transactions(WAIT_S)
            producer.last_committed(settings.commits_topic, CHECK.encode(), WAIT_S, creates=True)
    except DaemonUnreachable as error:
        raise ValueError(f"kafka_sidecar: {one_line(error).rstrip('.')}. {ONE_DAEMON}") from None
    except (SidecarError, ValueError) as error:
        raise ValueError(f"kafka_sidecar: {one_line(error)}") from None
