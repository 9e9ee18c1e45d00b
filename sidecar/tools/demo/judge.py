"""The independent count: librdkafka reads the topic and the standard library decodes it; no code of ours is used.

Every value carries ``row`` = Spark's monotonically_increasing_id(): the upper bits are the Spark task, the lower 33
count the rows of that task. So within one key and task the numbers rise in the order of offsets.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from sidecar.tools.demo.flights import Counts
from sidecar.tools.testing.kafka_topics import quiet_config

TASK_SHIFT = 33
CONSUME_BATCH = 10_000
POLL_S = 0.2
SHOWN_MAX = 3


class Message(Protocol):
    """The parts of a consumed message that the judge reads; confluent-kafka's own class fits."""

    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def partition(self) -> int | None: ...


@dataclass
class Verdict:
    """Counts of the records read back, and one sentence for every difference from the input."""

    counts: Counts = field(default_factory=Counts)
    tasks: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def agrees(self) -> bool:
        return not self.problems


class Judge:
    """Takes messages in the order in which they are read (per partition: in the order of offsets), then compares."""

    def __init__(self) -> None:
        self._verdict = Verdict()
        self._last_row: dict[tuple[str, int, int], int] = {}
        self._partition_of: dict[str, int] = {}
        self._seen: Counter[int] = Counter()

    @property
    def rows(self) -> int:
        return self._verdict.counts.rows

    def take(self, messages: Iterable[Message]) -> None:
        """Count and check order; a message without key or JSON is a problem, never an exception."""
        for message in messages:
            key, value, partition = message.key(), message.value(), message.partition()
            try:
                if key is None or value is None or partition is None:
                    raise ValueError("no key or no value")
                self._take(key.decode(), json.loads(value), partition)
            except (ValueError, KeyError, TypeError) as error:
                self._report(f"a message is not a flight: {error!r}")

    def _take(self, key: str, flight: Mapping[str, object], partition: int) -> None:
        if flight["carrier"] != key:
            self._report(f"key {key} carries a flight of {flight['carrier']}")
        row = int(str(flight["row"]))
        task = row >> TASK_SHIFT
        self._verdict.counts.add(key, int(str(flight["distance"])), int(str(flight["flight"])))
        self._verdict.tasks.add(task)
        self._seen[row] += 1
        if self._partition_of.setdefault(key, partition) != partition:
            self._report(f"key {key} is in partitions {self._partition_of[key]} and {partition}")
        last = self._last_row.get((key, task, partition), -1)
        if row < last:
            self._report(f"key {key}: row {row} of task {task} came after row {last}")
        self._last_row[key, task, partition] = row

    def _report(self, problem: str) -> None:
        # One fault can concern every row, so only the first few are kept.
        if len(self._verdict.problems) < SHOWN_MAX:
            self._verdict.problems.append(problem)

    def verdict(self, expected: Counts) -> Verdict:
        """Compare with ``expected``. Returns all differences."""
        verdict = self._verdict
        doubles = sum(count - 1 for count in self._seen.values())
        if doubles:
            verdict.problems.append(f"{doubles:,} rows are doubled")
        if verdict.counts.rows - doubles < expected.rows:
            verdict.problems.append(f"{expected.rows - verdict.counts.rows + doubles:,} rows are missing")
        for key in sorted(expected.by_key.keys() | verdict.counts.by_key.keys()):
            wanted, found = expected.by_key.get(key), verdict.counts.by_key.get(key)
            if wanted != found:
                verdict.problems.append(f"key {key}: the CSV has {wanted}, the topic has {found}")
        return verdict


class TopicReader:
    """Reads one topic from its end at the time when the reader was made. Not thread-safe, except for ``close``."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self._consumer = Consumer(
            quiet_config(
                bootstrap_servers,
                {
                    "group.id": "kafka-sidecar-demo-judge",
                    "enable.auto.commit": "false",
                    "auto.offset.reset": "error",
                    "check.crcs": "true",
                    "isolation.level": "read_committed",
                    "fetch.wait.max.ms": 50,
                    # A read that finds nothing is the end. With a full queue librdkafka fetches nothing for a second.
                    "fetch.queue.backoff.ms": 10,
                },
            )
        )
        self.is_closed = False
        self._reading = threading.Lock()
        self._topic = topic
        partitions = self._consumer.list_topics(topic, timeout=30).topics[topic].partitions
        self._start = {index: self._end(index) for index in partitions}
        self._consumer.assign([TopicPartition(topic, index, start) for index, start in self._start.items()])

    def _end(self, partition: int) -> int:
        from confluent_kafka import TopicPartition

        found = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=30)
        assert found is not None
        return int(found[1])

    def written(self) -> int:
        """The number of records appended by any client since the reader was made, by the broker's offsets."""
        return sum(self._end(partition) - start for partition, start in self._start.items())

    def read_into(self, judge: Judge) -> int:
        """Pass the records that can be read now to ``judge``. Returns their number; 0 once it is closed."""
        with self._reading:
            if self.is_closed:
                return 0
            messages = [
                message for message in self._consumer.consume(CONSUME_BATCH, POLL_S) if not message.error()
            ]
        judge.take(messages)
        return len(messages)

    def close(self) -> None:
        """Close the reader. May be called again, and while another thread reads: librdkafka would otherwise block for
        ever.
        """
        if not self.is_closed:
            self.is_closed = True
            with self._reading:
                self._consumer.close()


class LiveReading:
    """Reads in a thread while the block runs; reader and judge belong to that thread in this time.

    Closing the reader ends the thread, even if Ctrl-C came while it was being started. So does an error in the block.
    """

    def __init__(self, reader: TopicReader, judge: Judge) -> None:
        self._reader = reader
        self._judge = judge
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._read, name="live-reading", daemon=True)

    def _read(self) -> None:
        reader = self._reader
        while (reader.read_into(self._judge) or not self._done.is_set()) and not reader.is_closed:
            pass

    def __enter__(self) -> LiveReading:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._reader.close()  # Ctrl-C: further records do not matter
        self._done.set()
        self._thread.join()
