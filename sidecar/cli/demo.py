"""``kafka-sidecar demo``: the main use on real input, checked by an independent consumer."""

from __future__ import annotations

import click

from sidecar.cli.extras import need_java, need_packages
from sidecar.cli.options import bootstrap_servers_option


@click.command()
@bootstrap_servers_option()
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
    need_packages(
        "The demo", "demo", "sidecar.tools.demo", "confluent_kafka", *(() if mock else ("pyspark", "pyarrow"))
    )
    if not mock:
        need_java("The demo", embedded_kafka=bootstrap_servers is None)
    from sidecar.tools.demo.main import run_demo

    raise SystemExit(run_demo(bootstrap_servers=bootstrap_servers, mock=mock, keep=keep))
