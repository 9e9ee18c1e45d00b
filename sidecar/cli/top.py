"""``kafka-sidecar top``: rates and totals, again and again, read from the segment."""

from __future__ import annotations

import time
from collections.abc import Mapping

import click

from sidecar.cli.common import daemon_info, fail, holder_of, run_dir_option
from sidecar.controller.run_dir import RunDir

_SHOWN = (
    ("records_accepted_total", "records accepted"),
    ("records_delivered_total", "records delivered"),
    ("records_failed_total", "records failed"),
    ("records_dead_lettered_total", "records dead lettered"),
    ("bytes_accepted_total", "bytes accepted"),
    ("bytes_sent_total", "bytes sent"),
    ("batches_sent_total", "batches sent"),
    ("batches_retried_total", "batches sent again"),
    ("requests_total", "requests"),
    ("request_errors_total", "request errors"),
    ("holds_total", "streams held back"),
)
_GAUGES = (
    ("records_held", "records held"),
    ("clients_connected", "clients connected"),
    ("buffer_pages_taken", "buffer pages in use"),
    ("in_flight_requests", "requests in flight"),
    ("broker_connections", "broker connections"),
)


@click.command()
@run_dir_option
@click.option("--interval", "interval_s", default=1.0, show_default=True, type=click.FloatRange(0.1, 3600))
@click.option(
    "-n", "--iterations", type=click.IntRange(1), help="Stop after this many updates [default: until Ctrl-C]."
)
def top(run_dir: RunDir, interval_s: float, iterations: int | None) -> None:
    """Watch rates per second and totals. Reads the shared segment only: works on a hung daemon too.

    \b
    kafka-sidecar top
    kafka-sidecar top --interval 5 -n 1
    """
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    from sidecar.shm.segment import Segment, SegmentError
    from sidecar.telemetry.collector import read_counters, sum_counters

    info = daemon_info(run_dir)
    try:
        segment = Segment.attach(info["segment"])
    except (SegmentError, OSError) as error:
        fail(f"The segment {info['segment']} cannot be read: {error}.")

    def look(before: Mapping[str, int], now: Mapping[str, int], seconds: float) -> Table:
        table = Table(title=f"kafka-sidecar {info['run_dir']}", title_justify="left")
        table.add_column("")
        table.add_column("per second", justify="right")
        table.add_column("total", justify="right")
        for name, label in _SHOWN:
            rate = (now.get(name, 0) - before.get(name, 0)) / seconds
            table.add_row(label, f"{rate:,.0f}", f"{now.get(name, 0):,}")
        for name, label in _GAUGES:
            table.add_row(label, "", f"{now.get(name, 0):,}")
        return table

    try:
        before, since = sum_counters(read_counters(segment)), time.monotonic()
        console = Console()
        with Live(console=console, auto_refresh=False) as live:
            done = 0
            while iterations is None or done < iterations:
                time.sleep(interval_s)
                now, at = sum_counters(read_counters(segment)), time.monotonic()
                live.update(look(before, now, at - since), refresh=True)
                before, since = now, at
                done += 1
                if holder_of(run_dir) is None:
                    fail(f"The daemon on run dir {run_dir.path} has ended.", 69)
    except KeyboardInterrupt:
        return
    finally:
        segment.close()
