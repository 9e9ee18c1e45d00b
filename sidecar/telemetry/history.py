"""History: the last quarter of an hour of a daemon's totals, in a ring of fixed size. Sans-IO."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

INTERVAL_S: Final = 5.0
SAMPLES_MAX: Final = 181
"""Of a quarter of an hour both ends."""
COLUMNS: Final = (
    "records_accepted_total",
    "records_delivered_total",
    "records_failed_total",
    "records_dead_lettered_total",
    "bytes_accepted_total",
    "bytes_sent_total",
    "records_held",
    "buffer_pages_taken",
)


class History:
    """Totals over all workers, one sample in ``INTERVAL_S``."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, ...]] = deque(maxlen=SAMPLES_MAX)

    def add(self, wall_ms: int, counters: Mapping[str, int]) -> None:
        """``counters``: totals by name (``sum_counters``)."""
        self._samples.append((wall_ms, *(counters[name] for name in COLUMNS)))

    def to_json(self) -> dict[str, Any]:
        """``columns`` by name, each as long as ``at_ms`` (Unix epoch), oldest first."""
        columns = list(zip(*self._samples, strict=True)) or [()] * (1 + len(COLUMNS))
        return {
            "interval_seconds": INTERVAL_S,
            "at_ms": list(columns[0]),
            "columns": {name: list(column) for name, column in zip(COLUMNS, columns[1:], strict=True)},
        }
