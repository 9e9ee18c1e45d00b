"""docs/states.md is what the tables say, and each table is one that can be drawn."""

from __future__ import annotations

import re
from enum import StrEnum

from tests.conventions.state_diagrams import DOCUMENT, MACHINES, ROOT, edges, page


def test_the_page_is_printed_from_the_tables() -> None:
    assert DOCUMENT.read_text() == page(), (
        "print it again: .demo/venv/bin/python -m tests.conventions.state_diagrams"
    )


def test_every_table_of_states_is_drawn() -> None:
    """Each of the code: another one belongs on the page as well."""
    files = {
        path.relative_to(ROOT).as_posix()
        for room in ("sidecar", "client_stub")
        for path in (ROOT / room).rglob("*.py")
        if re.search(r"^\w*TRANSITIONS\b", path.read_text(), re.MULTILINE)
    }
    drawn = {file for machine in MACHINES for file in re.findall(r"`([\w/]+\.py)`", machine.text)}
    assert files == drawn, f"name each in MACHINES of tests/conventions/state_diagrams.py: {files ^ drawn}"


class Light(StrEnum):
    RED = "red"
    GREEN = "green"
    OFF = "off"


def test_a_drawing_has_every_step_of_its_table() -> None:
    table = {
        Light.RED: {"goes": Light.GREEN, "fails": Light.OFF},
        Light.GREEN: {"goes": Light.RED},
        Light.OFF: {"goes": Light.OFF},
    }
    assert list(edges(table)) == [
        "[*] --> red",
        "red --> green: goes",
        "red --> off: fails",
        "green --> red: goes",
        "off --> off: goes",
        "off --> [*]",
    ]
