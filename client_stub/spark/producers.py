"""The producers of one Spark Python worker. They outlive their tasks, so the next task finds open connections."""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from client_stub.inner_producer import InnerProducer
from client_stub.spark.autostart import DaemonNotStarted, ensure_daemon, log_of
from client_stub.spark.executor_log import tell

if TYPE_CHECKING:
    from client_stub.spark.options import Options

PRODUCERS_KEPT_MAX: Final = 4
"""Each producer has a thread and two sockets. Queries of one process rarely differ in daemon or options."""


class ProducerCache:
    """Producers by process, daemon and the options of a Producer. Beyond the limit the one that was unused longest is
    closed.

    A producer that takes no more records is replaced: one task may have ended it, and Spark runs other tasks and
    queries in the same process. Not thread-safe: a Python worker runs one task at a time.
    """

    def __init__(self) -> None:
        self._producers: OrderedDict[tuple[int, str, str, float, str], InnerProducer] = OrderedDict()

    def producer_for(self, options: Options) -> InnerProducer:
        """Raises DaemonNotStarted, and ValueError where the host has no usual run directory. With sidecar.autostart the
        daemon is looked for at each task: one that had no client for long has ended.
        """
        run_dir = options.run_dir_here() if options.settings is None else _own_daemon(options.settings)
        place = (os.getpid(), run_dir, options.curve_key_file, options.max_block_ms, options.servers)
        producer = self._producers.pop(place, None)
        if producer is not None and not producer.takes_records:
            producer.close(0)
            producer = None
        if producer is None:
            if options.settings is not None:
                tell(f"Records go through the daemon at {run_dir}; its log is {log_of(run_dir)}.")
            producer = InnerProducer(
                run_dir,
                client_name="spark",
                max_block_ms=options.max_block_ms,
                curve_key_file=options.curve_key_file or None,
            )
            producer.engine.ask_for(options.asked)
        self._producers[place] = producer
        while len(self._producers) > PRODUCERS_KEPT_MAX:
            self._producers.popitem(last=False)[1].close(0)
        return producer


def _own_daemon(settings: tuple[tuple[str, str], ...]) -> str:
    try:
        return ensure_daemon(dict(settings))
    except DaemonNotStarted as error:
        for line in error.last_lines:
            tell(f"log of the daemon: {line}")
        raise
