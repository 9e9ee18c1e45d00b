"""The options of delivery=exactly_once, checked on the driver."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Final, NamedTuple

PREFIX: Final = "kafka-sidecar"
PREFIX_BYTES_MAX: Final = 48
COMMITS_TOPIC: Final = "__kafka_sidecar_commits"
TIMEOUT_MS: Final = 120_000
ONE_DAEMON: Final = (
    "With delivery=exactly_once the driver and all tasks use one daemon: start it with 'kafka-sidecar run', or set "
    "option sidecar.run_dir."
)
"""What the error of a driver or a task without a daemon ends with."""
NAMES: Final = ("transactional.id.prefix", "transaction.timeout.ms", "commits.topic", "sink.id", "job.id")


class ExactlyOnce(NamedTuple):
    """Pickled with the writer: its tasks and its commit have the same."""

    prefix: str
    timeout_ms: int
    commits_topic: str
    sink_id: str
    job_id: str
    checkpoint: str
    """Spark's checkpointLocation, where it is an option of the write."""
    run: str = ""
    """Of one write that is no stream's; the run of a stream is Spark's."""

    @property
    def is_recorded(self) -> bool:
        """Whether another run may write the same batch again. That of a batch job without a job.id is new data."""
        return bool(self.job_id)

    def of_new_run(self) -> ExactlyOnce:
        return self._replace(run=uuid.uuid4().hex)

    def transactional_id(self, key: str) -> str:
        return f"{self.prefix}.{key}"


def read_exactly_once(options: Mapping[str, str]) -> ExactlyOnce:
    """Raises ValueError, in one line."""
    prefix = options.get("transactional.id.prefix", PREFIX)
    if not 0 < len(prefix.encode()) <= PREFIX_BYTES_MAX:
        raise ValueError(
            f"kafka_sidecar: option transactional.id.prefix={prefix} has {len(prefix.encode())} bytes, and must have 1 "
            f"to {PREFIX_BYTES_MAX}."
        )
    text = options.get("transaction.timeout.ms", str(TIMEOUT_MS))
    if not text.isdecimal() or not 0 < int(text) < 1 << 31:
        raise ValueError(
            f"kafka_sidecar: option transaction.timeout.ms={text} must be a whole number of milliseconds from 1 to "
            f"{(1 << 31) - 1}."
        )
    return ExactlyOnce(
        prefix,
        int(text),
        options.get("commits.topic") or COMMITS_TOPIC,
        options.get("sink.id", ""),
        options.get("job.id", ""),
        options.get("checkpointlocation", ""),
    )
