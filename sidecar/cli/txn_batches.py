"""What ``kafka-sidecar txn`` knows of Spark's exactly-once: the last batch of a key, and how its history begins anew.

Both ask the running daemon, as the sink does.
"""

from __future__ import annotations

import re
from typing import Any, Final

import click

from client_stub.spark.exactly_once.commit_record import KEY_CHARACTERS, RESTARTED, CommitRecord, unpack
from client_stub.spark.exactly_once.settings import COMMITS_TOPIC, PREFIX
from sidecar.cli.common import fail, run_dir_option
from sidecar.common.model import ExitStatus
from sidecar.controller.rundir.run_dir import RunDir

WAIT_S: Final = 30.0
commits_topic_option: Final = click.option(
    "--commits-topic",
    default=COMMITS_TOPIC,
    show_default=True,
    help="The option commits.topic of a sink of Spark.",
)
_KEY: Final = re.compile(rf"(?:(.+)\.)?([0-9a-f]{{{KEY_CHARACTERS}}})\Z")


def id_and_key(name: str) -> tuple[str, str | None]:
    """The transactional id that ``name`` means, and the key of a sink of Spark if it is one."""
    found = _KEY.match(name)
    if found is None:
        return name, None
    return f"{found[1] or PREFIX}.{found[2]}", found[2]


def id_and_key_of_sink(name: str) -> tuple[str, str]:
    """As ``id_and_key``. Ends the command for what is no sink's."""
    transactional_id, key = id_and_key(name)
    if key is None:
        fail(f"{name} is no key of a sink: it has {KEY_CHARACTERS} hex digits.", ExitStatus.USAGE)
    return transactional_id, key


def last_batch(run_dir: RunDir, topic: str, key: str) -> CommitRecord | None:
    """The key's last commit record. Raises SidecarError, and ValueError for a record that cannot be read."""
    from client_stub import Producer

    with Producer(str(run_dir.path), client_name="kafka-sidecar txn") as producer:
        record = producer.last_committed(topic, key.encode(), WAIT_S).record
    return None if record is None else unpack(record.value)


def starting_offsets(record: CommitRecord) -> dict[str, Any]:
    """Of all sources together, as Spark's option startingOffsets takes them."""
    found: dict[str, Any] = {}
    for source in (record.offsets or {}).values():
        if isinstance(source, dict):
            found.update(source)
    return found


@click.command()
@click.argument("key")
@click.option(
    "--from",
    "number",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="The next batch that will be written.",
)
@commits_topic_option
@run_dir_option
def restart(key: str, number: int, commits_topic: str, run_dir: RunDir) -> None:
    """Let the history of a sink of Spark begin anew: its next batch is N, whatever was written before.

    For a query with a new checkpoint, one whose commits topic was lost, and one that wrote at least once until now.
    The query must not run: its producer is fenced.

    \b
    kafka-sidecar txn restart 3f9c0c1f2ab04d55 --from 17
    """
    from client_stub import Producer
    from client_stub.errors import SidecarError

    transactional_id, found = id_and_key_of_sink(key)
    record = CommitRecord(number - 1, "", RESTARTED, 0, 0)
    try:
        with Producer(
            str(run_dir.path), client_name="kafka-sidecar txn", transactional_id=transactional_id
        ) as producer:
            producer.init_transactions(WAIT_S)
            before = producer.last_committed(commits_topic, found.encode(), WAIT_S, creates=True)
            with producer.transaction():
                producer.send(commits_topic, record.pack(), found.encode(), partition=before.partition)
    except SidecarError as error:
        fail(f"The history of {found} may be as it was: {error}")
    click.echo(f"The history of {found} begins anew with batch {number}.")
