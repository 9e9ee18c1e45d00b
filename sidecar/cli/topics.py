"""``kafka-sidecar topics``: topics of the cluster, as the daemon sees them."""

from __future__ import annotations

import json

import click

from client_stub.error_codes import ERROR_CODES
from client_stub.wire import Kind
from sidecar.cli.common import run_dir_option
from sidecar.cli.control_client import ask
from sidecar.common.model import ExitStatus
from sidecar.controller.run_dir import RunDir


@click.command()
@run_dir_option
@click.argument("names", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="For programs: one JSON object.")
@click.option(
    "--timeout", "timeout_s", default=15.0, show_default=True, help="Seconds to wait for the answer."
)
@click.option("--wait", "wait_s", type=click.FloatRange(0, 30), help="Seconds to wait for NAMES to be there.")
def topics(
    run_dir: RunDir, names: tuple[str, ...], as_json: bool, timeout_s: float, wait_s: float | None
) -> None:
    """List the cluster's topics, or show the NAMES given with their partitions.

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
    (rows,) = ask(run_dir, question, timeout_s)
    if as_json:
        shown = {
            name: {
                "error": _error_name(code),
                "partitions": [
                    {"partition": p, "leader": leader, "isr": isr} for p, leader, isr, *_ in partitions
                ],
            }
            for name, code, partitions in rows
        }
        click.echo(json.dumps(shown, indent=1))
    else:
        width = max((len(name) for name, _, _ in rows), default=0)
        for name, code, partitions in sorted(rows):
            click.echo(f"{name:{width}}  {_describe(name, code, partitions, detailed=bool(names))}")
        if not rows:
            click.echo("The cluster has no topics.", err=True)
    if any(code for _, code, _ in rows):
        raise SystemExit(int(ExitStatus.FAILED))


def _error_name(code: int) -> str | None:
    if not code:
        return None
    row = ERROR_CODES.get(code)
    return row.name if row is not None else f"error {code}"


def _describe(name: str, code: int, partitions: list[list[object]], *, detailed: bool) -> str:
    if code:
        hint = " (create it, or check the spelling)" if code == 3 else ""
        return f"cannot be used: {_error_name(code)}{hint}"
    count = len(partitions)
    leaderless = [str(p) for p, leader, *_ in partitions if isinstance(leader, int) and leader < 0]
    text = f"{count} partition{'' if count == 1 else 's'}"
    if leaderless:
        text += f", no leader yet for {', '.join(leaderless)}"
    if detailed:
        text += "".join(f"\n    {p}: leader {leader}, in sync {isr}" for p, leader, isr, *_ in partitions)
    return text
