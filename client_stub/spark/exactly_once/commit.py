"""Commits a batch on the driver: claim, read, include, record, commit. Needs nothing from batch to batch.

In this order, for these reasons: the claim fences every older client of the key and ends what it has left open; the
record is read after it, so that nobody changes it any more; rows and record are in one transaction, so that one is
there if the other is; and an answer that is lost is neither a commit nor a refusal: the same request goes again, and
at last the batch fails, and its replay reads what has become of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from client_stub.contract.error_codes import code_row
from client_stub.contract.wire import LocalCode
from client_stub.errors import ProducerFenced, SidecarError, TransactionError
from client_stub.inner_producer import InnerProducer
from client_stub.spark.exactly_once.commit_record import CommitRecord, unpack
from client_stub.spark.exactly_once.decision import Batch, BatchRefused, Decision, decide, second_write
from client_stub.spark.exactly_once.messages import StagedTask, batch_of, daemon_name, staged
from client_stub.spark.executor_log import one_line, tell
from client_stub.system.log import log
from client_stub.system.originals import monotonic

if TYPE_CHECKING:
    from client_stub.outbox.inclusion import Inclusion
    from client_stub.producer import Producer
    from client_stub.spark.exactly_once.settings import ExactlyOnce
    from client_stub.spark.options import Options

TASKS_MAX: Final = 1_000
"""Of one batch: a worker has 1,024 stages, of this batch and of others."""
OFFSETS_BYTES_MAX: Final = 64 << 10
PARTITIONS_SHOWN: Final = 16
ANSWER_S: Final = 30.0
"""How long a call may take beyond the transaction's timeout."""

REPLAYS_KNOWN_MAX: Final = 64
_replays: dict[str, tuple[int, str]] = {}
"""Key → the batch and the run whose rows this process has dropped last. A second write with the key would be dropped
as the first one is: it fails here as it did in the run before, where the record had told it.
"""


def commit_batch(messages: Iterable[Any], options: Options, settings: ExactlyOnce) -> None:
    """Put the stages of these tasks into Kafka, once. Raises RuntimeError, in one line."""
    tasks = staged(messages)
    if not tasks:
        return
    with _one_line():
        batch = batch_of(tasks, daemon_name(options.run_dir_here()))
        with driver_producer(options, settings, batch.key) as producer:
            commit_stages(producer, tasks, batch, settings)


def drop_batch(messages: Iterable[Any], options: Options, settings: ExactlyOnce) -> None:
    """Forget the stages of these tasks. It touches no transaction, so it may run beside anything."""
    tasks = staged(messages)
    if not tasks:
        return
    try:
        with driver_producer(options, settings, tasks[0].batch.key) as producer:
            producer.drop_stages([each.token for each in tasks], timeout=ANSWER_S)
    except (SidecarError, ValueError) as error:
        log.warning("kafka_sidecar: stages of batch %d wait for their time: %s", tasks[0].batch.number, error)


def commit_stages(
    producer: Producer, tasks: Sequence[StagedTask], batch: Batch, settings: ExactlyOnce
) -> None:
    if len(tasks) > TASKS_MAX:
        raise BatchRefused(
            f"batch {batch.number} has {len(tasks)} tasks, and at most {TASKS_MAX} can be in one transaction: write "
            "df.coalesce(n)."
        )
    wait_s = settings.timeout_ms / 1e3 + ANSWER_S
    producer.init_transactions(wait_s)
    is_recorded = settings.is_recorded or bool(batch.query)
    key = batch.key.encode()
    found = (
        producer.last_committed(settings.commits_topic, key, ANSWER_S, creates=True) if is_recorded else None
    )
    last = None if found is None or found.record is None else unpack(found.record.value)
    decision = Decision.COMMIT if found is None else decide(batch, last, settings)
    rows = sum(each.rows for each in tasks)
    if decision is Decision.REPLAY:
        if rows:
            _note_replay(batch)
        tell(f"batch {batch.number} is in Kafka already, by an earlier run: its {rows} rows are dropped.")
    elif rows or last is None:
        begun_s = monotonic()
        producer.begin_transaction()
        with _aborting(producer, batch, settings, begun_s):
            inclusion = _include(producer, tasks, batch)
            if found is not None:
                topics = tuple(sorted(frozenset().union(*(each.topics for each in tasks))))
                offsets = _offsets(settings, batch)
                record = CommitRecord(batch.number, batch.query, batch.run, rows, len(tasks), topics, offsets)
                producer.send(settings.commits_topic, record.pack(), key, partition=found.partition)
            producer.commit_transaction(wait_s)
        _tell_committed(batch, rows, len(tasks), inclusion)
    _drop_rest(producer, batch)


def _note_replay(batch: Batch) -> None:
    """Raises BatchRefused for the second write of a run."""
    if _replays.get(batch.key) == (batch.number, batch.run):
        raise second_write(batch)
    if len(_replays) == REPLAYS_KNOWN_MAX:
        _replays.clear()
    _replays[batch.key] = batch.number, batch.run


def _drop_rest(producer: Producer, batch: Batch) -> None:
    """Forget what this batch has left: losers of speculation, attempts that failed, a replay. The batch is decided, so
    a failure here must not end the query: the next batch drops them, or their time does.
    """
    try:
        producer.drop_stages(up_to=batch.number, timeout=ANSWER_S)
    except SidecarError as error:
        log.warning("kafka_sidecar: stages up to batch %d were not dropped: %s", batch.number, error)


def _include(producer: Producer, tasks: Sequence[StagedTask], batch: Batch) -> Inclusion:
    try:
        return producer.include([each.token for each in tasks], timeout=ANSWER_S)
    except TransactionError as error:
        if error.name != code_row(LocalCode.STAGE_UNKNOWN).name:
            raise
        raise BatchRefused(
            f"tasks of batch {batch.number} are no longer at the daemon ({str(error).rstrip('.')}); nothing was "
            "written. A restart of the query writes the batch again."
        ) from error


@contextmanager
def _aborting(producer: Producer, batch: Batch, settings: ExactlyOnce, begun_s: float) -> Iterator[None]:
    """Abort the open transaction on an exception, with the sentence of a timeout where it was one."""
    try:
        yield
    except SidecarError as error:
        late = (monotonic() - begun_s) * 1e3 >= settings.timeout_ms
        _abort(producer)
        if late and isinstance(error, TransactionError) and error.abortable:
            raise BatchRefused(
                f"batch {batch.number} was not sent within transaction.timeout.ms={settings.timeout_ms} and was "
                "aborted; nothing of it is visible. Raise the option, or write smaller batches."
            ) from error
        raise
    except BatchRefused:
        _abort(producer)
        raise


def _abort(producer: Producer) -> None:
    """An abort that fails is made good by the next claim."""
    try:
        producer.abort_transaction(ANSWER_S)
    except SidecarError as error:
        log.warning("kafka_sidecar: the transaction was not aborted, which the next batch does: %s", error)


def _tell_committed(batch: Batch, rows: int, tasks: int, inclusion: Inclusion) -> None:
    places = ", ".join(
        f"{topic}-{partition} {found.first_offset}..{found.last_offset}"
        for (topic, partition), found in sorted(inclusion.partitions.items())[:PARTITIONS_SHOWN]
    )
    more = len(inclusion.partitions) - PARTITIONS_SHOWN
    if more > 0:
        places += f" and {more} more"
    tell(f"batch {batch.number} is committed: {rows} rows of {tasks} tasks: {places or '-'}.")


def _offsets(settings: ExactlyOnce, batch: Batch) -> dict[str, Any] | None:
    """The sources' end offsets of the batch, where the checkpoint is a folder of this host."""
    folder = settings.checkpoint.removeprefix("file://").removeprefix("file:")
    if not folder or not batch.query or "://" in folder:
        return None
    try:
        text = (Path(folder) / "offsets" / str(batch.number)).read_bytes()[: OFFSETS_BYTES_MAX + 1]
        _, _, *sources = text.decode().splitlines()
        if len(text) > OFFSETS_BYTES_MAX or not sources:
            return None
        return {str(number): json.loads(each) for number, each in enumerate(sources) if each != "-"}
    except (OSError, ValueError):
        return None


@contextmanager
def driver_producer(options: Options, settings: ExactlyOnce, key: str) -> Iterator[InnerProducer]:
    """A producer of its own for each batch: what an earlier one of the key may have left is its claim's to end."""
    producer = InnerProducer(
        options.run_dir_here(),
        client_name="spark",
        max_block_ms=options.max_block_ms,
        transactional_id=settings.transactional_id(key),
        transaction_timeout_ms=settings.timeout_ms,
        curve_key_file=options.curve_key_file or None,
    )
    producer.engine.ask_for(options.asked)
    try:
        yield producer
    finally:
        producer.close(0)


@contextmanager
def _one_line() -> Iterator[None]:
    """Spark shows the last line of an error only."""
    try:
        yield
    except ProducerFenced as error:
        raise RuntimeError(
            "kafka_sidecar: this run was superseded by another one of the same query (producer fenced)."
        ) from error
    except (SidecarError, ValueError) as error:
        raise RuntimeError(f"kafka_sidecar: {one_line(error)}") from error
