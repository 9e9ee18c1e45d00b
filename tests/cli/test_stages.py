"""Goal: stages are shown so that an operator knows whose they are, what they wait for, and how to end them."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from sidecar.cli.explain import describe
from sidecar.cli.main import cli
from sidecar.cli.stages import HEAD, stage_line, stage_rows

SEALED: dict[str, Any] = {
    "transactional_id": "import",
    "number": 7,
    "owner": "run-1",
    "client": "worker.py",
    "worker": 0,
    "state": "sealed",
    "records": 25_000,
    "bytes": 3 << 20,
    "age_seconds": 75.0,
    "left_seconds": 3_525.0,
    "token": "stage-1-x",
}
OPEN = {**SEALED, "state": "open", "age_seconds": None, "left_seconds": None, "owner": ""}


def test_sealed_stage_waits_for_an_include() -> None:
    assert stage_line(SEALED) == (
        "stage 7 of import of owner run-1  sealed  25,000 records, 3,145,728 bytes, for 1 min 15 s, 58 min 45 s left: "
        "it waits for include() by the producer with transactional id import, or for `kafka-sidecar txn drop`"
    )


def test_open_stage_is_being_filled() -> None:
    assert stage_line(OPEN).endswith("worker.py fills it, and has not sealed it yet")
    assert "of owner" not in stage_line(OPEN)


def test_rows_have_a_cell_for_each_title() -> None:
    rows = stage_rows([SEALED, OPEN])
    assert {len(row) for row in rows} == {len(HEAD)}
    assert rows[0][:5] == ["import", "7", "run-1", "sealed", "25,000"]
    assert rows[1][6:8] == ["-", "-"]


def test_explain_has_stages_and_says_how_many_more() -> None:
    found = {
        "is_answered": True,
        "is_known": True,
        "waiting": [],
        "clients": [],
        "failures": [],
        "silent_workers": [],
        "stages": [SEALED] * 25,
        "stage_count": 30,
    }
    lines = describe(found, "")
    assert sum(line.startswith("stage 7 of import") for line in lines) == 20
    assert "and 10 more stages: `kafka-sidecar txn list` has them" in lines
    assert "Nothing waits." not in lines


@pytest.mark.parametrize("words", [(), ("--all", "--up-to", "3"), ("--token", "x", "--all")])
def test_drop_needs_to_know_which(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(cli, ["txn", "drop", "import", *words])
    assert done.exit_code == 2
    assert "--up-to NUMBER, --token TOKEN or --all" in done.stderr


def test_drop_without_a_daemon() -> None:
    done = CliRunner().invoke(cli, ["txn", "drop", "import", "--all", "--run-dir", "/nobody/here"])
    assert done.exit_code == 69
