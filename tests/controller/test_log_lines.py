"""Goal: each format of the log says level, process and message in one line, and no secret is in a banner."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import cast

import pytest

from sidecar.common.log_lines import JournalLines, JsonLines, LogLines
from sidecar.config.loader import load_config
from sidecar.controller.rundir.segment_store import SegmentStore
from sidecar.controller.status.banner import Farewell, start_line
from sidecar.tools.testing.private_text import write_private

EVIL = "a\n<0>forged\x1b[2J"


def record(level: int, text: str, *, with_traceback: bool = False) -> logging.LogRecord:
    caught = None
    if with_traceback:
        try:
            raise ValueError("why")
        except ValueError:
            caught = sys.exc_info()
    return logging.LogRecord("sidecar.x", level, __file__, 1, "client %s", (text,), caught)


def test_text_has_time_with_zone_level_and_process() -> None:
    line = LogLines("worker 0").format(record(logging.WARNING, EVIL))
    day, clock, level, rest = line.split(" ", 3)
    assert (len(day), len(clock.split(".")[1]), level) == (10, 8, "WARNING"), line
    assert rest == "worker 0: client a\\n<0>forged\\x1b[2J"


@pytest.mark.parametrize(
    ("level", "head"),
    [(logging.DEBUG, "<7>"), (logging.INFO, "<6>"), (logging.WARNING, "<4>"), (logging.ERROR, "<3>")],
)
def test_the_journal_gets_a_priority_in_each_line(level: int, head: str) -> None:
    lines = JournalLines("controller").format(record(level, EVIL, with_traceback=True)).splitlines()
    assert lines[0] == head + "controller: client a\\n<0>forged\\x1b[2J"
    assert len(lines) > 2
    assert all(line.startswith(head) for line in lines), "a traceback too"


def test_json_is_one_object_a_line() -> None:
    line = JsonLines("worker 1").format(record(logging.ERROR, EVIL, with_traceback=True))
    assert "\n" not in line
    found = json.loads(line)
    assert found["time"].endswith("Z")
    assert (found["level"], found["process"], found["logger"]) == ("error", "worker 1", "sidecar.x")
    assert found["message"] == "client a\\n<0>forged\\x1b[2J"
    assert "ValueError: why" in found["traceback"]


def test_the_banner_names_what_differs_and_hides_secrets(tmp_path: Path) -> None:
    file = write_private(
        tmp_path / "sidecar.toml",
        '[kafka]\n"bootstrap.servers" = "a:1"\n"linger.ms" = 20\n"security.protocol" = "SASL_PLAINTEXT"\n'
        '"sasl.mechanism" = "PLAIN"\n"sasl.username" = "me"\n"sasl.password" = "Marked-Password"\n'
        '[clients.billing]\ntoken = "Marked-Token"\n',
    )
    long = ",".join(f"host{number}:1" for number in range(100))
    config = load_config(file, ("batch.size=16384", f"bootstrap.servers={long}"))
    line = start_line(config, tmp_path)
    assert "Marked" not in line
    assert "sasl.password = ***" in line
    assert f"linger.ms = 20 ({file})" in line
    assert "1 [clients] table" in line
    assert "batch.size" not in line, "set, and to the default"
    assert "host9:1" in line
    assert "host99:1" not in line, "a value is shown up to a bound"
    assert "All settings are the defaults" not in line


class _Totals:
    """The store's totals, which a test sets."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    def total(self, row: str) -> int:
        return self.rows.get(row, 0)


@pytest.mark.parametrize(
    ("aborted", "words"), [(0, "0 became"), (3, "3 aborted with their transactions, 0 became")]
)
def test_last_line_counts_the_outcomes_of_the_drain(aborted: int, words: str) -> None:
    totals = _Totals()
    farewell = Farewell(cast(SegmentStore, totals), 10.0)
    totals.rows = {"records_delivered_total": 1, "records_failed_total": 2, "records_aborted_total": aborted}
    assert farewell.line(11.5) == (
        f"Drained in 1.5 s: 1 record delivered, 2 failed to their senders, {words} dead letters. This daemon ends."
    )
    assert farewell.losses(0, Path("/letters")) == (
        "",
        "2 records could not be delivered before the end and failed to their senders.",
    )
