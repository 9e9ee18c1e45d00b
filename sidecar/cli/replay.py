"""``kafka-sidecar replay``: sends dead letters again through the daemon."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sidecar.cli.common import daemon_info, fail, holder_of, run_dir_option
from sidecar.cli.json_output import answer_with, print_answer
from sidecar.cli.options import json_option, timeout_option
from sidecar.cli.progress import WorkDone, progress
from sidecar.cli.times import Since, shown_bytes, shown_time, table
from sidecar.common.model import ExitStatus
from sidecar.common.wording import counted
from sidecar.controller.rundir.published import read_json
from sidecar.controller.rundir.run_dir import RunDir
from sidecar.deadletter.letters import Letter
from sidecar.deadletter.replay import NO_OUTCOME, NOT_SENT, Replay, ReplayRunning, Tally
from sidecar.deadletter.spool_files import AnothersLetters

if TYPE_CHECKING:
    from client_stub.inner_producer import InnerProducer

REASONS_SHOWN = 3


@click.command()
@run_dir_option
@click.option("--dry-run", is_flag=True, help="Show the dead letters; send and change nothing.")
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Only this topic; may be repeated.")
@click.option(
    "--since", type=Since(), help="Only records that failed since: 90m, 2h, 1d, or 2026-11-21T03:00."
)
@click.option(
    "--certain-only",
    is_flag=True,
    help="Skip records that may be in their topic already (possibly persisted).",
)
@click.option(
    "--with-poison",
    is_flag=True,
    help="Also records that killed their worker three times; they may do so again.",
)
@click.option(
    "--path", "folder", type=click.Path(path_type=Path), help="Another folder [default: the daemon's]."
)
@timeout_option(150.0, "for the outcomes of a chunk")
@json_option
def replay(
    *,
    run_dir: RunDir,
    dry_run: bool,
    topics: tuple[str, ...],
    since: int | None,
    certain_only: bool,
    with_poison: bool,
    folder: Path | None,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Send dead letters again: records that failed when their client was gone.

    Delivered records leave the folder; records that fail again stay. Ctrl-C stops after the current chunk; run the
    command again to continue. A replay that was killed may send its last chunk (500 records) twice.

    Exit 0 when everything chosen was delivered, 1 when something failed or cannot be sent, 69 when no daemon
    runs, 75 when outcomes did not come in time.

    \b
    kafka-sidecar replay --dry-run
    kafka-sidecar replay
    kafka-sidecar replay --topic orders --since 2h
    kafka-sidecar replay --dry-run --json | jq .topics
    kafka-sidecar replay --path /var/lib/kafka-sidecar/dead-letters
    """

    def wants(letter: Letter) -> bool:
        return (
            (not topics or letter.topic in topics)
            and (since is None or letter.failed_ms >= since)
            and not (certain_only and letter.possibly_persisted)
        )

    where = _folder(run_dir, folder, is_dry=dry_run)
    work = Replay(where, wants=wants, with_poison=with_poison)
    if as_json:
        answer_with(lambda: {"folder": str(where), "dry_run": dry_run, **counts(work.tally)})
    try:
        if dry_run:
            with progress(
                lambda: WorkDone(f"{counted(work.tally.total('found'), 'letter')} read", work.share_read)
            ):
                work.count()
        else:
            replay_through(run_dir, work, timeout_s)
    except (AnothersLetters, ReplayRunning) as refusal:
        fail(str(refusal))
    except OSError as error:
        fail(f"The dead letters in {where} cannot be read or written: {error}.")
    why = None if dry_run else why_not_all(work.tally)
    if as_json:
        print_answer(why)
    else:
        click.echo(describe(work.tally, where, is_dry=dry_run))
    if why is not None:
        raise SystemExit(int(ExitStatus.FAILED))


def _folder(run_dir: RunDir, named: Path | None, *, is_dry: bool) -> Path:
    """The folder of the letters. Ends the command where a daemon is needed and takes no records: listing needs none
    when the folder is known.
    """
    where = named
    if named is None and holder_of(run_dir) is None:  # ends here for users that may not read the run dir
        where = _left_folder(run_dir)
    if where is not None and is_dry:
        return where
    info = daemon_info(run_dir)
    if not info["takes_records"] and not is_dry:
        fail(f"The daemon takes no records now: {info['sentence']}")
    return where or Path(info["dead_letters"])


def _left_folder(run_dir: RunDir) -> Path | None:
    """The folder of the previous daemon's dead letters; None if it is not known."""
    left = (read_json(run_dir.files.daemon_json) or {}).get("dead_letters")
    if left:
        return Path(left)
    return run_dir.dead_letters if run_dir.dead_letters.is_dir() else None


def why_not_all(tally: Tally) -> str | None:
    """A sentence about letters that failed again or cannot be sent; None without any."""
    failed, unreadable = tally.total("failed"), tally.total("unreadable") + tally.broken_lines
    if not failed and not unreadable:
        return None
    return f"{counted(failed, 'letter')} failed again, and {unreadable:,} lines are not records that can be sent."


def counts(tally: Tally) -> dict[str, Any]:
    """The counts of --json."""
    whole = ("found", "delivered", "failed", "unreadable", "possibly_persisted")
    return {
        **{name: tally.total(name) for name in whole},
        **{
            name: getattr(tally, name)
            for name in ("files", "doubles", "left_out", "poison", "broken_lines", "in_doubt")
        },
        "topics": {
            topic: {
                **{name: getattr(each, name) for name in (*whole, "bytes", "oldest_ms", "newest_ms")},
                "errors": dict(each.errors.most_common()),
                "reasons": dict(each.reasons.most_common()),
            }
            for topic, each in sorted(tally.topics.items())
        },
    }


class _Producers:
    """A producer for each partitioner that letters name, so that a key goes where its sender would put it."""

    def __init__(self, run_dir: RunDir) -> None:
        self._path = str(run_dir.path)
        self._made: dict[str | None, InnerProducer] = {}

    def of(self, letter: Letter) -> InnerProducer:
        from client_stub.inner_producer import InnerProducer

        name = letter.partitioner if letter.partition is None else None
        if name not in self._made:
            self._made[name] = InnerProducer(run_dir=self._path, client_name="kafka-sidecar replay")
            if name is not None:
                self._made[name].engine.partition_by(name)
        return self._made[name]

    def send(self, letters: list[Letter], outcomes: list[str | None], timeout_s: float) -> None:
        """Send the letters and await their outcomes, which are put into ``outcomes``. They are final also after an
        exception: then no record is sent any more, and those under way complete as cancelled.
        """
        try:
            for index, letter in enumerate(letters):
                self._queue(letter, outcomes, index)
            for each in self._made.values():
                each.flush(timeout=timeout_s)
        except BaseException:
            self.close(0)
            raise

    def _queue(self, letter: Letter, outcomes: list[str | None], index: int) -> None:
        from client_stub.contract.wire import Persistence
        from client_stub.errors import BufferExhausted, DaemonUnreachable, DeliveryCancelled, SidecarError

        def on_delivery(error: Exception | None, _metadata: object) -> None:
            is_unknown = (
                isinstance(error, DeliveryCancelled) and error.persistence != Persistence.NOT_PERSISTED
            )
            outcomes[index] = None if error is None else NO_OUTCOME if is_unknown else str(error)

        try:
            outcomes[index] = NO_OUTCOME
            self.of(letter).send(
                letter.topic,
                value=letter.value,
                key=letter.key,
                headers=letter.headers or None,
                partition=letter.partition,
                timestamp_ms=letter.timestamp_ms,
                on_delivery=on_delivery,
            )
        except (DaemonUnreachable, BufferExhausted):
            outcomes[index] = NOT_SENT
            raise
        except (SidecarError, ValueError, TypeError, OverflowError) as error:
            outcomes[index] = str(error)

    def close(self, timeout_s: float | None = None) -> None:
        for each in self._made.values():
            each.close(timeout_s)


def replay_through(run_dir: RunDir, work: Replay, timeout_s: float) -> None:
    """Run ``work`` with the stub on ``run_dir``. Ends the command when the daemon cannot be reached or is too slow."""
    from client_stub.errors import BufferExhausted, DaemonUnreachable

    producers = _Producers(run_dir)

    def work_done() -> WorkDone:
        tally = work.tally
        failed = f", {tally.total('failed'):,} failed again" if tally.total("failed") else ""
        done = f"{tally.total('delivered'):,} of {counted(tally.total('found'), 'letter')} delivered{failed}"
        return WorkDone(done, work.share_read)

    try:
        with _stop_between_chunks() as is_asked, progress(work_done):
            work.run(partial(producers.send, timeout_s=timeout_s), is_asked)
        producers.close()
        if is_asked():
            done, found = work.tally.total("delivered"), work.tally.total("found")
            fail(
                f"Stopped: {done:,} of the {found:,} letters read so far were delivered; run it again to continue."
            )
    except DaemonUnreachable as error:
        producers.close(0)
        fail(str(error), ExitStatus.DAEMON_UNREACHABLE)
    except (TimeoutError, BufferExhausted) as error:
        producers.close(0)
        done = work.tally.total("delivered")
        fail(
            f"{done:,} letters were delivered, then outcomes did not come in time: {error} What had none is kept.",
            ExitStatus.TIMED_OUT,
        )


@contextmanager
def _stop_between_chunks() -> Iterator[Callable[[], bool]]:
    """Make Ctrl-C and SIGTERM end the replay between two chunks, when nothing is under way."""
    asked: list[int] = []
    before = {
        number: signal.signal(number, lambda got, _frame: asked.append(got))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def describe(tally: Tally, folder: Path, *, is_dry: bool) -> str:
    """The table for the terminal."""
    letters, files = counted(tally.total("found"), "dead letter"), counted(tally.files, "file")
    lines = [f"{letters} in {files} of {folder}"]
    rows: list[list[str]] = []
    for topic, each in sorted(tally.topics.items()):
        why = ", ".join(f"{error} {count:,}" for error, count in each.errors.most_common(REASONS_SHOWN))
        counts = (
            [shown_bytes(each.bytes), shown_time(each.oldest_ms), shown_time(each.newest_ms)]
            if is_dry
            else [f"{each.delivered:,}", f"{each.failed:,}", f"{each.unreadable:,}"]
        )
        rows.append([topic, f"{each.found:,}", *counts, why])
    if rows:
        head = ["bytes", "oldest", "newest"] if is_dry else ["delivered", "failed", "unreadable"]
        lines.append(table(["topic", "records", *head, "why they were there"], rows))
    maybe = tally.total("possibly_persisted")
    if maybe:
        lines.append(f"{maybe:,} of them may have been in their topics already (possibly persisted).")
    if tally.in_doubt:
        lines.append(
            f"An earlier replay ended with {tally.in_doubt:,} letters in flight: those may be there twice."
        )
    if tally.doubles:
        lines.append(f"{tally.doubles:,} were there twice or had been delivered: not sent again.")
    if tally.poison:
        lines.append(
            f"{tally.poison:,} killed their worker three times (POISON_SUBMISSION) and stay: look at them first; "
            "--with-poison sends them."
        )
    if tally.left_out:
        lines.append(f"{tally.left_out:,} others were not chosen and stay.")
    if tally.total("unreadable") or tally.broken_lines:
        lines.append(
            f"{tally.total('unreadable') + tally.broken_lines:,} lines are not records that can be sent; they stay."
        )
    for topic, each in sorted(tally.topics.items()):
        for reason, count in each.reasons.most_common(REASONS_SHOWN):
            lines.append(f"{topic}: {count:,} failed again and stay: {reason}")
    return "\n".join(lines)
