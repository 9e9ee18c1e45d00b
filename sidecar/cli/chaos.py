"""``kafka-sidecar chaos``: does *your* cluster lose a record, whichever process is killed?"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import click

from sidecar.cli.extras import need_java, need_packages
from sidecar.cli.options import NumberRange, bootstrap_servers_option, settings_option

TRANSACTION_VALUE_BYTES_MIN = 28
"""Which client, which record, which transaction."""


@click.command()
@bootstrap_servers_option("--bootstrap")
@click.option("--topic", metavar="NAME", help="Write to this topic [default: a temporary one].")
@click.option(
    "--partitions",
    type=click.IntRange(1),
    default=6,
    show_default=True,
    help="Partitions of a topic created for the run.",
)
@click.option(
    "--seed",
    type=int,
    help="Seed of the plan of faults; the same seed gives the same plan [default: random].",
)
@click.option("--kills", type=click.IntRange(1), help="Run until this many kills.")
@click.option("--duration", type=NumberRange(0), help="Run for this many seconds [default: 60, soak: 1800].")
@click.option("--records", type=click.IntRange(0), default=0, help="Run until this many records were sent.")
@click.option("--clients", type=click.IntRange(1, 64), default=4, show_default=True, help="Client processes.")
@click.option(
    "--rate",
    type=NumberRange(0),
    default=20_000.0,
    show_default=True,
    help="Records/s of all clients; 0: unlimited.",
)
@click.option(
    "--value-bytes",
    type=click.IntRange(16, 100_000),
    default=64,
    show_default=True,
    help="Size of each value.",
)
@settings_option
@click.option("--transactions", is_flag=True, help="Clients with transactional ids; see above.")
@click.option("--soak", is_flag=True, help="A long steady load that judges growth; see above.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Soak: draw it into this PNG.")
@click.option("--json", "as_json", is_flag=True, help="For programs: one JSON object.")
def chaos(
    *,
    bootstrap_servers: str | None,
    topic: str | None,
    seed: int | None,
    kills: int | None,
    duration: float | None,
    clients: int,
    value_bytes: int,
    overrides: tuple[str, ...],
    transactions: bool,
    soak: bool,
    plot: Path | None,
    as_json: bool,
    **others: Any,
) -> None:
    """Kill workers, clients and the whole daemon under load, and check the outcome of every record.

    The run has its own daemon, client processes and a fault proxy before the cluster. A seeded plan kills workers,
    the daemon and clients with SIGKILL, stops processes for shorter and longer than their heartbeat, cuts
    connections and loses answers. Then an independent consumer reads everything back. Exit 0 only when no record
    was lost, duplicated or reordered, and no outcome was wrong.

    \b
    kafka-sidecar chaos --kills 100
    kafka-sidecar chaos --bootstrap-servers kafka1:9092 --duration 600 --seed 7

    --transactions gives each client a transactional id, and adds takeovers and broker kills. Exit 0 only when a
    consumer of committed records sees each transaction whole or not at all, and as its client was told.

    \b
    kafka-sidecar chaos --transactions --kills 100 --rate 4000

    --soak runs for half an hour with the same ledger. By turns, a client ends, a worker is killed, a client is
    killed and the embedded broker restarts; one more client opens a producer a second. Memory, descriptors, threads,
    the segment's tables and a quiet client's latency are sampled. Exit 1 also when one of them grows.

    \b
    kafka-sidecar chaos --soak --rate 56000 --value-bytes 16 --plot soak.png
    """
    if soak and transactions:
        raise click.UsageError("--soak has no transactions: run it without --transactions.")
    if transactions and value_bytes < TRANSACTION_VALUE_BYTES_MIN:
        raise click.UsageError(
            f"A value of a transaction has {TRANSACTION_VALUE_BYTES_MIN} bytes at least: raise --value-bytes."
        )
    if soak and (seed is not None or kills is not None):
        raise click.UsageError("--soak has a fixed order of events: it takes no --seed and no --kills.")
    if soak and clients < 2:
        raise click.UsageError("--soak needs two clients at least: one stays, the others come and go.")
    if plot is not None and not soak:
        raise click.UsageError("--plot draws a soak: add --soak.")
    pairs = [pair.partition("=") for pair in overrides]
    if not all(mark for _, mark, _ in pairs):
        raise click.UsageError("-X must be KEY=VALUE, such as -X linger.ms=5.")
    need_packages("The chaos run", "demo", "sidecar.tools.chaos", "confluent_kafka")
    if plot is not None:
        need_packages("The soak's picture", "dev", "matplotlib")
    if bootstrap_servers is None:
        need_java("The chaos run", embedded_kafka=True)
    from sidecar.tools.chaos.main import run_chaos, run_soak
    from sidecar.tools.chaos.options import ChaosOptions

    options = ChaosOptions(
        bootstrap_servers=bootstrap_servers,
        topic=topic,
        seed=seed,
        kills=kills,
        duration_s=duration,
        clients=clients,
        value_bytes=value_bytes,
        transactions=transactions,
        settings={name: value for name, _, value in pairs},
        json=as_json,
        **others,
    )
    if not soak:
        raise SystemExit(run_chaos(options))
    draw = None
    if plot is not None:
        from sidecar.tools.bench.soak_plot import plot_soak

        draw = functools.partial(plot_soak, path=plot)
    raise SystemExit(run_soak(options, draw))
