"""``kafka-sidecar txn``: open transactions of the cluster, who holds up readers, and a way to end one; the stages that
wait at a daemon.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click

from client_stub.errors import InvalidTopic, SidecarError
from client_stub.spark.exactly_once.commit_record import CommitRecord
from sidecar.cli.common import fail, run_dir_option, running_configuration, say
from sidecar.cli.json_output import print_object
from sidecar.cli.options import config_file_option, json_option, settings_option, timeout_option
from sidecar.cli.stages import HEAD as STAGE_HEAD
from sidecar.cli.stages import drop_stages, stage_rows, stages_of
from sidecar.cli.times import table
from sidecar.cli.txn_batches import (
    commits_topic_option,
    id_and_key,
    id_and_key_of_sink,
    last_batch,
    restart,
    starting_offsets,
)
from sidecar.common.model import ExitStatus
from sidecar.common.wording import counted, printable
from sidecar.config.loader import load_config
from sidecar.config.settings import ConfigError
from sidecar.controller.rundir.run_dir import RunDir
from sidecar.doctor.batch_check import BatchCheck
from sidecar.doctor.transaction_admin import TransactionAdmin, TransactionAdminError
from sidecar.protocol.describe_transactions import COMMITTING, DescribedTransaction
from sidecar.protocol.messages import ProtocolError

PARTITIONS_SHOWN = 8
_Answer = TypeVar("_Answer")
_Admin = TypeVar("_Admin", bound=TransactionAdmin)
_Command = TypeVar("_Command", bound=Callable[..., Any])


def _of_the_cluster(command: _Command) -> _Command:
    for option in (json_option, settings_option, config_file_option, run_dir_option):
        command = option(command)
    return command


@click.group()
def txn() -> None:
    """Kafka's transactions: list the open ones, show one, abort one; and drop stages that wait for one.

    It asks the brokers, with the configuration of `run` or of a running daemon, and so sees those of every client. An
    open transaction holds up all readers of its partitions with isolation.level=read_committed. Stages are those of the
    running daemon.

    \b
    kafka-sidecar txn list
    kafka-sidecar txn show copy-orders
    kafka-sidecar txn abort copy-orders
    kafka-sidecar txn drop copy-orders --up-to 7
    kafka-sidecar txn restart 3f9c0c1f2ab04d55
    """


txn.add_command(restart)


@txn.command("list")
@_of_the_cluster
def list_open(run_dir: RunDir, file: Path | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """List the open transactions, the oldest first, with the partitions whose readers wait for them, and the stages
    of the running daemon that wait for a transaction.

    \b
    kafka-sidecar txn list
    kafka-sidecar txn list --json | jq '.transactions[] | select(.open_seconds > 60)'
    """
    found = _ask(run_dir, file, overrides, lambda admin: admin.open_transactions())
    stages = stages_of(run_dir)
    now_ms = time.time() * 1e3
    if as_json:
        rows = [_row(each, now_ms) for each in found]
        print_object({"transactions": rows, "stages": stages, "error": None})
        return
    if found:
        _show_transactions(found, now_ms)
    else:
        say("No transaction is open.")
    if stages:
        click.echo("")
        _show_stages(stages)


def _show_transactions(found: list[DescribedTransaction], now_ms: float) -> None:
    rows = [[each.transactional_id, each.state, _age(each, now_ms), _partitions(each)] for each in found]
    click.echo(table(["transactional id", "state", "open for", "holds up readers of"], rows, left=2))


def _show_stages(stages: list[dict[str, Any]]) -> None:
    for line in table(STAGE_HEAD, stage_rows(stages)).splitlines():
        click.echo(printable(line))  # names are as clients gave them


@txn.command()
@click.argument("transactional_id")
@click.option(
    "--offsets",
    is_flag=True,
    help="Of a sink of Spark: only its last batch's end, as option startingOffsets.",
)
@commits_topic_option
@_of_the_cluster
def show(
    transactional_id: str,
    offsets: bool,
    commits_topic: str,
    run_dir: RunDir,
    file: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show the state of one transactional id and its stages. Exit 1 when neither the cluster nor the daemon knows it.

    Of a sink of Spark with delivery=exactly_once, its key of 16 hex digits will do; its last batch is shown, too.

    \b
    kafka-sidecar txn show copy-orders --json
    kafka-sidecar txn show 3f9c0c1f2ab04d55 --offsets
    """
    transactional_id, key = id_and_key(transactional_id)
    batch = None if key is None else _last_batch(run_dir, commits_topic, key)
    if offsets:
        if batch is None or not (found_offsets := starting_offsets(batch)):
            fail(f"{transactional_id} has no commit record with offsets in {commits_topic}.")
        click.echo(json.dumps(found_offsets))
        return
    stages = [
        each
        for each in stages_of(run_dir, transactional_id) or ()
        if each["transactional_id"] == transactional_id
    ]
    question = TransactionAdmin.find if stages else TransactionAdmin.describe
    found = _ask(run_dir, file, overrides, lambda admin: question(admin, transactional_id))
    now_ms = time.time() * 1e3
    if as_json:
        row = {"transactional_id": transactional_id} if found is None else _row(found, now_ms)
        more = {} if key is None else {"last_batch": None if batch is None else batch._asdict()}
        print_object({**row, "stages": stages, **more, "error": None})
        return
    if found is None:
        click.echo(f"transactional id  {transactional_id}")
        click.echo("state             the cluster does not know it: no producer has initialized it")
    else:
        _show(found, now_ms)
    if batch is not None:
        click.echo(
            f"last batch        {batch.batch}: {counted(batch.rows, 'row')} of {counted(batch.tasks, 'task')}, by run "
            f"{batch.run}"
        )
    if stages:
        click.echo("")
        _show_stages(stages)


def _show(found: DescribedTransaction, now_ms: float) -> None:
    click.echo(f"transactional id  {found.transactional_id}")
    click.echo(f"state             {found.state}")
    click.echo(f"producer id       {found.identity.producer_id}, epoch {found.identity.epoch}")
    click.echo(f"timeout           {_seconds(found.timeout_ms)}")
    if found.partitions:
        click.echo(f"open for          {_age(found, now_ms)}")
        click.echo(f"partitions        {_partitions(found, len(found.partitions))}")


def _last_batch(run_dir: RunDir, topic: str, key: str) -> CommitRecord | None:
    try:
        return last_batch(run_dir, topic, key)
    except InvalidTopic:
        return None  # nobody writes exactly once here
    except (SidecarError, ValueError) as error:
        fail(f"The commit record of {key} cannot be read: {error}")


@txn.command()
@click.argument("key")
@click.argument("batch", type=click.IntRange(min=0), required=False)
@commits_topic_option
@_of_the_cluster
def verify(
    key: str,
    batch: int | None,
    commits_topic: str,
    run_dir: RunDir,
    file: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Count the rows of a batch of Spark in Kafka against its commit record: of the last batch, or of BATCH.

    It counts the committed records that carry the producer id and epoch of the batch's transaction, from the headers
    of all record batches of its topics. Exit 1 when rows are missing or too many.

    \b
    kafka-sidecar txn verify 3f9c0c1f2ab04d55
    """
    _, found_key = id_and_key_of_sink(key)
    found = _ask(
        run_dir, file, overrides, lambda check: check.check(commits_topic, found_key, batch), BatchCheck
    )
    record, more = found.committed.record, found.found - found.committed.record.rows
    if as_json:
        print_object(
            {
                "batch": record.batch,
                "rows": record.rows,
                "found": found.found,
                "partitions": found.rows,
                "error": None,
            }
        )
    else:
        where = ", ".join(f"{name} {rows}" for name, rows in sorted(found.rows.items()))
        click.echo(
            f"batch {record.batch}: {found.found} of {counted(record.rows, 'row')} in Kafka: {where or '-'}"
        )
    if more:
        what = "missing" if more < 0 else "foreign"
        fail(f"Batch {record.batch}: {counted(abs(more), 'row is', 'rows are')} {what}.")


@txn.command()
@click.argument("transactional_id")
@_of_the_cluster
def abort(
    transactional_id: str, run_dir: RunDir, file: Path | None, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Abort the open transaction of one transactional id. Its producer is fenced: its next call fails.

    \b
    kafka-sidecar txn abort copy-orders
    """
    found = _ask(run_dir, file, overrides, lambda admin: admin.abort(transactional_id))
    if as_json:
        print_object({**_row(found, time.time() * 1e3), "error": None})
    else:
        click.echo(f"{_ended(found)} Its producer is fenced.")


@txn.command()
@click.argument("transactional_id")
@click.option(
    "--up-to", type=click.IntRange(0, (1 << 64) - 1), help="All stages with this number or a lower one."
)
@click.option("--token", "tokens", multiple=True, help="The stage with this token; may be repeated.")
@click.option("--all", "every", is_flag=True, help="All stages of the transactional id.")
@run_dir_option
@json_option
@timeout_option(10.0, "for the answer", 0.1)
def drop(
    transactional_id: str,
    up_to: int | None,
    tokens: tuple[str, ...],
    every: bool,
    run_dir: RunDir,
    as_json: bool,
    timeout_s: float,
) -> None:
    """Drop stages of a transactional id, sealed or open: their records are never sent.

    A stage that a transaction has included is not dropped. `txn list --json` has the tokens.

    \b
    kafka-sidecar txn drop copy-orders --up-to 7
    kafka-sidecar txn drop copy-orders --all
    """
    if sum((up_to is not None, bool(tokens), every)) != 1:
        fail("Say which stages: --up-to NUMBER, --token TOKEN or --all.", ExitStatus.USAGE)
    wanted = (1 << 64) - 1 if every else up_to
    count = drop_stages(run_dir, transactional_id, wanted, [each.encode() for each in tokens], timeout_s)
    if as_json:
        print_object({"transactional_id": transactional_id, "dropped": count, "error": None})
    else:
        click.echo(f"{counted(count, 'stage')} of {transactional_id} dropped.")


def _ask(
    run_dir: RunDir,
    file: Path | None,
    overrides: tuple[str, ...],
    question: Callable[[_Admin], Coroutine[Any, Any, _Answer]],
    kind: type[_Admin] = TransactionAdmin,  # type: ignore[assignment]  # mypy takes the default for any
) -> _Answer:
    if file is None and "bootstrap.servers" not in "".join(overrides):
        file, overrides = running_configuration(run_dir, overrides)
    try:
        config = load_config(file, overrides)
    except ConfigError as error:
        fail("\n".join(error.sentences), ExitStatus.USAGE)

    async def ask() -> _Answer:
        admin = kind(config)
        try:
            return await question(admin)
        finally:
            admin.close()

    try:
        return asyncio.run(ask())
    except (TransactionAdminError, ProtocolError, ValueError) as error:
        fail(str(error))


def _ended(found: DescribedTransaction) -> str:
    """What the new producer id has made of the transaction that was ``found`` before."""
    if not found.partitions:
        return f"No transaction of {found.transactional_id} was open."
    where = f"the transaction of {found.transactional_id}, in {_partitions(found)}"
    if found.state == COMMITTING:
        return f"Not aborted: {where}, was being committed already, and is now."
    return f"Aborted: {where}."


def _row(each: DescribedTransaction, now_ms: float) -> dict[str, Any]:
    is_open = bool(each.partitions)
    return {
        "transactional_id": each.transactional_id,
        "state": each.state,
        "producer_id": each.identity.producer_id,
        "epoch": each.identity.epoch,
        "timeout_ms": each.timeout_ms,
        "open_seconds": round(max(0.0, now_ms - each.started_ms) / 1e3, 1) if is_open else None,
        "partitions": [{"topic": topic, "partition": number} for topic, number in each.partitions],
    }


def _age(each: DescribedTransaction, now_ms: float) -> str:
    return _seconds(max(0.0, now_ms - each.started_ms))


def _seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1e3:,.1f} s"


def _partitions(each: DescribedTransaction, most: int = PARTITIONS_SHOWN) -> str:
    shown = ", ".join(f"{topic}-{number}" for topic, number in sorted(each.partitions)[:most])
    more = len(each.partitions) - most
    return f"{shown} and {more} more" if more > 0 else shown or "-"
