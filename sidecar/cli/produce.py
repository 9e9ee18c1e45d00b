"""``kafka-sidecar produce``: records from a file or stdin through the daemon."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from sidecar.cli.common import daemon_info, fail, run_dir_option
from sidecar.cli.record_files import BINARY_FORMS, FORMATS, BadInput, Pair, format_of, read_records
from sidecar.common.model import ExitStatus
from sidecar.controller.run_dir import RunDir

if TYPE_CHECKING:
    from client_stub import RecordMetadata

REASONS_SHOWN = 3
INTERRUPTED_S = 2.0
"""After Ctrl-C, or when the daemon takes no more, pending outcomes are awaited this long."""


class _Outcomes:
    """Outcomes of the records; counted on the stub's thread, read after flush()."""

    def __init__(self) -> None:
        self.delivered = 0
        self.failed = 0
        self.reasons: Counter[str] = Counter()

    def __call__(self, error: Exception | None, metadata: RecordMetadata | None) -> None:
        if error is None:
            self.delivered += 1
        else:
            self.failed += 1
            self.reasons[str(error)] += 1


@click.command()
@run_dir_option
@click.argument("topic")
@click.argument("file", default="-", type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--format", "form", type=click.Choice(FORMATS), help="[default: by the file's name, else lines]"
)
@click.option("--key", metavar="FIELD", help="Field or column whose text becomes the record's key.")
@click.option(
    "--binary",
    type=click.Choice(BINARY_FORMS),
    default=BINARY_FORMS[0],
    show_default=True,
    help="Form of Parquet bytes in JSON; as text they must be UTF-8.",
)
@click.option(
    "--timeout", "timeout_s", default=120.0, show_default=True, help="Seconds to wait for the last outcome."
)
def produce(
    run_dir: RunDir, topic: str, file: Path, form: str | None, key: str | None, binary: str, timeout_s: float
) -> None:
    """Send the records of FILE (or stdin) to TOPIC and wait until Kafka has them.

    lines: each line is a value. jsonl: each line, a JSON document, is a value. csv and parquet: each row is
    sent as a JSON object by column; CSV fields are text, dates and times ISO 8601, decimals text. A key is the text of
    its field, as it stands; bytes of Parquet as they are.

    Values that JSON cannot express (NaN, Infinity, two columns of one name) end the command with an error that
    names the place; earlier records are sent. Exit 0 only when every record was delivered.

    \b
    echo '{"id": 1}' | kafka-sidecar produce orders
    kafka-sidecar produce orders orders.jsonl --key customer
    kafka-sidecar produce flights flights.csv --key carrier
    kafka-sidecar produce flights - --format csv --key carrier < flights.csv
    """
    form = form or format_of(file)
    if form == "lines" and key is not None:
        raise click.UsageError("--key needs --format jsonl, csv or parquet: a plain line has no fields.")
    daemon_info(run_dir)
    with ExitStack() as stack:
        try:
            stream: IO[bytes] = _stdin() if str(file) == "-" else stack.enter_context(file.open("rb"))
        except OSError as error:
            fail(f"File {file} cannot be read: {error.strerror}.", ExitStatus.USAGE)
        name = "stdin" if str(file) == "-" else str(file)
        _send(run_dir, topic, read_records(stream, name, form, key, binary), name=name, timeout_s=timeout_s)


def _stdin() -> IO[bytes]:
    if sys.stdin is None:  # closed by our parent
        fail("stdin is closed: name a file.", ExitStatus.USAGE)
    return sys.stdin.buffer


def _send(run_dir: RunDir, topic: str, records: Iterator[Pair], *, name: str, timeout_s: float) -> None:
    from client_stub import Producer
    from client_stub.errors import BufferExhausted, DaemonUnreachable, SidecarError

    outcomes = _Outcomes()
    sent = left = 0
    bad: str | None = None
    started = time.monotonic()
    try:
        with Producer(run_dir=str(run_dir.path), client_name="kafka-sidecar produce") as producer:
            try:
                for record_key, value in records:
                    producer.send(topic, value=value, key=record_key, on_delivery=outcomes)
                    sent += 1
            except BadInput as error:
                bad = str(error)
            except OSError as error:
                bad = f"{name} cannot be read behind record {sent:,}: {error.strerror}."
            except (DaemonUnreachable, BufferExhausted, KeyboardInterrupt):
                producer.close(INTERRUPTED_S)
                raise
            except (SidecarError, ValueError, TypeError) as error:
                bad = f"{name}, record {sent + 1}: {error}"
            try:
                producer.flush(timeout=timeout_s)
            except (TimeoutError, KeyboardInterrupt):
                left = sent - outcomes.delivered - outcomes.failed
                producer.close(0)
                raise
    except DaemonUnreachable as error:
        fail(str(error), ExitStatus.DAEMON_UNREACHABLE)
    except BufferExhausted as error:
        fail(f"{outcomes.delivered:,} of {sent:,} records were delivered: {error}", ExitStatus.TIMED_OUT)
    except TimeoutError as error:
        fail(f"{left:,} of {sent:,} records have no outcome yet: {error}", ExitStatus.TIMED_OUT)
    except KeyboardInterrupt:
        fail(
            f"Stopped: {outcomes.delivered:,} of {sent:,} records were delivered; the daemon may still deliver some "
            "of the others."
        )
    seconds = time.monotonic() - started
    click.echo(
        f"{outcomes.delivered:,} record{'' if outcomes.delivered == 1 else 's'} delivered to {topic} "
        f"in {seconds:.2f} s.",
        err=True,
    )
    for reason, count in outcomes.reasons.most_common(REASONS_SHOWN):
        click.echo(f"{count:,} record{'' if count == 1 else 's'} failed: {reason}", err=True)
    if bad is not None:
        fail(f"{bad} Nothing after it was sent.")
    if outcomes.failed:
        raise SystemExit(int(ExitStatus.FAILED))
