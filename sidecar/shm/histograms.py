"""Histograms of a slot, stored after its counter rows, so that a dead worker's successor continues them.

They are in the segment and not in the worker's reports, because the segment outlives worker, controller and takeover,
and can be read while a worker hangs. Like counter rows, histograms are only appended and their bounds never change, so
a reader of another version can read those it knows.

A block's words, after the counter rows::

    histogram  {count for each bound u64 ..., count above the last u64, sum u64}    in the order of HISTOGRAM_ROWS
    broker     {id + 1 u64, histogram} x 17    the first has no id: it is for all brokers beyond the others
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from sidecar.kernel import Histogram
from sidecar.shm import layout

if TYPE_CHECKING:
    from sidecar.shm.slots import SlotView

FIRST_WORD: Final = (layout.COUNTERS_FIRST_OFFSET - layout.COUNTERS_OFFSET) // 8 + layout.COUNTER_ROWS_MAX
"""Index of the first histogram word in the counter block."""
BROKERS_MAX: Final = 16
"""Number of brokers of a slot with a histogram of their own."""
OTHER_BROKERS: Final = "other"


class HistogramRow(NamedTuple):
    """``bounds`` are in ``unit``, ascending. ``steps``: values are stored in this fraction of a unit. Other fields as
    in CounterRow.
    """

    name: str
    unit: str
    help: str
    bounds: tuple[float, ...]
    steps: int = 1
    worry: str = ""


_TENTHS_OF_MS: Final = 10_000
_LATENCIES: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
HISTOGRAM_ROWS: Final = (
    HistogramRow(
        "delivery_seconds",
        "seconds",
        "Time from a record's acceptance to its acknowledgement by the broker, of delivered records. Time without a "
        "worker does not count.",
        _LATENCIES,
        _TENTHS_OF_MS,
        "Its 99th percentile is far above that of `request_seconds`: records wait in the sidecar; see `queue_seconds`.",
    ),
    HistogramRow(
        "queue_seconds",
        "seconds",
        "Time from a record's acceptance until it is sent for the first time.",
        _LATENCIES,
        _TENTHS_OF_MS,
        "Far above `linger.ms`: a broker is slow, or its leader is missing.",
    ),
    HistogramRow(
        "batch_bytes",
        "bytes",
        "Size of record batches before compression, at each send, retries included.",
        (256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216),
        1,
        "Mostly far below `batch.size`: a longer `linger.ms` would save requests.",
    ),
    HistogramRow(
        "batch_records",
        "records",
        "Records of record batches, at each send, retries included.",
        (1, 4, 16, 64, 256, 1024, 4096, 16_384),
    ),
    HistogramRow(
        "submission_bytes",
        "bytes",
        "Payload of submissions that were accepted.",
        (64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576),
    ),
)
REQUEST_ROW: Final = HistogramRow(
    "request_seconds",
    "seconds",
    f"Time from a Produce request to its answer, by broker; the first {BROKERS_MAX} brokers of a worker, the rest as "
    f"`{OTHER_BROKERS}`.",
    (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30),
    _TENTHS_OF_MS,
    "One broker is far above the others: it is overloaded, or the way to it is.",
)


def _words(row: HistogramRow) -> int:
    return len(row.bounds) + 2


_FIRST_WORDS: Final = tuple(accumulate(map(_words, HISTOGRAM_ROWS), initial=FIRST_WORD))
_PLACE_OF: Final = {row.name: (row, word) for row, word in zip(HISTOGRAM_ROWS, _FIRST_WORDS, strict=False)}
"""Name → (row, index of its first word)."""
_BROKERS_WORD: Final = _FIRST_WORDS[-1]
_BROKER_WORDS: Final = 1 + _words(REQUEST_ROW)
assert 8 * (_BROKERS_WORD + (BROKERS_MAX + 1) * _BROKER_WORDS) <= layout.COUNTERS_BYTES


class HistogramCounts(NamedTuple):
    """One histogram: a count per bound and one above them (not cumulated), and the sum in the row's steps."""

    row: HistogramRow
    broker: str
    """Node id as text, ``other``, or ""."""
    buckets: list[int]
    total: int


class SlotHistograms:
    """The writer's side. Belongs to the worker's loop."""

    def __init__(self, slot: SlotView) -> None:
        self._block = slot.area[layout.COUNTERS_OFFSET : layout.CHAINS_OFFSET]
        self._words = self._block.cast("Q")
        by_name = {name: self._at(row, word) for name, (row, word) in _PLACE_OF.items()}
        self.delivery_times = by_name["delivery_seconds"]
        self.queue_times = by_name["queue_seconds"]
        self.batch_sizes = by_name["batch_bytes"]
        self.batch_counts = by_name["batch_records"]
        self.submission_sizes = by_name["submission_bytes"]

    def _at(self, row: HistogramRow, word: int) -> Histogram:
        return Histogram(self._block, word, [round(bound * row.steps) for bound in row.bounds])

    def of_broker(self, broker: int) -> Histogram:
        """Histogram of a broker's request times: its own, a free one, or the one of all others."""
        for word in _broker_words():
            owner = self._words[word]
            if owner in (0, broker + 1):
                self._words[word] = broker + 1
                return self._at(REQUEST_ROW, word + 1)
        return self._at(REQUEST_ROW, _BROKERS_WORD + 1)


def _broker_words() -> Iterator[int]:
    for index in range(1, BROKERS_MAX + 1):
        yield _BROKERS_WORD + index * _BROKER_WORDS


def read_histograms(slot: SlotView) -> list[HistogramCounts]:
    """All histograms of a slot: a consistent copy unless the writer hangs."""
    words = slot.counters.read_words()
    found = [_counts(row, "", words, word) for row, word in _PLACE_OF.values()]
    found.append(_counts(REQUEST_ROW, OTHER_BROKERS, words, _BROKERS_WORD + 1))
    for word in _broker_words():
        if words[word]:
            found.append(_counts(REQUEST_ROW, str(words[word] - 1), words, word + 1))
    return found


def read_delivery_times(slot: SlotView) -> list[int]:
    """Buckets of ``delivery_seconds`` only."""
    row, word = _PLACE_OF["delivery_seconds"]
    return slot.counters.read_words()[word : word + len(row.bounds) + 1]


def _counts(row: HistogramRow, broker: str, words: list[int], word: int) -> HistogramCounts:
    end = word + len(row.bounds) + 1
    return HistogramCounts(row, broker, words[word:end], words[end])
