"""``kafka-sidecar demo``: the main job on real input, judged by an independent consumer."""

from __future__ import annotations

import click

from sidecar.cli.common import fail


@click.command()
@click.option("--bootstrap-servers", help="Use this running cluster instead of an embedded one.")
@click.option("--mock", is_flag=True, help="No Java: librdkafka's mock cluster, without Spark.")
@click.option("--keep", is_flag=True, help="Leave everything up until Ctrl-C.")
def demo(bootstrap_servers: str | None, mock: bool, keep: bool) -> None:
    """Send the flights of 2013 through the sidecar and have an independent consumer count them.

    Exit 0 only when all counts agree.

    \b
    kafka-sidecar demo
    kafka-sidecar demo --bootstrap-servers kafka1:9092
    kafka-sidecar demo --mock
    """
    if mock and bootstrap_servers:
        raise click.UsageError("--mock and --bootstrap-servers exclude each other: take one of them.")
    try:
        from sidecar.demo.main import run_demo
    except ImportError as error:
        fail(f"The demo needs the [demo] extra ({error.name} is missing): pip install 'kafka-sidecar[demo]'.")
    raise SystemExit(run_demo(bootstrap_servers=bootstrap_servers, mock=mock, keep=keep))
