"""What delivery=exactly_once needs, tried on the driver before any task: a daemon, the transactional id, the commits
topic.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from client_stub.errors import DaemonUnreachable, ProducerFenced, SidecarError
from client_stub.inner_producer import InnerProducer
from client_stub.spark.exactly_once.settings import ONE_DAEMON

if TYPE_CHECKING:
    from client_stub.spark.exactly_once.settings import ExactlyOnce
    from client_stub.spark.options import Options

CHECK: Final = "check"
"""In the place of a key. Drivers that check at the same time take it from each other, and none has a transaction."""
WAIT_S: Final = 15.0


def check_exactly_once(options: Options, settings: ExactlyOnce) -> None:
    """Raises ValueError, in one line."""
    run_dir = options.run_dir_here()
    try:
        producer = InnerProducer(
            run_dir,
            client_name="spark",
            transactional_id=settings.transactional_id(CHECK),
            transaction_timeout_ms=settings.timeout_ms,
            curve_key_file=options.curve_key_file or None,
        )
        producer.engine.ask_for(options.asked)
        try:
            # Fenced: another driver checks the same at this moment, and is told if the id cannot be had.
            with suppress(ProducerFenced):
                producer.init_transactions(WAIT_S)
            producer.last_committed(settings.commits_topic, CHECK.encode(), WAIT_S, creates=True)
        finally:
            producer.close(0)
    except DaemonUnreachable as error:
        raise ValueError(f"kafka_sidecar: {_one_line(error).rstrip('.')}. {ONE_DAEMON}") from None
    except (SidecarError, ValueError) as error:
        raise ValueError(f"kafka_sidecar: {_one_line(error)}") from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
