"""``kafka-sidecar bench``: compares the sidecar with the clients it replaces, on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from sidecar.cli.common import fail
from sidecar.cli.extras import need_java, need_packages
from sidecar.cli.options import RenamedOption, bootstrap_servers_option

DEFAULT_TOPIC = "bench"


@click.command()
@bootstrap_servers_option()
@click.option(
    "--topic", metavar="NAME", help="An existing topic of that cluster (needed with --bootstrap-servers)."
)
@click.option(
    "--records",
    type=click.IntRange(min=1_000),
    default=1_000_000,
    show_default=True,
    help="Records of each run.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Runs of each side.")
@click.option("--only", multiple=True, metavar="PART", help="One part, see above; may be repeated.")
@click.option(
    "--json-file",
    "--json",
    "json_path",
    cls=RenamedOption,
    type=click.Path(path_type=Path),
    help="Write every number here.",
)
@click.option("--markdown", "markdown_path", type=click.Path(path_type=Path), help="Write the tables here.")
@click.option(
    "--plots", "plots_dir", type=click.Path(path_type=Path), help="Write pictures into this folder."
)
def bench(
    bootstrap_servers: str | None,
    topic: str | None,
    records: int,
    rounds: int,
    only: tuple[str, ...],
    json_path: Path | None,
    markdown_path: Path | None,
    plots_dir: Path | None,
) -> None:
    """Measure this machine: the sidecar and the clients it replaces, same broker, records and guarantees.

    Starts its own daemons on temporary run dirs. Runs alternate between the sides; medians are shown with their
    spread. On your own cluster the records stay in the topic you name. A failed part is named at the end, and the
    command exits 1; the other results are printed and written anyway.

    \b
    kafka-sidecar bench     everything, on an embedded Kafka: about an hour
    kafka-sidecar bench --only throughput --only sync --rounds 3
    kafka-sidecar bench --bootstrap-servers kafka1:9092 --topic scratch

    \b
    Parts: kernel throughput tls tcp crash-safety twins callers java spark
           sync transactions open-loop interference fleet first-ack memory idle
           adoption scrape scale
    """
    need_packages("The bench", "demo", "sidecar.tools.bench")
    from sidecar.tools.bench.main import PARTS, WITHOUT_KAFKA, Outputs, run_bench

    unknown = [part for part in only if part not in PARTS]
    if unknown:
        raise click.UsageError(f"There is no part {unknown[0]!r}: take some of {', '.join(PARTS)}.")
    if bootstrap_servers is not None and topic is None:
        raise click.UsageError("--bootstrap-servers needs --topic: records are written to it and stay there.")
    parts = only or PARTS
    on_kafka = {*parts} - {*WITHOUT_KAFKA}
    has_kafka = "tls" in parts or (on_kafka and bootstrap_servers is None)
    need_packages(
        "The bench",
        "demo",
        *(["confluent_kafka"] if on_kafka or has_kafka else []),
        *(["pyspark", "pyarrow", "pandas"] if "spark" in parts else []),
    )
    need_packages(
        "The bench",
        "dev",
        *(["cryptography"] if "tls" in parts else []),
        *(["matplotlib"] if plots_dir else []),
    )
    if has_kafka or on_kafka & {"java", "spark"}:
        need_java("The bench", embedded_kafka=True)
    results = run_bench(
        records=records,
        rounds=rounds,
        parts=parts,
        bootstrap_servers=bootstrap_servers,
        topic=topic or DEFAULT_TOPIC,
        outputs=Outputs(json_path, markdown_path, plots_dir),
    )
    if results.failures:
        fail(f"The bench failed in part: {', '.join(each.part for each in results.failures)}; see above.")
