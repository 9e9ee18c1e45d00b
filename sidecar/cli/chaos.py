"""``kafka-sidecar chaos``: does *your* cluster lose a record, whichever process is killed?"""

from __future__ import annotations

import click

from sidecar.cli.common import fail


@click.command()
@click.option("--bootstrap", metavar="HOST:PORT,...", help="Use this running cluster, not an embedded one.")
@click.option("--topic", help="Write to this topic [default: a temporary one].")
@click.option("--partitions", default=6, show_default=True, help="Partitions of a topic created for the run.")
@click.option(
    "--seed",
    type=int,
    help="Seed of the plan of faults; the same seed gives the same plan [default: random].",
)
@click.option("--kills", type=click.IntRange(1), help="Run until this many kills.")
@click.option("--duration", type=float, metavar="S", help="Run for this many seconds [default: 60].")
@click.option("--records", type=int, default=0, help="Run until this many records were sent.")
@click.option("--clients", type=click.IntRange(1, 64), default=4, show_default=True, help="Client processes.")
@click.option("--rate", default=20_000.0, show_default=True, help="Records/s of all clients; 0: unlimited.")
@click.option("--value-bytes", type=click.IntRange(16, 100_000), default=64, show_default=True)
@click.option(
    "-X", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of the daemon, as in `run`."
)
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on standard output.")
def chaos(
    *,
    bootstrap: str | None,
    topic: str | None,
    partitions: int,
    seed: int | None,
    kills: int | None,
    duration: float | None,
    records: int,
    clients: int,
    rate: float,
    value_bytes: int,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Kill workers, clients and the whole daemon under load, and check the outcome of every record.

    The run has its own daemon, client processes and a fault proxy before the cluster. A seeded plan kills workers,
    the daemon and clients with SIGKILL, stops processes for shorter and longer than their heartbeat, cuts
    connections and loses answers. Then an independent consumer reads everything back. Exit 0 only when no record
    was lost, duplicated or reordered, and no outcome was wrong.

    \b
    kafka-sidecar chaos --kills 100
    kafka-sidecar chaos --bootstrap kafka1:9092 --duration 600 --seed 7
    """
    pairs = [pair.partition("=") for pair in settings]
    if not all(mark for _, mark, _ in pairs):
        raise click.UsageError("-X wants NAME=VALUE.")
    try:
        from sidecar.chaos.main import ChaosOptions, run_chaos
    except ImportError as error:
        fail(f"chaos needs the [demo] extra ({error.name} is missing): pip install 'kafka-sidecar[demo]'.")
    raise SystemExit(
        run_chaos(
            ChaosOptions(
                bootstrap_servers=bootstrap,
                topic=topic,
                partitions=partitions,
                seed=seed,
                kills=kills,
                duration_s=duration,
                records=records,
                clients=clients,
                rate=rate,
                value_bytes=value_bytes,
                settings={name: value for name, _, value in pairs},
                json=as_json,
            )
        )
    )
