"""``kafka-sidecar chaos``: does nothing get lost on *your* cluster, whoever is killed?"""

from __future__ import annotations

import click

from sidecar.cli.common import fail


@click.command()
@click.option("--bootstrap", metavar="HOST:PORT,...", help="Use this running cluster, not an embedded one.")
@click.option("--topic", help="Write to this topic [default: one of its own, deleted afterwards].")
@click.option("--partitions", default=6, show_default=True, help="Of a topic that is made for the run.")
@click.option(
    "--seed", type=int, help="Of the plan of faults; the same seed is the same plan [default: random]."
)
@click.option("--kills", type=click.IntRange(1), help="Go on until so many kills.")
@click.option("--duration", type=float, metavar="S", help="Go on for so many seconds [default: 60].")
@click.option("--records", type=int, default=0, help="Go on until so many records were sent.")
@click.option("--clients", type=click.IntRange(1, 64), default=4, show_default=True, help="Client processes.")
@click.option("--rate", default=20_000.0, show_default=True, help="Records/s of all clients; 0: unlimited.")
@click.option("--value-bytes", type=click.IntRange(16, 100_000), default=64, show_default=True)
@click.option(
    "-X", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of the daemon, as in `run`."
)
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on standard output.")
def chaos(
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
    """Kill workers, clients and the whole daemon under load, and count what became of every record.

    A daemon of its own on a temporary run dir, clients in processes of their own, a fault proxy before the
    cluster. By a seeded plan workers, the daemon and clients are killed with SIGKILL, processes are stopped for
    shorter and longer than their heartbeat, connections are cut and answers lost. Then a consumer that is not
    ours reads everything back. Exit 0 only when nothing was lost, doubled, reordered or told wrongly.

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
