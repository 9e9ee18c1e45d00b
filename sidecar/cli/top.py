"""``kafka-sidecar top``: repeatedly shows state, rates, brokers, topics and clients, read from the segment."""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING

import click

from sidecar.cli.common import daemon_info, fail, holder_of, run_dir_option
from sidecar.cli.options import NumberRange
from sidecar.cli.top_tables import SORTS, Sample, plain, sample_of
from sidecar.common.model import ExitStatus
from sidecar.controller.rundir.run_dir import RunDir
from sidecar.shm.segment import Segment, SegmentError
from sidecar.telemetry.collector import read_counters, sum_counters
from sidecar.telemetry.flows import Flows

if TYPE_CHECKING:
    from rich.console import RenderableType


@click.command()
@run_dir_option
@click.option(
    "--interval",
    "interval_s",
    default=1.0,
    show_default=True,
    type=NumberRange(0.1, 3600),
    help="Seconds between updates.",
)
@click.option(
    "-n", "--iterations", type=click.IntRange(1), help="Stop after this many updates [default: until Ctrl-C]."
)
@click.option(
    "--sort",
    type=click.Choice(SORTS),
    default=SORTS[0],
    show_default=True,
    help="Order of topics and clients.",
)
@click.option(
    "--rows", default=10, show_default=True, type=click.IntRange(1, 200), help="Rows of each table."
)
@click.option("--json", "as_json", is_flag=True, help="For programs: one JSON object a line.")
def top(
    run_dir: RunDir, interval_s: float, iterations: int | None, sort: str, rows: int, as_json: bool
) -> None:
    """Watch state, rates, brokers, topics, clients, failures and workers.

    It reads the shared segment and the daemon's last report only, so it works on a daemon that hangs too. In a
    terminal the key s goes to the next order, r reverses it, and q ends. The last line counts rows that the window has
    no room for. Into a pipe go plain rows: the first word of each names its table, and a line with # its columns.

    \b
    kafka-sidecar top
    kafka-sidecar top --sort held --rows 30
    kafka-sidecar top --interval 5 -n 1 | grep ^client
    kafka-sidecar top -n 1 --json | jq .topics
    """
    sample = _sampler(run_dir)
    try:
        if sys.stdout.isatty() and sys.stdin.isatty() and not as_json:
            _watch(sample, interval_s, iterations, sort, rows)
            return
        for _ in count() if iterations is None else range(iterations):
            time.sleep(interval_s)
            seen = sample()
            print(json.dumps(seen.to_json()) if as_json else plain(seen, sort, rows), flush=True)
    except KeyboardInterrupt:
        return


def _sampler(run_dir: RunDir) -> Callable[[], Sample]:
    """A function that reads one sample per call, with rates since the previous call."""
    info = daemon_info(run_dir)
    try:
        segment = Segment.attach(info["segment"])
    except (SegmentError, OSError) as error:
        hint = f" The page at {info['http']} shows the same." if info.get("http") else ""
        fail(f"The segment {info['segment']} cannot be read: {error}.{hint}")
    flows = Flows(segment)
    before, since_s = sum_counters(read_counters(segment)), time.monotonic()
    flows.sample(since_s)

    def sample() -> Sample:
        nonlocal before, since_s
        if holder_of(run_dir) is None:
            fail(f"The daemon on run dir {run_dir.path} has ended.", ExitStatus.DAEMON_UNREACHABLE)
        now_s, counters = time.monotonic(), sum_counters(read_counters(segment))
        seen = sample_of(daemon_info(run_dir), counters, before, now_s - since_s, flows.sample(now_s))
        before, since_s = counters, now_s
        return seen

    return sample


def _watch(
    sample: Callable[[], Sample], interval_s: float, iterations: int | None, sort: str, rows: int
) -> None:
    """Show a screen that is redrawn in the terminal, and handle keys."""
    from rich.live import Live

    from sidecar.cli.top_screen import screen

    is_reversed = False

    def shown(seen: Sample) -> RenderableType:
        return screen(seen, sort, rows, is_reversed=is_reversed, console=live.console)

    last_words = io.StringIO()
    try:
        with _keys(), Live(auto_refresh=False, screen=iterations is None) as live:
            seen: Sample | None = None
            for _ in count() if iterations is None else range(iterations):
                due_s = time.monotonic() + (interval_s if seen else min(interval_s, 0.3))
                while (left_s := due_s - time.monotonic()) > 0:
                    key = _key(left_s)
                    if key == "q":
                        return
                    if key == "s":
                        sort = SORTS[(SORTS.index(sort) + 1) % len(SORTS)]
                    is_reversed ^= key == "r"
                    if key and seen is not None:
                        live.update(shown(seen), refresh=True)
                with contextlib.redirect_stderr(last_words):
                    seen = sample()
                live.update(shown(seen), refresh=True)
    finally:
        # Print why it ended after the screen is gone, as everything written to the screen is lost.
        sys.stderr.write(last_words.getvalue())


def _key(wait_s: float) -> str:
    """The next key; empty when none came in time. Read unbuffered, as select() does not see a buffer."""
    terminal = sys.stdin.fileno()
    if not select.select([terminal], [], [], wait_s)[0]:
        return ""
    found = os.read(terminal, 1)
    if not found:
        raise KeyboardInterrupt  # the terminal is gone
    return found.decode("latin-1")


@contextlib.contextmanager
def _keys() -> Iterator[None]:
    """Switch the terminal to pass each key at once and not to show it."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
