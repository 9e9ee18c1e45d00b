"""Goal: `top` shows the daemon's facts sorted, as plain rows in a pipe, as JSON, and as a screen with keys."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from client_stub import Producer
from sidecar.cli.top import _key
from sidecar.cli.top_screen import screen
from sidecar.cli.top_tables import SORTS, Sample, plain, sample_of
from sidecar.shm.counters import COUNTER_ROWS
from sidecar.tools.testing.daemon import SidecarDaemon, cli
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.waiting import wait_until

ZERO = {row.name: 0 for row in COUNTER_ROWS}


def sample(**info: Any) -> Sample:
    topics = [
        {"topic": "a", "bytes_per_second": 5.0, "journal_bytes": 9, "held_bytes": 1, "clients": 3},
        {"topic": "b", "bytes_per_second": 7000.0, "journal_bytes": 9, "held_bytes": 0, "clients": 1},
        {"topic": "c\x1b[2J", "journal_bytes": 9, "held_bytes": 4, "clients": 2},
    ]
    clients = [
        {"client": each, "pid": 7, "submissions_per_second": rate, "topics": [], "topic_count": 1}
        for each, rate in (("web", 1.0), ("bulk", 2.0))
    ]
    report = {
        "state": "degraded",
        "sentence": "Broker 1 is down.",
        "advice": "",
        "notices": [],
        "workers": [],
    }
    report |= {"pool": {"pages": 100}, "oldest_held": None, **info}
    now = {**ZERO, "records_accepted_total": 300}
    flows = {"topics": topics, "clients": clients, "topic_count": 3, "client_count": 2}
    return sample_of(report, now, ZERO, 2.0, flows)


def rows(text: str, word: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.startswith(f"{word} ")]


@pytest.mark.parametrize(
    ("sort", "topics"),
    list(zip(SORTS, (["b", "a", "c"], ["c", "a", "b"], ["a", "c", "b"], ["a", "b", "c"]), strict=True)),
)
def test_topics_are_sorted(sort: str, topics: list[str]) -> None:
    shown = plain(sample(), sort, 10)
    assert [row[1][0] for row in rows(shown, "topic")] == topics
    assert len(rows(plain(sample(), sort, 2), "topic")) == 2


def test_plain_rows_have_numbers_without_separators_and_names_on_one_line() -> None:
    shown = plain(sample(advice="Look at it."), "rate", 10)
    assert shown.startswith("state  degraded: Broker 1 is down.\nstate  Look at it.\n")
    assert ["rate", "records", "accepted", "150", "300"] in rows(shown, "rate")
    assert ["topic", "b", "7000", "9", "0", "1"] in rows(shown, "topic")
    assert "\x1b" not in shown and "c\\x1b[2J" in shown


def test_a_client_that_waits_says_what_for() -> None:
    hold = {"client": "web", "reason": "share", "topic": "a", "since_seconds": 75.0, "streams": 1}
    shown = plain(sample(holds=[hold]), "held", 10)
    assert rows(shown, "client")[0] == ["client", "web", "7", "1", "1", "share", "1", "min", "15", "s"]


def test_a_narrow_screen_has_no_empty_columns_and_names_are_whole() -> None:
    broker = {"id": 2, "address": "kafka-2.example:9092", "state": "down", "since_seconds": 9, "in_flight": 0}
    broker |= {
        "throttle_ms": 0,
        "held_records": 5,
        "last_error": "Cannot connect to it: Connection refused. " * 3,
    }
    console = Console(width=80, file=io.StringIO())
    console.print(
        screen(sample(brokers=[broker], run_dir="/run/x"), "rate", 10, is_reversed=False, console=console)
    )
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "kafka-2.example:9092" in shown and "throttled" not in shown
    assert "records accepted" in shown and "records failed" not in shown, "none ever failed"


def test_a_long_name_cuts_no_number() -> None:
    seen = sample(run_dir="/run/x")
    seen.topics[1]["topic"] = "x" * 249
    console = Console(width=80, file=io.StringIO())
    console.print(screen(seen, "rate", 10, is_reversed=False, console=console))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    (row,) = [line.split() for line in shown.splitlines() if line.startswith("xxx")]
    assert row[0].endswith("x…") and row[1:] == ["7,000", "9", "0", "1"]


@pytest.mark.parametrize("height", [24, 17, 12, 8])
def test_a_low_screen_says_how_many_rows_it_leaves_out(height: int) -> None:
    """The rows at its end were cut off, those of the workers first, without a word."""
    workers = [
        {"index": index, "state": "ready", "pid": 100 + index, "slot": index, "restarts": 0, "last_death": ""}
        for index in range(9)
    ]
    all_rows = 3 + 2 + len(workers)
    console = Console(width=80, height=height, file=io.StringIO())
    seen = screen(sample(workers=workers, run_dir="/run/x"), "rate", 10, is_reversed=False, console=console)
    console.print(seen)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) <= height
    shown = [line.split()[0] for line in lines if re.match(r"(a|b|c\\x1b\S*|bulk|web) | +\d  ready", line)]
    assert lines[-1].startswith(f"… {all_rows - len(shown)} more rows: make the window taller. s sorts")
    if height == 24:
        assert {"a", "b", "web", "bulk", "0", "1"} <= set(shown), "some rows of each table"
        assert len(lines) >= height - 2
    tall = Console(width=80, height=60, file=io.StringIO())
    tall.print(screen(sample(workers=workers, run_dir="/run/x"), "rate", 10, is_reversed=False, console=tall))
    assert tall.file.getvalue().rstrip().endswith("\ns sorts, r reverses, q ends")  # type: ignore[attr-defined]


def test_a_line_names_the_columns_of_plain_rows() -> None:
    shown = plain(sample(), "rate", 10).splitlines()
    names = next(line for line in shown if line.startswith("#topic "))
    assert names.split() == ["#topic", "topic", "bytes/s", "journal_bytes", "in_the_pool", "clients"]
    first = shown[shown.index(names) + 1]
    assert first.split() == ["topic", "b", "7000", "9", "0", "1"]
    assert len(first) == len(names), "each below its name"
    assert "#rate" in {line.split()[0] for line in shown if line}


@pytest.fixture(scope="module")
def daemon() -> Iterator[SidecarDaemon]:
    with (
        FakeBroker({"orders": 2, "clicks": 2}) as kafka,
        SidecarDaemon(kafka.bootstrap_servers) as daemon,
        Producer(daemon.run_dir, client_name="billing") as producer,
    ):
        producer.send("orders", b"x" * 5000).result(30)
        producer.send("clicks", b"x").result(30)
        yield daemon


@pytest.mark.process
def test_top_of_a_daemon_that_hangs(daemon: SidecarDaemon) -> None:
    assert daemon.process is not None
    os.kill(daemon.process.pid, signal.SIGSTOP)
    try:
        shown = daemon.command("top", "-n", "1", "--interval", "0.1", "--sort", "name")
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)
    assert shown.stdout.startswith("state  stopped: ")
    assert [row[1] for row in rows(shown.stdout, "topic")] == ["clicks", "orders"]
    assert rows(shown.stdout, "client")[0][1:3] == ["billing", str(os.getpid())]
    assert len(rows(shown.stdout, "worker")) == 2


@pytest.mark.process
def test_top_as_json(daemon: SidecarDaemon) -> None:
    shown = daemon.command("top", "-n", "2", "--interval", "0.1", "--json")
    first, second = map(json.loads, shown.stdout.splitlines())
    assert first["state"] == second["state"] == "running"
    assert second["totals"]["records delivered"] == 2
    assert {each["topic"] for each in second["topics"]} == {"orders", "clicks"}


@pytest.mark.process
def test_keys_sort_and_end(daemon: SidecarDaemon) -> None:
    command = [*cli("top"), "--run-dir", str(daemon.run_dir)]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(command[0], command, {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "60"})
    seen = b""

    def shows(words: bytes) -> bool:
        nonlocal seen
        seen += os.read(terminal, 1 << 16)
        return words in seen

    try:
        wait_until(lambda: shows(b"Topics (2, by rate)"), "the first screen")
        os.write(terminal, b"s")
        wait_until(lambda: shows(b"Topics (2, by held)"), "another order")
        os.write(terminal, b"q")
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    finally:
        os.close(terminal)


def test_why_it_ends_is_said_after_the_screen() -> None:
    """The screen of a terminal goes with all that was written to it, and the sentence went, too."""
    code = (
        "from sidecar.cli.common import fail\n"
        "from sidecar.cli.top import _watch\n"
        "_watch(lambda: fail('The daemon has ended.', 69), 0.1, None, 'rate', 5)"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-c", code], {**os.environ, "TERM": "xterm"})
    seen = b""
    with contextlib.suppress(OSError):  # EIO: the program has ended, and nothing is left to read
        while found := os.read(terminal, 1 << 16):
            seen += found
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 69
    leaves_screen = b"\x1b[?1049l"
    assert b"The daemon has ended." in seen.partition(leaves_screen)[2]


def test_keys_pressed_at_once_all_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one stood in a buffer of Python, of which select() knows nothing."""
    ours, terminals = os.pipe()
    with os.fdopen(ours) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        os.write(terminals, b"sq")
        assert [_key(5.0), _key(5.0)] == ["s", "q"]
        os.close(terminals)
        with pytest.raises(KeyboardInterrupt):
            _key(5.0)
