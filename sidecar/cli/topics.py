"""``kafka-sidecar topics``: lists the cluster's topics as the daemon sees them."""

from __future__ import annotations

from typing import Any, NamedTuple

import click

from client_stub.contract.error_codes import ERROR_CODES
from client_stub.contract.wire import Kind
from sidecar.cli.common import run_dir_option, say
from sidecar.cli.control_client import ask
from sidecar.cli.json_output import print_object
from sidecar.cli.options import NumberRange, json_option, timeout_option
from sidecar.common.model import ExitStatus
from sidecar.common.wording import counted
from sidecar.controller.rundir.run_dir import RunDir


@click.command()
@run_dir_option
@click.argument("names", nargs=-1)
@json_option
@timeout_option(15.0, "for the answer")
@click.option("--wait", "wait_s", type=NumberRange(0, 30), help="Seconds to wait for NAMES to be there.")
def topics(
    run_dir: RunDir, names: tuple[str, ...], as_json: bool, timeout_s: float, wait_s: float | None
) -> None:
    """List the cluster's topics, or show the NAMES given with their partitions. Both name partitions that have no
    leader, or fewer replicas in sync than there are.

    Exit 1 when a topic that was asked for by name is not there. Nothing is created, but by --wait where the cluster
    creates topics on first use.

    \b
    kafka-sidecar topics
    kafka-sidecar topics orders payments
    kafka-sidecar topics orders --wait 30
    kafka-sidecar topics --json | jq keys
    """
    question: list[object] = [Kind.TOPICS, list(names) or None]
    if wait_s is not None:
        if not names:
            raise click.UsageError("--wait needs the names of topics.")
        question.append(wait_s * 1000)
        timeout_s += wait_s
    rows, *_ = ask(run_dir, question, timeout_s)
    if as_json:
        shown = {
            name: {
                "error": _error_name(code),
                "partitions": [
                    {
                        "partition": each.partition,
                        "leader": each.leader,
                        "isr": each.isr,
                        "replicas": each.replicas,
                        "offline": each.offline,
                        "under_replicated": each.is_under_replicated,
                    }
                    for each in sorted(_Partition(*partition) for partition in partitions)
                ],
            }
            for name, code, partitions in sorted(rows)
        }
        print_object(shown)
    else:
        width = max((len(name) for name, _, _ in rows), default=0)
        for name, code, partitions in sorted(rows):
            click.echo(f"{name:{width}}  {_describe(name, code, partitions, detailed=bool(names))}")
        if not rows:
            say("The cluster has no topics that this user may see.")
    if any(code for _, code, _ in rows):
        raise SystemExit(int(ExitStatus.FAILED))


def _error_name(code: int) -> str | None:
    if not code:
        return None
    row = ERROR_CODES.get(code)
    return row.name if row is not None else f"error {code}"


class _Partition(NamedTuple):
    """A partition in TOPICS_REPLY. Earlier daemons send no replicas."""

    partition: int
    leader: int
    isr: list[int]
    replicas: list[int] = []  # noqa: RUF012 (a tuple's default is never changed)
    offline: list[int] = []  # noqa: RUF012

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)

    def line(self) -> str:
        text = f"{self.partition}: leader {self.leader}, in sync {self.isr}"
        if self.is_under_replicated:
            text += f" of {self.replicas}"
        return text + (f", offline {self.offline}" if self.offline else "")


def _describe(name: str, code: int, partitions: list[list[Any]], *, detailed: bool) -> str:
    if code:
        hint = " (create it, or check the spelling)" if code == 3 else ""
        return f"cannot be used: {_error_name(code)}{hint}"
    rows = sorted(_Partition(*each) for each in partitions)
    text = counted(len(partitions), "partition")
    for words, found in (
        ("no leader yet for", [each for each in rows if each.leader < 0]),
        ("under-replicated:", [each for each in rows if each.is_under_replicated]),
    ):
        if found:
            text += f", {words} {', '.join(str(each.partition) for each in found)}"
    if detailed:
        text += "".join(f"\n    {each.line()}" for each in rows)
    return text
