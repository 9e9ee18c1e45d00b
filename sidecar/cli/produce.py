"""``kafka-sidecar produce``: sends records from a file or stdin through the daemon."""

from __future__ import annotations

import codecs
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import click

from client_stub.errors import DeliveryCancelled, MetadataTimeout, SidecarError
from client_stub.records.arguments import check_topic
from sidecar.cli.bad_input import BadInput
from sidecar.cli.common import daemon_info, fail, run_dir_option, say
from sidecar.cli.extras import need_packages
from sidecar.cli.json_output import answer_with, print_answer
from sidecar.cli.options import json_option, timeout_option
from sidecar.cli.progress import WorkDone, progress, share_of
from sidecar.cli.record_files import (
    BINARY_FORMS,
    FORMATS,
    Pair,
    format_of,
    read_records,
    split_keys,
)
from sidecar.common.model import ExitStatus
from sidecar.common.wording import counted
from sidecar.controller.rundir.published import read_json
from sidecar.controller.rundir.run_dir import RunDir

if TYPE_CHECKING:
    from client_stub import Producer, RecordMetadata

REASONS_SHOWN = 3
MISSING_AFTER_S = 2.0
"""After this time a topic that Kafka does not have is reported; the records still wait for it."""
INTERRUPTED_S = 2.0
"""How long pending outcomes are awaited after Ctrl-C, or when the daemon takes no more records."""


class Fields(NamedTuple):
    """The parts that all records of a call have in common."""

    key: bytes | None
    headers: list[tuple[str, bytes]] | None
    partition: int | None
    timestamp_ms: int | None
    empty_as_null: bool


class _Outcomes:
    """Counts the records, and on the stub's thread their outcomes; read after flush()."""

    def __init__(self, *, are_shown: bool) -> None:
        self._are_shown = are_shown
        self.unwritable: OSError | None = None
        """Set when stdout failed."""
        self.sent = 0
        self.all: int | None = None
        """How many records there are, where the format knows it."""
        self.delivered = 0
        self.failed = 0
        self.reasons: Counter[str] = Counter()

    def __call__(self, error: Exception | None, metadata: RecordMetadata | None) -> None:
        if error is None:
            self.delivered += 1
            if self._are_shown and metadata is not None:
                self._show(metadata)
        elif not isinstance(error, DeliveryCancelled):  # caused by our own close(0)
            self.failed += 1
            self.reasons[str(error)] += 1

    @property
    def left(self) -> int:
        """Records without an outcome."""
        return self.sent - self.delivered - self.failed

    def know_all(self, count: int) -> None:
        self.all = count

    def work_done(self, share: float | None) -> WorkDone:
        """How far it has come; ``share``: the part of the file that was read."""
        if self.all is not None:
            share = self.sent / max(self.all, 1)
        failed = f", {self.failed:,} failed" if self.failed else ""
        return WorkDone(f"{self.delivered:,} of {counted(self.sent, 'record')} delivered{failed}", share)

    def _show(self, metadata: RecordMetadata) -> None:
        try:
            sys.stdout.write(f"{metadata.topic}\t{metadata.partition}\t{metadata.offset}\n")
            sys.stdout.flush()
        except OSError as error:
            self._are_shown, self.unwritable = False, error

    def show_reasons(self) -> None:
        for reason, count in self.reasons.most_common(REASONS_SHOWN):
            say(f"{counted(count, 'record')} failed: {reason}")


@click.command()
@run_dir_option
@click.argument("topic")
@click.argument("file", default="-", type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--format", "form", type=click.Choice(FORMATS), help="[default: by the file's name, else lines]"
)
@click.option("--key", metavar="FIELD", help="Field or column whose text becomes the record's key.")
@click.option("--key-separator", metavar="TEXT", help="For lines: the key precedes the first TEXT.")
@click.option("--fixed-key", metavar="TEXT", help="The key of every record.")
@click.option(
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    help="A header of every record; may be repeated.",
)
@click.option("--partition", type=click.IntRange(0), help="[default: the daemon's partitioner decides]")
@click.option(
    "--timestamp", metavar="TIME", help="For every record: ms since 1970, or ISO 8601. [default: now]"
)
@click.option(
    "--delimiter", metavar="TEXT", help=r"For lines: what ends a value, such as ';' or '\0' or '\n\n'."
)
@click.option(
    "--offsets", "are_shown", is_flag=True, help="Print topic, partition and offset of each record."
)
@click.option("--empty-as-null", is_flag=True, help="Send empty values as null, as for compacted topics.")
@click.option(
    "--binary",
    type=click.Choice(BINARY_FORMS),
    default=BINARY_FORMS[0],
    show_default=True,
    help="Form of Parquet bytes in JSON; as text they must be UTF-8.",
)
@timeout_option(120.0, "for the last outcome")
@json_option
def produce(
    *,
    run_dir: RunDir,
    topic: str,
    file: Path,
    form: str | None,
    key: str | None,
    key_separator: str | None,
    delimiter: str | None,
    are_shown: bool,
    binary: str,
    timeout_s: float,
    as_json: bool,
    **shape: Any,
) -> None:
    """Send the records of FILE (or stdin) to TOPIC and wait until Kafka has them.

    Each line is a value (lines), or a JSON document that is a value (jsonl), or the file is one value (whole). Each
    row of csv and parquet is sent as a JSON object by column. CSV fields are text; dates and times are ISO 8601,
    decimals text. A key is the unchanged text of its field; bytes of Parquet as they are.

    Files in gzip are opened. Other compressed files, and values that JSON cannot express (NaN, Infinity, two columns
    of one name), end the command with an error that names the place; earlier records are sent. Exit 0 only when every
    record was delivered.

    \b
    echo '{"id": 1}' | kafka-sidecar produce orders
    kafka-sidecar produce orders orders.jsonl --key customer
    kafka-sidecar produce flights flights.csv.gz --key carrier
    kafka-sidecar produce flights - --format csv --key carrier < flights.csv
    echo 'user7:{"name": "Ada"}' | kafka-sidecar produce users --key-separator :
    echo | kafka-sidecar produce users --fixed-key user7 --empty-as-null
    kafka-sidecar produce pictures cat.jpg --format whole --offsets
    printf 'a;b' | kafka-sidecar produce orders --delimiter ';'
    kafka-sidecar produce orders orders.jsonl --json | jq .delivered
    kafka-sidecar produce orders old.txt --timestamp 2026-11-22T12:00:00Z
    """
    form = form or format_of(file)
    _check_options(
        topic, form, key=key, key_separator=key_separator, delimiter=delimiter, fixed_key=shape["fixed_key"]
    )
    if are_shown and as_json:
        raise click.UsageError("--offsets and --json exclude each other: stdout has one JSON object.")
    ends = None if delimiter is None else _delimiter(delimiter)
    fields = _fields(**shape)
    outcomes = _Outcomes(are_shown=are_shown)
    name = "stdin" if str(file) == "-" else str(file)
    began = time.monotonic()
    if as_json:
        answer_with(
            lambda: {
                "topic": topic,
                "source": name,
                "format": form,
                "sent": outcomes.sent,
                "delivered": outcomes.delivered,
                "failed": outcomes.failed,
                "without_outcome": outcomes.left,
                "seconds": round(time.monotonic() - began, 3),
                "failures": [
                    {"error": reason, "records": count} for reason, count in outcomes.reasons.most_common()
                ],
            }
        )
    if form == "parquet":
        need_packages("Reading Parquet", "arrow", "pyarrow")
    daemon_info(run_dir)
    with ExitStack() as stack:
        try:
            stream: IO[bytes] = _stdin() if str(file) == "-" else stack.enter_context(file.open("rb"))
        except OSError as error:
            fail(f"File {file} cannot be read: {error.strerror}.", ExitStatus.USAGE)
        records = read_records(stream, name, form, key, binary, ends, outcomes.know_all)
        if key_separator is not None:
            records = split_keys(records, name, key_separator)
        share = (
            share_of(stream) if form != "parquet" else lambda: None
        )  # which is not read from front to back
        with progress(lambda: outcomes.work_done(share())):
            end = _send(run_dir, topic, records, fields, outcomes, name=name, timeout_s=timeout_s)
    _report(end, outcomes, topic, time.monotonic() - began, as_json=as_json)


def _check_options(
    topic: str,
    form: str,
    *,
    key: str | None,
    key_separator: str | None,
    delimiter: str | None,
    fixed_key: str | None,
) -> None:
    """Raise UsageError for options that exclude each other or do not fit the format."""
    try:
        check_topic(topic)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if form in {"lines", "whole"} and key is not None:
        raise click.UsageError("--key needs --format jsonl, csv or parquet: a plain line has no fields.")
    if delimiter is not None and form != "lines":
        raise click.UsageError("--delimiter is for --format lines.")
    if sum(each is not None for each in (key, key_separator, fixed_key)) > 1:
        raise click.UsageError("--key, --key-separator and --fixed-key exclude each other.")
    if key_separator is not None and (form != "lines" or not key_separator):
        raise click.UsageError("--key-separator is for --format lines, and must not be empty.")


def _fields(
    *,
    fixed_key: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    timestamp: str | None,
    empty_as_null: bool,
) -> Fields:
    return Fields(
        key=fixed_key.encode() if fixed_key is not None else None,
        headers=[_header(each) for each in headers] or None,
        partition=partition,
        timestamp_ms=None if timestamp is None else _milliseconds(timestamp),
        empty_as_null=empty_as_null,
    )


def _delimiter(text: str) -> bytes:
    try:
        ends = codecs.escape_decode(text.encode())[0]  # decodes bytes, so UTF-8 is kept
    except ValueError as error:
        raise click.UsageError(f"--delimiter {text!r}: {error}.") from None
    if not ends:
        raise click.UsageError("--delimiter must not be empty; --format whole sends a file as one record.")
    return bytes(ends)


def _milliseconds(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"--timestamp {text!r}: must be milliseconds since 1970, or a time such as 2026-11-22T12:00:00Z."
        ) from None
    milliseconds = at.timestamp() * 1e3
    if milliseconds < 0:
        raise click.UsageError(f"--timestamp {text!r}: must not be before 1970.")
    return round(milliseconds)


def _header(text: str) -> tuple[str, bytes]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise click.UsageError(f"--header {text!r}: must be NAME=VALUE.")
    return name, value.encode()


def _flush(producer: Producer, run_dir: RunDir, topic: str, timeout_s: float) -> None:
    """As producer.flush(timeout_s), but after MISSING_AFTER_S, or at the end, prints why records wait. Raises
    TimeoutError.
    """
    first_s = min(MISSING_AFTER_S, timeout_s)
    try:
        producer.flush(timeout=first_s)
        return
    except TimeoutError:
        knows_topic = _print_state(run_dir)
        if first_s == timeout_s:
            if knows_topic:
                _print_topic(producer, topic)
            raise
    producer.flush(timeout=timeout_s - first_s)


def _check_partition(producer: Producer, topic: str, partition: int) -> None:
    """End with an error for a partition that the topic does not have: its records would wait for max.block.ms."""
    try:
        count = len(producer.partitions_for(topic, timeout=0))
    except SidecarError:
        return  # the outcomes of the records say it
    if partition >= count:
        last = f"partitions 0 to {count - 1}" if count > 1 else "partition 0 only"
        fail(f"--partition {partition}: topic {topic} has {last}.", ExitStatus.USAGE)


def _stopped(delivered: int, sent: int) -> str:
    """The last words after Ctrl-C."""
    others = "it" if sent == 1 else "some of the others"
    rest = f"; the daemon may still deliver {others}" if delivered < sent else ""
    return f"Stopped: {delivered:,} of {counted(sent, 'record was', 'records were')} delivered{rest}."


def _print_state(run_dir: RunDir) -> bool:
    """Print the daemon's state if it takes no records or cannot reach Kafka. Returns False if it may not know any
    topic yet.
    """
    info = read_json(run_dir.files.daemon_json) or {}
    if info.get("state") != "running" and info.get("sentence"):
        say(info["sentence"])
        return bool(info["kafka_reachable"])
    return True


def _print_topic(producer: Producer, topic: str) -> None:
    """Print that the topic is missing, if the timeout is shorter than the time after which the stub reports it."""
    try:
        producer.partitions_for(topic, timeout=0)
    except MetadataTimeout:
        say(f"Topic {topic} is not present in Kafka yet; the records wait for it.")
    except SidecarError as error:
        say(str(error))


def _stdin() -> IO[bytes]:
    if sys.stdin is None:  # closed by the parent process
        fail("stdin is closed: name a file.", ExitStatus.USAGE)
    return sys.stdin.buffer


class _End(NamedTuple):
    """Why the command ends before its work is done."""

    sentence: str
    status: ExitStatus


def _send(
    run_dir: RunDir,
    topic: str,
    records: Iterator[Pair],
    fields: Fields,
    outcomes: _Outcomes,
    *,
    name: str,
    timeout_s: float,
) -> _End | None:
    """Send all records and await their outcomes. Returns None once all that could be read has its outcome."""
    from client_stub import Producer
    from client_stub.errors import BufferExhausted, DaemonUnreachable

    left = 0
    bad: str | None = None
    try:
        with Producer(run_dir=str(run_dir.path), client_name="kafka-sidecar produce") as producer:
            if fields.partition is not None:
                _check_partition(producer, topic, fields.partition)
            bad = _queue(producer, topic, records, fields, outcomes, name)
            try:
                _flush(producer, run_dir, topic, timeout_s)
            except (TimeoutError, KeyboardInterrupt):
                left = outcomes.left
                producer.close(0)
                raise
    except DaemonUnreachable as error:
        return _End(str(error), ExitStatus.DAEMON_UNREACHABLE)
    except BufferExhausted as error:
        what = f"{outcomes.delivered:,} of {outcomes.sent:,} records were delivered"
        return _End(f"{what}: {error}", ExitStatus.TIMED_OUT)
    except TimeoutError:
        which = counted(outcomes.sent, "record has", "records have")
        return _End(
            f"{left:,} of {which} no outcome after {timeout_s:g} s (--timeout); the daemon may still "
            f"deliver {'it' if left == 1 else 'them'}.",
            ExitStatus.TIMED_OUT,
        )
    except KeyboardInterrupt:
        return _End(_stopped(outcomes.delivered, outcomes.sent), ExitStatus.INTERRUPTED)
    return None if bad is None else _End(f"{bad} Nothing after it was sent.", ExitStatus.FAILED)


def _queue(
    producer: Producer, topic: str, records: Iterator[Pair], fields: Fields, outcomes: _Outcomes, name: str
) -> str | None:
    """Queue the records up to the first that cannot be read or sent; returns what is wrong with that one."""
    from client_stub.errors import BufferExhausted, DaemonUnreachable

    try:
        for record_key, value in records:
            producer.send(
                topic,
                value=None if fields.empty_as_null and not value else value,
                key=fields.key if fields.key is not None else record_key,
                headers=fields.headers,
                partition=fields.partition,
                timestamp_ms=fields.timestamp_ms,
                on_delivery=outcomes,
            )
            outcomes.sent += 1
    except BadInput as error:
        return str(error)
    except OSError as error:
        return f"{name} cannot be read after record {outcomes.sent:,}: {error.strerror}."
    except (DaemonUnreachable, BufferExhausted, KeyboardInterrupt):
        producer.close(INTERRUPTED_S)
        raise
    except (SidecarError, ValueError, TypeError) as error:
        return f"{name}, record {outcomes.sent + 1}: {error}"
    return None


def _report(end: _End | None, outcomes: _Outcomes, topic: str, seconds: float, *, as_json: bool) -> None:
    """Say what has become of the records, and end with the status for it."""
    if end is None or end.status == ExitStatus.FAILED:
        delivered = counted(outcomes.delivered, "record")
        say(f"{delivered} delivered to {topic} in {seconds:.2f} s.")
    if end is None or end.status in {ExitStatus.FAILED, ExitStatus.TIMED_OUT}:
        outcomes.show_reasons()
    if outcomes.unwritable is not None:
        fail(f"The offsets could not be printed: {outcomes.unwritable.strerror}.")
    if end is not None:
        fail(end.sentence, end.status)
    if as_json:
        print_answer(f"{counted(outcomes.failed, 'record')} failed." if outcomes.failed else None)
    if outcomes.failed:
        raise SystemExit(int(ExitStatus.FAILED))
