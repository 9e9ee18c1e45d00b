"""TopicHandler: a ``logging.Handler`` that sends each line as a record to a topic.

``logging`` calls it, in the thread that logs, with the handler's lock held.

::

    import logging
    from client_stub.logging_handler import TopicHandler

    logging.getLogger().addHandler(TopicHandler("logs"))

It is meant for logs: it drops a line rather than block the application, see ``max_block_ms``.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import weakref
from typing import Any, Final

from client_stub.errors import BufferExhausted, DaemonUnreachable, SidecarError
from client_stub.inner_producer import InnerProducer
from client_stub.records.arguments import check_topic, checked_timeout
from client_stub.system.minute_limit import MinuteLimit
from client_stub.system.originals import monotonic

OWN_LOGGER: Final = "client_stub"
MAX_BLOCK_MS: Final = 100.0
CLOSE_TIMEOUT_S: Final = 5.0

log = logging.getLogger(OWN_LOGGER)


class TopicHandler(logging.Handler):
    """Sends each formatted log record as UTF-8, with the log record's time and the headers ``level`` and ``logger``.

    - **Waiting**: a call waits at most ``max_block_ms`` for a daemon or for room. After a wait in vain no call waits
      until a line has found room again. A line without room is dropped and counted in ``dropped``.
    - **Its own lines**: lines of the logger ``client_stub`` and of loggers below it are not sent, as they may be about
      this very handler. Lines that are logged while another line is being formatted are not sent either.
    - **Forks**: the child sends with its own client and counts its own drops.
    - **The end**: close() and ``logging.shutdown`` wait at most ``close_timeout_s``. Later lines are dropped.

    ``producer_settings`` are arguments of Producer: ``run_dir``, ``client_name``, ``token`` and so on. Thread-safe.
    Raises the errors of Producer for them, and ValueError for a negative time.
    """

    def __init__(
        self,
        topic: str,
        level: int | str = logging.NOTSET,
        *,
        max_block_ms: float = MAX_BLOCK_MS,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
        **producer_settings: Any,
    ) -> None:
        check_topic(topic)
        seconds = checked_timeout(close_timeout_s, "close_timeout_s")
        super().__init__(level)
        self.topic = topic
        self.dropped = 0
        """Lines of this process that were dropped: without room, without a daemon, or after close()."""
        self._max_block_ms = max_block_ms
        self._close_timeout_s = seconds
        self._producer = InnerProducer(max_block_ms=max_block_ms, **producer_settings)
        self._pid = os.getpid()
        self._is_emitting = False
        self._logged_dropped = 0
        self._drop_limit = MinuteLimit()
        _handlers[self] = None

    def filter(self, record: logging.LogRecord) -> Any:
        """As logging.Filterer.filter(), but False for lines of this package."""
        if record.name == OWN_LOGGER or record.name.startswith(OWN_LOGGER + "."):
            return False
        return super().filter(record)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the line. logging calls this with the handler's lock held, so one call at a time."""
        if os.getpid() != self._pid:
            self._pid, self.dropped, self._logged_dropped, self._is_emitting = os.getpid(), 0, 0, False
        if self._is_emitting:
            self.dropped += 1
            return
        self._is_emitting = True
        try:
            self._send(record)
        except SidecarError as error:
            self._drop(error)
        except Exception:
            self.handleError(record)
        finally:
            self._is_emitting = False

    def flush(self) -> None:
        """Wait at most ``close_timeout_s`` until all earlier lines have an outcome."""
        with contextlib.suppress(SidecarError, TimeoutError):  # the producer logs failed records itself
            self._producer.flush(self._close_timeout_s)

    def close(self) -> None:
        """Deliver the queued lines, for at most ``close_timeout_s``, and send no more."""
        with contextlib.suppress(SidecarError):
            self._producer.close(self._close_timeout_s)
        super().close()

    def _send(self, record: logging.LogRecord) -> None:
        self._producer.send(
            self.topic,
            _bytes(self.format(record)),
            headers=[("level", _bytes(record.levelname)), ("logger", _bytes(record.name))],
            timestamp_ms=max(0, int(record.created * 1e3)),
        )
        self._producer.engine.outbox.block_at_most(self._max_block_ms)

    def _drop(self, error: SidecarError) -> None:
        self.dropped += 1
        if isinstance(error, BufferExhausted | DaemonUnreachable):
            self._producer.engine.outbox.block_at_most(0)
        if self._drop_limit.may_log(monotonic() * 1e3):
            log.warning(
                "%d log lines for topic %s were dropped: %s",
                self.dropped - self._logged_dropped,
                self.topic,
                error,
            )
            self._logged_dropped = self.dropped


def _bytes(text: str) -> bytes:
    """UTF-8, for any text: names of files and modules may hold lone surrogates."""
    return text.encode("utf-8", "backslashreplace")


_handlers: weakref.WeakKeyDictionary[TopicHandler, None] = weakref.WeakKeyDictionary()
"""A dictionary instead of a set, for the reason given in ``process_end``."""


def _at_exit() -> None:
    """Close all handlers. This runs before the end of producers, which has a different timeout, and before
    logging's.
    """
    for ref in _handlers.keyrefs():
        if (handler := ref()) is not None:
            handler.close()


atexit.register(_at_exit)
